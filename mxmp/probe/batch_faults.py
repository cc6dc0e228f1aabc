"""What is wrong with a batch though the step is finite: NaN that something swallows, class indices out of range."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

from .. import dtypes
from ..arrays import to_float32
from ..graph import Entry, Graph, Node
from ..passes.facts import Facts
from ..symbol.inference import infer_facts, to_graph
from .faults import Run, rows_of
from .finding import DATA, NonFinite
from .step_replay import Call, LossGradients, is_real
from .value_range import ranges_of

# Operators that hand on what they read first in another shape or dtype.
_PASSING = frozenset(
    ("Reshape", "reshape", "expand_dims", "squeeze", "Cast", "cast", "Flatten", "reshape_like", "_copy", "BlockGrad")
)


def nan_in_batch(runs: Sequence[Run]) -> Optional[NonFinite]:
    """Return the first input or label of a step that holds NaN; None if none does.

    What an earlier call may have given is no data.
    """
    spoilt = False
    for run in runs:
        found = _first_nan(run.call.labels() if spoilt or run.call.follows_lost else run.call.given())
        if found is not None:
            return found
        spoilt = spoilt or any(each.bad for each in run.seen.outputs)
    return None


def nan_given(call: Call) -> Optional[str]:
    """Return which input or label of a call holds NaN, in words; None if none does, or another call may have given it.

    Nothing is run, so the call must be the first one of its step. Arrays on a GPU are not looked at: that would take
    some 17 launches and a read at a step that is skipped, most often for an overflow.
    """
    if call.follows_lost:
        return None
    found = _first_nan({name: array for name, array in call.given().items() if array.ctx.device_type != "gpu"})
    return None if found is None else str(found)


def _first_nan(given: Mapping[str, Any]) -> Optional[NonFinite]:
    for name, array in given.items():
        found = next((each for each in ranges_of({name: array}) if each.nans), None) if is_real(array) else None
        if found is not None:
            return NonFinite(DATA, name, "", dtypes.FLOAT32, found, rows=rows_of(array))
    return None


class BadClasses(NamedTuple):
    """Class indices out of range, and whether that is a fault for certain: a loss may mask what `pick` clips."""

    where: NonFinite
    certain: bool


def class_out_of_range(calls: Sequence[Call]) -> Optional[BadClasses]:
    """Return the first input with a class index that is clipped to another class, or counts as none; None if all fit.

    Found are indices of ``SoftmaxOutput`` and ``pick`` in a network, or in a loss that is a HybridBlock. Negative ones
    of ``pick`` are not: as a rule they are padding, which the loss masks.
    """
    for call in calls:
        inputs = {name: call.values[name] for name in call.inputs if name in call.values}
        decisions = call.decisions
        found = _in_graph(decisions.before, decisions.facts, inputs) or _in_loss(call)
        if found is not None:
            return found
    return None


def _in_loss(call: Call) -> Optional[BadClasses]:
    """Return a bad label of the loss outside of a network, if that can be traced."""
    gradients = call.gradients
    loss = gradients if isinstance(gradients, LossGradients) else gradients and gradients.of_loss
    if not isinstance(loss, LossGradients) or not isinstance(loss.loss, gluon.HybridBlock) or len(loss.labels) != 1:
        return None
    if not all(isinstance(each, mx.nd.NDArray) for each in (loss.outputs, *loss.labels)):
        return None
    values = {"output": loss.outputs, "label": loss.labels[0]}
    try:
        symbol = loss.loss.forward(mx.sym.var("output"), mx.sym.var("label"))  # not called: hooks are for arrays
        graph = to_graph(symbol)
        shapes = {name: array.shape for name, array in values.items()}
        types = dict.fromkeys(values, dtypes.FLOAT32)  # shapes alone are asked for, and MXNet infers no bfloat16
        facts = infer_facts(symbol, graph, shapes, types, frozenset())
    except Exception:  # it is no graph; a user's code, written for arrays, may raise whatever it likes on symbols
        return None
    return _in_graph(graph, facts, {"label": values["label"]})


class _Indices(NamedTuple):
    """Class indices that an operator reads: from where, of how many classes, which it ignores, and if one may mask."""

    entry: Entry
    classes: int
    ignored: Optional[float] = None
    masked: bool = False


def _in_graph(graph: Graph, facts: Facts, inputs: Mapping[str, Any]) -> Optional[BadClasses]:
    for indices in filter(None, (_indices(node, facts) for node in graph.nodes)):
        name = _variable(graph, indices.entry)
        if name not in inputs:
            continue
        values = to_float32(inputs[name]).asnumpy()
        beyond = values >= indices.classes
        bad = beyond if indices.masked else beyond | (values <= -1)
        if indices.ignored is not None:
            bad &= values != indices.ignored
        if bad.any():
            rows = np.flatnonzero(bad.reshape(len(bad) if bad.ndim else 1, -1).any(axis=1))
            (found,) = ranges_of({name: inputs[name]})
            count = indices.classes
            where = NonFinite(DATA, name, "", dtypes.FLOAT32, found, rows=tuple(map(int, rows)), classes=count)
            return BadClasses(where, certain=not indices.masked and bool((bad & beyond).any()))
    return None


def _indices(node: Node, facts: Facts) -> Optional[_Indices]:
    """Return the class indices that a node reads; None if it reads none, or of how many classes is not known."""
    attrs: Dict[str, str] = dict(node.attrs)
    if node.op == "pick" and attrs.get("mode", "clip") == "clip":
        shape = facts.shapes.get(node.inputs[0].key)
        axis = attrs.get("axis", "-1")
        return _Indices(node.inputs[1], shape[int(axis)], masked=True) if shape and axis != "None" else None
    if node.op == "SoftmaxOutput" and len(node.inputs) > 1:
        shape, label = (facts.shapes.get(entry.key) for entry in node.inputs[:2])
        if not shape or label is None or tuple(label) == tuple(shape):  # probabilities
            return None
        ignored = float(attrs.get("ignore_label", "-1")) if _is_set(attrs, "use_ignore") else None
        if _is_set(attrs, "multi_output"):
            return _Indices(node.inputs[1], shape[1], ignored)
        classes = shape[-1] if _is_set(attrs, "preserve_shape") else math.prod(shape[1:])
        return _Indices(node.inputs[1], classes, ignored)
    return None


def _is_set(attrs: Mapping[str, str], name: str) -> bool:
    return attrs.get(name, "") in ("True", "1", "true")


def _variable(graph: Graph, entry: Entry) -> str:
    """Return the name of the variable that an entry comes from, unchanged but for shape and dtype; '' if from none."""
    node = graph.nodes[entry.node]
    while node.op in _PASSING:
        node = graph.nodes[node.inputs[0].node]
    return node.name if node.is_variable else ""
