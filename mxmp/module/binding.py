"""What the executors of a module run: its symbol, converted for the shapes that they are bound with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx

from .. import dtypes
from ..devices.check import warn_if_slow
from ..graph import Graph
from ..passes import ScaleLoss
from ..passes.facts import CAST_OPS
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..symbol import Converted, convert_graph, from_graph, to_graph
from ..symbol.rewrite import ShapeOutcomes

LOSS_SCALE = "loss_scale"
"""Name of the input that holds the loss scale; shape (1,), float32."""

_OTHER_FLOATS = (*dtypes.LOW_PRECISION, "float64")


@dataclass(frozen=True)
class Runnable:
    """A symbol as executors run it.

    Attributes:
        converted: The symbol under its policy, without a loss scale.
        scaling: The same with a loss scale, if it has any.
        symbol: The symbol that executors bind; on a CPU float16 is emulated in it.
        loss_outputs: Numbers of the outputs that come from scaled loss heads.
        on_cpu: Whether it is for a CPU.
    """

    converted: Converted
    scaling: Converted
    symbol: Any
    loss_outputs: Tuple[int, ...]
    on_cpu: bool

    @property
    def has_loss_scale(self) -> bool:
        """Whether the symbol has the input `LOSS_SCALE`."""
        return self.scaling is not self.converted


@dataclass
class Conversions:
    """The conversions of one float32 symbol: one for each outcome of the conditions that shapes decide.

    Attributes:
        symbol: The symbol, or one that mxmp converted before.
        policy: The policy.
        params: Names of the parameters and auxiliary states.
        contexts: Where it runs.
        loss_heads: Names of Custom operators that are loss heads.
        scaled: Whether loss heads get a loss scale.
        trains: Whether executors run backward.
        adds: Whether gradients are added to earlier ones.
    """

    symbol: Any
    policy: Policy
    params: FrozenSet[str]
    contexts: Sequence[mx.Context]
    loss_heads: FrozenSet[str] = frozenset()
    scaled: bool = False
    trains: bool = True
    adds: bool = False
    _outcomes: Optional[ShapeOutcomes] = field(default=None, init=False)
    _runnables: Dict[Any, Runnable] = field(default_factory=dict, init=False)

    def find(self, inputs: Sequence[mx.io.DataDesc], stored: FrozenSet[str]) -> Runnable:
        """Return the conversion for data and labels of these shapes, one that was made before where it is the same.

        ``stored`` has the names of the parameters that are stored in low precision already.

        Raises:
            ConvertError: If the network does not type-check by itself; it names the node.
            PolicyError: If an override cannot be met.
            PassError: If the network's gradient cannot be scaled; it names the node.
        """
        if self._outcomes is None:
            types = _input_types(self.symbol, inputs)
            self._outcomes = ShapeOutcomes(self.symbol, self.policy.compute_dtype, types, self.params)
        outcome = self._outcomes({desc.name: tuple(desc.shape) for desc in inputs})
        if outcome not in self._runnables:
            self._runnables[outcome] = self.prepare(inputs, stored)
        return self._runnables[outcome]

    def prepare(self, inputs: Iterable[mx.io.DataDesc], stored: FrozenSet[str] = frozenset()) -> Runnable:
        """Convert the symbol for data and labels of these shapes; the arguments and errors are those of `find`."""
        on_cpu = any(context.device_type != "gpu" for context in self.contexts)
        if on_cpu:
            warn_if_slow(self.policy.compute_dtype)
        inputs = list(inputs)
        shapes = {desc.name: tuple(desc.shape) for desc in inputs}
        types = _input_types(self.symbol, inputs)
        converted = convert_graph(self.symbol, self.policy, shapes, types, self.params, stored)
        scaling = converted
        outputs: Tuple[int, ...] = ()
        if self.scaled:
            after = ScaleLoss(converted.facts, LOSS_SCALE, self.loss_heads)(converted.graph)
            scaling = converted.with_graph(after.graph) if after.modified else converted
            outputs = _loss_outputs(scaling.graph, self.loss_heads)
        if on_cpu:  # MXNet fuses what is bound to infer
            written = frozenset() if self.adds else frozenset(shapes) | self.params
            symbol = scaling.on_cpu(self.trains, not self.trains, written)
        else:
            symbol = scaling.on_gpu(self.trains)
        symbol = _with_dtypes(symbol, scaling.facts.variable_dtypes(scaling.graph))
        return Runnable(converted, scaling, symbol, outputs, on_cpu)


def _loss_outputs(graph: Graph, loss_heads: FrozenSet[str]) -> Tuple[int, ...]:
    """Return the numbers of the outputs that come from loss heads, casts behind them passed over."""
    outputs = []
    for number, head in enumerate(graph.heads):
        node = graph.nodes[head.node]
        while node.op in CAST_OPS:
            node = graph.nodes[node.inputs[0].node]
        if is_loss_head(node) or node.name in loss_heads:
            outputs.append(number)
    return tuple(outputs)


def _with_dtypes(symbol: Any, types: Dict[str, str]) -> Any:
    """Return a symbol whose variables declare their dtypes; casts hide them from MXNet's inference."""
    graph = to_graph(symbol)
    nodes = tuple(
        node.with_attrs({"__dtype__": dtypes.to_flag(types[node.name])})
        if node.is_variable and node.name in types and node.get("__dtype__") is None
        else node
        for node in graph.nodes
    )
    return symbol if nodes == graph.nodes else from_graph(replace(graph, nodes=nodes), symbol)


# ---------------------------------------------------------------------- data and labels


def _input_types(symbol: Any, inputs: Iterable[mx.io.DataDesc]) -> Dict[str, str]:
    """Return the dtypes of data and labels whose variables do not declare theirs."""
    return {desc.name: dtypes.canonical(desc.dtype) for desc in inputs if not _is_declared(symbol, desc)}


def _is_declared(symbol: Any, desc: mx.io.DataDesc) -> bool:
    return bool(symbol.attr_dict().get(desc.name, {}).get("__dtype__", "-1") != "-1")


def as_float32(symbol: Any, descs: Any) -> Any:
    """Return descriptions of data, or of labels, in float32 where they are in another float dtype.

    MXNet's inference takes the dtype of parameters and of all that is computed from the data's. The policy decides it
    here. A variable that declares its dtype keeps it.
    """
    return descs and [
        mx.io.DataDesc(desc.name, desc.shape, dtypes.FLOAT32, desc.layout)
        if dtypes.canonical(desc.dtype) in _OTHER_FLOATS and not _is_declared(symbol, desc)
        else desc
        for desc in descs
    ]


def as_bound(batch: Any, data_descs: Any, label_descs: Any) -> Any:
    """Return a batch, or a list of them, in the dtypes that are bound.

    MXNet casts what it copies to a CPU, and refuses to where a GPU has another dtype (``Copy`` in
    src/ndarray/ndarray_function.cu at tag 1.9.1).
    """
    if isinstance(batch, list):
        return [as_bound(part, data_descs, label_descs) for part in batch]
    labels = getattr(batch, "label", None)
    arrays = _cast(batch.data, data_descs), _cast(labels, label_descs)
    if arrays[0] is batch.data and arrays[1] is labels:
        return batch
    batch = copy.copy(batch)
    batch.data, batch.label = arrays
    return batch


def _cast(arrays: Any, descs: Any) -> Any:
    """Return arrays with those in another float dtype cast to a float32 that is bound; the same if none are."""
    wrong = {
        number
        for number, (array, desc) in enumerate(zip(arrays or (), descs or ()))
        if isinstance(array, mx.nd.NDArray) and dtypes.canonical(array.dtype) in _OTHER_FLOATS
        if dtypes.canonical(desc.dtype) == dtypes.FLOAT32
    }
    if not wrong:
        return arrays
    return [array.astype(dtypes.FLOAT32) if number in wrong else array for number, array in enumerate(arrays)]


def inputs_of(descs: Any) -> List[mx.io.DataDesc]:
    """Return the descriptions of data and labels in one list; labels may be None."""
    return [desc for group in descs for desc in group or ()]
