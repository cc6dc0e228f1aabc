"""What a module runs: its symbol, converted for the shapes that it is bound with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, Iterable, Optional, Sequence, Tuple

import mxnet as mx

from .. import dtypes
from ..devices.check import warn_if_slow
from ..graph import Graph
from ..passes import ScaleLoss, StoreParams
from ..passes.emulate import has_float16
from ..passes.facts import CAST_OPS
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..symbol import Converted, convert_graph, from_graph, to_graph

LOSS_SCALE = "loss_scale"
"""Name of the input that holds the loss scale; shape (1,), float32."""

_OTHER_FLOATS = (*dtypes.LOW_PRECISION, "float64")


@dataclass(frozen=True)
class Runnable:
    """A symbol as executors run it.

    Attributes:
        converted: The symbol under its policy, without a loss scale.
        scaling: The same with a loss scale, if it has any.
        symbol: What executors bind.
        scaled: Whether its loss heads were to get a loss scale.
        loss_outputs: Numbers of the outputs that come from scaled loss heads.
        on_cpu: Whether it is for a CPU, where float16 is emulated.
        unstored: None, or the same with casts of parameters that this one wants in low precision already, which is
            what other modules and other shapes can share.
    """

    converted: Converted
    scaling: Converted
    symbol: Any
    scaled: bool
    has_loss_scale: bool
    loss_outputs: Tuple[int, ...]
    on_cpu: bool
    unstored: Optional[Runnable] = None

    @property
    def stored_params(self) -> FrozenSet[str]:
        """Names of the parameters that it wants in low precision and ``unstored`` casts at each call."""
        return frozenset() if self.unstored is None else self.scaling.low_params - self.unstored.scaling.low_params


def prepare(
    symbol: Any,
    policy: Policy,
    inputs: Iterable[mx.io.DataDesc],
    params: FrozenSet[str],
    stored: FrozenSet[str],
    contexts: Sequence[mx.Context],
    scaled: bool,
    loss_heads: FrozenSet[str],
    trains: bool,
    adds: bool = False,
) -> Runnable:
    """Convert a float32 network for executors on contexts; on CPU float16 is emulated.

    ``inputs`` describe data and labels; ``params`` are the names of parameters and auxiliary states, ``stored`` of
    those in low precision already, ``loss_heads`` of Custom operators that are loss heads, which get a loss scale if
    ``scaled``; ``trains``: whether the executors run backward, ``adds``: whether gradients are added to earlier ones.

    Raises ConvertError, PolicyError or PassError, which name the node or the override.
    """
    on_cpu = any(context.device_type != "gpu" for context in contexts)
    if on_cpu:
        warn_if_slow(policy.compute_dtype)
    inputs = list(inputs)
    shapes = {each.name: tuple(each.shape) for each in inputs}
    types = input_types(symbol, inputs)
    converted = convert_graph(symbol, policy, shapes, types, params, stored)
    result = _with_loss_scale(converted, loss_heads) if scaled else converted
    runs = _running(result, on_cpu, trains, frozenset() if adds else frozenset(shapes) | params)
    outputs = _loss_outputs(result.graph, loss_heads) if scaled else ()
    return Runnable(converted, result, runs, scaled, result is not converted, outputs, on_cpu)


def store_params(runnable: Runnable, params: FrozenSet[str], inputs: Iterable[mx.io.DataDesc]) -> Runnable:
    """Return what runs for inference with parameters stored as all that reads them casts them; the same if none are.

    Their casts are taken out: what sets the parameters has cast them once. Arguments as for `prepare`.
    """
    before = runnable.scaling
    if is_emulated(runnable):  # widening float16 would take longer than rounding float32
        return runnable
    each = StoreParams(before.facts, params)
    stored = each.find(before.graph)
    if not stored:
        return runnable
    changed = before.with_graph(each(before.graph).graph, stored)
    result = replace(changed, low_params=before.low_params | frozenset(stored))
    return replace(runnable, scaling=result, symbol=_running(result, runnable.on_cpu, False, params), unstored=runnable)


def is_emulated(runnable: Runnable) -> bool:
    """Return whether float16 is emulated."""
    return runnable.on_cpu and has_float16(runnable.scaling.facts)


def _running(converted: Converted, on_cpu: bool, trains: bool, written: FrozenSet[str]) -> Any:
    """Return the symbol that executors bind; MXNet fuses what is bound to infer."""
    fused = not trains
    symbol = converted.on_cpu(trains, fused, written) if on_cpu else converted.on_gpu(trains)
    return _with_dtypes(symbol, converted.facts.variable_dtypes(converted.graph))


def input_types(symbol: Any, inputs: Iterable[mx.io.DataDesc]) -> Dict[str, str]:
    """Return the dtypes of data and labels whose variables do not declare theirs."""
    return {each.name: dtypes.canonical(each.dtype) for each in inputs if not _is_declared(symbol, each)}


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
        return [as_bound(each, data_descs, label_descs) for each in batch]
    labels = getattr(batch, "label", None)
    if _fits(batch.data, data_descs) and _fits(labels, label_descs):
        return batch
    names = ("pad", "index", "bucket_key", "provide_data", "provide_label")
    rest = {name: getattr(batch, name, None) for name in names}
    return mx.io.DataBatch(_cast(batch.data, data_descs), _cast(labels, label_descs), **rest)


def _needs_cast(array: Any, desc: mx.io.DataDesc) -> bool:
    is_other = isinstance(array, mx.nd.NDArray) and dtypes.canonical(array.dtype) in _OTHER_FLOATS
    return is_other and dtypes.canonical(desc.dtype) == dtypes.FLOAT32


def _fits(arrays: Any, descs: Any) -> bool:
    return not any(map(_needs_cast, arrays or (), descs or ()))


def _cast(arrays: Any, descs: Any) -> Any:
    if _fits(arrays, descs):
        return arrays
    return [a.astype(dtypes.FLOAT32) if _needs_cast(a, desc) else a for a, desc in zip(arrays, descs)]


def _with_loss_scale(converted: Converted, loss_heads: FrozenSet[str]) -> Converted:
    """Return a converted symbol whose loss heads read the loss scale; the same one if it has none."""
    scaled = ScaleLoss(converted.facts, LOSS_SCALE, loss_heads)(converted.graph)
    return converted.with_graph(scaled.graph) if scaled.modified else converted


def _loss_outputs(graph: Graph, loss_heads: FrozenSet[str]) -> Tuple[int, ...]:
    """Return the numbers of the outputs that come from loss heads, casts behind them passed over."""
    found = []
    for number, head in enumerate(graph.heads):
        node = graph.nodes[head.node]
        while node.op in CAST_OPS:
            node = graph.nodes[node.inputs[0].node]
        if is_loss_head(node) or node.name in loss_heads:
            found.append(number)
    return tuple(found)


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


def accumulates(grad_req: Any) -> bool:
    """Return whether gradients of any argument add up over several backwards; ``grad_req`` as for ``bind``."""
    if isinstance(grad_req, str):
        return grad_req == "add"
    return "add" in (grad_req.values() if isinstance(grad_req, dict) else grad_req)
