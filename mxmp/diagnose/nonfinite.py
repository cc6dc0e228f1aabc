"""Where inf or NaN comes up first: in one graph, forward or backward, beside the same graph in float32."""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from typing import Any, Callable, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar

from .. import dtypes
from ..display import blocks as show
from ..display.record import Record
from ..errors import ConvertError, MxmpError
from ..graph import Graph, Key, Node
from ..passes.attributes import is_inserted
from .ranges import ValueRange
from .replay import Seen

T = TypeVar("T")

FORWARD, BACKWARD, DATA, PARAMETER, LOSS = "forward", "backward", "data", "parameter", "loss"
"""Where inf or NaN comes up: `NonFinite.where`."""

_COLUMNS = (
    show.Column("tensor"),
    show.Column("what it is"),
    show.Column("elements", show.NUMBER),
    show.Column("NaN", show.NUMBER),
    show.Column("inf", show.NUMBER),
    show.Column("smallest", show.NUMBER, "The smallest finite value"),
    show.Column("largest", show.NUMBER, "The largest finite value"),
)


@dataclass(frozen=True)
class NonFinite(Record):
    """Where inf or NaN comes up first.

    Attributes:
        where: 'forward' or 'backward', a node of the network; 'data' or 'parameter', a value that it is given, or, of a
            parameter in low precision, one out of its range; 'loss', the loss outside of the network.
        name: The node, input or parameter.
        op: The node's operator; empty if it is no node. A cast that a conversion put in is a 'cast'.
        precision: The dtype in which it is: 'float16', 'bfloat16' or 'float32'.
        output: The array that holds inf or NaN: the node's output; backward, the gradient that it hands on.
        inputs: The node's inputs; backward, the gradients of its outputs come before them.
        float32: The same output in float32, a gradient at the same loss scale; None where that is not known.
        rows: Of data, the rows (numbers along the first axis) that hold inf or NaN.
        keep: The operators to keep in float32 so that it does not overflow here: the node, and those in low precision
            that read its output. Those follow that fail alike: whose values (of the same operator) or gradients are
            beyond the range too, in float32.
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

    def __post_init__(self) -> None:
        """Raise a ValueError if it has not what its sentence reads."""
        if self.where == LOSS and not self.inputs:
            raise ValueError("inputs is empty; expected the output that the loss reads.")

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
        is_low = self.precision in dtypes.LOW_PRECISION
        end = f"{self.precision} ends at {dtypes.limits(self.precision).max:.5g}" if is_low else ""
        text = ""
        if reached and self.where == PARAMETER:
            return f": it reaches {reached[0].magnitude:.4g}, {end}"
        if reached and self.where == BACKWARD:
            text = f"; the gradient that it gets reaches {reached[0].magnitude:.4g}"
        elif reached:
            *first, end_of_list = [f"{each.magnitude:.4g}" for each in reached[:3]]
            ends = f"{', '.join(first)} and {end_of_list}" if first else end_of_list
            text = f"; its {'inputs reach' if len(reached) > 1 else 'input reaches'} {ends}"
        text += f", and it reads inf, which comes from '{self.inf_from}'" if self.inf_from else ""
        text += f", {end}" if is_low else ""
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
        facts += [("overrides that mend it", show.wrappable(self.overrides))] if self.overrides else []
        blocks = show.Facts(facts), show.Table("Values around it", _COLUMNS, rows, "tensors")
        return [show.Section(self._title, blocks, str(self))]


def float32_overrides(names: Iterable[str], ending: str = "") -> str:
    """Return overrides that keep operators in float32: those named, or with "*" those whose names begin so."""
    return ",".join(dict.fromkeys(f"name:{glob.escape(name)}{ending}=float32" for name in names))


def first_forward(seen: Seen, exact: Seen, allowed: bool = True, harmful: bool = True) -> Optional[NonFinite]:
    """Return the first operator whose output has more inf and NaN than in float32.

    Args:
        seen: The network as it was converted.
        exact: The same in float32.
        allowed: Whether inf and NaN that float32 has too are no fault (an attention mask); if not, an operator counts
            that has inf or NaN though all its inputs are finite. One whose own constant is inf (a mask's ``m * -inf``)
            only counts if no operator after it makes NaN of it.
        harmful: Whether only those count from which inf and NaN reach an output of the network.
    """
    # Positions are in the order in which nodes run, so that the first one found is where it begins.
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
            finding = _with_alike(finding, seen, exact.forward)
            return replace(finding, inf_from=_inf_from(key[0], seen)) if output.nans else finding
        intended = intended or finding
    return intended


def first_backward(seen: Seen, exact: Optional[Seen]) -> Optional[NonFinite]:
    """Return the operator whose backward gives inf or NaN first, in the order in which backward runs.

    ``exact`` is float32's run, whose gradients are no fault where they are not finite by themselves.
    """
    graph, names, readers = seen.names.graph, seen.names, seen.names.graph.consumers()
    # Backward gives the gradient of an output once the last of its readers has run; it runs from the last node on.
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
        else:  # an output of the network
            ends = dict(zip((head.key for head in graph.heads), seen.head_gradients))
            inputs = list(filter(None, [ends.get(key)]))
        finding = _finding(BACKWARD, key[0] if reader is None else reader, gradient, inputs, seen, same)
        return finding if exact is None else _with_alike(finding, seen, exact.backward)
    return None


def _with_alike(finding: NonFinite, seen: Seen, exact: Mapping[Key, ValueRange]) -> NonFinite:
    """Return a finding that keeps in float32 all operators which fail like it: ``exact`` has float32's ranges.

    Else a policy that is mended finds the next of them, one at a time.
    """
    nodes, source, keep = seen.names.graph.nodes, seen.names.source, list(finding.keep)
    is_backward, readers = finding.where == BACKWARD, seen.names.graph.consumers()
    low = sorted(key for key, dtype in seen.types.items() if dtype in dtypes.LOW_PRECISION)
    for key in reversed(low) if is_backward else low:
        origin = key  # of a cast, what it casts: any of its node's outputs
        while is_inserted(nodes[origin[0]]):
            origin = nodes[origin[0]].inputs[0].key
        same = exact.get((source.get(origin[0], -1), origin[1]))
        end = dtypes.limits(seen.types[key]).max / (seen.scale if is_backward else 1.0)
        if same is not None and same.magnitude > end and (is_backward or seen.names.of(key[0])[1] == finding.op):
            keep += _to_keep(key[0], seen, readers)
    return replace(finding, keep=tuple(dict.fromkeys(keep)))


def _given_to(position: int, seen: Seen) -> List[ValueRange]:
    """Return the gradients that a node's outputs get."""
    count = seen.names.graph.nodes[position].num_outputs
    return [seen.backward[position, n] for n in range(count) if (position, n) in seen.backward]


def _inputs_of(position: int, seen: Seen) -> List[ValueRange]:
    keys = (entry.key for entry in seen.names.graph.nodes[position].inputs)
    return [seen.forward[key] for key in keys if key in seen.forward]


def _closure(first: Iterable[T], following: Callable[[T], Iterable[T]]) -> List[T]:
    """Return what is reached from the first by steps, these included, each once, the nearest first."""
    reached = dict.fromkeys(first)
    waiting = list(reached)
    for each in waiting:  # which grows
        new = [other for other in dict.fromkeys(following(each)) if other not in reached]
        reached.update(dict.fromkeys(new))
        waiting += new
    return waiting


def _ancestors(graph: Graph, position: int) -> List[int]:
    """Return the nodes that a node depends on, itself included."""
    return _closure([position], lambda each: (entry.node for entry in graph.nodes[each].inputs))


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

    def sources(node: int) -> List[int]:
        return [entry.node for entry in seen.names.graph.nodes[node].inputs if is_inf(entry.key)]

    origins = [each for each in _closure([position], sources) if each != position and not sources(each)]
    return seen.names.of(min(origins))[0] if origins else ""


def _reaching(seen: Seen) -> Set[Key]:
    """Return the outputs of nodes from which inf or NaN reaches an output of the network, all the way as inf or NaN."""
    graph = seen.names.graph

    def sources(key: Key) -> List[Key]:
        keys = [entry.key for entry in graph.nodes[key[0]].inputs]
        return [each for each in keys if each not in seen.forward or seen.forward[each].bad]

    return set(_closure([head.key for head, output in zip(graph.heads, seen.outputs) if output.bad], sources))


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
    keep = _to_keep(position, seen, seen.names.graph.consumers())
    return NonFinite(where, name, op, str(precision or dtypes.FLOAT32), output, tuple(inputs), same, keep=keep)


def _to_keep(position: int, seen: Seen, readers: Mapping[Key, Sequence[Tuple[int, int]]]) -> Tuple[str, ...]:
    """Return a node and those in low precision that read its output, casts passed over.

    Of an inserted cast those that read it, and the node that it casts if that is in low precision. ``readers`` are the
    graph's `consumers`.
    """
    graph = seen.names.graph

    def is_low(number: int) -> bool:
        keys = [(number, 0), *(entry.key for entry in graph.nodes[number].inputs)]
        return any(seen.types.get(key) in dtypes.LOW_PRECISION for key in keys)

    source = position
    while is_inserted(graph.nodes[source]):
        source = graph.nodes[source].inputs[0].node
    if not graph.nodes[source].is_variable and is_low(source):
        position = source

    def is_ours(number: int) -> bool:
        return is_inserted(graph.nodes[number])

    def following(number: int) -> List[int]:
        outputs = range(graph.nodes[number].num_outputs if is_ours(number) or number == position else 0)
        reading = {reader for index in outputs for reader, _ in readers.get((number, index), ())}
        return sorted(each for each in reading if is_low(each) or is_ours(each))

    names = (seen.names.of(each)[0] for each in _closure([position], following) if not is_ours(each))
    return tuple(dict.fromkeys(names))
