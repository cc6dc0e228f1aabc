"""Files of a converted net: written whole or not at all, and checked before they are read."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Tuple

from mxnet import MXNetError, gluon

from ..arrays_file import check_arrays_file
from ..errors import ConvertError, mxnet_reason
from ..files import is_local, saving
from ..symbol import save_checkpoint
from ..symbol.io import require_whole
from . import storage
from .hooks import net_method
from .traced import TracedNet

Arrays = Dict[str, Any]


class FileHooks(TracedNet):
    """The hooks of a conversion that write and read files."""

    @net_method
    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net, its casts included, for plain MXNet: both files or neither.

        Where training and inference have different graphs, that of inference is written if the
        net has been called for inference; of several the one that ran last.

        Raises:
            ConvertError: If the net has not seen a batch yet, or the folder is missing.
            CheckpointError: If a file cannot be written; then nothing is changed.
        """
        if not self.ops:
            raise ConvertError(
                f"block '{self.net.name}' has not been called yet, so its parameters and shapes are not known; "
                f"run one batch before exporting."
            )
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ConvertError(f"export: path={path!r}: there is no folder {folder}; make it first.")
        built = {number for number, _ in self.ops}
        outside = {key: mode for key, mode in self.modes.items() if key.region is None and id(mode) in built}
        if not outside:
            raise ConvertError(
                f"block '{self.net.name}' has been called in precision regions only; run one batch outside of them "
                f"before exporting."
            )
        inferring = [mode for key, mode in outside.items() if not key.training]
        found = inferring or list(outside.values())
        mode = self.current if self.current in found else found[-1]
        params = next(args for (key, _), (_, args) in self.ops.items() if key == id(mode))
        with storage.as_stored(self.net.collect_params().values()):
            if type(self.net).export is not gluon.HybridBlock.export:  # the user's own writes what it likes
                self.net._cached_graph, self.net._cached_op_args = (mode.inputs, mode.converted.symbol), params
                self._original("export", path, epoch, remove_amp_cast=remove_amp_cast)
                return
            values = values_for(mode.converted.symbol, params)
            save_checkpoint(path, epoch, mode.converted.symbol, *values, remove_amp_cast=remove_amp_cast)

    @net_method
    def save_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Save float32 values as MXNet does, whole or not at all."""
        save(filename, lambda name: self._original("save_parameters", name, *args, **kwargs))

    @net_method
    def save_params(self, filename: str) -> None:
        """Save as `save_parameters`, under the name that MXNet deprecates."""
        save(filename, lambda name: self._original("save_params", name))

    @net_method
    def load_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Load a file as MXNet does once it is found whole, and store in low precision what this has initialized."""
        check(filename)
        self._original("load_parameters", filename, *args, **kwargs)
        if self.early is not None:
            self._store(self.early)


def save(filename: str, write: Callable[[str], None]) -> None:
    """Write a file of parameters through ``write``, which is given the name to write to.

    Raises:
        CheckpointError: If the file cannot be written; then what was there is as it was.
    """
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


def check(filename: str) -> None:
    """Check a file of parameters before MXNet reads it.

    Raises:
        CheckpointError: If it is missing or damaged; it names the entry.
    """
    if is_local(filename):
        check_arrays_file(filename)


def values_for(symbol: Any, params: Iterable[Tuple[bool, gluon.Parameter]]) -> Tuple[Arrays, Arrays]:
    """Return the arguments and the auxiliary states of a symbol.

    Args:
        symbol: What a net runs.
        params: What its cached operator is given: whether it is an input, and the parameter else.
    """
    found = {param.name: param._reduce() for is_input, param in params if not is_input}
    groups = (symbol.list_arguments(), symbol.list_auxiliary_states())
    args, aux = ({name: found[name] for name in group if name in found} for group in groups)
    return args, aux
