"""A training step that is run again: in float32, and in low precision at any loss scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..graph import Graph
from ..report import Decisions
from .building import without_dropout
from .looking import Looker, Seen
from .value_range import ValueRange, ranges_of


@dataclass
class Call:
    """One call of a network in a step.

    Attributes:
        name: What errors call the network.
        decisions: What its conversion decided, with the graph before and after it.
        values: NDArrays of all variables by name, on one context.
        inputs: Names of those that are data or labels.
        trained: Names of those whose gradients the step uses.
        gradients: Gives the true gradients of its outputs; None if they are not known.
        context: Where it ran.
        training: Whether it ran in training mode.
        loss_heads: Names of Custom operators that are loss heads.
        follows_lost: Whether its inputs may come from a call that is not known, so that they cannot be called data.
        linked: Whether it is known that the loss depends on it.
    """

    name: str
    decisions: Decisions
    values: Dict[str, Any]
    inputs: Sequence[str]
    trained: FrozenSet[str]
    gradients: Optional[Gradients]
    context: Any
    training: bool = True
    loss_heads: FrozenSet[str] = frozenset()
    follows_lost: bool = False
    linked: bool = True
    _lookers: Dict[bool, Looker] = field(default_factory=dict)

    def run(self, low: bool, scale: float = 1.0) -> Seen:
        """Run it once, as it was converted or in float32, with the loss times ``scale``."""
        graph = self.decisions.after if low else self.decisions.before
        if low not in self._lookers:
            made = graph, self.decisions, self.context, self.trained, self.training, self.loss_heads
            self._lookers[low] = Looker(*made)
        return self._lookers[low](_in_declared_dtypes(graph, self.values), self.gradients, scale)

    def given(self) -> Dict[str, Any]:
        """Return the data: inputs, labels, and what the loss reads besides."""
        found = {name: self.values[name] for name in self.inputs if name in self.values}
        return {**found, **self.labels()}

    def labels(self) -> Dict[str, Any]:
        """Return what the loss reads besides the network's outputs."""
        return self.gradients.given() if self.gradients is not None else {}

    def parameters(self) -> List[ValueRange]:
        """Return the ranges of parameters and auxiliary states."""
        return ranges_of({n: each for n, each in self.values.items() if n not in self.inputs and is_real(each)})

    def without_dropout(self) -> Call:
        """Return the same with dropout that drops nothing, and so draws no random number."""
        graphs = self.decisions.before, self.decisions.after
        before, after = (replace(each, nodes=tuple(map(without_dropout, each.nodes))) for each in graphs)
        return replace(self, decisions=replace(self.decisions, before=before, after=after), _lookers={})

    def cleaned(self) -> Call:
        """Return the same with 0 in place of inf and NaN in data and labels."""
        values = {name: _cleaned(each) if name in self.inputs else each for name, each in self.values.items()}
        gradients = None if self.gradients is None else self.gradients.cleaned()
        return replace(self, values=values, gradients=gradients, _lookers=dict(self._lookers))


class Gradients:
    """Gives the gradients of a network's outputs; these are known."""

    follows_outputs = False  # whether they are computed of the outputs that are given

    def __init__(self, arrays: Sequence[Any], of_loss: Optional[LossGradients] = None) -> None:
        """``of_loss`` computes them anew, where these are not finite."""
        self._arrays, self.of_loss = list(arrays), of_loss

    def __call__(self, heads: List[Any]) -> Optional[List[Any]]:
        """Return the gradient of each output, None where it has none."""
        return self._arrays

    def are_spoilt(self) -> bool:
        """Return whether they are known, and not finite."""
        return any(each.bad for each in ranges_of({str(i): each for i, each in enumerate(self._arrays)}))

    def given(self) -> Dict[str, Any]:
        """Return what they depend on besides the outputs, by name."""
        return {} if self.of_loss is None else self.of_loss.given()

    def cleaned(self) -> Gradients:
        """Return the same of data without inf and NaN."""
        return self


class LossGradients(Gradients):
    """Those of a loss that is computed of the outputs: ``loss(outputs, *labels)``.

    Attributes:
        loss: The loss.
        labels: What it reads besides the outputs.
        outputs: Outputs as it is given them: an array, or lists and tuples of them, perhaps nested.
    """

    follows_outputs = True

    def __init__(self, loss: Callable[..., Any], labels: Sequence[Any], outputs: Any) -> None:
        super().__init__([])
        self.loss, self.labels, self.outputs = loss, list(labels), outputs

    def __call__(self, heads: List[Any]) -> List[Any]:
        """Return the gradient of each output."""
        leaves = [head.detach() for head in heads]
        for leaf in leaves:
            leaf.attach_grad()
        with autograd.record():
            losses = self.loss(_nested(iter(leaves), self.outputs), *self.labels)
        autograd.backward(list(flat(losses)))
        return [leaf.grad for leaf in leaves]

    def given(self) -> Dict[str, Any]:
        """Return the labels."""
        several = len(self.labels) > 1
        return {f"label{number if several else ''}": each for number, each in enumerate(self.labels)}

    def cleaned(self) -> LossGradients:
        """Return the same with 0 in place of inf and NaN in labels."""
        return LossGradients(self.loss, [_cleaned(each) for each in self.labels], self.outputs)


def flat(value: Any) -> Iterator[Any]:
    """Yield the items of nested lists and tuples, or the value itself."""
    for each in value if isinstance(value, (list, tuple)) else ():
        yield from flat(each)
    if not isinstance(value, (list, tuple)):
        yield value


def _nested(arrays: Iterator[Any], like: Any) -> Any:
    """Return a flat sequence of arrays nested as others are, each of the kind of that in its place."""
    if isinstance(like, (list, tuple)):
        items = [_nested(arrays, each) for each in like]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    if not isinstance(like, mx.nd.NDArray):
        return like
    array = next(arrays)
    return array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array


def is_real(array: Any) -> bool:
    """Return whether an array holds numbers with a point, of which some may be inf or NaN."""
    return isinstance(array, mx.nd.NDArray) and dtypes.canonical(array.dtype) in (*dtypes.PRECISIONS, "float64")


def _cleaned(array: Any) -> Any:
    if not is_real(array):
        return array
    with autograd.pause():
        plain = array.as_nd_ndarray()
        clean = mx.nd.where(plain * 0 == 0, plain, mx.nd.zeros_like(plain))
        return clean.as_np_ndarray() if isinstance(array, mx.np.ndarray) else clean


def _in_declared_dtypes(graph: Graph, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return values in the dtypes that a graph's variables declare, float32 for low precision that declares none."""
    declared = {node.name: dtypes.from_flag(node.get("__dtype__") or "") for node in graph.nodes if node.is_variable}
    found = {}
    for name, array in values.items():
        wanted, has = declared.get(name), dtypes.canonical(array.dtype)
        if has in dtypes.LOW_PRECISION and wanted is None:
            wanted = dtypes.FLOAT32
        if wanted in dtypes.PRECISIONS and has in dtypes.PRECISIONS and wanted != has:
            with autograd.pause():
                array = mx.nd.amp_cast(array.as_nd_ndarray(), dtype=wanted)
        found[name] = array
    return found
