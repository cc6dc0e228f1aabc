"""The symbols that executors of a module run: its symbol, converted for the shapes that they are bound with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.module.base_module import _parse_data_desc
from mxnet.module.executor_group import DataParallelExecutorGroup

from .. import dtypes
from ..devices.check import warn_if_slow
from ..graph import Entry, Graph
from ..passes import ScaleLoss
from ..passes.facts import CAST_OPS
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..symbol import Converted, convert_graph, from_graph, to_graph
from ..symbol.rewrite import ShapeOutcomes
from ..train.loss_heads import own_gradients

LOSS_SCALE = "loss_scale"
"""Name of the input that holds the loss scale; shape (1,), float32."""

_OTHER_FLOATS = (*dtypes.LOW_PRECISION, "float64")


@dataclass(frozen=True)
class BoundSymbol:
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
        fixed: Names of parameters that no optimizer has: their values are data.
        scaled: Whether loss heads get a loss scale.
        trains: Whether executors run backward.
        adds: Whether gradients are added to earlier ones.
    """

    symbol: Any
    policy: Policy
    params: FrozenSet[str]
    contexts: Sequence[mx.Context]
    loss_heads: FrozenSet[str] = frozenset()
    fixed: FrozenSet[str] = frozenset()
    scaled: bool = False
    trains: bool = True
    adds: bool = False
    _outcomes: Optional[ShapeOutcomes] = field(default=None, init=False)
    _bound_symbols: Dict[Any, BoundSymbol] = field(default_factory=dict, init=False)

    @property
    def _data(self) -> FrozenSet[str]:
        """The names of inputs, and of parameters that no optimizer has."""
        return frozenset(self.symbol.list_arguments()).difference(self.params) | self.fixed

    def find(self, inputs: Sequence[mx.io.DataDesc], stored: FrozenSet[str]) -> BoundSymbol:
        """Return the conversion for data and labels of these shapes, one that was made before where it is the same.

        ``stored`` has the names of the parameters that are stored in low precision already.

        Raises:
            ConvertError: If the network does not type-check by itself; it names the node.
            PolicyError: If an override cannot be met.
            PassError: If the network's gradient cannot be scaled; it names the node.
        """
        if self._outcomes is None:
            types = _input_types(self.symbol, inputs)
            self._outcomes = ShapeOutcomes(self.symbol, self.policy.compute_dtype, types, self.params, self._data)
        outcome = self._outcomes({desc.name: tuple(desc.shape) for desc in inputs})
        if outcome not in self._bound_symbols:
            self._bound_symbols[outcome] = self.prepare(inputs, stored)
        return self._bound_symbols[outcome]

    def prepare(self, inputs: Iterable[mx.io.DataDesc], stored: FrozenSet[str] = frozenset()) -> BoundSymbol:
        """Convert the symbol for data and labels of these shapes; the arguments and errors are those of `find`."""
        on_cpu = any(context.device_type != "gpu" for context in self.contexts)
        if on_cpu:
            warn_if_slow(self.policy.compute_dtype)
        inputs = list(inputs)
        shapes = {desc.name: tuple(desc.shape) for desc in inputs}
        types = _input_types(self.symbol, inputs)
        converted = convert_graph(self.symbol, self.policy, shapes, types, self.params, stored, inputs=self._data)
        scaling = converted
        outputs: Tuple[int, ...] = ()
        if self.scaled:
            ignoring = frozenset(own_gradients(converted.graph.nodes, self.params))
            after = ScaleLoss(converted.facts, LOSS_SCALE, self.loss_heads, ignoring)(converted.graph)
            scaling = converted.with_graph(after.graph) if after.modified else converted
            outputs = _loss_outputs(scaling.graph, self.loss_heads)
        if on_cpu:  # MXNet fuses layers of executors that are bound to infer.
            written = frozenset() if self.adds else frozenset(shapes) | self.params
            symbol = scaling.on_cpu(self.trains, not self.trains, written)
        else:
            symbol = scaling.on_gpu(self.trains)
        symbol = _declaring(symbol, scaling, self.params)
        return BoundSymbol(converted, scaling, symbol, outputs, on_cpu)


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


def _declaring(symbol: Any, converted: Converted, params: FrozenSet[str]) -> Any:
    """Return a symbol whose variables declare their dtypes, and parameters their shapes.

    Casts hide dtypes from MXNet's inference. Operators that are written out or padded on a CPU hide shapes.
    """
    attrs_of: Dict[str, Dict[str, str]] = {}
    for position, node in enumerate(converted.graph.nodes):
        if node.is_variable:
            dtype, shape = converted.facts.dtype(Entry(position)), converted.facts.shape(Entry(position))
            declared = attrs_of.setdefault(node.name, {})
            if dtype is not None:
                declared["__dtype__"] = dtypes.to_flag(dtype)
            if shape is not None and node.name in params:
                declared["__shape__"] = str(shape)
    graph = to_graph(symbol)
    nodes = tuple(
        node.with_attrs({key: text for key, text in attrs_of.get(node.name, {}).items() if node.get(key) is None})
        if node.is_variable
        else node
        for node in graph.nodes
    )
    return symbol if nodes == graph.nodes else from_graph(replace(graph, nodes=nodes), symbol)


# ---------------------------------------------------------------------- executors


def make_group(module: Any, symbol: Any, shared_group: Any) -> DataParallelExecutorGroup:
    """Return executors of a symbol for the shapes of a module of ours; they share parameters with another group's."""
    names = set(module._param_names)
    group = DataParallelExecutorGroup(
        symbol,
        module._context,
        module._work_load_list,
        module._data_shapes,
        module._label_shapes,
        [name for name in symbol.list_arguments() if name in names],
        module.for_training,
        module.inputs_need_grad,
        shared_group,
        logger=module.logger,
        fixed_param_names=module._fixed_param_names,
        grad_req=module._grad_req,
        group2ctxs=module._group2ctxs,
        state_names=module._state_names,
    )
    # A cast behind an output has the output's name, but not the attribute that says where its batch is.
    layouts = [output.attr("__layout__") for output in module._symbol]
    group.output_layouts = [mx.io.DataDesc.get_batch_axis(layout) for layout in layouts]
    if not module._label_shapes:  # Labels that the symbol does not use only reach metrics.
        group.label_names, group.label_layouts = module.label_names, [0] * len(module.label_names)
    return group


def accumulates(grad_req: Any) -> bool:
    """Return whether gradients of any argument add up over several backwards; ``grad_req`` as for ``bind``."""
    return "add" in (grad_req.values() if isinstance(grad_req, dict) else [grad_req])


class WriteCounter:
    """Counts the writes of mxmp to the parameters and auxiliary states that modules share.

    MXNet fuses layers of executors that are bound to infer on a CPU. A fused layer keeps the weights of its first call
    if it has no BatchNorm, and BatchNorm's statistics if it has one.
    """

    count = 0


class MonitorHook:
    """A monitor at work on the executors of a module, of which there are others for other shapes."""

    def __init__(self) -> None:
        self.monitor: Any = None
        self._executors: List[Any] = []

    def see(self, group: DataParallelExecutorGroup) -> None:
        """Let the monitor, if there is one, see the executors of a group, and no earlier ones."""
        if self.monitor is None:
            return
        held = getattr(self.monitor, "exes", [])
        held[:] = [executor for executor in held if executor not in self._executors]
        self._executors = list(group.execs)
        group.install_monitor(self.monitor)


# ---------------------------------------------------------------------- data and labels


def _input_types(symbol: Any, inputs: Iterable[mx.io.DataDesc]) -> Dict[str, str]:
    """Return the dtypes of data and labels whose variables do not declare theirs."""
    return {desc.name: dtypes.canonical(desc.dtype) for desc in inputs if not _is_declared(symbol, desc)}


def _is_declared(symbol: Any, desc: mx.io.DataDesc) -> bool:
    return bool(symbol.attr_dict().get(desc.name, {}).get("__dtype__", "-1") != "-1")


def describe(module: Any, data_shapes: Any, label_shapes: Any) -> Tuple[Any, Any]:
    """Return descriptions of data and of labels, in the dtypes in which executors of a module of ours take them.

    Labels that the symbol does not use are left out. MXNet's inference gives parameters and results the dtype of the
    data. Here the policy decides: data in another float dtype come as float32, unless their variable declares a dtype.
    """
    symbol, names = module._symbol, set(module._symbol.list_arguments())
    data, labels = _parse_data_desc(module.data_names, module.label_names, data_shapes, label_shapes)
    if not any(desc.name in names for desc in labels or ()):
        labels = None
    cast = [
        group
        and [
            mx.io.DataDesc(desc.name, desc.shape, dtypes.FLOAT32, desc.layout)
            if dtypes.canonical(desc.dtype) in _OTHER_FLOATS and not _is_declared(symbol, desc)
            else desc
            for desc in group
        ]
        for group in (data, labels)
    ]
    return cast[0], cast[1]


def cast_batch(batch: Any, data_descs: Any, label_descs: Any) -> Any:
    """Return a batch, or a list of them, in the dtypes that are bound.

    MXNet casts an array that it copies to a CPU. It refuses to if the array on a GPU has another dtype (``Copy`` in
    src/ndarray/ndarray_function.cu at tag 1.9.1).
    """
    if isinstance(batch, list):
        return [cast_batch(part, data_descs, label_descs) for part in batch]
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
