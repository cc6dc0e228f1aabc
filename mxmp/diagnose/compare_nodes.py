"""Compare a network in low precision with float32, node by node: where is accuracy lost?"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any, Callable, Collection, Dict, Iterator, Mapping, Optional, Tuple, Union

import mxnet as mx

from .. import dtypes
from ..errors import ConvertError
from ..graph import Key
from ..passes.decide import KEEP
from ..policy import Policy
from ..probe.building import in_low_precision
from ..probe.contributions import Contributions
from ..probe.node_errors import Errors, OutputErrors
from ..report import Decisions
from ..report.comparison import NUMBERS, Comparison, NodeComparison, OutputComparison
from ..report.report import AS_IT_WAS
from .compared import read_compared
from .networks.network import GraphBatches
from .progress import showing_progress
from .scaled_gradients import SCALE, ScaledGradients
from .subject import read_subject, require_scale


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

    Of each node in low precision: its *own* error, if it gets what it gets in float32; the error *carried* there in the
    converted network, where all nodes before it have made theirs; and its *contribution* to the error of the network's
    outputs. Nothing is rounded but as the policy does it: on a CPU float16 is emulated, on a GPU it is the GPU's.

    The contribution is the error of the outputs if this node alone is rounded, to first order: the derivative of the
    outputs times the node's own error. All nodes' come from a few backward passes from random projections of the
    outputs, by which they are off by about a quarter (their standard deviation), or exactly, if the outputs have as
    few elements; `mxmp.probe.contributions` says how. Where errors are large, the first order is not the whole.

    With gradients, the errors are those of the gradients that each node gives of its data and parameters: own, from
    float32's values and float32's gradient times the loss scale; carried, as the conversion gives them for the loss
    times the loss scale. The scale is divided out in float32. The network runs as in training then, BatchNorm with the
    batch's statistics, and without gradients as in inference. Dropout drops nothing in either. What draws random
    numbers differs as these do. The bodies of control flow are not looked into: the node around them has their error.

    Args:
        net_or_model: A Gluon net with values, converted or not, hybridized or not; a Module or BucketingModule of MXNet
            or mxmp that is bound (of buckets that of the batches' ``bucket_key``, without one that which ran last); a
            `mxmp.symbol.ConvertedModel`; or a tuple ``(symbol, arg_params, aux_params)``. It is left as it is;
            `explain` and `find_nonfinite` take the same. The forward hooks of a net are called with it: several times
            for each batch, and, where a batch does not fit, on zeros of other shapes to find one that would. Of a
            plain Block the HybridBlocks in it are compared one by one, each with float32's inputs and gradients.
        batches: One batch, or several of which the worst of each error counts. A batch is an array, a tuple or list of
            arrays, in the order in which the network takes them, a DataBatch, or, of a symbol or Module, a dict of
            arrays by input; of NDArrays or numpy's arrays. Several are a DataLoader, a DataIter, or a list of tuples,
            lists, dicts or DataBatches.
            With ``loss`` the last of a tuple or list is the label: ``loss(net(*batch[:-1]), batch[-1])``. A symbol or
            Module takes its labels as inputs; those may be left out of which MXNet infers the shapes, and then no
            gradients are compared: names that end in 'label', and what loss heads alone read beside their data. Every
            other input must be there, and a net's label for ``loss``.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others.
        loss: Gives the loss of a Gluon net's output and a label, an NDArray of any shape or a list of them; with it,
            gradients are compared. Of a symbol or Module gradients are compared if it has loss heads, and batches hold
            their labels.
        loss_scale: What gradients are multiplied by while they are in low precision, a power of two. Unless given it is
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
    with showing_progress(progress and sys.stderr.isatty()) as show:
        show("convert", 0.0)
        compared = read_compared(subject, batches, loss, ctx)
        graphs = list(compared.network.comparisons(parsed))
        for batch in (batch for graph in graphs for batch in graph.batches):
            _require_numbers(batch)
        gradients = ScaledGradients(graphs, compared, show)
        scale, found = gradients.at_a_scale(given) if compared.has_losses else (None, None)
        count, done, merged = sum(len(graph.batches) for graph in graphs), 0, _Merged()
        for graph in graphs:
            measure = _Measure(graph, compared.has_losses)
            for batch in graph.batches:
                for name, share in measure(batch, found[done] if found else {}, merged):
                    show(f"batch {done + 1} of {count}: {name}", (1 + (done + share) / count) / 2)
                done += 1
    return merged.result(parsed, scale, SCALE if given is None and scale not in (None, SCALE) else None)


def _require_numbers(values: Mapping[str, Any]) -> None:
    """Raise a ConvertError if an input or a parameter holds NaN, which hides every error."""
    for name, array in values.items():
        plain = array.as_nd_ndarray()
        if (plain != plain).max().asnumpy().reshape(-1)[0]:
            raise ConvertError(f"batches: '{name}' holds NaN, beside which no error can be seen; see find_nonfinite.")


class _Measure:
    """Measures what one graph gives on batches."""

    def __init__(self, graph: GraphBatches, trains: bool) -> None:
        self._graph = graph
        self._errors = OutputErrors(graph.decisions, graph.context, trains)
        self._contributions = Contributions(graph.decisions, graph.context, trains)

    def __call__(
        self, batch: Mapping[str, Any], gradients: Mapping[int, Errors], merged: _Merged
    ) -> Iterator[Tuple[str, float]]:
        """Measure on one batch, of which gradients are known; yield what is done next, and the share that is done."""
        yield "forward", 0.0
        errors = self._errors(batch)
        yield "contributions", 0.4
        try:
            contributions: Mapping[int, float] = self._contributions(batch)
        except mx.MXNetError:  # of an operator that fails in its backward pass
            contributions = dict.fromkeys(in_low_precision(self._graph.decisions), math.nan)
        merged.add(self._graph.decisions, errors, contributions, gradients, self._errors.broken)


class _Merged:
    """The worst of what was measured on several batches and graphs, by node."""

    def __init__(self) -> None:
        self._rows: Dict[Tuple[str, str, int], NodeComparison] = {}
        self._outputs: Dict[Tuple[str, int], OutputComparison] = {}

    def add(
        self,
        decisions: Decisions,
        errors: Mapping[Key, Errors],
        contributions: Mapping[int, float],
        gradients: Mapping[int, Errors],
        broken: Collection[Key],
    ) -> None:
        """Add what was measured of one graph on one batch, where float32 has ``broken`` outputs."""
        graph = decisions.before
        seen: Counter[Tuple[str, str]] = Counter()
        by_node: Dict[int, Errors] = {}
        for (position, _), each in errors.items():
            by_node[position] = each.worst(by_node.get(position, Errors()))
        for position, each in sorted(by_node.items()):
            node = graph.nodes[position]
            seen[node.name, node.op] += 1
            key = node.name, node.op, seen[node.name, node.op]
            row = _row(decisions, position, each, contributions.get(position, 0.0), gradients.get(position))
            self._rows[key] = _worst(row, self._rows[key]) if key in self._rows else row
        names: Counter[str] = Counter()
        for head in (head for head in graph.heads if head.key in errors):
            name = decisions.facts.output_name(graph, head)
            names[name] += 1
            output = name, names[name]
            known = self._outputs.get(output, OutputComparison(name, 0.0))
            error, is_finite = max(errors[head.key].carried, known.error), known.is_finite and head.key not in broken
            self._outputs[output] = OutputComparison(name, error, is_finite)

    def result(self, policy: Policy, scale: Optional[float], lowered_from: Optional[float]) -> Comparison:
        """Return the rows, the worst first."""
        rows = sorted(
            self._rows.values(), key=lambda row: (row.contribution or 0.0, row.own, row.carried), reverse=True
        )
        return Comparison(str(policy), tuple(rows), tuple(self._outputs.values()), scale, lowered_from)


def _row(
    decisions: Decisions, position: int, errors: Errors, contribution: float, gradients: Optional[Errors]
) -> NodeComparison:
    node, plan = decisions.before.nodes[position], decisions.plan
    precision = AS_IT_WAS if plan.verdicts[position].label == KEEP else dtypes.FLOAT32
    precision = decisions.policy.compute_dtype if position in plan.placement.low else precision
    contribution = math.inf if errors.own == math.inf else contribution
    found = None if math.isnan(contribution) else contribution
    return NodeComparison(node.name, node.op, precision, *errors, found, *(gradients or (None, None)))


def _worst(one: NodeComparison, other: NodeComparison) -> NodeComparison:
    """Return the larger number of each, the known one where one is not known."""
    changes: Dict[str, Any] = {}
    for name in NUMBERS:
        known = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        changes[name] = max(known, default=None)
    return replace(one, **changes)
