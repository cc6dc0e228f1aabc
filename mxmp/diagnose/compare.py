"""Compare a network in low precision with float32, node by node: where is accuracy lost?

An error is the 2-norm of a difference from float32 over that of float32's values. Three instruments measure a batch
(four with gradients), and `compare` keeps the worst of all batches:

- side by side: each node's own error, and the error carried there, as norms; the own errors as arrays;
- float32 with a tap at each output in low precision: a backward pass from a projection ``v . y`` of the outputs gives
  ``v . (J e)`` of all nodes at once, the product of the gradient there and the own error ``e``;
- for gradients, float32 and the conversion with a tap at each input of each node; side by side, each node in low
  precision gets float32's gradient times the loss scale.

References:
    Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from itertools import repeat
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
from mxnet.gluon.block import _regroup

from .. import dtypes
from ..errors import ConvertError
from ..gluon.blocks import roots
from ..graph import Key
from ..passes.decide import KEEP
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..report import Decisions
from ..report.comparison import Comparison, NodeComparison, OutputComparison
from ..report.make import positions
from ..report.report import AS_IT_WAS
from ..rules import RULES
from ..symbol.inference import to_graph
from .batches import call_net, some_batches
from .instrument import (
    Instrument,
    Port,
    Reading,
    Values,
    facts_of,
    float32_outputs,
    in_dtypes,
    in_low_precision,
    is_unwritten,
    side_by_side,
    variable_dtypes,
    without_dropout,
)
from .progress import showing_progress
from .replay import recording
from .subject import (
    NOTED_IN_FLOAT32,
    Call,
    LossFunction,
    NetSubject,
    Subject,
    SymbolSubject,
    losses_of,
    read_subject,
    require_scale,
    run_backward,
)

SCALE = 1024.0
"""The loss scale that is tried first."""

PROJECTIONS = 8
"""How many random directions of the outputs are followed back. With as few output elements, each is, and nothing is
random; else the norm is off by a quarter (its standard deviation)."""

_FLOAT32 = Policy.parse("float32")

Losses = Callable[[List[Any]], Sequence[Any]]
"""Returns the losses, NDArrays of any shape, of a graph's outputs."""

# By operator, the inputs that it adds to its output, so that their gradients are sums over the output's.
_ADDED: Mapping[str, Tuple[int, ...]] = {
    **dict.fromkeys(("FullyConnected", "Convolution", "Deconvolution", "BatchNorm", "LayerNorm", "GroupNorm"), (2,)),
    **dict.fromkeys(("broadcast_add", "broadcast_sub", "_npi_add", "_npi_subtract"), (0, 1)),
}


class Errors(NamedTuple):
    """The errors of a node: its own, given float32's values, and carried there in the converted network."""

    own: float = 0.0
    carried: float = 0.0

    def worst(self, other: Errors) -> Errors:
        """Return the larger of each."""
        return Errors(max(self.own, other.own), max(self.carried, other.carried))


class Measured(NamedTuple):
    """The errors of one graph on one batch.

    Attributes:
        values: Of each output of a node.
        own: The own error of each output in low precision, as an array.
        broken: The outputs of the network that hold inf or NaN in float32.
        gradients: Of the gradients that each node gives, by position; of the worst input.
    """

    values: Dict[Key, Errors]
    own: Dict[Key, Any]
    broken: FrozenSet[Key]
    gradients: Dict[int, Errors]


class Measure:
    """Measures one graph of a network on one batch after the other.

    Args:
        call: A call of the graph, whose values say shapes and dtypes.
        trains: Whether it runs as in training, but for dropout, which drops nothing: BatchNorm takes the batch's
            statistics, and gradients are compared.
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
        self._both, self._own_ports = both, {p: both.ports[p] for p in self._ports if p in both.ports}
        own = [both.compared[key][1] for key in self._keys] if trains else []
        self._heads = frozenset(head.key for head in decisions.before.heads) & both.compared.keys()
        heads_of = enumerate(decisions.before.heads)
        self._float32_heads = [n for n, head in heads_of if decisions.facts.dtype(head) == dtypes.FLOAT32]

        def reduce(heads: List[Any], _: List[Any]) -> List[Any]:
            differences = [heads[both.compared[key][1]] - heads[both.compared[key][0]] for key in self._keys]
            return [*self._norms(heads), *(differences if contributes else ())]

        self._both_run = Instrument(both.graph, *fixed, ports={*self._own_ports.values()}, reduce=reduce, kept=own)
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

    def __call__(self, values: Values, losses: Optional[Losses] = None, scale: float = 1.0) -> Measured:
        """Return the errors on a batch.

        Args:
            values: The values of all variables by name.
            losses: Gives the losses, if gradients are compared and the network has no loss heads.
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
        for key, (exact, own, _) in self._both.compared.items():
            size, carried = next(norms), next(norms)
            errors[key] = Errors(ratio(next(norms), size) if own != exact else 0.0, ratio(carried, size))
            broken += [key] if key in self._heads and next(norms) else []
        # Behind the norms are the own errors themselves, which contributions multiply by derivatives.
        differences = dict(zip(self._keys, reading.reductions[count:]))
        gradients = self._gradients(values, losses, scale, reading) if self._trains else {}
        return Measured(errors, differences, frozenset(broken), gradients)

    def _norms(self, heads: List[Any]) -> List[Any]:
        """Return, for each output compared, the 2-norms of float32's values and of the differences from it.

        For the network's outputs the number of float32's values that are not finite follows.

        They are computed in float64, where no square of a float32 overflows or vanishes: a norm is finite unless low
        precision is not. ``norm`` would not do: it is off by percents for millions (``red::nrm2`` of MXNet 1.9.1).
        """

        def finite(value: Any, where: Any) -> Any:
            return mx.sym.cast(mx.sym.where(where, value, mx.sym.zeros_like(value)), "float64")

        norms = []
        for key, (exact, own, carried) in self._both.compared.items():
            where = heads[exact] * 0 == 0
            right = finite(heads[exact], where)
            wrong = [finite(heads[number], where) - right for number in (carried, own) if number != exact]
            norms += [mx.sym.sqrt(mx.sym.sum(mx.sym.square(each))) for each in (right, *wrong)]
            if key in self._heads:
                norms.append(mx.sym.sum(mx.sym.cast(where == 0, "float64")))
        self._norm_count = len(norms)
        return norms

    # ------------------------------------------------------------------ contributions

    def contributions(self, values: Values, own: Mapping[Key, Any]) -> Dict[int, float]:
        """Return by how much each node's own error moves the outputs, to first order, as a share of these.

        It is the 2-norm over that of float32's outputs; of several outputs, the root of the sum of the squares. NaN if
        float32 has no finite derivative there, or MXNet none at all. Elements of an own error that are not finite are
        left out.
        """
        if self._projected is None or not self._float32_heads:
            return {position: math.nan for position, _ in self._keys}
        finite = {key: _finite(error.asnumpy().reshape(-1)) for key, error in own.items()}
        squares: Dict[int, float] = defaultdict(float)
        reading = self._projected(values, training=self._trains)
        directions = _directions([reading.outputs[number].asnumpy() for number in self._float32_heads])
        for number, seeds in enumerate(directions):
            if number and self._has_loops:  # MXNet goes back through a loop only once
                reading = self._projected(values, training=self._trains)
            heads = [reading.outputs[number] for number in self._float32_heads]
            seeds = [mx.nd.array(seed, ctx=head.ctx) for seed, head in zip(seeds, heads)]
            try:
                autograd.backward(heads, seeds, retain_graph=not self._has_loops, train_mode=self._trains)
            except mx.MXNetError:  # of an operator that fails in its backward pass
                return {position: math.nan for position, _ in self._keys}
            # v . (J e): the gradient of the projection at a node, times the node's own error.
            changes: Dict[int, float] = defaultdict(float)
            for key, gradient in reading.at_outputs().items():
                flat = gradient.asnumpy().reshape(-1).astype(np.float64)
                changes[key[0]] += float(np.dot(flat, finite[key]))
            for position, change in changes.items():
                squares[position] += change**2
        return {position: math.sqrt(square) for position, square in squares.items()}

    # ------------------------------------------------------------------ gradients

    def _gradients(
        self, values: Values, losses: Optional[Losses], scale: float, both: Reading
    ) -> Dict[int, Errors]:
        """Return the errors of the gradients that each node gives of what it reads, of the worst input.

        The gradient of an input that a node adds, such as a bias, is a sum over the gradient of the node's output. It
        may be 0 but for rounding, as that of a bias before BatchNorm. Where it is less than the rounding of its terms
        alone (2**-11 of their 2-norm for float16, 2**-8 for bfloat16), its error is measured against that norm.
        """
        exact = self._backward(self._exact, values, losses, 1.0)
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
        own = both.at_ports()
        for port, new in self._own_ports.items():
            errors[port[0]] = errors[port[0]].worst(Errors(own=error(port, own[new])))
        # Carried: backward of the whole converted network, from the scaled loss.
        carried = self._backward(self._converted, values, losses, scale).at_ports()
        for new, port in self._low_ports.items():
            errors[port[0]] = errors[port[0]].worst(Errors(carried=error(port, carried[new])))
        return errors

    def _backward(self, instrument: Instrument, values: Values, losses: Optional[Losses], scale: float) -> Reading:
        """Run forward and backward from the losses times the loss scale."""
        reading = instrument(values, scale)
        if losses is None:
            heads = reading.outputs
            seeds = [mx.nd.full(head.shape, scale, head.ctx) for head in heads]
        else:
            with autograd.record(train_mode=True):
                heads, seeds = [each * scale for each in losses(reading.outputs)], None
        run_backward(heads, seeds)
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

    It is computed in float64, where no square of a float32 overflows or vanishes. Of a sum over terms of a known norm
    it is measured against that norm if the sum is smaller than ``rounded`` times it: 0 but for rounding.
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
    count, draw = sum(sizes), np.random.RandomState(0)  # of its own: the user's is left as it is
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

    Of a node in low precision alone its own error is given. Where float32 is finite and low precision is not, an error
    is inf; where float32 is not finite, nothing is compared. The bodies of control flow are not looked into: the node
    around them has their error.
    """
    measures: Dict[int, Measure] = {}
    errors: Dict[str, Errors] = defaultdict(Errors)
    for call in calls:
        measure = measures.setdefault(id(call.decisions), Measure(call, contributes=False))
        for (position, _), each in measure(call.values).values.items():
            name = call.decisions.before.nodes[position].name
            errors[name] = errors[name].worst(each)
    return errors


# ---------------------------------------------------------------------- the whole comparison


def compare(
    net_or_model: Any,
    batches: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Optional[Callable[..., Any]] = None,
    loss_scale: Optional[float] = None,
    ctx: Any = None,
    progress: bool = True,
) -> Comparison:
    """Run a network in float32 and in low precision side by side, and return how far each node is off.

    Of each node in low precision: its *own* error, if its inputs are float32's; the error *carried* there in the
    converted network, where all nodes before it have made theirs; and its *contribution* to the error of the network's
    outputs. Values are rounded as the policy does it: on a CPU float16 is emulated, on a GPU it is the GPU's.

    The contribution is the error of the outputs if this node alone is rounded, to first order: the derivative of the
    outputs times the node's own error. All nodes' come from a few backward passes from random projections of the
    outputs, by which they are off by about a quarter (their standard deviation), or exactly, if the outputs have as
    few elements. Where errors are large, the first order is not the whole.

    With gradients, the errors are those of the gradients that each node gives of its data and parameters: own, from
    float32's values and float32's gradient times the loss scale; carried, as the conversion gives them for the loss
    times the loss scale. The scale is divided out in float32. The network runs as in training then, BatchNorm with the
    batch's statistics, and without gradients as in inference. Dropout drops nothing in either. Operators that draw
    random numbers differ as these do. The bodies of control flow are not looked into: the node around them has their
    error.

    Args:
        net_or_model: A Gluon net with values, converted or not, hybridized or not; a Module or BucketingModule of MXNet
            or mxmp that is bound (of buckets that of the batches' ``bucket_key``, without one that which ran last); a
            `mxmp.symbol.ConvertedModel`; or a tuple ``(symbol, arg_params, aux_params)``. It is left as it is;
            `explain` and `find_nonfinite` take the same. The forward hooks of a net are called with it, several
            times for each batch. Of a plain Block the HybridBlocks in it are compared one by one, each with float32's
            inputs and gradients.
        batches: One batch, or several of which the worst of each error counts. A batch is an array, a tuple or list of
            arrays, in the order in which the network takes them, a DataBatch, or, of a symbol or Module, a dict of
            arrays by input; of NDArrays or numpy's arrays. Several are a DataLoader, a DataIter, or a list of tuples,
            lists, dicts or DataBatches.
            With ``loss`` the last of a tuple or list is the label: ``loss(net(*batch[:-1]), batch[-1])``. A symbol or
            Module takes its labels as inputs; those may be left out of which MXNet infers the shapes, and then no
            gradients are compared: names that end in 'label', and the inputs that only loss heads read beside
            their data. Every other input must be there, and a net's label for ``loss``.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others. A symbol or checkpoint
            that is converted does not hold its policy, so it has to be given.
        loss: Gives the loss of a Gluon net's output and a label, an NDArray of any shape or a list of them; with it,
            gradients are compared. Of a symbol or Module gradients are compared if it has loss heads, and batches hold
            their labels.
        loss_scale: A factor on gradients while they are in low precision, a power of two. Unless given it is
            1024, or where gradients are not finite at that, the largest power of two below at which they are; 1 if
            they are at none.
        ctx: Where a symbol runs, the CPU unless given.
        progress: Whether to show on a terminal how far it is.

    Returns:
        A row for each operator, those first that contribute most to the error of the outputs.

    Raises:
        ConvertError: If the network cannot be converted (an InferenceError, which is one, names the node at which MXNet
            finds no shapes or dtypes of its graph, though arrays ran); if there is no batch, or one does not fit; if
            the policy is float32, or bfloat16 which MXNet does not run here; if an input or a parameter holds NaN; if
            ``loss`` gives no NDArray; or if MXNet cannot run the network backward.
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
    subject = read_subject(net_or_model, loss, ctx)
    given = None if loss_scale is None else require_scale(loss_scale)
    parsed = subject.policy_or(policy)
    if not parsed.is_mixed:
        raise ConvertError(f"policy '{parsed}' is float32, so there is nothing to compare; give one such as 'O2'.")
    with showing_progress(progress and sys.stderr.isatty()) as show_progress:
        show_progress("convert", 0.0)
        compared = _read(subject, batches, loss)
        calls = compared.subject.calls(parsed)
        for call in calls:
            _require_numbers(call.values)
        runs = _Runs(calls, compared, show_progress)
        scale = runs.finite_scale(given) if compared.has_losses else None
        merged = _Merged()
        for call, measured, measure in zip(calls, runs.at(scale or 1.0), runs.measures):
            show_progress(f"contributions: batch {call.number + 1}", 0.5 + 0.5 * call.number / len(calls))
            merged.add(call.decisions, measured, measure.contributions(call.values, measured.own))
    return merged.result(parsed, scale, SCALE if given is None and scale not in (None, SCALE) else None)


class _Compared(NamedTuple):
    """A network that has batches.

    Attributes:
        subject: The network.
        has_losses: Whether gradients can be compared.
        losses: Gives the losses of a call's outputs; None where loss heads do.
    """

    subject: Subject
    has_losses: bool
    losses: Callable[[Call], Optional[Losses]] = lambda call: None


def _read(subject: Subject, batches: Any, loss: Optional[LossFunction]) -> _Compared:
    """Return a network with its batches; ConvertError if they do not fit it."""
    if isinstance(subject, SymbolSubject):
        subject = subject.take(some_batches(batches))
        needed = [n for n in subject.inputs() if n in subject.model.symbol.list_inputs()]
        heads = any(is_loss_head(node) for node in to_graph(subject.model.symbol).nodes)
        return _Compared(subject, heads and all(name in batch for batch in subject.batches for name in needed))
    assert isinstance(subject, NetSubject)
    net = subject.net
    examples = [each.for_net(loss is not None).beside(net) for each in some_batches(batches)]
    if loss is not None and not all(example.has_label for example in examples):
        raise ConvertError("batches: a batch has no label for loss; give tuples of the net's inputs and a label.")
    subject.count = sys.maxsize  # a plain Block may call one of its own several times
    if loss is None or [*roots(net)] == [net]:
        with subject.watched(), subject.under(_FLOAT32), autograd.pause():
            for example in examples:
                call_net(net, example.inputs, without_loss=loss is None)

        if loss is None:
            return _Compared(subject, False)
        given = loss

        def losses(call: Call) -> Losses:
            label = examples[call.number].label
            return lambda outputs: losses_of(given, _regroup(_as_of_net(outputs), call.out_format), label)

        return _Compared(subject, True, losses)
    gradients = _gradients_between(subject, examples, loss)

    def products(call: Call) -> Losses:
        """Return the function whose gradients are those between the blocks: the sum of products with the outputs."""
        return lambda outputs: [out * gradient for out, gradient in zip(outputs, gradients[call.number] or repeat(0))]

    return _Compared(subject, True, products)


def _as_of_net(outputs: List[Any]) -> List[Any]:
    """Return the outputs of a graph as those of a Gluon net: arrays of ``mx.np`` after ``npx.set_np()``."""
    return [output.as_np_ndarray() for output in outputs] if mx.util.is_np_array() else outputs


def _gradients_between(subject: NetSubject, examples: Sequence[Any], loss: LossFunction) -> List[Sequence[Any]]:
    """Return the gradients of the outputs of each call that is noted of a HybridBlock in a plain Block, in float32.

    They are those of a run in inference: dropout drops nothing, and no random number is drawn. A call that the net does
    not record has none.
    """
    gradients: Dict[int, List[Sequence[Any]]] = defaultdict(list)
    with subject.watched(), subject.under(NOTED_IN_FLOAT32):
        for example in examples:
            with recording(subject.net) as recorder:
                with autograd.record(train_mode=False):
                    losses = losses_of(loss, call_net(subject.net, example.inputs), example.label)
                run_backward(losses, train=False)
            for call, zeros in recorder.calls:
                gradients[call.net].append([zero.grad.as_nd_ndarray().copy() for zero in zeros])
    return [gradients[id(call.block)].pop(0) if call.recorded else () for call in subject.noted]


def _require_numbers(values: Values) -> None:
    """Raise a ConvertError if an input or a parameter holds NaN, which hides every error."""
    for name, array in values.items():
        plain = array.as_nd_ndarray()
        if (plain != plain).max().asnumpy().reshape(-1)[0]:
            raise ConvertError(f"batches: '{name}' holds NaN, beside which no error can be seen; see find_nonfinite.")


class _Runs:
    """Measures all calls, at one loss scale after the other; what was measured at a scale is kept."""

    def __init__(self, calls: Sequence[Call], compared: _Compared, progress: Callable[[str, float], Any]) -> None:
        self._calls, self._compared, self._progress = calls, compared, progress
        of_graph: Dict[int, Measure] = {}
        scales = isinstance(compared.subject, SymbolSubject)
        for call in calls:
            if id(call.decisions) not in of_graph:
                of_graph[id(call.decisions)] = Measure(call, compared.has_losses, scales=scales)
        self.measures = [of_graph[id(call.decisions)] for call in calls]
        self._at: Dict[float, List[Measured]] = {}

    def at(self, scale: float) -> List[Measured]:
        """Return the errors of each call at a loss scale."""
        if scale not in self._at:
            self._at = {at: measured for at, measured in self._at.items() if at == 1.0}  # the arrays are large
            results: List[Measured] = []
            for call, measure in zip(self._calls, self.measures):
                self._progress(f"loss scale {scale:g}: batch {call.number + 1}", 0.5 * len(results) / len(self._calls))
                losses = self._compared.losses(call) if self._compared.has_losses else None
                results.append(measure(call.values, losses, scale))
            self._at[scale] = results
        return self._at[scale]

    def finite_scale(self, given: Optional[float]) -> float:
        """Return the loss scale given, or the largest power of two up to 1024 at which all gradients are finite.

        Gradients count that are finite in float32; it is 1 if they are finite at none.
        """
        if given is not None or self._are_finite(SCALE):
            return SCALE if given is None else given
        # Bisect over exponents: 1 is the least scale, and 1024 is too high.
        finite, too_high = 1.0, SCALE
        while self._are_finite(1.0) and too_high > 2 * finite:
            tried = 2.0 ** round(math.log2(finite * too_high) / 2)
            finite, too_high = (tried, too_high) if self._are_finite(tried) else (finite, tried)
        return finite

    def _are_finite(self, scale: float) -> bool:
        return all(math.inf not in errors for each in self.at(scale) for errors in each.gradients.values())


class _Merged:
    """The worst of the errors on several batches and graphs, by node."""

    def __init__(self) -> None:
        self._rows: Dict[Tuple[str, str, int], NodeComparison] = {}
        self._outputs: Dict[Tuple[str, int], OutputComparison] = {}

    def add(self, decisions: Decisions, measured: Measured, contributions: Mapping[int, float]) -> None:
        """Add the errors of one graph on one batch."""
        graph = decisions.before
        seen: Counter[Tuple[str, str]] = Counter()
        by_node: Dict[int, Errors] = defaultdict(Errors)
        for (position, _), errors in measured.values.items():
            by_node[position] = by_node[position].worst(errors)
        for position, errors in sorted(by_node.items()):
            node = graph.nodes[position]
            seen[node.name, node.op] += 1
            key = node.name, node.op, seen[node.name, node.op]
            contribution = math.inf if errors.own == math.inf else contributions.get(position, 0.0)
            numbers = *errors, None if math.isnan(contribution) else contribution
            row = NodeComparison(
                node.name, node.op, _precision(decisions, position), *numbers, *measured.gradients.get(position, ())
            )
            self._rows[key] = row.worst(self._rows.get(key, row))
        names: Counter[str] = Counter()
        for head in (head for head in graph.heads if head.key in measured.values):
            name = decisions.facts.output_name(graph, head)
            names[name] += 1
            output = OutputComparison(name, measured.values[head.key].carried, head.key not in measured.broken)
            before = self._outputs.get((name, names[name]), output)
            merged = max(output.error, before.error), output.is_finite and before.is_finite
            self._outputs[name, names[name]] = OutputComparison(name, *merged)

    def result(self, policy: Policy, scale: Optional[float], lowered_from: Optional[float]) -> Comparison:
        """Return the rows, the worst first."""
        rows = sorted(
            self._rows.values(), key=lambda row: (row.contribution or 0.0, row.own, row.carried), reverse=True
        )
        return Comparison(str(policy), tuple(rows), tuple(self._outputs.values()), scale, lowered_from)


def _precision(decisions: Decisions, position: int) -> str:
    if position in decisions.plan.placement.low:
        return decisions.policy.compute_dtype
    return AS_IT_WAS if decisions.plan.verdicts[position].label == KEEP else dtypes.FLOAT32
