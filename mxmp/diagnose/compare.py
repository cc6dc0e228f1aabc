"""Compare a network in low precision with float32, node by node: where is accuracy lost?

An error is the 2-norm of a difference from float32 over that of float32's values. Three instruments measure a batch
(four with gradients), and `compare` keeps the worst of all batches:

- side by side: each node's local error and its accumulated error, as norms; the local errors as arrays;
- float32 with a tap at each output in low precision. A backward pass from a projection ``v . y`` of the outputs gives
  ``v . (J e)`` of all nodes at once: the product of the gradient there and the local error ``e``.
- For gradients, float32 and the conversion with a tap at each input of each node. Side by side, each node in low
  precision gets float32's gradient times the loss scale.

References:
    Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections import Counter, defaultdict
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet import autograd

from .. import dtypes
from ..display.terminal import showing_progress
from ..errors import ConvertError
from ..graph import Key
from ..passes.decide import KEEP
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..report import Decisions
from ..report.comparison import Comparison, NodeComparison, OutputComparison
from ..report.make import positions
from ..report.report import AS_IT_WAS
from ..rules import RULES
from .batches import Batches, read_batches
from .instrument import (
    Arrays,
    Instrument,
    Port,
    Reading,
    dense,
    facts_of,
    float32_outputs,
    in_dtypes,
    in_low_precision,
    is_unwritten,
    side_by_side,
    variable_dtypes,
    without_dropout,
)
from .rerun import Call, Gradients, Replay, run_backward
from .subject import FEW, Loss, SymbolSubject, read_subject, require_scale

SCALE = 1024.0
"""The loss scale that is tried first."""

PROJECTIONS = 8
"""How many random directions of the outputs are followed back. With as few output elements, each is, and nothing is
random; else the norm is off by a quarter (its standard deviation)."""

# By operator, the inputs that it adds to its output, so that their gradients are sums over the output's.
_ADDED: Mapping[str, Tuple[int, ...]] = {
    **dict.fromkeys(("FullyConnected", "Convolution", "Deconvolution", "BatchNorm", "LayerNorm", "GroupNorm"), (2,)),
    **dict.fromkeys(("broadcast_add", "broadcast_sub", "_npi_add", "_npi_subtract"), (0, 1)),
}


class Errors(NamedTuple):
    """The errors of a node: that which it adds to float32's values, and that of its output in the converted network."""

    local: float = 0.0
    accumulated: float = 0.0

    def worst(self, other: Errors) -> Errors:
        """Return the larger of each."""
        return Errors(max(self.local, other.local), max(self.accumulated, other.accumulated))


class Measured(NamedTuple):
    """The errors of one graph on one batch.

    Attributes:
        values: Of each output of a node.
        local: The local error of each output in low precision, as an array.
        broken: The outputs of the network that hold inf or NaN in float32.
        gradients: Of the gradients that each node gives, by position; of the worst input.
    """

    values: Dict[Key, Errors]
    local: Dict[Key, Any]
    broken: FrozenSet[Key]
    gradients: Dict[int, Errors]


class Measure:
    """Measures one graph of a network on one batch after the other.

    Args:
        call: A call of the graph, whose values say shapes and dtypes.
        trains: Whether it runs as in training, so that gradients are compared. BatchNorm takes the batch's statistics;
            dropout drops nothing.
        contributes: Whether contributions are asked for.
        scales: Whether the network has loss heads, whose gradients are scaled.
    """

    def __init__(self, call: Call, trains: bool = False, contributes: bool = True, scales: bool = False) -> None:
        decisions = call.decisions
        self.decisions, self._trains = decisions, trains
        self._low = frozenset(in_low_precision(decisions))
        self._keys = [key for key in float32_outputs(decisions) if key[0] in self._low]
        self._has_loops = any(node.subgraphs for node in decisions.before.nodes)
        self._ports = _differentiated(decisions) if trains else frozenset()
        exact, low = without_dropout(decisions.before), without_dropout(decisions.after)
        fixed = decisions, call.values, call.context
        both = side_by_side(decisions, facts_of(low, in_dtypes(variable_dtypes(low), call.values)))
        self._both, self._local_ports = both, {p: both.ports[p] for p in self._ports if p in both.ports}
        local = [both.compared[key][1] for key in self._keys] if trains else []
        self._heads = frozenset(head.key for head in decisions.before.heads) & both.compared.keys()
        heads_of = enumerate(decisions.before.heads)
        self._float32_heads = [n for n, head in heads_of if decisions.facts.dtype(head) == dtypes.FLOAT32]

        def reduce(heads: List[Any], _: List[Any]) -> List[Any]:
            differences = [heads[both.compared[key][1]] - heads[both.compared[key][0]] for key in self._keys]
            return [*self._norms(heads), *(differences if contributes else ())]

        self._both_run = Instrument(both.graph, *fixed, ports={*self._local_ports.values()}, reduce=reduce, kept=local)
        self._projected: Optional[Instrument] = None
        if contributes and self._keys:
            self._projected = Instrument(exact, *fixed, outputs=self._keys, differentiable=True)
        if trains:
            heads = call.loss_heads if scales else None
            outputs = [key for key in float32_outputs(decisions) if not is_loss_head(decisions.before.nodes[key[0]])]
            self._exact = Instrument(exact, *fixed, outputs=outputs, ports=self._ports, loss_heads=heads)
            where = positions(decisions.before, decisions.after)
            self._low_ports = {(where[i], port): (i, port) for i, port in self._ports}
            self._converted = Instrument(low, *fixed, ports=self._low_ports, loss_heads=heads)

    def __call__(self, values: Arrays, gradients: Optional[Gradients] = None, scale: float = 1.0) -> Measured:
        """Return the errors on a batch.

        Args:
            values: The values of all variables by name.
            gradients: Those of the outputs, if gradients are compared.
            scale: The loss scale of the gradients, a power of two.

        Raises:
            ConvertError: If the batch lacks a variable, or MXNet cannot run the network backward.
        """
        reading = self._both_run(values, training=self._trains)
        count = self._norm_count
        sums = [each.reshape((1,)) for each in reading.reductions[:count]]
        norms = iter(mx.nd.concat(*sums, dim=0).asnumpy().tolist() if sums else ())
        errors: Dict[Key, Errors] = {}
        broken = []
        for key, (exact, local, _) in self._both.compared.items():
            size, accumulated = next(norms), next(norms)
            errors[key] = Errors(ratio(next(norms), size) if local != exact else 0.0, ratio(accumulated, size))
            broken += [key] if key in self._heads and next(norms) else []
        # Behind the norms are the local errors themselves, which contributions multiply by derivatives.
        differences = dict(zip(self._keys, reading.reductions[count:]))
        of_inputs = {} if gradients is None else self._gradients(values, gradients, scale, reading)
        return Measured(errors, differences, frozenset(broken), of_inputs)

    def _norms(self, heads: List[Any]) -> List[Any]:
        """Return, for each output compared, the 2-norms of float32's values and of the differences from it.

        For the network's outputs the number of float32's values that are not finite follows.

        They are computed in float64, where no square of a float32 overflows or vanishes: a norm is finite unless low
        precision is not. ``norm`` would not do: it is off by percents for millions (``red::nrm2`` of MXNet 1.9.1).
        """

        def finite(value: Any, where: Any) -> Any:
            return mx.sym.cast(mx.sym.where(where, value, mx.sym.zeros_like(value)), "float64")

        norms = []
        for key, (exact, local, accumulated) in self._both.compared.items():
            where = heads[exact] * 0 == 0
            right = finite(heads[exact], where)
            wrong = [finite(heads[number], where) - right for number in (accumulated, local) if number != exact]
            norms += [mx.sym.sqrt(mx.sym.sum(mx.sym.square(each))) for each in (right, *wrong)]
            if key in self._heads:
                norms.append(mx.sym.sum(mx.sym.cast(where == 0, "float64")))
        self._norm_count = len(norms)
        return norms

    # ------------------------------------------------------------------ contributions

    def contributions(self, values: Arrays, local: Mapping[Key, Any]) -> Dict[int, float]:
        """Return by how much each node's local error moves the outputs, to first order, as a share of these.

        It is the 2-norm over that of float32's outputs; of several outputs, the root of the sum of the squares. NaN if
        float32 has no finite derivative there, or MXNet none at all. Elements of a local error that are not finite are
        left out.
        """
        if self._projected is None or not self._float32_heads:
            return {position: math.nan for position, _ in self._keys}
        finite = {key: _finite(error.asnumpy().reshape(-1)) for key, error in local.items()}
        squares: Dict[int, float] = defaultdict(float)
        reading = self._projected(values, training=self._trains)
        directions = _directions([reading.outputs[number].asnumpy() for number in self._float32_heads])
        for number, seeds in enumerate(directions):
            if number and self._has_loops:  # MXNet goes back through a loop only once.
                reading = self._projected(values, training=self._trains)
            heads = [reading.outputs[number] for number in self._float32_heads]
            seeds = [mx.nd.array(seed, ctx=head.ctx) for seed, head in zip(seeds, heads)]
            try:
                autograd.backward(heads, seeds, retain_graph=not self._has_loops, train_mode=self._trains)
            except mx.MXNetError:  # An operator fails in its backward pass.
                return {position: math.nan for position, _ in self._keys}
            # v . (J e): the gradient of the projection at a node, times the node's local error.
            changes: Dict[int, float] = defaultdict(float)
            for key, gradient in reading.at_outputs().items():
                flat = gradient.asnumpy().reshape(-1).astype(np.float64)
                changes[key[0]] += float(np.dot(flat, finite[key]))
            for position, change in changes.items():
                squares[position] += change**2
        return {position: math.sqrt(square) for position, square in squares.items()}

    # ------------------------------------------------------------------ gradients

    def _gradients(
        self, values: Arrays, gradients: Gradients, scale: float, both: Reading
    ) -> Dict[int, Errors]:
        """Return the errors of the gradients that each node gives to its inputs, the worst input's for each node.

        The gradient of an input that a node adds, such as a bias, is a sum over the gradient of the node's output. It
        may be 0 apart from rounding: a bias before BatchNorm has such a gradient. If it is less than the rounding of
        its terms (2**-11 of their 2-norm for float16, 2**-8 for bfloat16), its error is divided by that norm.
        """
        exact = self._backward(self._exact, values, gradients, 1.0)
        right, totals = exact.at_ports(), exact.at_outputs()
        rounded = dtypes.limits(self.decisions.policy.compute_dtype).eps / 2
        nodes = self.decisions.before.nodes

        def error(port: Port, gradient: Any) -> float:
            terms = 0.0
            if (port[0], 0) in totals and port[1] in _ADDED.get(nodes[port[0]].op, ()):
                terms = float(np.linalg.norm(totals[port[0], 0].asnumpy().astype(np.float64).reshape(-1)))
            return relative_error(right[port].asnumpy(), gradient.asnumpy(), scale, terms, rounded)

        errors: Dict[int, Errors] = defaultdict(Errors)
        # Own: each node in low precision gets float32's gradient of its output, times the scale.
        seeds = [(number, totals[key] * scale) for number, key in enumerate(self._keys) if key in totals]
        if seeds:
            run_backward([both.outputs[number] for number, _ in seeds], [seed for _, seed in seeds])
        local = both.at_ports()
        for port, new in self._local_ports.items():
            errors[port[0]] = errors[port[0]].worst(Errors(local=error(port, local[new])))
        # Carried: backward of the whole converted network, from the scaled loss.
        accumulated = self._backward(self._converted, values, gradients, scale).at_ports()
        for new, port in self._low_ports.items():
            errors[port[0]] = errors[port[0]].worst(Errors(accumulated=error(port, accumulated[new])))
        return errors

    def _backward(self, instrument: Instrument, values: Arrays, gradients: Gradients, scale: float) -> Reading:
        """Run forward, and backward from the gradients of the outputs times the loss scale."""
        reading = instrument(values, scale)
        run_backward(reading.outputs, gradients(reading.outputs, scale))
        return reading


def ratio(difference: float, size: float) -> float:
    """Return an error: the norm of a difference over that of float32's values; inf if it is not finite."""
    if not math.isfinite(difference):
        return math.inf
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


def relative_error(exact: Any, low: Any, scale: float = 1.0, terms: float = 0.0, rounded: float = 0.0) -> float:
    """Return the error of an array (numpy), which is multiplied by a scale, where float32's is finite.

    It is computed in float64, where no square of a float32 overflows or vanishes. A sum over terms of a known norm may
    be 0 apart from rounding. If it is less than ``rounded`` times that norm, its error is divided by the norm.
    """
    is_finite = np.isfinite(exact)
    right, wrong = (np.where(is_finite, each, 0).astype(np.float64) for each in (exact, low))
    with np.errstate(all="ignore"):
        difference = np.linalg.norm((wrong / scale - right).reshape(-1))
        size = float(np.linalg.norm(right.reshape(-1)))
    return ratio(float(difference), terms if size < rounded * terms else size)


def _finite(error: Any) -> Any:
    return np.where(np.isfinite(error), error, 0).astype(np.float64)


def _directions(outputs: List[Any]) -> Iterator[List[Any]]:
    """Yield directions of the outputs, divided by the norm of each: every element, or random signs over their number.

    The squares of projections by them sum up to the square of the norm, or to an estimate of it.
    """
    weights = []
    for output in outputs:
        finite = np.isfinite(output)
        norm = float(np.linalg.norm(np.where(finite, output, 0).astype(np.float64)))
        weights.append(finite / norm if norm else np.zeros(output.shape))
    sizes = [weight.size for weight in weights]
    count, draw = sum(sizes), np.random.RandomState(0)  # The user's random state is left as it is.
    for number in range(min(count, PROJECTIONS)):
        if count <= PROJECTIONS:
            signs = np.eye(1, count, number)[0]
        else:
            signs = (2.0 * draw.randint(0, 2, count) - 1) / math.sqrt(PROJECTIONS)
        parts = np.split(signs, np.cumsum(sizes)[:-1])
        yield [part.reshape(weight.shape) * weight for part, weight in zip(parts, weights)]


def _differentiated(decisions: Decisions) -> FrozenSet[Port]:
    """Return the inputs that gradients are compared of: float32 data and parameters, no labels or indices."""
    nodes, facts = decisions.before.nodes, decisions.facts
    ports = set()
    for position, node in enumerate(nodes):
        rule = RULES.find(node.op, dict(node.attrs))
        for port, entry in enumerate(node.inputs):
            inside = not nodes[entry.node].is_variable or nodes[entry.node].name in facts.params
            is_data = (rule is not None and rule.is_data(port)) or (bool(node.subgraphs) and inside)
            is_read = is_data and not is_unwritten(node) and (port == 0 or not is_loss_head(node))
            if is_read and facts.dtype(entry) == dtypes.FLOAT32:
                ports.add((position, port))
    return frozenset(ports)


def node_errors(calls: Sequence[Call]) -> Dict[str, Errors]:
    """Return the errors of the nodes of a network by name, in inference; the worst of calls, and of nodes of one name.

    Only nodes in low precision have local errors. Where float32 is finite and low precision is not, an error
    is inf; where float32 is not finite, nothing is compared. The bodies of control flow are not looked into: the node
    around them has their error.
    """
    measures: Dict[int, Measure] = {}
    errors: Dict[str, Errors] = defaultdict(Errors)
    for call in filter(_is_compared, calls):
        measure = measures.setdefault(id(call.decisions), Measure(call, contributes=False))
        for (position, _), each in measure(call.values).values.items():
            name = call.decisions.before.nodes[position].name
            errors[name] = errors[name].worst(each)
    return errors


# ---------------------------------------------------------------------- the whole comparison


def compare(
    network: Any,
    batches: Batches,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Loss = None,
    labels: Optional[int] = None,
    max_batches: Optional[int] = FEW,
    loss_scale: Optional[float] = None,
    ctx: Any = None,
    progress: bool = True,
) -> Comparison:
    """Run a network in float32 and in low precision side by side, and return how far each node is off.

    Each node in low precision has three errors. The *local error* is added by the node, if its inputs are float32's.
    The *accumulated error* is that of its output in the converted network, with the errors of all nodes before it. The
    *output error* is the error of the network's outputs if only this node is rounded. Values are rounded as the policy
    does it: on a CPU float16 is emulated, on a GPU it is the GPU's.

    The output error is of first order: the derivative of the outputs times the node's local error. A few backward
    passes from random projections of the outputs give those of all nodes. Their standard deviation is about a quarter;
    with few elements in the outputs they are exact. Where errors are large, the first order is not the whole.

    With gradients, each node also has the errors of the gradients of its data and parameters. The local one is that of
    float32's values and of float32's gradient times the loss scale. The accumulated one is that of the conversion
    and of the loss times the loss scale. The scale is divided out in float32. With gradients the network runs as in
    training: BatchNorm takes the batch's statistics. Without gradients it runs as in inference. Dropout drops nothing
    in either. Operators that draw random numbers differ as the numbers do. The bodies of control flow are not looked
    into: the node around them has their error.

    Args:
        network: A Gluon net with values, converted or not; a Module or BucketingModule that is bound; a
            `mxmp.symbol.ConvertedModel`; or a tuple ``(symbol, arg_params, aux_params)``. It is left as it is. Its
            forward hooks are called. In a plain Block the HybridBlocks are compared one by one, each with float32's
            inputs and gradients. A block that is frozen in low precision is refused: its float32 weights are lost.
        batches: A DataLoader, a DataIter, a list of batches, or one batch. A batch has the form that a DataLoader
            yields: an array, or a tuple or list of arrays, the network's inputs first and labels last. It may be a
            DataBatch too, and for a symbol or Module a dict of arrays by input. A DataIter is reset before and after.
            The worst of each error counts. A symbol reads its labels as inputs. Without them no gradients are compared.
            Every other input must be there.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others. A symbol or checkpoint
            that is converted does not hold its policy: give one.
        loss: The loss of a Gluon net: a function of its outputs and the labels that gives NDArrays of any shape. With
            it gradients are compared. 'outputs' says that the net returns its losses. A symbol or Module has loss
            heads.
        labels: How many arrays at the end of a net's batch are labels; None for as many as net and loss tell by their
            signatures. Needed without a loss if the last arrays may also be optional inputs of the net.
        max_batches: How many batches are read at most; None for all.
        loss_scale: A factor on gradients while they are in low precision, a power of two. None for 1024, or for the
            largest power of two below it at which gradients are finite; 1 if there is none.
        ctx: Where a symbol runs, the CPU unless given.
        progress: Whether to show on a terminal how far it is.

    Returns:
        A row for each operator, those first that contribute most to the error of the outputs.

    Raises:
        ConvertError: If the network cannot be converted, if there is no batch, or if one does not fit. If the policy is
            float32, or bfloat16 which MXNet does not run here. If a block is frozen. If an input or a parameter holds
            NaN. If ``loss`` gives no NDArray, or if MXNet cannot run the network backward.
        LossScaleError: If ``loss_scale`` is not positive and finite.
        PolicyError: If the policy does not parse or matches nothing.

    Example:
        >>> import mxnet as mx
        >>> from mxmp.diagnose import compare
        >>> data = mx.sym.var("data")
        >>> square = mx.sym.elemwise_mul(data, data, name="square")  # 300**2 is beyond float16
        >>> root = mx.sym.sqrt(square, name="root")
        >>> compare((root, {}, {}), {"data": mx.nd.full((2, 3), 300)}, "O3").rows[0].name
        'square'
    """
    subject = read_subject(network, loss, ctx)
    given = None if loss_scale is None else require_scale(loss_scale)
    parsed = subject.policy_or(policy)
    if not parsed.is_mixed:
        raise ConvertError(f"policy '{parsed}' is float32, so there is nothing to compare; give one such as 'O2'.")
    read = read_batches(batches, max_batches)
    with showing_progress(progress and sys.stderr.isatty()) as show:
        show("convert", 0.0)
        with contextlib.closing(subject.runs(parsed, read, labels)) as batch_runs:
            replays = [replay for several in batch_runs for replay in several if _is_compared(replay.call)]
        for replay in replays:
            _require_numbers(replay.call.values)
        of_symbol = isinstance(subject, SymbolSubject)
        has_gradients = bool(replays) and all(_has_gradients(replay, of_symbol) for replay in replays)
        measures: Dict[int, Measure] = {}  # By the id of the decisions: one for each graph.
        for call in (replay.call for replay in replays):
            if id(call.decisions) not in measures:
                measures[id(call.decisions)] = Measure(call, has_gradients, scales=of_symbol)

        @functools.lru_cache(maxsize=2)  # The arrays are large.
        def at(scale: float) -> List[Measured]:
            """Return the errors of each call at a loss scale."""
            results: List[Measured] = []
            for replay in replays:
                show(f"loss scale {scale:g}: batch {replay.call.number + 1}", 0.5 * len(results) / len(replays))
                gradients = replay.gradients if has_gradients else None
                results.append(measures[id(replay.call.decisions)](replay.call.values, gradients, scale))
            return results

        scale = (given or _finite_scale(at)) if has_gradients else None
        rows: Dict[Any, NodeComparison] = {}
        outputs: Dict[Any, OutputComparison] = {}
        for call, measured in zip((replay.call for replay in replays), at(scale or 1.0)):
            show(f"contributions: batch {call.number + 1}", 0.5 + 0.5 * call.number / len(replays))
            contributions = measures[id(call.decisions)].contributions(call.values, measured.local)
            for key, row in _rows(call.decisions, measured, contributions):
                rows[key] = row.worst(rows.get(key, row))
            for key, output in _outputs(call.decisions, measured):
                outputs[key] = output.worst(outputs.get(key, output))
    worst_first = sorted(
        rows.values(), key=lambda row: (row.output_error or 0.0, row.local_error, row.accumulated_error), reverse=True
    )
    lowered_from = SCALE if given is None and scale not in (None, SCALE) else None
    return Comparison(str(parsed), tuple(worst_first), tuple(outputs.values()), scale, lowered_from)


def _is_compared(call: Call) -> bool:
    """Return whether an operator of a call's graph gives float32: an identity has no operator."""
    return bool(float32_outputs(call.decisions))


def _has_gradients(replay: Replay, of_symbol: bool) -> bool:
    """Return whether the gradients of a call can be compared: a symbol has to have loss heads and all labels."""
    if not of_symbol:
        return replay.gradients is not None
    return not replay.call.lacking and any(map(is_loss_head, replay.call.decisions.before.nodes))


def _require_numbers(values: Arrays) -> None:
    """Raise a ConvertError if an input or a parameter holds NaN, which hides every error."""
    for name, array in values.items():
        plain = dense(array)
        if (plain != plain).max().asnumpy().reshape(-1)[0]:
            raise ConvertError(f"batches: '{name}' holds NaN, which hides all errors; see mxmp.diagnose.explain.")


def _finite_scale(at: Callable[[float], List[Measured]]) -> float:
    """Return the largest power of two up to 1024 at which all gradients are finite that are finite in float32.

    It is 1 if they are finite at none. ``at`` gives the errors at a loss scale.
    """

    def are_finite(scale: float) -> bool:
        return all(math.inf not in errors for each in at(scale) for errors in each.gradients.values())

    if are_finite(SCALE):
        return SCALE
    # Bisect over exponents: 1 is the least scale, and 1024 is too high.
    finite, too_high = 1.0, SCALE
    while are_finite(1.0) and too_high > 2 * finite:
        tried = 2.0 ** round(math.log2(finite * too_high) / 2)
        finite, too_high = (tried, too_high) if are_finite(tried) else (finite, tried)
    return finite


def _rows(
    decisions: Decisions, measured: Measured, contributions: Mapping[int, float]
) -> Iterator[Tuple[Any, NodeComparison]]:
    """Yield the row of each node of a graph, with a key that tells nodes of one name apart."""
    seen: Counter[Tuple[str, str]] = Counter()
    by_node: Dict[int, Errors] = defaultdict(Errors)
    for (position, _), errors in measured.values.items():
        by_node[position] = by_node[position].worst(errors)
    for position, errors in sorted(by_node.items()):
        node = decisions.before.nodes[position]
        seen[node.name, node.op] += 1
        contribution = math.inf if errors.local == math.inf else contributions.get(position, 0.0)
        numbers = *errors, None if math.isnan(contribution) else contribution
        gradients, precision = measured.gradients.get(position, ()), _precision(decisions, position)
        yield (node.name, node.op, seen[node.name, node.op]), NodeComparison(
            node.name, node.op, precision, *numbers, *gradients
        )


def _outputs(decisions: Decisions, measured: Measured) -> Iterator[Tuple[Any, OutputComparison]]:
    """Yield each output of a network, with a key that tells those of one name apart."""
    names: Counter[str] = Counter()
    for head in (head for head in decisions.before.heads if head.key in measured.values):
        name = decisions.facts.output_name(decisions.before, head)
        names[name] += 1
        error, is_finite = measured.values[head.key].accumulated, head.key not in measured.broken
        yield (name, names[name]), OutputComparison(name, error, is_finite)


def _precision(decisions: Decisions, position: int) -> str:
    if position in decisions.plan.low:
        return decisions.policy.compute_dtype
    return AS_IT_WAS if decisions.plan.decisions[position].label == KEEP else dtypes.FLOAT32
