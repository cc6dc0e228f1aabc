"""Save, load and export a converted net: files are written whole or not at all, and checked before they are read."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Tuple

from mxnet import MXNetError, gluon

from .. import dtypes
from ..checkpoint import check_arrays_file
from ..errors import ConvertError, mxnet_reason
from ..files import is_local, saving
from ..mxnet_private import blocks, parameters
from ..symbol import Converted, save_checkpoint
from ..symbol.checkpoint import require_whole
from . import storage
from .folding import folded_model, input_shapes
from .graphs import ConvertedGraph
from .lookup import net_method
from .traced_net import TracedNet


class FileHooks(TracedNet):
    """The methods of a conversion that replace those of its net which write and read files."""

    @net_method
    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net, its casts included, for plain MXNet: both files or neither.

        The graph of inference if the net has been called for inference; of several the one that ran last.
        """
        if not self.graphs.ops and self.own_graph is not None and self.early is not None and not self.for_inference:
            # A SymbolBlock has its graph before it is called: contrib.amp's scripts convert and export at once.
            require_export_folder(path)
            stored = [(False, param) for param in self.net.collect_params().values()]
            with storage.as_stored(self.net.collect_params().values()):
                values = values_for(self.early.symbol, stored)
            save_checkpoint(path, epoch, self.early.symbol, *values, remove_amp_cast=remove_amp_cast)
            return
        graph = self.graph_to_export(path)
        if self.for_inference:
            symbol, args, aux = folded_model(self.net, graph, self.policy)
            save_checkpoint(path, epoch, symbol, args, aux, remove_amp_cast)
            return
        symbol = self._unfolded(graph).symbol
        params = [(False, param) for param in graph.traced.params.values()]
        with storage.as_stored(self.net.collect_params().values()):
            if type(self.net).export is not gluon.HybridBlock.export:  # the user's own writes what it likes
                blocks.cached_graph.set(self.net, (graph.traced.inputs, symbol))
                blocks.cached_op_args.set(self.net, params)
                self.original("export", path, epoch, remove_amp_cast=remove_amp_cast)
                return
            save_checkpoint(path, epoch, symbol, *values_for(symbol, params), remove_amp_cast=remove_amp_cast)

    def graph_to_export(self, path: str) -> ConvertedGraph:
        """Return the graph of inference, or of training if there is no other; of several the one that ran last.

        Raises:
            ConvertError: If the net has not been called, or if there is no folder to write to.
        """
        if not self.graphs.ops:
            raise ConvertError(
                f"block '{self.net.name}' has not been called yet, so its parameters and shapes are not known; "
                f"run one batch before exporting."
            )
        require_export_folder(path)
        built = {number for number, *_ in self.graphs.ops}
        calls = self.graphs.calls.items()
        outside = {call: graph for call, graph in calls if call.region is None and id(graph) in built}
        if not outside:
            raise ConvertError(
                f"block '{self.net.name}' has been called in precision regions only; run one batch outside of them "
                f"before exporting."
            )
        inferring = [graph for call, graph in outside.items() if not call.training]
        found = inferring or list(outside.values())
        return next((graph for graph in found if graph is self.current), found[-1])

    def _unfolded(self, graph: ConvertedGraph) -> Converted:
        """Return the conversion that reads the net's own parameters: another one where a backend has it folded."""
        if not graph.converted.folds:
            return graph.converted
        return self._convert(graph.traced.trace, input_shapes(graph), graph.traced.types)

    @net_method
    def save_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Save float32 values as MXNet does, whole or not at all."""
        save(filename, lambda name: self.original("save_parameters", name, *args, **kwargs))

    @net_method
    def save_params(self, filename: str) -> None:
        """Save as `save_parameters`, under the name that MXNet deprecates."""
        save(filename, lambda name: self.original("save_params", name))

    @net_method
    def load_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Load a file as MXNet does once it is found whole; parameters keep the dtypes that the policy gives them."""
        if is_local(filename):
            check_arrays_file(filename)
        wide = [param for param in self._params() if storage.dtype_of(param) == dtypes.FLOAT32]
        self.original("load_parameters", filename, *args, **kwargs)
        if self.early is not None:
            self._store(self.early)
            return
        for param in wide:
            storage.widen(param)  # with ``dtype_source='saved'`` it has the dtype of the file


def require_export_folder(path: str) -> None:
    """Raise a ConvertError if there is no folder for the files of an export."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConvertError(f"export: path={path!r}: there is no folder {folder}; make it first.")


def save(filename: str, write: Callable[[str], None]) -> None:
    """Write a file of parameters through ``write``, which is given the name to write to, whole or not at all."""
    if not is_local(filename):
        write(filename)
        return
    with saving(f"{filename}: the parameters", filename) as (name,):
        try:
            write(name)
        except gluon.parameter.DeferredInitializationError:
            raise
        except MXNetError as e:
            raise OSError(mxnet_reason(e)) from e
        require_whole(name)


def values_for(symbol: Any, params: Iterable[Tuple[bool, gluon.Parameter]]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the arguments and auxiliary states among (is it an input, the parameter else) of a cached operator."""
    found = {param.name: parameters.reduced(param) for is_input, param in params if not is_input}
    aux = {name: found.pop(name) for name in symbol.list_auxiliary_states() if name in found}
    return {name: found[name] for name in symbol.list_arguments() if name in found}, aux
