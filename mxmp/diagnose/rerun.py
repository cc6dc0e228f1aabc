"""Keep calls of networks, and run them again: in float32, or in low precision at any loss scale.

A `Recorder` keeps calls of converted nets. A `Replay` is a call of a graph with the gradients of its outputs. `Rerun`
runs it, and gives `Values`: the ranges of all nodes' values and of their gradients. The nodes have the names that they
have in the network before its conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import is_low_precision, to_float32, tree_leaves, tree_map
from ..errors import ConvertError, mxnet_reason
from ..graph import Entry, Graph, Key
from ..passes.base import is_inserted
from ..passes.facts import Facts
from ..report import Decisions
from ..report.explanation import ValueRange
from ..report.make import positions
from ..train.loss_heads import is_recorded
from ..train.masters import equals_rounded, masters_of
from ..train.step import NetCall, Observer
from .batches import LossFunction, losses_of
from .instrument import (
    Instrument,
    dense,
    facts_of,
    in_dtypes,
    ranges_of,
    read_outputs,
    read_ranges,
    summaries_of,
    summarize,
    variable_dtypes,
    without_dropout,
)

MOST_CALLS = 256  # The most calls that are kept of one step of a trainer.

LOST = 2.0**104
"""A gradient of a loss beyond this is as good as infinite: a loss scale of 2**24 makes it so in float32."""


@dataclass(frozen=True)
class Call:
    """One call of one graph of a network.

    Attributes:
        decisions: The decisions of a conversion, with the graph before and after it; one object for each graph.
        values: NDArrays of all variables by name, on one context.
        inputs: The names of those that are data or labels.
        trained: The names of those whose gradients a step uses.
        context: Where it runs.
        training: Whether it runs in training mode.
        loss_heads: The names of Custom operators that are loss heads.
        number: The number of its batch.
        is_net: Whether it is of a net, whose loss reads its outputs; the losses of a symbol are in the graph.
        lacking: The names of labels that a batch of a symbol lacks, so that they are zeros.
    """

    decisions: Decisions
    values: Mapping[str, Any]
    inputs: Sequence[str]
    trained: FrozenSet[str]
    context: Any
    training: bool = True
    loss_heads: FrozenSet[str] = frozenset()
    number: int = 0
    is_net: bool = False
    lacking: FrozenSet[str] = frozenset()


class KeptCall(NamedTuple):
    """A recorded call, without its outputs unless their gradients are kept: those of zeros that were added to them."""

    call: NetCall
    zeros: Sequence[Any] = ()


class Recorder(Observer):
    """Keeps calls of converted nets: the last one of each net on each context, or all with gradients.

    Attributes:
        keeps_gradients: Whether all calls are kept, with the gradients of their outputs.
        most: How many calls are kept; None for all.
        is_complete: Whether all calls are kept. Otherwise the values of the other calls are not known, so that no input
            can be called bad data.
    """

    keeps_gradients = True

    def __init__(self, most: Optional[int] = MOST_CALLS) -> None:
        self.most, self.is_complete = most, True
        self._kept: Dict[Any, KeptCall] = {}  # Threads may add to it: each change of it is one operation.

    @property
    def calls(self) -> List[KeptCall]:
        """The calls in their order."""
        return list(self._kept.values())

    def on_call(self, call: NetCall) -> Any:
        """Keep a call, and return its outputs, with zeros added if gradients are kept."""
        zeros: List[Any] = []
        outputs = call.outputs
        if self.keeps_gradients:
            if autograd.is_recording():
                outputs = tree_map(outputs, lambda output: _with_zero(output, zeros))
            self._kept[object()] = KeptCall(call._replace(outputs=outputs), zeros)
            replaced = None
        else:
            key = call.net, call.context
            replaced = self._kept.pop(key, None)
            self._kept[key] = KeptCall(call._replace(outputs=None))
        if self.most is not None and len(self._kept) > self.most:
            replaced = self._kept.pop(list(self._kept)[0], None)
        self.is_complete = self.is_complete and replaced is None
        return outputs

    def replays(self, scale: float, of_loss: Callable[[Any], Optional[Gradients]] = lambda _: None) -> List[Replay]:
        """Return the calls as those that can be run again; arguments as of `Replay.of_net`, ``of_loss`` by outputs."""
        return [Replay.of_net(each, scale, of_loss(each.call.outputs), not self.is_complete) for each in self.calls]


class FirstCalls(Recorder):
    """Keeps copies of the inputs of the first calls of each net, so many of each."""

    def __init__(self, count: int) -> None:
        super().__init__(None)
        self._count = count

    def on_call(self, call: NetCall) -> Any:
        """Keep a call if there are not so many of its net."""
        if sum(each.call.net == call.net for each in self.calls) < self._count:
            with autograd.pause():
                copies = [each.copy() if isinstance(each, mx.nd.NDArray) else each for each in call.inputs]
            self._kept[object()] = KeptCall(call._replace(inputs=copies, outputs=None))
        return call.outputs


def _with_zero(output: Any, zeros: List[Any]) -> Any:
    """Return an output with a zero added that has a gradient."""
    if not isinstance(output, mx.nd.NDArray):
        return output
    with autograd.pause():
        zero = (mx.np if isinstance(output, mx.np.ndarray) else mx.nd).zeros_like(output)
        zero.attach_grad("add")
    zeros.append(zero)
    return output + zero


class Gradients:
    """Gives the gradients of a network's outputs; these are known.

    ``arrays`` are ones unless given, those of losses whose sum is derived; ``of_loss`` computes them anew, where they
    are not finite.
    """

    follows_outputs = False  # Whether they are computed from the outputs.

    def __init__(self, arrays: Optional[Sequence[Any]] = None, of_loss: Optional[Gradients] = None) -> None:
        self._arrays, self.of_loss = arrays, of_loss

    def __call__(self, heads: List[Any], scale: float = 1.0) -> Sequence[Any]:
        """Return the gradient of each output times a loss scale."""
        with autograd.pause():
            arrays = list(map(mx.nd.ones_like, heads)) if self._arrays is None else self._arrays
            return [each * scale for each in arrays] if scale != 1.0 else arrays

    def are_spoilt(self) -> bool:
        """Return whether they are not finite."""
        return any(each.bad for each in ranges_of({str(i): each for i, each in enumerate(self._arrays or ())}))

    def labels(self) -> Dict[str, Any]:
        """Return the arrays that they depend on besides the outputs, by name."""
        return {} if self.of_loss is None else self.of_loss.labels()

    def cleaned(self) -> Gradients:
        """Return the same of data without inf and NaN."""
        return self


class LossGradients(Gradients):
    """Those of a loss that is computed of the outputs and some labels.

    Args:
        loss: The loss.
        labels: The arrays that it reads in addition to the outputs.
        nest: Returns the outputs of a graph as the loss gets them.
    """

    follows_outputs = True

    def __init__(self, loss: LossFunction, labels: Sequence[Any], nest: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()
        self._loss, self._labels, self._nest = loss, list(labels), nest

    def __call__(self, heads: List[Any], scale: float = 1.0) -> Sequence[Any]:
        """Return the gradient of each output times a loss scale."""
        arrays = [head.detach() for head in heads]
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            losses = losses_of(self._loss, self._nest(arrays), self._labels)
            losses = losses if scale == 1.0 else [each * scale for each in losses]
        run_backward(losses)
        return [array.grad for array in arrays]

    def labels(self) -> Dict[str, Any]:
        """Return the labels."""
        arrays = [each for label in self._labels for each in tree_leaves(label)]
        several = len(arrays) > 1
        return {f"label{number if several else ''}": each for number, each in enumerate(arrays)}

    def cleaned(self) -> LossGradients:
        """Return the same with labels without inf and NaN."""
        return LossGradients(self._loss, tree_map(self._labels, _cleaned), self._nest)


def as_outputs(outputs: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a function that nests arrays as some outputs are, each of the same kind."""

    def nest(arrays: Sequence[Any]) -> Any:
        remaining = iter(arrays)

        def given(like: Any) -> Any:
            if not isinstance(like, mx.nd.NDArray):
                return like
            array = next(remaining)
            return array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array

        return tree_map(outputs, given)

    return nest


def run_backward(heads: Sequence[Any], gradients: Optional[Sequence[Any]] = None, train: bool = True) -> None:
    """Run backward from losses, or from outputs and their gradients of any dtype; ConvertError where MXNet cannot."""
    if gradients is None and not all(map(is_recorded, heads)):
        raise ConvertError(
            "loss does not depend on the net's outputs, so there are no gradients; compute it of the outputs by "
            "operators of MXNet, without detach, asnumpy or autograd.pause."
        )
    if gradients is not None:
        pairs = [(head, each.as_nd_ndarray()) for head, each in zip(heads, gradients)]
        gradients = [each.as_in_context(head.ctx).astype(head.dtype) for head, each in pairs]
        if not gradients:  # of a block that was called without recording
            return
    try:
        autograd.backward(list(heads), gradients, train_mode=train)
    except mx.MXNetError as e:
        raise ConvertError(f"gradients: MXNet cannot run the network backward: {mxnet_reason(e)}") from e


@dataclass(frozen=True)
class Replay:
    """A call of a graph that can be run again.

    Attributes:
        call: The call.
        gradients: Gives the true gradients of its outputs; None if they are not known.
        follows_lost: Whether its inputs may come from a call that is not known, so that they cannot be called data.
        params: The parameters of a net, by name.
    """

    call: Call
    gradients: Optional[Gradients]
    follows_lost: bool = False
    params: Mapping[str, gluon.Parameter] = field(default_factory=dict, compare=False)
    _reruns: Dict[Any, Rerun] = field(default_factory=dict, compare=False)  # The calls of a network share them.

    def run(self, low: bool, scale: float = 1.0) -> Values:
        """Run it once, as it was converted or in float32, with the loss times ``scale``."""
        call = self.call
        graph = call.decisions.after if low else call.decisions.before
        shapes = (call.values[name].shape for name in call.inputs if name in call.values)
        key = id(graph), call.training, call.context, *shapes  # A rerun keeps its graph alive.
        if key not in self._reruns:
            self._reruns[key] = Rerun(call, graph)
        return self._reruns[key](call.values, self.gradients, scale)

    def data(self) -> Dict[str, Any]:
        """Return the data by name: the inputs and the labels of the loss."""
        values = self.call.values
        return {**{name: values[name] for name in self.call.inputs if name in values}, **self.labels()}

    def labels(self) -> Dict[str, Any]:
        """Return the labels that the loss reads, by name."""
        return self.gradients.labels() if self.gradients is not None else {}

    def parameters(self) -> List[ValueRange]:
        """Return the ranges of parameters and auxiliary states."""
        held = ((name, array) for name, array in self.call.values.items() if name not in self.call.inputs)
        return ranges_of({name: array for name, array in held if is_real(array)})

    def with_masters(self) -> Replay:
        """Return the same on the float32 masters of a net's weights; each weight is compared with its master."""
        masters = {name: _value(param, self.call.context) for name, param in self.params.items()}
        return replace(self, call=replace(self.call, values={**self.call.values, **masters}))

    def without_dropout(self) -> Replay:
        """Return the same with dropout that drops nothing, and so draws no random number."""
        decisions = self.call.decisions
        before, after = without_dropout(decisions.before), without_dropout(decisions.after)
        call = replace(self.call, decisions=replace(decisions, before=before, after=after))
        return replace(self, call=call)

    def in_float32(self) -> Replay:
        """Return the same of a network that is not converted."""
        decisions = self.call.decisions
        return replace(self, call=replace(self.call, decisions=replace(decisions, after=decisions.before)))

    def cleaned(self) -> Replay:
        """Return the same with data and labels without inf and NaN."""
        values = {n: _cleaned(each) if n in self.call.inputs else each for n, each in self.call.values.items()}
        gradients = None if self.gradients is None else self.gradients.cleaned()
        return replace(self, call=replace(self.call, values=values), gradients=gradients)

    @classmethod
    def of_net(
        cls, kept: KeptCall, scale: float, of_loss: Optional[Gradients] = None, follows_lost: bool = False
    ) -> Replay:
        """Return a kept call of a converted net.

        ``scale`` is that of the gradients that are kept; ``of_loss`` computes them where they are not finite, or not
        known.
        """
        noted = kept.call
        traced, decisions = noted.graph.trace, noted.graph.converted.decisions
        names = [symbol.name for symbol in traced.inputs]
        values = {name: param.data(noted.context) for name, param in traced.params.items()}
        values.update(zip(names, noted.inputs))
        trained = frozenset(name for name, param in traced.params.items() if param.grad_req != "null")
        gradients: Optional[Gradients] = of_loss
        if kept.zeros:
            with autograd.pause():
                gradients = Gradients([zero.grad.astype("float32") / scale for zero in kept.zeros], of_loss)
        call = Call(decisions, values, names, trained, noted.context, noted.training)
        return cls(call, gradients, follows_lost, traced.params)


def _value(param: gluon.Parameter, context: mx.Context) -> mx.nd.NDArray:
    """Return the value of a parameter: its float32 master, unless the weight was written to past it."""
    weight = param.data(context)
    master = masters_of(param).get(context) if is_low_precision(weight) else None
    is_master = master is not None and master.shape == weight.shape and equals_rounded(master, weight).asscalar() == 1.0
    return master if is_master else weight


@dataclass(frozen=True)
class Values:
    """The ranges that a run of a graph has shown, under the names of the network that it was made of.

    Attributes:
        names: The names of its nodes.
        types: The dtypes of its outputs of nodes.
        forward: The values of outputs of nodes.
        backward: Their gradients, those of variables that are trained included.
        outputs: The values of the network's outputs.
        head_gradients: The gradients that were given for them.
        given: The arrays of these gradients.
        scale: The factor of the loss.
    """

    names: NodeNames
    types: Mapping[Key, str]
    forward: Mapping[Key, ValueRange]
    backward: Mapping[Key, ValueRange]
    outputs: Sequence[ValueRange]
    head_gradients: Sequence[ValueRange] = ()
    given: Sequence[Any] = ()
    scale: float = 1.0

    @property
    def trained(self) -> List[ValueRange]:
        """The gradients of the variables that are trained."""
        nodes = self.names.graph.nodes
        return [gradient for key, gradient in self.backward.items() if nodes[key[0]].is_variable]

    @property
    def _gradients(self) -> List[ValueRange]:
        return self.trained or list(self.backward.values())

    @property
    def is_bad(self) -> bool:
        """Whether the step's gradients or the outputs are not finite."""
        return any(each.bad for each in (*(self._gradients if self.backward else ()), *self.outputs))

    @property
    def lost_heads(self) -> List[int]:
        """The numbers of the outputs for which the loss gives gradients that are not finite, or as good as that."""
        return [number for number, each in enumerate(self.head_gradients) if each.bad or each.magnitude > LOST]

    @property
    def is_broken(self) -> bool:
        """Whether it is bad, or the loss gives it gradients that are."""
        return self.is_bad or bool(self.lost_heads)

    def worse_than(self, exact: Values) -> bool:
        """Whether outputs or gradients have inf or NaN where float32 has none."""
        if self.backward and any(each.bad for each in self._gradients):
            return True
        return any(each.bad > other.bad for each, other in zip(self.outputs, exact.outputs))


class NodeNames:
    """The names that the nodes of a converted graph have in the network that it was made of.

    Attributes:
        graph: The converted graph.
        source: The positions in the network, by those in the graph; inserted casts have none.
    """

    def __init__(self, before: Graph, graph: Graph) -> None:
        self.before, self.graph = before, graph
        self.source = {new: old for old, new in positions(before, graph).items()}

    def of(self, position: int) -> Tuple[str, str]:
        """Return the name and operator of a node; a cast has the name of its input."""
        if position in self.source:
            node = self.before.nodes[self.source[position]]
            return node.name, node.op
        node = self.graph.nodes[position]
        if not is_inserted(node):
            return node.name, node.op
        return self.of(node.inputs[0].node)[0], "cast"

    def of_output(self, key: Key) -> str:
        """Return the name of an output of a node; a cast has the name of its input."""
        node = self.graph.nodes[key[0]]
        if key[0] not in self.source:
            return self.of_output(node.inputs[0].key) if is_inserted(node) else self.graph.entry_name(Entry(*key))
        return self.before.entry_name(Entry(self.source[key[0]], key[1]))


class Rerun:
    """A graph of a call, converted or in float32, whose runs are looked at: all values and gradients."""

    def __init__(self, call: Call, graph: Graph) -> None:
        self._call, self._graph = call, graph
        self._dtypes = variable_dtypes(graph)
        values = in_dtypes(self._dtypes, call.values)
        self._facts: Facts = facts_of(graph, values)
        self._names = NodeNames(call.decisions.before, graph)
        keys = ((i, n) for i, node in enumerate(graph.nodes) if not node.is_variable for n in range(node.num_outputs))
        self._keys = [key for key in keys if self._facts.dtypes.get(key) in dtypes.PRECISIONS]
        self._instrument = Instrument(
            graph,
            call.decisions,
            values,
            call.context,
            outputs=frozenset(read_outputs(graph, self._facts, heads=True)),
            reduced=self._keys,
            reduce=lambda heads, outputs: [summarize(mx.sym, each) for each in (*heads, *outputs)],
            loss_heads=call.loss_heads,
        )

    def __call__(self, values: Mapping[str, Any], gradients: Optional[Gradients], scale: float) -> Values:
        """Run it once; gradients are those of the loss times ``scale``. Nothing that is given is changed."""
        call, graph = self._call, self._graph
        reading = self._instrument(values, scale, call.training, call.trained)
        given = [] if gradients is None else list(gradients(reading.outputs))
        written: Dict[Key, Any] = {}
        places = {node.name: (i, 0) for i, node in enumerate(graph.nodes) if node.is_variable}
        if gradients is not None and reading.written:
            with autograd.pause(), call.context:
                run_backward(reading.outputs, [each.astype("float32") * scale for each in given])
            written = reading.at_outputs()
            written.update((places[name], array.grad) for name, array in reading.written.items() if name in places)
        # Variables are looked at as they are stored: a parameter in low precision may be out of its range.
        variables = in_dtypes(self._dtypes, {name: array for name, array in values.items() if name in places})
        forward = {places[n]: each for n, each in variables.items() if _dtype(each) in dtypes.PRECISIONS}
        count, heads = len(graph.heads), [head.key for head in graph.heads]
        # Ranges of arrays at hand, and those that the graph has reduced.
        arrays = [dense(each) for each in (*forward.values(), *written.values(), *given)]
        names = [self._names.of_output(key) for key in (*heads, *self._keys, *forward, *written)]
        names += [graph.entry_name(head) for head, _ in zip(graph.heads, given)]
        sizes = [self._facts.size(Entry(*key)) or 0 for key in (*heads, *self._keys)]
        sizes += [array.size for array in arrays]
        ranges = iter(read_ranges(names, sizes, [*reading.reductions, *summaries_of(arrays)]))
        outputs = [next(ranges) for _ in range(count)]
        by_key = {key: next(ranges) for key in (*self._keys, *forward)}
        backward = {key: next(ranges) for key in written}
        head_gradients = [next(ranges) for _ in given]
        return Values(self._names, self._facts.dtypes, by_key, backward, outputs, head_gradients, given, scale)


def _dtype(array: Any) -> Optional[str]:
    return dtypes.canonical(array.dtype) if isinstance(array, mx.nd.NDArray) else None


def is_real(array: Any) -> bool:
    """Return whether an array holds numbers with a point, of which some may be inf or NaN."""
    return _dtype(array) in (*dtypes.PRECISIONS, "float64")


def rows_of(array: Any) -> Any:
    """Return an array as a matrix of numpy, with the rows along its first axis; low precision as float32."""
    values = to_float32(array).asnumpy()
    return values.reshape(values.shape[0] if values.ndim else 1, -1)


def _cleaned(array: Any) -> Any:
    """Return an array without inf and NaN: a row with some is as the first row without; if all have some, they are 1.

    Rows of the same data are good for the network. A 0 may not be: its logarithm is -inf.
    """
    if not is_real(array):
        return array
    rows = rows_of(array)
    is_finite = np.isfinite(rows)
    is_good = is_finite.all(axis=1)
    clean = np.where(is_good[:, None], rows, rows[is_good][0]) if is_good.any() else np.where(is_finite, rows, 1.0)
    with autograd.pause():
        made = mx.nd.array(clean.reshape(array.shape), ctx=array.ctx, dtype=rows.dtype)
        return made.as_np_ndarray() if isinstance(array, mx.np.ndarray) else made
