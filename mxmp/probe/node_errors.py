"""The error of each node of a converted network: its own, and with what it is given; measured against float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Collection, Dict, FrozenSet, Iterable, List, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..errors import ConvertError
from ..graph import Key
from ..report import Decisions
from .running import Runner, Values, runnable, values_on
from .side_by_side import Compared, side_by_side


@dataclass(frozen=True)
class NodeError:
    """How far what one node gives is off.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        own: The error that the node makes itself: it gets what it gets in float32, rounded to its precision. 0 if it
            runs in float32.
        carried: The error in the converted network, whose nodes before this one have made theirs.

    An error is the 2-norm of the difference over that of float32's values, of the worst output and batch. It is inf
    where float32 is finite and low precision is not. Where float32 is not finite, nothing is compared.
    """

    name: str
    op: str
    own: float
    carried: float


class Errors(NamedTuple):
    """The errors of one output of a node, as those of a `NodeError`."""

    own: float = 0.0
    carried: float = 0.0

    def worst(self, other: Errors) -> Errors:
        """Return the larger of each."""
        return Errors(max(self.own, other.own), max(self.carried, other.carried))


def node_errors(decisions: Decisions, batches: Iterable[Values], ctx: Any = None) -> List[NodeError]:
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
    found: Dict[int, Errors] = {}
    measure = OutputErrors(decisions, ctx or mx.cpu())
    for batch in batches:
        for (position, _), errors in measure(batch).items():
            found[position] = errors.worst(found.get(position, Errors()))
    if not found and not measure.has_run:
        raise ConvertError("batches is empty; give one batch at least.")
    nodes = decisions.before.nodes
    return [NodeError(nodes[position].name, nodes[position].op, *errors) for position, errors in found.items()]


class OutputErrors:
    """Measures the errors of all float32 outputs of a network's nodes on one batch after the other.

    It runs both networks in one graph that gives, for each output, sums and not values.

    Args:
        decisions: What a conversion decided.
        ctx: Where to run.
        trains: Whether it runs as in training, but for dropout: BatchNorm takes the batch's statistics.

    Attributes:
        broken: The outputs of the network that held inf or NaN in float32 on the last batch.
    """

    def __init__(self, decisions: Decisions, ctx: Any, trains: bool = False) -> None:
        self._decisions, self._ctx, self._trains = decisions, ctx, trains
        self._both = side_by_side(decisions)
        self._sums: Optional[Runner] = None
        self._heads = frozenset(head.key for head in decisions.before.heads)
        self.broken: FrozenSet[Key] = frozenset()

    @property
    def has_run(self) -> bool:
        """Whether any batch was measured."""
        return self._sums is not None

    def __call__(self, batch: Values) -> Dict[Key, Errors]:
        """Return the errors on a batch by node and output; ConvertError if it lacks a variable."""
        values = values_on(self._decisions, batch, self._ctx, copied=self._trains)
        if self._sums is None:
            heads = runnable(self._both.graph, self._decisions, values, self._ctx)
            self._sums = Runner(mx.sym.Group(_sums(heads, self._both.compared, self._heads)))
        with autograd.pause(train_mode=self._trains):
            results = self._sums(values)
        sizes = iter(mx.nd.concat(*[result.reshape((1,)) for result in results], dim=0).asnumpy().tolist())
        found: Dict[Key, Errors] = {}
        broken: List[Key] = []
        for each in self._both.compared:
            size, carried = next(sizes), next(sizes)
            own = next(sizes) if each.own != each.exact else 0.0
            key = each.node, each.output
            found[key] = Errors(ratio(own, size), ratio(carried, size))
            broken += [key] if key in self._heads and next(sizes) else []
        self.broken = frozenset(broken)
        return found


def _sums(heads: Any, compared: Iterable[Compared], outputs: Collection[Key]) -> List[Any]:
    """Return, for each output compared, the 2-norms of float32's values and of the differences from it.

    For the network's ``outputs`` the number of float32's values that are not finite follows.

    They are computed in float64, where no square of a float32 overflows or vanishes: a norm is finite unless low
    precision is not. ``norm`` would not do: it is off by percents for millions (``red::nrm2`` of MXNet 1.9.1).
    """
    found = []
    for each in compared:
        is_finite = heads[each.exact] * 0 == 0
        exact = _kept(heads[each.exact], is_finite)
        low = (_kept(heads[n], is_finite) for n in (each.carried, each.own) if n != each.exact)
        found += [mx.sym.sqrt(mx.sym.sum(mx.sym.square(one))) for one in (exact, *(value - exact for value in low))]
        if (each.node, each.output) in outputs:
            found.append(mx.sym.sum(mx.sym.cast(is_finite == 0, "float64")))
    return found


def _kept(values: Any, is_kept: Any) -> Any:
    """Return values in float64, 0 where they are not kept."""
    return mx.sym.cast(mx.sym.where(is_kept, values, mx.sym.zeros_like(values)), "float64")


def ratio(difference: float, size: float) -> float:
    """Return an error: the norm of a difference over that of what it is a difference from; inf if it is not finite."""
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
    right, found = (np.where(is_finite, each, 0).astype(np.float64) for each in (exact, low))
    with np.errstate(all="ignore"):
        difference = np.linalg.norm((found / scale - right).reshape(-1))
        size = float(np.linalg.norm(right.reshape(-1)))
    return ratio(float(difference), terms if size < rounded * terms else size)
