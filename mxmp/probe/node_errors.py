"""The error of each node of a converted network: its own, and with what it is given; measured against float32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, List, Mapping, Tuple

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError
from ..report import Decisions
from ..symbol import Converted
from ..symbol.inference import from_graph, infer_facts
from .side_by_side import Compared, SideBySide, side_by_side


@dataclass(frozen=True)
class NodeError:
    """How far what one node gives is off.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        own: The error that the node makes itself: it gets what it gets in float32, rounded to its precision. 0 if it
            runs in float32.
        carried: The error in the converted network, whose nodes before this one have made theirs.

    An error is the sum of all absolute differences over the sum of all absolute values, of the worst output and batch.
    It is inf where float32 is finite and low precision is not. Where float32 is not finite, nothing is compared.
    """

    name: str
    op: str
    own: float
    carried: float


def node_errors(decisions: Decisions, batches: Iterable[Mapping[str, Any]], ctx: Any = None) -> List[NodeError]:
    """Run a network in inference, in float32 and as it was converted, and return the error of each of its nodes.

    One pass a batch, which runs the network three times. The nodes of bodies of control flow are not looked into: the
    node around them has their error. Operators that draw random numbers differ as these do.

    Args:
        decisions: What a conversion decided.
        batches: The values of all variables by name, parameters in float32.
        ctx: Where to run, with float16 emulated on a CPU; the CPU unless given.

    Returns:
        An error for each operator with an output in float32, in the network's order.

    Raises:
        ConvertError: If a batch lacks a variable, or there is no batch.
    """
    ctx = ctx or mx.cpu()
    both = side_by_side(decisions)
    found: Dict[int, Tuple[float, float]] = {}
    run = None
    for batch in batches:
        values = {name: array.as_in_context(ctx) for name, array in batch.items()}
        run = run or _Comparison(both, decisions, values, on_cpu=ctx.device_type != "gpu")
        for position, errors in run(values).items():
            own, carried = found.get(position, (0.0, 0.0))
            found[position] = max(own, errors[0]), max(carried, errors[1])
    if run is None:
        raise ConvertError("batches is empty; give one batch at least.")
    nodes = decisions.before.nodes
    return [NodeError(nodes[position].name, nodes[position].op, *errors) for position, errors in found.items()]


class _Comparison:
    """The operator that runs both networks and gives, for each output compared, sums and not values."""

    def __init__(self, both: SideBySide, decisions: Decisions, values: Mapping[str, Any], on_cpu: bool) -> None:
        self._compared = both.compared
        symbol = from_graph(both.graph)
        shapes = {name: values[name].shape for name in symbol.list_inputs() if name in values}
        types = {name: dtypes.canonical(values[name].dtype) for name in shapes}
        facts = infer_facts(symbol, both.graph, shapes, types, frozenset())
        converted = Converted(symbol, both.graph, facts, frozenset(), replace(decisions, after=both.graph))
        sums = mx.sym.Group(_sums(converted.on_cpu() if on_cpu else symbol, both.compared))
        self._names = sums.list_inputs()
        self._run = mx.nd.CachedOp(sums)

    def __call__(self, values: Mapping[str, Any]) -> Dict[int, Tuple[float, float]]:
        """Return own and carried error of the nodes by position."""
        missing = [name for name in self._names if name not in values]
        if missing:
            raise ConvertError(f"batches: a batch lacks the input '{missing[0]}'; give it, also if it is a label.")
        with autograd.pause(train_mode=False):
            results = self._run(*[values[name] for name in self._names])
        sizes = iter([float(result.asnumpy().reshape(-1)[0]) for result in results])
        found: Dict[int, Tuple[float, float]] = {}
        for each in self._compared:
            size, carried = next(sizes), next(sizes)
            own = next(sizes) if each.own != each.exact else 0.0
            before = found.get(each.node, (0.0, 0.0))
            found[each.node] = max(before[0], _ratio(own, size)), max(before[1], _ratio(carried, size))
        return found


def _sums(heads: Any, compared: Iterable[Compared]) -> List[Any]:
    """Return, for each output compared, the sums of float32's magnitudes and of the differences from it."""
    found = []
    for each in compared:
        exact = heads[each.exact]
        nothing = mx.sym.zeros_like(exact)
        is_finite = exact * 0 == 0
        found.append(mx.sym.sum(mx.sym.where(is_finite, mx.sym.abs(exact), nothing)))
        for other in (each.carried, each.own):
            if other != each.exact:
                found.append(mx.sym.sum(mx.sym.where(is_finite, mx.sym.abs(heads[other] - exact), nothing)))
    return found


def _ratio(difference: float, size: float) -> float:
    if not math.isfinite(difference):
        return math.inf
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf
