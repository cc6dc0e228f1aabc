"""How much each node's own error moves the outputs of a network: to first order, by random projections."""

from __future__ import annotations

import math
from typing import Any, Dict, FrozenSet, Iterator, List, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd

from .. import dtypes
from ..graph import Entry, Graph, Key, Node
from ..passes.scale_loss import is_loss_head
from ..report import Decisions
from .building import Building, float32_outputs, in_low_precision, moved
from .running import Runner, Values, runnable, values_on, zeros

PROJECTIONS = 8
"""How many random directions of the outputs are followed back."""

# What hides its derivative, by operators that give the same and have one.
_PLAIN = {"LogisticRegressionOutput": "sigmoid", "BlockGrad": "_copy"}


class Contributions:
    """Measures, on one batch after the other, what each node's own error contributes to the error of the outputs.

    With ``e`` the own error of a node, which gets float32's inputs, and ``J`` the derivative of the network's outputs
    by what the node gives, the outputs change by ``J e`` to first order if this node alone is rounded. A backward pass
    from a projection ``v . y`` of the outputs has ``v . (J e)`` of all nodes at once: the product of the gradient there
    and the error. For random signs ``v`` the mean of its square is the square of the 2-norm of ``J e``.

    With as few output elements as `PROJECTIONS`, each is followed back, and nothing is random. Else the norm that so
    many directions tell is off by a quarter (its standard deviation).

    Args:
        decisions: What a conversion decided.
        ctx: Where to run.
        trains: Whether it runs as in training, but for dropout.

    References:
        Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989
    """

    def __init__(self, decisions: Decisions, ctx: Any, trains: bool = False) -> None:
        self._decisions, self._ctx, self._trains = decisions, ctx, trains
        low = frozenset(in_low_precision(decisions))
        self._keys = [key for key in float32_outputs(decisions) if key[0] in low]
        heads = decisions.before.heads
        self._has_outputs = any(decisions.facts.dtype(head) == dtypes.FLOAT32 for head in heads)
        self._has_loops = any(node.subgraphs for node in decisions.before.nodes)
        self._runners: List[Runner] = []

    def __call__(self, batch: Values) -> Dict[int, float]:
        """Return, by position of each node in low precision, the change of the outputs as a share of them.

        It is the 2-norm over that of float32's outputs; of several outputs, the root of the sum of the squares. NaN if
        float32 has no finite derivative there. Elements of an own error that are not finite are left out.
        """
        if not self._has_outputs:
            return {position: math.nan for position, _ in self._keys}
        if not self._keys:
            return {}
        values = values_on(self._decisions, batch, self._ctx, copied=self._trains)
        if not self._runners:
            graph = _errors_of(self._decisions, self._keys)
            self._runners.append(Runner(runnable(graph, self._decisions, values, self._ctx)))
        with autograd.pause(train_mode=self._trains):
            errors = self._runners[0](values)
        zero = zeros({_name(key): error.shape for key, error in zip(self._keys, errors)}, self._ctx)
        if len(self._runners) == 1:
            graph = _probed(self._decisions, frozenset(self._keys))
            self._runners.append(Runner(runnable(graph, self._decisions, {**values, **zero}, self._ctx, trains=True)))
        given = {**values, **zero}
        outputs = self._recorded(given)
        finite = [_finite(error.asnumpy().reshape(-1)) for error in errors]
        squares: Dict[int, float] = {}
        for number, heads in enumerate(_directions([output.asnumpy() for output in outputs])):
            outputs = self._recorded(given) if number and self._has_loops else outputs
            gradients = [mx.nd.array(each, ctx=self._ctx) for each in heads]
            autograd.backward(outputs, gradients, retain_graph=not self._has_loops, train_mode=self._trains)
            for position, change in self._changes(finite, zero).items():
                squares[position] = squares.get(position, 0.0) + change**2
        return {position: math.sqrt(square) for position, square in squares.items()}

    def _recorded(self, values: Values) -> List[Any]:
        """Return the outputs of float32, recorded; MXNet goes back through a loop only once."""
        with autograd.record(train_mode=self._trains):
            return self._runners[1](values)

    def _changes(self, errors: List[Any], zero: Dict[str, Any]) -> Dict[int, float]:
        """Return by how much the projection of the outputs changes for the error of each node."""
        changes: Dict[int, float] = {}
        for key, error in zip(self._keys, errors):
            gradient = zero[_name(key)].grad.asnumpy().reshape(-1)
            changes[key[0]] = changes.get(key[0], 0.0) + float(np.dot(gradient.astype(np.float64), error))
        return changes


def _name(key: Key) -> str:
    return f"probe_{key[0]}_{key[1]}"


def _finite(error: Any) -> Any:
    return error if np.isfinite(error).all() else np.where(np.isfinite(error), error, np.float32(0))


def _errors_of(decisions: Decisions, keys: List[Key]) -> Graph:
    """Return the graph whose outputs are the own errors of nodes at the outputs given."""
    building, positions = Building(decisions), {position for position, _ in keys}
    exact, own = dict(building.variables), {}
    for position, node in enumerate(decisions.before.nodes):
        if not node.is_variable:
            read = moved(node.inputs, exact)
            exact[position] = building.copy(position, read, converted=False)
            if position in positions:
                own[position] = building.copy(position, read, converted=True)
    heads = [building.insert("elemwise_sub", Entry(own[i], index), Entry(exact[i], index)) for i, index in keys]
    return building.finish(heads)


def _probed(decisions: Decisions, keys: FrozenSet[Key]) -> Graph:
    """Return the network in float32 with a variable added to each output given, and a derivative everywhere."""
    building = Building(decisions)
    where = {(old, 0): Entry(new) for old, new in building.variables.items()}
    for position, node in enumerate(decisions.before.nodes):
        if node.is_variable:
            continue
        read = [where[entry.key]._replace(version=entry.version) for entry in node.inputs]
        plain = _with_derivative(building, node, read)
        new = building.copy(position, read, converted=False) if plain is None else plain.node
        for key in ((position, index) for index in range(node.num_outputs)):
            given = Entry(new, key[1])
            where[key] = building.insert("elemwise_add", given, building.variable(_name(key))) if key in keys else given
    heads = [where[head.key] for head in decisions.before.heads if decisions.facts.dtype(head) == dtypes.FLOAT32]
    return building.finish(heads)


def _with_derivative(building: Building, node: Node, inputs: List[Entry]) -> Optional[Entry]:
    """Return what a loss head or a BlockGrad gives, computed by an operator with a derivative; None for any other."""
    if not (is_loss_head(node) or node.op in _PLAIN):
        return None
    data = inputs[0]
    if node.op != "SoftmaxOutput":
        return building.insert(_PLAIN.get(node.op, "_copy"), data)
    if _is_set(node, "multi_output"):
        return building.insert("softmax", data, axis="1")
    if _is_set(node, "preserve_shape"):
        return building.insert("softmax", data, axis="-1")
    rows = building.insert("Flatten", data)
    return building.insert("reshape_like", building.insert("softmax", rows, axis="-1"), data)


def _is_set(node: Node, attribute: str) -> bool:
    return node.get(attribute, "") in ("True", "1", "true")


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
