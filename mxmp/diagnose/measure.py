"""Measure how large the activations and gradients of a network are, on batches of data.

A batch makes calls of graphs (`mxmp.diagnose.subject.Subject.runs`). Each call runs once more in an
`mxmp.diagnose.instrument.Instrument`. It reduces every tensor where it is computed, or taps its gradient.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sized, Tuple, Union

import mxnet as mx

from ..display.terminal import showing_progress
from ..dtypes import PRECISIONS, canonical
from ..errors import ConvertError
from ..graph import Graph, Key
from ..policy import Policy
from ..report.gradients import Gradients, Magnitudes, Ranges
from .batches import Batches, is_batch, read_batches
from .instrument import (
    Instrument,
    facts_of,
    in_dtypes,
    in_float32,
    is_unwritten,
    read_outputs,
    read_ranges,
    summarize,
    variable_dtypes,
)
from .rerun import Call, NodeNames, Replay, run_backward
from .subject import Loss, Subject, read_subject

_LOG = logging.getLogger(__name__)
_NAMED = 3  # The most tensors that a warning names.
_FLOAT32 = Policy()


def measure_ranges(
    network: Any,
    batches: Batches,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Loss = None,
    labels: Optional[int] = None,
    max_batches: Optional[int] = None,
    ctx: Any = None,
) -> Ranges:
    """Run a network on batches of data in float32, and return the largest magnitude of each of its tensors.

    The result is for the ``ranges`` of ``mxmp.gluon.convert`` and ``mxmp.symbol.convert_model``. They keep in float32
    an activation that leaves float16's range, because it is scaled by 1000 for example.

    Args:
        network: A network, as for `compare`; it runs in inference, and is left as it was. The bodies of loops are not
            looked into. Casts of its own to low precision are left out.
        batches: Batches, as for `compare`; a symbol's labels may be left out.
        policy: A policy, to measure the network as it is converted by it; None for float32.
        loss: A loss, only to tell the labels of a batch from the inputs.
        labels: As for `compare`.
        max_batches: How many batches are read at most; None for all.
        ctx: Where a symbol runs; the CPU unless given.

    Returns:
        A mapping from the name of an output ('conv0_output') or input to the largest magnitude among its finite values,
        0 if there is none. Parameters are left out. An attention mask's -inf does not count, because float16 has it. A
        warning of the log counts NaN. ``print`` shows the largest ones as shares of float16's range.

    Raises:
        ConvertError: If the network or a batch is none, or they do not fit each other.
        PolicyError: If the policy is not one.
    """
    largest: Dict[str, float] = {}
    nans: Dict[str, int] = {}
    instruments: Dict[int, _Ranges] = {}
    for replay in _measured("measuring ranges", network, batches, policy, loss, labels, max_batches, ctx):
        call = replay.call
        if id(call.decisions) not in instruments:
            instruments[id(call.decisions)] = _Ranges(call, policy is not None)
        for each in instruments[id(call.decisions)](call):
            largest[each.name] = max(largest.get(each.name, 0.0), each.magnitude)
            if each.nans:
                nans[each.name] = nans.get(each.name, 0) + each.nans
    _warn("measure_ranges: NaN in", nans, "ranges are those of the other elements, 0 where there are none")
    return Ranges(dict(sorted(largest.items(), key=lambda pair: -pair[1])))


def measure_gradients(
    network: Any,
    batches: Batches,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Loss = None,
    labels: Optional[int] = None,
    max_batches: Optional[int] = None,
    ctx: Any = None,
) -> Gradients:
    """Run a network forward and backward in float32, and count the gradients of its activations by magnitude.

    A loss scale is chosen for them: without one, many become 0 in float16. Nothing is trained; dropout drops and
    BatchNorm takes the batch's statistics as in training, and its running ones stay as they are. One gradient after the
    other is counted on the host while backward runs, and none is kept.

    Args:
        network: A network, as for `compare`: a Gluon net, a symbol with loss heads, or one whose outputs are losses.
        batches: Batches, as for `compare`, with all labels.
        policy: A policy, to measure the network as it is converted by it; None for float32.
        loss: The loss of a Gluon net, as for `compare`. Its result is summed, as ``backward`` does.
        labels: As for `compare`.
        max_batches: How many batches are read at most; None for all.
        ctx: Where a symbol runs; the CPU unless given.

    Returns:
        A mapping from the name of an output ('conv0_output') to the magnitudes of its gradient over all batches.
        ``print`` shows which share of all lies in which power of two, and how many become 0 in float16. Outputs without
        a gradient in training, or with 0 everywhere, are left out: nothing reads them, they are those of loss heads, or
        they depend on no parameter that is trained.

    Raises:
        ConvertError: If the network or a batch is none, or if they do not fit each other. If the loss or a label is
            missing. If the network has no activation to measure, or no parameter to train.
        PolicyError: If the policy is not one.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """
    counts: Dict[str, Magnitudes] = {}
    instruments: Dict[int, _Gradients] = {}
    for replay in _measured("measuring gradients", network, batches, policy, loss, labels, max_batches, ctx, True):
        call = replay.call
        if replay.gradients is None:
            raise ConvertError(
                "measure_gradients: the loss of a Gluon net is missing; give it, such as loss=mx.gluon.loss.L2Loss()."
            )
        if call.lacking:
            missing = ", ".join(f"'{name}'" for name in sorted(call.lacking))
            raise ConvertError(f"batches: a batch lacks the label {missing}, which gradients depend on; give it.")
        if id(call.decisions) not in instruments:
            instruments[id(call.decisions)] = _Gradients(call, policy is not None)
        instruments[id(call.decisions)](replay, counts)
    if not any(each.is_trained for each in instruments.values()):
        raise ConvertError("network has no parameter to train, so there are no gradients.")
    names = dict.fromkeys(name for each in instruments.values() for name in each.names if name in counts)
    gradients = {name: counts[name] for name in names if counts[name].total or counts[name].nonfinite}
    bad = {name: each.nonfinite for name, each in gradients.items() if each.nonfinite}
    _warn("measure_gradients: inf or NaN in the gradients of", bad, "all others are counted")
    return Gradients(gradients)


def _measured(
    name: str,
    network: Any,
    batches: Batches,
    policy: Union[None, str, Policy],
    loss: Loss,
    labels: Optional[int],
    max_batches: Optional[int],
    ctx: Any,
    train: bool = False,
) -> Iterator[Replay]:
    """Yield the calls of a network on batches, while a bar shows how many batches were read."""
    subject: Subject = read_subject(network, loss, ctx)
    wanted = _FLOAT32 if policy is None else subject.policy_or(policy)
    count = max_batches or (len(batches) if isinstance(batches, Sized) and not is_batch(batches) else None)
    runs = subject.runs(wanted, read_batches(batches, max_batches), labels, train)
    with contextlib.closing(runs), showing_progress(sys.stderr.isatty()) as show:
        for number, replays in enumerate(runs):
            show(f"{name}: batch {number + 1}", number / count if count else None)
            yield from replays


# ---------------------------------------------------------------------- graphs that are measured


def _graph_of(call: Call, converted: bool) -> Tuple[Graph, NodeNames]:
    """Return the graph of a call that is measured, and the names of its nodes in the network."""
    decisions = call.decisions
    graph = decisions.after if converted else in_float32(decisions.before)
    return graph, NodeNames(decisions.before, graph)


class _Ranges:
    """Runs a graph, and gives the ranges of its outputs of nodes and of its inputs, by their names."""

    def __init__(self, call: Call, converted: bool) -> None:
        graph, names = _graph_of(call, converted)
        known = call.decisions.facts.output_names
        named = {key: known.get((names.source[key[0]], key[1])) for key in _keys(graph, names)}
        variables = ((i, node.name) for i, node in enumerate(graph.nodes) if node.is_variable)
        inputs = {(i, 0): name for i, name in variables if name in call.inputs}
        self._names = {**inputs, **{key: name for key, name in named.items() if name is not None}}
        self._run = Instrument(
            graph,
            call.decisions,
            call.values,
            call.context,
            reduced=list(self._names),
            reduce=lambda heads, outputs: [summarize(mx.sym, each) for each in outputs],
            kept=(),
        )

    def __call__(self, call: Call) -> List[Any]:
        """Return the ranges on the values of a call."""
        reading = self._run(call.values, training=False)
        return read_ranges(list(self._names.values()), [0] * len(self._names), reading.reductions)


def _keys(graph: Graph, names: NodeNames) -> Iterator[Key]:
    """Yield the outputs of the operators of a graph that the network has too: no inserted casts."""
    for position, node in enumerate(graph.nodes):
        if not node.is_variable and position in names.source:
            yield from ((position, index) for index in range(node.num_outputs))


class _Gradients:
    """Runs a graph forward and backward, and counts the gradients of its activations.

    Attributes:
        names: The names of the activations.
        is_trained: Whether the graph reads a parameter that is trained.
    """

    def __init__(self, call: Call, converted: bool) -> None:
        graph, names = _graph_of(call, converted)
        facts = facts_of(graph, in_dtypes(variable_dtypes(graph), call.values))
        trained = {name for name in call.trained if canonical(call.values[name].dtype) in PRECISIONS}
        read = read_outputs(graph, facts, heads=call.is_net)
        reached = _depending(graph, trained)
        known = call.decisions.facts.output_names
        keys = [key for key in read if key[0] in reached and key[0] in names.source]
        self._names = {key: known[names.source[key[0]], key[1]] for key in keys}
        self.names, self.is_trained = list(self._names.values()), bool(trained)
        if not read:
            raise ConvertError("network has no output in floating point that an operator reads: nothing is measured.")
        self._run = Instrument(graph, call.decisions, call.values, call.context, outputs=keys)

    def __call__(self, replay: Replay, counts: Dict[str, Magnitudes]) -> None:
        """Add the gradients of a call to the counts by name; waits for them."""
        if not self._names or replay.gradients is None:
            return
        reading = self._run(replay.call.values)
        run_backward(reading.outputs, replay.gradients(reading.outputs))
        for key, gradient in reading.at_outputs().items():
            counts.setdefault(self._names[key], Magnitudes()).add(gradient.asnumpy())


def _depending(graph: Graph, names: Any) -> List[int]:
    """Return the positions of the nodes that depend on variables, by operators that hand gradients on."""
    reached = set()
    for position, node in enumerate(graph.nodes):
        read = node.name in names if node.is_variable else any(entry.node in reached for entry in node.inputs)
        if read and node.op != "BlockGrad" and not is_unwritten(node):
            reached.add(position)
    return sorted(reached)


def _warn(subject: str, counts: Mapping[str, int], otherwise: str) -> None:
    if counts:
        named = ", ".join(f"'{name}' ({count} elements)" for name, count in list(counts.items())[:_NAMED])
        more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
        _LOG.warning("%s %s%s; %s. diagnose.explain says where it comes from.", subject, named, more, otherwise)
