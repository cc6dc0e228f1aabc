"""Find where inf and NaN come from, and whether a skipped step is a bug, an overflow or bad data.

A step is a list of `Replay`: calls of graphs that can be run again, in float32 and in low precision at any loss scale.
Each run gives a `Seen`: the ranges of all values and gradients, by node. A step may call several networks, each on
values of an earlier one. They are gone over in the order of the calls; an input is data unless an earlier call has
given inf or NaN, in float32 or in low precision.

    find_nonfinite, explain: a network and a batch -> replays --+
    Watch, a trainer's or module's step            -> replays --+--> find, judge --> NonFinite, Verdict
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, field, replace
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet import autograd

from .. import dtypes
from ..arrays import leaves, to_float32
from ..display import blocks as show
from ..display.record import Record
from ..errors import ConvertError, MxmpError
from ..gluon.api import convert
from ..graph import Entry, Graph, Key, Node
from ..passes.attributes import MARK_ATTR, original
from ..passes.facts import Facts
from ..policy import Policy
from ..report.counts import positions
from .batches import Batch, call_net, nested, one_batch
from .calls import OBSERVER, NetCall
from .instrument import Instrument, facts_of, in_declared_dtypes, read_outputs, without_dropout
from .kept import kept
from .ranges import Summaries, ValueRange, ranges_of, read_ranges, summarize
from .subject import Call, LossFunction, NetSubject, SymbolSubject, losses_of, read_subject, require_scale, run_backward

FORWARD, BACKWARD, DATA, PARAMETER, LOSS = "forward", "backward", "data", "parameter", "loss"
"""Where inf or NaN comes up: `NonFinite.where`."""

SCALE_TOO_HIGH = "scale too high"
OUT_OF_RANGE = "activation out of range"
BROKEN = "float32 model broken"
BAD_DATA = "data"
BAD_PARAMETERS = "parameters"
NO_FAULT = "no fault found"
"""The kinds of a verdict."""

_STEP = 8.0  # by which the scale falls from replay to replay
_FLOAT16_END = dtypes.limits(dtypes.FLOAT16).max
_FAR = 2.0**20 * _FLOAT16_END  # of values
_FAR_GRADIENT = 2.0**6 * _FLOAT16_END  # of the loss itself, not scaled

_COLUMNS = (
    show.Column("tensor"),
    show.Column("what it is"),
    show.Column("elements", show.NUMBER),
    show.Column("NaN", show.NUMBER),
    show.Column("inf", show.NUMBER),
    show.Column("smallest", show.NUMBER, "The smallest finite value"),
    show.Column("largest", show.NUMBER, "The largest finite value"),
)


# ---------------------------------------------------------------------- results


@dataclass(frozen=True)
class NonFinite(Record):
    """Where inf or NaN comes up first.

    Attributes:
        where: 'forward' or 'backward', a node of the network; 'data' or 'parameter', a value that it is given, or, of a
            parameter in low precision, one out of its range; 'loss', the loss outside of the network.
        name: The node, input or parameter.
        op: The node's operator; empty for what is no node. A cast that a conversion put in is a 'cast'.
        precision: The dtype in which it is: 'float16', 'bfloat16' or 'float32'.
        output: What holds inf or NaN: the node's output; backward, the gradient that it hands on.
        inputs: What the node reads; backward, the gradients that its outputs get stand before that.
        float32: The same output in float32, a gradient at the same loss scale; None where that is not known.
        rows: Of data, the rows (numbers along the first axis) that hold inf or NaN.
        keep: The operators to keep in float32 so that it does not overflow here: the node, and those in low precision
            that read its output.
        inf_from: Of a node whose output is NaN because of an inf that it reads, the node that this comes from, such as
            an attention mask's -inf; '' if it reads none.
    """

    _kind: ClassVar[str] = "finding of inf or NaN"
    _title: ClassVar[str] = "Where inf or NaN comes up first"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    where: str
    name: str
    op: str
    precision: str
    output: ValueRange
    inputs: Tuple[ValueRange, ...] = ()
    float32: Optional[ValueRange] = None
    rows: Tuple[int, ...] = ()
    keep: Tuple[str, ...] = ()
    inf_from: str = ""

    def __str__(self) -> str:
        count = f"{self.output.bad:,} of {self.output.size:,} elements"
        more = f" and {len(self.rows) - 5} more" if len(self.rows) > 5 else ""
        listed = ", ".join(map(str, self.rows[:5]))
        rows = f", in row{'s' if len(self.rows) > 1 else ''} {listed}{more}" if self.rows else ""
        if self.where in (DATA, PARAMETER):
            kind = "input" if self.where == DATA else "parameter"
            if self.precision in dtypes.LOW_PRECISION:
                return f"{kind} '{self.name}' is {self.output.kinds} in {self.precision} in {count}{self._reached()}"
            return f"{kind} '{self.name}' holds {self.output.kinds} in {count}{rows}"
        if self.where == LOSS:
            return (
                f"the gradient of the loss with respect to '{self.name}' is {self.output.kinds} in {count}{rows}, "
                f"though that output is finite: it reaches {self.inputs[0].magnitude:.4g}"
            )
        node = f"'{self.name}' ({self.op}, {self.precision})"
        if self.where == FORWARD:
            return f"forward: {node} gives {self.output.kinds} in {count}{self._reached()}"
        gradient = f"a gradient of {self.output.kinds} in {count} for '{self.output.name}'"
        return f"backward: {node} gives {gradient}{self._reached()}"

    def _reached(self) -> str:
        """Return how large the values around it are, as the end of a sentence."""
        reached = [each for each in self.inputs if each.size]
        end = f"{self.precision} ends at {dtypes.limits(self.precision).max:.5g}"
        text = ""
        if reached and self.where == PARAMETER:
            return f": it reaches {reached[0].magnitude:.4g}, {end}"
        if reached and self.where == BACKWARD:
            text = f"; the gradient that it gets reaches {reached[0].magnitude:.4g}"
        elif reached:
            ends = " and ".join(f"{each.magnitude:.4g}" for each in reached[:3])
            text = f"; its {'inputs reach' if len(reached) > 1 else 'input reaches'} {ends}"
        text += f", and it reads inf, which comes from '{self.inf_from}'" if self.inf_from else ""
        text += f", {end}" if self.precision in dtypes.LOW_PRECISION else ""
        if self.float32 is not None and not self.float32.bad:
            text += f"; in float32 it reaches {self.float32.magnitude:.4g}"
        return text

    @property
    def overrides(self) -> str:
        """What keeps `keep` in float32, as overrides of a policy: 'name:conv3=float32'; '' if there is nothing."""
        return float32_overrides(self.keep)

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the sentence and the overrides."""
        return {**super().to_dict(), "overrides": self.overrides, "text": str(self)}

    def _sections(self) -> List[show.Section]:
        ranges = [("what holds it", self.output), *(("what is read", each) for each in self.inputs)]
        ranges += [] if self.float32 is None else [("the same in float32", self.float32)]
        rows = [(r.name, kind, r.size, r.nans, r.infs, r.smallest, r.largest) for kind, r in ranges]
        facts = [("where", self.where), ("name", self.name), ("precision", self.precision)]
        facts += [("overrides that mend it", self.overrides.replace(",", ", "))] if self.overrides else []
        blocks = show.Facts(facts), show.Table("Values around it", _COLUMNS, rows, "tensors")
        return [show.Section(self._title, blocks, str(self))]


def float32_overrides(names: Iterable[str], ending: str = "") -> str:
    """Return overrides that keep operators in float32: those named, or with "*" those whose names begin so."""
    return ",".join(dict.fromkeys(f"name:{glob.escape(name)}{ending}=float32" for name in names))


@dataclass(frozen=True)
class Verdict(Record):
    """What is wrong with a step.

    Attributes:
        kind: 'scale too high' (the skip was right), 'activation out of range' (of low precision, at any scale: forward,
            or in a gradient at scale 1; of that 1/8 and 1/64 are tried too), 'float32 model broken', 'data',
            'parameters', or 'no fault found'.
        text: Sentences that say so and end in what to do.
        node: Where inf or NaN comes up first; None if it does nowhere.
        scale: The loss scale of the step.
        finite_scale: The largest scale tried at which the step is finite; None if none was, or none was looked for.
    """

    _kind: ClassVar[str] = "verdict"
    _title: ClassVar[str] = "Why a step is not finite"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    kind: str
    text: str
    node: Optional[NonFinite] = None
    scale: float = 1.0
    finite_scale: Optional[float] = None

    def __str__(self) -> str:
        return self.text if self.text.startswith(f"{self.kind}: ") else f"{self.kind}: {self.text}"

    @property
    def overrides(self) -> str:
        """What mends an activation, gradient or parameter out of low precision's range, as overrides of a policy.

        'name:conv3=float32', for ``f"O1,{verdict.overrides}"``; '' for every other fault.
        """
        mends = self.kind in (OUT_OF_RANGE, BAD_PARAMETERS) and self.node is not None
        return self.node.overrides if mends and self.node is not None else ""

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the overrides."""
        return {**super().to_dict(), "overrides": self.overrides}

    def _sections(self) -> List[show.Section]:
        facts = [("verdict", self.kind), ("loss scale", show.figure(self.scale))]
        if self.finite_scale is not None:
            facts.append(("finite at a loss scale of", show.figure(self.finite_scale)))
        blocks = show.Facts(facts), show.Notes([self.text], "Verdict")
        sections = [show.Section("Why the step is not finite", blocks)]
        return sections if self.node is None else [*sections, *self.node._sections()]


# ---------------------------------------------------------------------- runs


class Gradients:
    """Gives the gradients of a network's outputs; these are known."""

    follows_outputs = False  # whether they are computed of the outputs that are given

    def __init__(self, arrays: Sequence[Any], of_loss: Optional[LossGradients] = None) -> None:
        """``of_loss`` computes them anew, where these are not finite."""
        self._arrays, self.of_loss = list(arrays), of_loss

    def __call__(self, heads: List[Any]) -> Sequence[Any]:
        """Return the gradient of each output, None where it has none."""
        return self._arrays

    def are_spoilt(self) -> bool:
        """Return whether they are not finite."""
        return any(each.bad for each in ranges_of({str(i): each for i, each in enumerate(self._arrays)}))

    def labels(self) -> Dict[str, Any]:
        """Return the arrays that they depend on besides the outputs, by name."""
        return {} if self.of_loss is None else self.of_loss.labels()

    def cleaned(self) -> Gradients:
        """Return the same of data without inf and NaN."""
        return self


class Ones(Gradients):
    """Ones for each output: of a loss, whose sum is then derived."""

    def __init__(self) -> None:
        super().__init__([])

    def __call__(self, heads: List[Any]) -> Sequence[Any]:
        """Return ones."""
        return [mx.nd.ones_like(head) for head in heads]


class LossGradients(Gradients):
    """Those of a loss that is computed of the outputs: ``loss(outputs, *labels)``.

    ``outputs`` says how outputs are nested, and of which kind each array is.
    """

    follows_outputs = True

    def __init__(self, loss: Callable[..., Any], labels: Sequence[Any], outputs: Any) -> None:
        super().__init__([])
        self._loss, self._labels, self._outputs = loss, list(labels), outputs

    def __call__(self, heads: List[Any]) -> Sequence[Any]:
        """Return the gradient of each output."""
        arrays = [head.detach() for head in heads]
        for array in arrays:
            array.attach_grad()
        remaining = iter(arrays)

        def given(like: Any) -> Any:
            if not isinstance(like, mx.nd.NDArray):
                return like
            array = next(remaining)
            return array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array

        with autograd.record():
            losses = self._loss(nested(self._outputs, given), *self._labels)
        autograd.backward(list(leaves(losses)))
        return [array.grad for array in arrays]

    def labels(self) -> Dict[str, Any]:
        """Return the labels."""
        several = len(self._labels) > 1
        return {f"label{number if several else ''}": each for number, each in enumerate(self._labels)}

    def cleaned(self) -> LossGradients:
        """Return the same with 0 in place of inf and NaN in labels."""
        return LossGradients(self._loss, list(map(_cleaned, self._labels)), self._outputs)


@dataclass(frozen=True)
class Replay:
    """A call of a graph that can be run again.

    Attributes:
        call: The call.
        gradients: Gives the true gradients of its outputs; None if they are not known.
        follows_lost: Whether its inputs may come from a call that is not known, so that they cannot be called data.
        linked: Whether it is known that the loss depends on it.
    """

    call: Call
    gradients: Optional[Gradients]
    follows_lost: bool = False
    linked: bool = True
    _views: Dict[bool, _View] = field(default_factory=dict, compare=False)

    def run(self, low: bool, scale: float = 1.0) -> Seen:
        """Run it once, as it was converted or in float32, with the loss times ``scale``."""
        if low not in self._views:
            self._views[low] = _View(self.call, low)
        return self._views[low](self.call.values, self.gradients, scale)

    def data(self) -> Dict[str, Any]:
        """Return the data: inputs, labels, and what the loss reads besides."""
        values = self.call.values
        return {**{name: values[name] for name in self.call.inputs if name in values}, **self.labels()}

    def labels(self) -> Dict[str, Any]:
        """Return what the loss reads besides the network's outputs."""
        return self.gradients.labels() if self.gradients is not None else {}

    def parameters(self) -> List[ValueRange]:
        """Return the ranges of parameters and auxiliary states."""
        held = ((name, array) for name, array in self.call.values.items() if name not in self.call.inputs)
        return ranges_of({name: array for name, array in held if _is_real(array)})

    def without_dropout(self) -> Replay:
        """Return the same with dropout that drops nothing, and so draws no random number."""
        decisions = self.call.decisions
        before, after = without_dropout(decisions.before), without_dropout(decisions.after)
        call = replace(self.call, decisions=replace(decisions, before=before, after=after))
        return replace(self, call=call, _views={})

    def cleaned(self) -> Replay:
        """Return the same with 0 in place of inf and NaN in data and labels."""
        values = {n: _cleaned(each) if n in self.call.inputs else each for n, each in self.call.values.items()}
        gradients = None if self.gradients is None else self.gradients.cleaned()
        return replace(self, call=replace(self.call, values=values), gradients=gradients)

    @classmethod
    def of_net(
        cls, noted: NetCall, scale: float, of_loss: Optional[LossGradients] = None, backward: bool = True
    ) -> Replay:
        """Return a noted call of a converted net, perhaps without its gradients.

        ``scale`` is that of the gradients that are kept; ``of_loss`` computes them where they are not finite, or not
        known.
        """
        traced, decisions = noted.graph.trace, noted.graph.converted.decisions
        names = [symbol.name for symbol in traced.inputs]
        values = {name: param.data(noted.context) for name, param in traced.params.items()}
        values.update(zip(names, noted.inputs))
        trained = frozenset(name for name, param in traced.params.items() if param.grad_req != "null")
        gradients: Optional[Gradients] = of_loss
        if noted.zeros and backward:
            with autograd.pause():
                gradients = Gradients([zero.grad.astype("float32") / scale for zero in noted.zeros], of_loss)
        call = Call(noted.name, decisions, values, names, trained, noted.context, noted.training)
        return cls(call, gradients, noted.follows_lost, noted.linked)


@dataclass(frozen=True)
class Seen:
    """The ranges that a run of a graph has shown, under the names of the network that it was made of.

    Attributes:
        names: What its nodes are called.
        types: The dtypes of its outputs of nodes.
        forward: The values of outputs of nodes.
        backward: Their gradients, those of variables that are trained included.
        outputs: The values of the network's outputs.
        head_gradients: The gradients that were given for them, None for an output without one.
        scale: The factor of the loss.
    """

    names: Names
    types: Mapping[Key, str]
    forward: Mapping[Key, ValueRange]
    backward: Mapping[Key, ValueRange]
    outputs: Sequence[ValueRange]
    head_gradients: Sequence[Optional[ValueRange]] = ()
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
        """Whether the step's gradients are not finite; without gradients, whether the outputs are not."""
        return any(each.bad for each in (self._gradients if self.backward else self.outputs))

    @property
    def is_broken(self) -> bool:
        """Whether it is bad, or the loss gives it gradients that are."""
        return self.is_bad or any(each is not None and each.bad for each in self.head_gradients)

    def worse_than(self, exact: Seen) -> bool:
        """Whether it has inf or NaN in what leaves the network where float32 has none."""
        if self.backward:
            return any(each.bad for each in self._gradients)
        return any(each.bad > other.bad for each, other in zip(self.outputs, exact.outputs))


class Names:
    """The names that the nodes of a converted graph have in the network that it was made of.

    Attributes:
        graph: The converted graph.
        source: The positions in the network, by those in the graph; inserted casts have none.
    """

    def __init__(self, before: Graph, graph: Graph) -> None:
        self.before, self.graph = before, graph
        self.source = {new: old for old, new in positions(before, graph).items()}

    def of(self, position: int) -> Tuple[str, str]:
        """Return the name and operator of a node; of a cast, the name of what it casts."""
        if position in self.source:
            node = self.before.nodes[self.source[position]]
            return node.name, node.op
        node = self.graph.nodes[position]
        if not _is_inserted(node):
            return node.name, original(node).op
        return self.of(node.inputs[0].node)[0], "cast"

    def of_output(self, key: Key) -> str:
        """Return the name of an output of a node; of a cast, that of what it casts."""
        node = self.graph.nodes[key[0]]
        if key[0] not in self.source:
            return self.of_output(node.inputs[0].key) if _is_inserted(node) else self.graph.entry_name(Entry(*key))
        return self.before.entry_name(Entry(self.source[key[0]], key[1]))


def _is_inserted(node: Node) -> bool:
    return node.get(MARK_ATTR) is not None and bool(node.inputs)


class _View:
    """A graph of a call, converted or in float32, whose runs are looked at: all values and gradients."""

    def __init__(self, call: Call, low: bool) -> None:
        self._call = call
        self._graph = graph = call.decisions.after if low else call.decisions.before
        values = in_declared_dtypes(graph, call.values)
        self._facts: Facts = facts_of(graph, values)
        self._names = Names(call.decisions.before, graph)
        keys = ((i, n) for i, node in enumerate(graph.nodes) if not node.is_variable for n in range(node.num_outputs))
        self._keys = [key for key in keys if self._facts.dtypes.get(key) in dtypes.PRECISIONS]
        self._summaries = Summaries()
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

    def __call__(self, values: Mapping[str, Any], gradients: Optional[Gradients], scale: float) -> Seen:
        """Run it once; gradients are those of the loss times ``scale``. Nothing that is given is changed."""
        call, graph = self._call, self._graph
        reading = self._instrument(values, scale, call.training, call.trained)
        given = [] if gradients is None else list(gradients(reading.outputs))
        written: Dict[Key, Any] = {}
        places = {node.name: (i, 0) for i, node in enumerate(graph.nodes) if node.is_variable}
        if gradients is not None:
            with autograd.pause(), call.context:
                pairs = [(head, each) for head, each in zip(reading.outputs, given) if each is not None]
                seeds = [(each.as_nd_ndarray().astype("float32") * scale).astype(head.dtype) for head, each in pairs]
                autograd.backward([head for head, _ in pairs], seeds)
            written = reading.at_outputs()
            written.update((places[name], array.grad) for name, array in reading.written.items() if name in places)
        variables = in_declared_dtypes(graph, {name: array for name, array in values.items() if name in places})
        forward = {places[n]: each for n, each in variables.items() if _dtype(each) in dtypes.PRECISIONS}
        count, heads = len(graph.heads), [head.key for head in graph.heads]
        # Ranges of arrays at hand, and those that the graph has reduced.
        arrays = [*forward.values(), *written.values(), *(each for each in given if each is not None)]
        names = [self._names.of_output(key) for key in (*heads, *self._keys, *forward, *written)]
        names += [graph.entry_name(head) for head, each in zip(graph.heads, given) if each is not None]
        sizes = [self._facts.size(Entry(*key)) or 0 for key in (*heads, *self._keys)]
        sizes += [array.size for array in arrays]
        ranges = iter(read_ranges(names, sizes, [*reading.reductions, *self._summaries(arrays)]))
        outputs = [next(ranges) for _ in range(count)]
        by_key = {key: next(ranges) for key in (*self._keys, *forward)}
        backward = {key: next(ranges) for key in written}
        head_gradients = [None if each is None else next(ranges) for each in given]
        return Seen(self._names, self._facts.dtypes, by_key, backward, outputs, head_gradients, scale)


def _dtype(array: Any) -> Optional[str]:
    return dtypes.canonical(array.dtype) if isinstance(array, mx.nd.NDArray) else None


def _is_real(array: Any) -> bool:
    """Return whether an array holds numbers with a point, of which some may be inf or NaN."""
    return _dtype(array) in (*dtypes.PRECISIONS, "float64")


def _cleaned(array: Any) -> Any:
    """Return an array with 0 in place of inf and NaN."""
    if not _is_real(array):
        return array
    with autograd.pause():
        plain = array.as_nd_ndarray()
        clean = mx.nd.where(plain * 0 == 0, plain, mx.nd.zeros_like(plain))
        return clean.as_np_ndarray() if isinstance(array, mx.np.ndarray) else clean


# ---------------------------------------------------------------------- the first node of one graph


def _first_forward(seen: Seen, exact: Seen, allowed: bool = True, harmful: bool = True) -> Optional[NonFinite]:
    """Return the first operator whose output has more inf and NaN than in float32.

    Args:
        seen: The network as it was converted.
        exact: The same in float32.
        allowed: Whether inf and NaN that float32 has too are no fault (an attention mask); if not, an operator counts
            that has inf or NaN though all its inputs are finite. One whose own constant is inf (a mask's ``m * -inf``)
            only counts if no operator after it makes NaN of it.
        harmful: Whether only those count from which inf and NaN reach an output of the network.
    """
    nodes, source = seen.names.graph.nodes, seen.names.source
    reaching = _reaching(seen)
    intended: Optional[NonFinite] = None
    for key in sorted(key for key in seen.forward if not nodes[key[0]].is_variable):
        output = seen.forward[key]
        same = exact.forward.get((source[key[0]], key[1])) if key[0] in source else None
        excused = output.bad > 0 and _is_excused(key[0], seen)
        if (harmful and key not in reaching) or output.bad <= (same.bad if same is not None and allowed else 0):
            continue
        if excused and (not allowed or same is None):  # also a cast of an inf that is intended
            continue
        finding = _finding(FORWARD, key[0], output, _inputs_of(key[0], seen), seen, same)
        if allowed or output.nans or not _has_infinite_constant(nodes[key[0]]):
            return replace(finding, inf_from=_inf_from(key[0], seen)) if output.nans else finding
        intended = intended or finding
    return intended


def _first_backward(seen: Seen, exact: Optional[Seen]) -> Optional[NonFinite]:
    """Return the operator whose backward gives inf or NaN first, in the order in which backward runs.

    ``exact`` is float32's run, whose gradients are no fault where they are not finite by themselves.
    """
    graph, names, readers = seen.names.graph, seen.names, seen.names.graph.consumers()
    last = {key: max((reader for reader, _ in readers.get(key, ())), default=key[0]) for key in seen.backward}
    for key in sorted(seen.backward, key=lambda each: (-last[each], -each[0], each[1])):
        gradient = seen.backward[key]
        same = None
        if exact is not None and key[0] in names.source:
            same = exact.backward.get((names.source[key[0]], key[1]))
        if not gradient.bad or (same is not None and gradient.bad <= same.bad):
            continue
        # The operator that hands on what is not finite, though its own gradients are finite.
        reader = max(
            (reader for reader, _ in readers.get(key, ()) if not any(each.bad for each in _given_to(reader, seen))),
            default=None,
        )
        if reader is not None:
            inputs = [*_given_to(reader, seen), *_inputs_of(reader, seen)]
            return _finding(BACKWARD, reader, gradient, inputs, seen, same)
        ends = dict(zip((head.key for head in graph.heads), seen.head_gradients))  # an output of the network
        given = ends.get(key)
        return _finding(BACKWARD, key[0], gradient, [] if given is None else [given], seen, same)
    return None


def _given_to(position: int, seen: Seen) -> List[ValueRange]:
    """Return the gradients that a node's outputs get."""
    count = seen.names.graph.nodes[position].num_outputs
    return [seen.backward[position, n] for n in range(count) if (position, n) in seen.backward]


def _inputs_of(position: int, seen: Seen) -> List[ValueRange]:
    keys = (entry.key for entry in seen.names.graph.nodes[position].inputs)
    return [seen.forward[key] for key in keys if key in seen.forward]


def _ancestors(graph: Graph, position: int, follows: Callable[[Key], bool] = lambda key: True) -> Set[int]:
    """Return the nodes that a node depends on by entries that are followed, itself included."""
    waiting, found = [position], {position}
    while waiting:
        new = {entry.node for entry in graph.nodes[waiting.pop()].inputs if follows(entry.key)} - found
        found |= new
        waiting += new
    return found


def _has_infinite_constant(node: Node) -> bool:
    """Return whether an operator has a constant that is inf in float32."""
    for _, text in node.attrs:
        try:
            value = float(text)
        except ValueError:
            continue
        if abs(value) > dtypes.limits(dtypes.FLOAT32).max:
            return True
    return False


def _inf_from(position: int, seen: Seen) -> str:
    """Return the node that the first inf comes from which a node reads; '' if it reads none."""

    def is_inf(key: Key) -> bool:
        return key in seen.forward and seen.forward[key].infs > 0

    graph = seen.names.graph
    reached = _ancestors(graph, position, is_inf) - {position}
    origins = [each for each in reached if not any(is_inf(entry.key) for entry in graph.nodes[each].inputs)]
    return seen.names.of(min(origins))[0] if origins else ""


def _reaching(seen: Seen) -> Set[Key]:
    """Return the outputs of nodes from which inf or NaN reaches an output of the network, all the way as inf or NaN."""
    waiting = [head.key for head, output in zip(seen.names.graph.heads, seen.outputs) if output.bad]
    found = set(waiting)
    while waiting:
        for entry in seen.names.graph.nodes[waiting.pop()[0]].inputs:
            value = seen.forward.get(entry.key)
            if entry.key not in found and (value is None or value.bad):
                found.add(entry.key)
                waiting.append(entry.key)
    return found


def _is_excused(position: int, seen: Seen) -> bool:
    """Return whether a node hands on what it reads: inf for inf, NaN for NaN; or depends on constants alone."""
    graph = seen.names.graph
    inputs = _inputs_of(position, seen)
    outputs = [output for key, output in seen.forward.items() if key[0] == position]
    if any(each.nans for each in outputs):
        return any(each.nans for each in inputs)
    return any(each.bad for each in inputs) or not any(graph.nodes[i].is_variable for i in _ancestors(graph, position))


def _finding(
    where: str, position: int, output: ValueRange, inputs: Sequence[ValueRange], seen: Seen, same: Optional[ValueRange]
) -> NonFinite:
    """Return the finding at a node; the precision is that of its arithmetic: backward, that of what it reads."""
    read = [seen.types.get(entry.key) for entry in seen.names.graph.nodes[position].inputs]
    low = [each for each in read if each in dtypes.LOW_PRECISION] if where == BACKWARD else []
    precision = low[0] if low else seen.types.get((position, 0))
    same = same.times(seen.scale) if same is not None and where == BACKWARD else same
    name, op = seen.names.of(position)
    return NonFinite(
        where, name, op, str(precision or dtypes.FLOAT32), output, tuple(inputs), same, keep=_to_keep(position, seen)
    )


def _to_keep(position: int, seen: Seen) -> Tuple[str, ...]:
    """Return a node and those in low precision that read its output, casts passed over.

    Of an inserted cast those that read it, and the node that it casts if that is in low precision.
    """
    graph, readers = seen.names.graph, seen.names.graph.consumers()

    def is_low(number: int) -> bool:
        keys = [(number, 0), *(entry.key for entry in graph.nodes[number].inputs)]
        return any(seen.types.get(key) in dtypes.LOW_PRECISION for key in keys)

    source = position
    while _is_inserted(graph.nodes[source]):
        source = graph.nodes[source].inputs[0].node
    if not graph.nodes[source].is_variable and is_low(source):
        position = source
    kept: Dict[str, None] = {}
    waiting = [position]
    while waiting:
        number = waiting.pop(0)
        inserted = graph.nodes[number].get(MARK_ATTR) is not None
        if not inserted:
            kept[seen.names.of(number)[0]] = None
        if inserted or number == position:
            outputs = range(graph.nodes[number].num_outputs)
            following = {reader for index in outputs for reader, _ in readers.get((number, index), ())}
            waiting += sorted(i for i in following if is_low(i) or graph.nodes[i].get(MARK_ATTR) is not None)
    return tuple(kept)


# ---------------------------------------------------------------------- what is at fault in a step


class _Fault(NamedTuple):
    """A kind of a verdict, and where it is."""

    kind: str
    node: NonFinite


def find(replays: Sequence[Replay], scale: float = 1.0) -> Optional[NonFinite]:
    """Return where inf or NaN comes up first in a step, None if it does nowhere."""
    replays = _without_spoilt(replays, scale)
    exact, low = _runs(replays, None), _runs(replays, scale)
    fault = _fault_of(replays, exact, low)
    found = _first(replays, exact, low) if fault is None else fault.node
    return found or _nan_in_batch(replays, exact)


def _runs(replays: Sequence[Replay], scale: Optional[float]) -> List[Seen]:
    """Run calls in low precision at a loss scale, or with None in float32."""
    return [each.run(False) if scale is None else each.run(True, scale) for each in replays]


def _without_spoilt(replays: Sequence[Replay], scale: float) -> List[Replay]:
    """Return calls without known gradients of outputs where these follow from low precision.

    Such are NaN since the outputs were not finite, or since the backward of a later call overflowed; they say nothing
    of float32. Calls of which it is not known that the loss depends on them are left out, unless the others are given
    inf or NaN.
    """
    linked = [each for each in replays if each.linked]
    if len(linked) < len(replays) and not any(each.bad for replay in linked for each in _real_ranges(replay.data())):
        replays = linked
    found: List[Replay] = []
    for replay in reversed(replays):
        known = replay.gradients
        if known is not None and not known.follows_outputs and known.are_spoilt():
            if known.of_loss is not None or any(each.bad for each in replay.run(True).outputs):
                replay = replace(replay, gradients=known.of_loss)
            elif any(_overflows(later.run(True, scale)) for later in found):
                replay = replace(replay, gradients=None)
        found.insert(0, replay)
    return found


def _overflows(seen: Seen) -> bool:
    return any(each.bad for each in (*seen.outputs, *seen.backward.values()))


def _first(replays: Sequence[Replay], exact: Sequence[Seen], low: Sequence[Seen]) -> Optional[NonFinite]:
    """Return the first inf or NaN in low precision that float32 does not have.

    That which reaches an output of the network comes first, then a gradient, then what does no harm. But a gradient
    whose operator reads inf or NaN is not the first: a ReLU may have kept that from the outputs.
    """
    value, gradient = _first_value(replays, exact, low), _first_gradient(exact, low)
    if value is None and gradient is not None and not any(each.bad for each in gradient.inputs):
        return gradient
    return value or _first_value(replays, exact, low, harmful=False) or gradient


def _first_value(
    replays: Sequence[Replay], exact: Sequence[Seen], low: Sequence[Seen], harmful: bool = True
) -> Optional[NonFinite]:
    for replay, other, seen in zip(replays, exact, low):
        found = _first_forward(seen, other, harmful=harmful)
        if found is not None:
            return _or_parameter(found, replay)
    return None


def _first_gradient(exact: Sequence[Seen], low: Sequence[Seen]) -> Optional[NonFinite]:
    """Return the gradient that low precision makes inf or NaN first, in the order of backward."""
    pairs = zip(reversed(low), reversed(exact))
    return next(filter(None, (_first_backward(seen, other) for seen, other in pairs)), None)


def _or_parameter(found: NonFinite, replay: Replay) -> NonFinite:
    """Return that a parameter is out of low precision's range, where an operator that reads it is found for that."""
    if found.precision not in dtypes.LOW_PRECISION:
        return found
    names = {found.name} if found.op == "cast" else {each.name for each in found.inputs if each.bad}
    end = dtypes.limits(found.precision).max
    for each in replay.parameters():
        if each.name in names and not each.bad and each.magnitude > end:
            bad = next((low for low in found.inputs if low.name == each.name and low.bad), found.output)
            return NonFinite(PARAMETER, each.name, "", found.precision, bad, (each,), each, keep=found.keep)
    return found


def _fault_of(replays: Sequence[Replay], exact: Sequence[Seen], low: Sequence[Seen]) -> Optional[_Fault]:
    """Return what makes float32's run of a step non-finite; None if it is finite.

    Where inputs are not finite because low precision overflows in an earlier call, it is that call.
    """
    if not any(seen.is_broken for seen in exact):
        return None
    spoilt = False  # whether an earlier call has given inf or NaN
    for replay, seen, other in zip(replays, exact, low):
        fault = _fault_in_forward(replay, seen, other, spoilt or replay.follows_lost)
        if fault is not None:
            return fault
        spoilt = spoilt or any(each.bad for each in (*seen.outputs, *other.outputs))
    backward = (
        _first_backward(seen, None)  # of a network that gets finite gradients, and gives others
        for seen in reversed(exact)
        if seen.backward and seen.is_bad and not any(each is not None and each.bad for each in seen.head_gradients)
    )
    losses = (
        NonFinite(LOSS, each.name, "", dtypes.FLOAT32, each, (seen.outputs[number],))
        for seen in reversed(exact)
        for number, each in enumerate(seen.head_gradients)
        if each is not None and each.bad
    )
    found = next(filter(None, backward), None) or next(losses, None)
    return None if found is None else _Fault(BROKEN, found)


def _fault_in_forward(replay: Replay, exact: Seen, low: Seen, spoilt: bool) -> Optional[_Fault]:
    """Return the fault in one call; ``spoilt``: whether an earlier one has or may have given inf or NaN."""
    if exact.is_broken:
        data = _bad_data(replay, spoilt)
        if data is not None:
            return _Fault(BAD_DATA, data)
        bad = [each for each in replay.parameters() if each.bad]
        bad.sort(key=lambda each: _is_mask(each, replay))
        if bad and not _is_mask(bad[0], replay):
            return _bad_parameter(bad[0])
        found = _first_forward(exact, exact, allowed=False)
        if found is not None:
            return _Fault(BROKEN, found)
        if bad and any(each.bad for each in exact.outputs):
            return _bad_parameter(bad[0])
    found = _first_forward(low, exact)
    if found is None:
        return None
    found = _or_parameter(found, replay)
    return _Fault(BAD_PARAMETERS if found.where == PARAMETER else OUT_OF_RANGE, found)


def _bad_parameter(bad: ValueRange) -> _Fault:
    return _Fault(BAD_PARAMETERS, NonFinite(PARAMETER, bad.name, "", dtypes.FLOAT32, bad))


def _is_mask(parameter: ValueRange, replay: Replay) -> bool:
    """Return whether a parameter is a constant mask: it is not trained, and holds 0 and inf alone."""
    all_inf = 0 < parameter.infs == parameter.bad < parameter.size
    return parameter.name not in replay.call.trained and all_inf and not parameter.magnitude


def _real_ranges(arrays: Mapping[str, Any]) -> Iterator[ValueRange]:
    """Yield the ranges of arrays with a point, one after the other: they may lie on several contexts."""
    return (found for name, array in arrays.items() if _is_real(array) for found in ranges_of({name: array}))


def _bad_data(replay: Replay, spoilt: bool) -> Optional[NonFinite]:
    """Return the first input or label with inf or NaN if the call is finite without; labels alone if ``spoilt``."""
    arrays = replay.labels() if spoilt else replay.data()
    bad = next((each for each in _real_ranges(arrays) if each.bad), None)
    if bad is None or replay.cleaned().run(False).is_broken:
        return None
    return _of_data(bad, arrays)


def _of_data(bad: ValueRange, arrays: Mapping[str, Any]) -> NonFinite:
    values = to_float32(arrays[bad.name]).asnumpy()
    rows = ~np.isfinite(values.astype(np.float64).reshape(values.shape[0] if values.ndim else 1, -1)).all(axis=1)
    return NonFinite(DATA, bad.name, "", dtypes.FLOAT32, bad, rows=tuple(int(row) for row in np.flatnonzero(rows)))


def _first_nan(arrays: Mapping[str, Any]) -> Optional[NonFinite]:
    bad = next((each for each in _real_ranges(arrays) if each.nans), None)
    return None if bad is None else _of_data(bad, arrays)


def nan_given(replay: Replay) -> Optional[str]:
    """Return which input or label of a call holds NaN, in words; None if none does, or another call may have given it.

    Nothing is run, so the call must be the first one of its step. Arrays on a GPU are not looked at: that would take
    some 17 launches and a read at a step that is skipped, most often for an overflow.
    """
    if replay.follows_lost:
        return None
    found = _first_nan({name: array for name, array in replay.data().items() if array.ctx.device_type != "gpu"})
    return None if found is None else str(found)


def _nan_in_batch(replays: Sequence[Replay], exact: Sequence[Seen]) -> Optional[NonFinite]:
    """Return the first input or label of a step that holds NaN, though the step may be finite; None if none does."""
    spoilt = False
    for replay, seen in zip(replays, exact):
        found = _first_nan(replay.labels() if spoilt or replay.follows_lost else replay.data())
        if found is not None:
            return found
        spoilt = spoilt or any(each.bad for each in seen.outputs)
    return None


# ---------------------------------------------------------------------- verdicts


def judge(replays: Sequence[Replay], scale: float = 1.0) -> Verdict:
    """Return the verdict on a step, whose losses were multiplied by ``scale``.

    Each call of the network is run again: in float32, in low precision at the step's scale, and at 1/8 of it and so on
    down to 1. Operators that draw random numbers (dropout) draw others.
    """
    replays = _without_spoilt(replays, scale)
    exact = _runs(replays, None)
    verdict = _judged(replays, exact, scale)
    data = None if verdict.kind == BAD_DATA else _nan_in_batch(replays, exact)
    if data is None:
        return verdict
    if verdict.kind == NO_FAULT:
        return Verdict(BAD_DATA, f"the step is finite, but {_of_fault(_Fault(BAD_DATA, data))}", data, scale)
    return replace(verdict, text=f"{verdict.text} Besides, {_sentence(data)}")


def _judged(replays: Sequence[Replay], exact: Sequence[Seen], scale: float) -> Verdict:
    """Return the verdict on a step by what is not finite in it."""

    def is_finite(runs: Sequence[Seen]) -> bool:
        return not any(run.worse_than(other) for run, other in zip(runs, exact))

    def is_finite_at(scale: float) -> bool:
        return is_finite(_runs(replays, scale))

    given = _runs(replays, scale)
    fault = _fault_of(replays, exact, given)
    if fault is not None:
        text = f"{_of_fault(fault)}{_diverged(replays, exact, fault.node)}"
        return Verdict(fault.kind, text, fault.node, scale)
    if is_finite(given):
        return _without_fault(replays, scale)
    lowest = min(1.0, scale)
    base = given if scale <= lowest else _runs(replays, lowest)
    if scale > lowest and is_finite(base):
        finite = _finite_scale(scale, is_finite_at)
        where = _first_gradient(exact, given)
        return Verdict(SCALE_TOO_HIGH, _too_high(where, scale, finite), where, scale, finite)
    where = _first(replays, exact, base)
    if where is not None and where.where == PARAMETER:
        return Verdict(BAD_PARAMETERS, _of_fault(_Fault(BAD_PARAMETERS, where)), where, scale)
    below = None
    if where is not None and where.where == BACKWARD:
        below = next(filter(is_finite_at, (lowest / _STEP, lowest / _STEP**2)), None)
    return Verdict(
        OUT_OF_RANGE, f"{_out_of_range(where, below)}{_diverged(replays, exact, where)}", where, scale, below
    )


def _without_fault(replays: Sequence[Replay], scale: float) -> Verdict:
    """Return the verdict on a step that is finite, with weights that may have become NaN after it."""
    bad = next((each for replay in replays for each in replay.parameters() if each.nans), None)
    if bad is None:
        return Verdict(NO_FAULT, _NO_FAULT, None, scale)
    fault = _bad_parameter(bad)
    return Verdict(fault.kind, f"the step is finite, but {_of_fault(fault)}", fault.node, scale)


def _finite_scale(scale: float, is_finite_at: Callable[[float], bool]) -> float:
    """Return the largest scale that is finite, of 1/2 of the step's, 1/4 and so on; 1 is known to be."""
    tried = scale / _STEP
    while tried > 1.0 and not is_finite_at(tried):
        tried /= _STEP
    tried = max(tried, 1.0)
    finer = (tried * factor for factor in (4.0, 2.0))
    return next((each for each in finer if each < scale and is_finite_at(each)), tried)


def _of_fault(fault: _Fault) -> str:
    """Return the sentences on a fault that float32 has too, or that is known without trying other scales."""
    where = fault.node
    if fault.kind == OUT_OF_RANGE:
        return _out_of_range(where)
    if fault.kind == BAD_DATA:
        return f"{_sentence(where)} No precision and no scale mends that: look at how this batch is read and prepared."
    if fault.kind == BAD_PARAMETERS:
        meant = f" If it should be so large, the policy's overrides '{where.overrides}' keep what reads it in float32."
        return (
            f"{_sentence(where)} Go back to an earlier checkpoint, and find the step that wrote it: lower the learning "
            f"rate, clip gradients.{meant if where.keep else ''}"
        )
    if where.where == LOSS:
        return f"{_sentence(where)} The loss is computed outside of the network: look at its formula and its labels."
    advice = "Mend the model there (an epsilon, a clip, a stable formula), or look at how its inputs got so large."
    return f"the float32 network is not finite either. {_sentence(where)} {advice}"


def _too_high(where: Optional[NonFinite], scale: float, finite: float) -> str:
    place = "" if where is None else f" {_sentence(where)}"
    return (
        f"at a loss scale of {_number(scale)} gradients overflow, at {_number(finite)} all is finite: the skip was "
        f"right.{place} There is nothing to do: a dynamic scale falls by itself. A static one should be at most "
        f"{_number(finite)}."
    )


def _out_of_range(where: Optional[NonFinite], below: Optional[float] = None) -> str:
    """Return what to do; ``below``: a scale below 1 at which gradients are finite, if one was found."""
    if where is None:
        return "low precision is not finite at any scale, and float32 is. Keep more of the network in float32."
    if where.where == FORWARD:
        text = "no loss scale mends this activation."
    elif below is None:
        text = "no loss scale from 1/64 on mends this gradient."
    else:
        text = f"no loss scale from 1 on mends this gradient; at {_number(below)} all is finite."
    advice = "Scale the inputs or the loss down."
    if where.keep:
        which = "it" if len(where.keep) == 1 else "these"
        advice = f"Keep {which} in float32 by the policy's overrides, '{where.overrides}', or scale the inputs down."
    return f"{text} {_sentence(where)} {advice}"


def _diverged(replays: Sequence[Replay], exact: Sequence[Seen], where: Optional[NonFinite]) -> str:
    """Return the hint that a run may have diverged, '' where nothing says so.

    It is given where values or gradients in float32 are far beyond float16's range, and the data are not. Values are
    those at ``where`` and of outputs: within the network a mask may be as large by intention.
    """
    if where is None or where.where not in (FORWARD, BACKWARD, LOSS):
        return ""
    if any(each.magnitude > _FAR for each in _real_ranges(replays[0].data())):
        return ""
    outputs = [each for seen in exact for each in seen.outputs]
    here = [*where.inputs, *filter(None, [where.float32])]
    of_loss = [each for seen in exact for each in seen.head_gradients if each is not None]
    trained = [each for seen in exact for each in seen.trained]
    ends = ((outputs, _FAR), (here, _FAR), (of_loss, _FLOAT16_END), (trained, _FAR_GRADIENT))
    return _DIVERGED if any(each.magnitude > end for ranges, end in ends for each in ranges) else ""


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 and scale == round(scale) and scale < 1e15 else f"{scale:g}"


def _sentence(where: NonFinite) -> str:
    return f"{str(where).rstrip('.')}."


_DIVERGED = (
    " Values this large, in float32 too, are those of a run that diverges: if they have grown, lower the learning rate "
    "or clip gradients instead. A mxmp.diagnose.Ledger says whether they grow."
)

_NO_FAULT = (
    "the step is finite, in float32 and in low precision. If it was skipped all the same, what made it so is drawn at "
    "random (dropout), or has changed since: run it again at once, before the next step."
)


# ---------------------------------------------------------------------- a network and a batch

def find_nonfinite(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Union[None, str, LossFunction] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Optional[NonFinite]:
    """Return the first node of a network whose output or gradient is inf or NaN, in the order in which it runs.

    The network runs twice, in float32 and as it is converted. What float32 has too is no fault as long as float32's
    result is finite: the -inf of an attention mask. If float32's is not, the first operator is named that gives inf or
    NaN in float32 though it reads none; or the data or the parameter that holds it. Where an operator's own constant is
    inf (a mask's ``m * -inf``), the one that makes NaN of it is named instead: the softmax of a row that is masked
    wholly. Bodies of control flow are not looked into: the node around them is named. Nothing of what is given is
    changed, but dropout draws random numbers.

    Args:
        net_or_model: A network, as for `compare`.
        batch: One batch, as for `compare`; with ``loss``, its last array is the label, which must be there. Of a symbol
            or Module labels may be left out as for `compare`: they are zeros, of which gradients are looked at then.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others, as for `compare`.
        loss: ``loss(outputs, label)`` gives the loss of a Gluon net, an NDArray or nested lists of them: then backward
            runs too. Where the loss reads no label, end the batch with None. 'outputs' says that the net computes its
            losses by itself, as GluonCV's YOLO does, and returns them; no array of the batch is a label then. A Module
            or symbol has loss heads, whose backward always runs.
        loss_scale: The loss scale; positive.
        ctx: Where a symbol runs, the CPU unless given; a net and a Module run where their parameters are.

    Returns:
        Where it comes up first; None if all is finite. What reaches an output of the network comes first, then
        gradients, in the order of backward, then what does no harm. ``str()`` of it is a sentence.

    Raises:
        ConvertError: If the network or the batch is none, or they do not fit each other; or if the policy computes in
            bfloat16, which MXNet does not run here.
        PolicyError: If the policy is not one.
        LossScaleError: If ``loss_scale`` is not positive and finite.
    """
    return find(_replays(net_or_model, batch, policy, loss, ctx), require_scale(loss_scale))


def explain(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Union[None, str, LossFunction] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Verdict:
    """Return whether inf or NaN in a training step on a batch is a bug, an overflow, or bad data.

    The step runs in float32, at the loss scale given, and at 1/8 of it and so on down to 1; at 1/8 and 1/64 too where a
    gradient leaves the range at 1.

    The arguments are those of `find_nonfinite`, and so are the errors raised.

    Returns:
        The verdict; ``print`` it. What mends an activation that leaves float16's range is its ``overrides``.
    """
    return judge(_replays(net_or_model, batch, policy, loss, ctx), require_scale(loss_scale))


def _replays(network: Any, batch: Any, policy: Any, loss: Union[None, str, LossFunction], ctx: Any) -> List[Replay]:
    """Return the calls of a network for a batch."""
    inside = loss == "outputs"
    loss = _outputs if inside else loss
    subject = read_subject(network, loss, ctx)
    wanted, read = subject.policy_or(policy), one_batch(batch)
    if isinstance(subject, SymbolSubject):
        (call,) = subject.take([read]).calls(wanted)
        return [Replay(call, Ones())]
    assert isinstance(subject, NetSubject)
    return _of_net(subject.net, read, wanted, loss, inside)


def _outputs(outputs: Any, label: Any) -> Any:
    """Return the losses that a net computes by itself."""
    return outputs


def _of_net(net: Any, batch: Batch, policy: Policy, loss: Any, inside: bool) -> List[Replay]:
    """Run a net once, with the loss if there is one, and return its calls; ``inside``: the net computes it."""
    inputs, label, has_label = batch.for_net(loss is not None and not inside).beside(net)
    if loss is not None and not has_label and not inside:
        raise ConvertError(
            "batch has no label, which loss reads; give a tuple of inputs and, last, the label, or None for a loss "
            "that reads none."
        )
    with kept(net), OBSERVER.recording(net) as calls:  # which gives it as it was written
        # What is not converted runs as it was written, unseen: a float32 net is converted to nothing but float32.
        convert(net, policy if policy.is_mixed else Policy.parse("O1", names={"*": dtypes.FLOAT32}))
        with autograd.record(train_mode=loss is not None):
            outputs = call_net(net, inputs, without_loss=loss is None)
            losses = None if loss is None else losses_of(loss, outputs, label)
        noted = calls.noted
        if not noted:
            raise ConvertError(f"block '{net.name}' ran no HybridBlock on this batch, so there is no graph to look at.")
        known = losses is not None and not (len(noted) == 1 and noted[0].outputs is outputs)
        if losses is not None and known:
            run_backward(losses)
        last = LossGradients(loss, [label], outputs) if loss is not None else None
        found = [Replay.of_net(each, 1.0, last if each.outputs is outputs else None, known) for each in noted]
    return found if policy.is_mixed else [_in_float32(replay) for replay in found]


def _in_float32(replay: Replay) -> Replay:
    """Return a call of a network that is not converted."""
    decisions = replay.call.decisions
    return replace(replay, call=replace(replay.call, decisions=replace(decisions, after=decisions.before)))
