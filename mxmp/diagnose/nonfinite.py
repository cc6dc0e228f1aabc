"""Find where inf or NaN comes up first in one graph, forward or backward, compared with the same graph in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from .. import dtypes
from ..graph import Key, Node
from ..passes.base import is_inserted
from ..report.explanation import BACKWARD, FORWARD, NonFinite, ValueRange
from .rerun import Values

T = TypeVar("T")


def first_forward(seen: Values, exact: Values, allowed: bool = True, harmful: bool = True) -> Optional[NonFinite]:
    """Return the first operator whose output has more inf and NaN than in float32.

    Args:
        seen: The network as it was converted.
        exact: The same in float32.
        allowed: Whether inf and NaN that float32 has too are no fault (an attention mask). If not, every operator
            counts that has inf or NaN though all its inputs are finite. An operator whose constant is inf (a mask's
            ``m * -inf``) only counts if no operator after it makes NaN of it.
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
            finding = _with_alike(finding, key[0], seen, exact.forward)
            return replace(finding, inf_from=_inf_from(key[0], seen)) if output.nans else finding
        intended = intended or finding
    return intended


def first_backward(seen: Values, exact: Optional[Values]) -> Optional[NonFinite]:
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
        # The operator that gives inf or NaN, though its own gradients are finite.
        reader = max(
            (reader for reader, _ in readers.get(key, ()) if not any(each.bad for each in _given_to(reader, seen))),
            default=None,
        )
        if reader is not None:
            inputs = [*_given_to(reader, seen), *_inputs_of(reader, seen)]
        else:  # an output of the network
            ends = dict(zip((head.key for head in graph.heads), seen.head_gradients))
            inputs = [ends[key]] if key in ends else []
        finding = _finding(BACKWARD, key[0] if reader is None else reader, gradient, inputs, seen, same)
        return finding if exact is None else _with_alike(finding, key[0], seen, exact.backward)
    return None


def _with_alike(finding: NonFinite, position: int, seen: Values, exact: Mapping[Key, ValueRange]) -> NonFinite:
    """Return a finding that keeps in float32 all operators that fail like it, and those behind it that fail next.

    Without them a policy that is mended finds the next operator, one at a time.

    Args:
        finding: The finding.
        position: The node that it is at.
        seen: The run in low precision.
        exact: The ranges that float32 has.
    """
    nodes, source, keep = seen.names.graph.nodes, seen.names.source, list(finding.keep)
    is_backward, readers = finding.where == BACKWARD, seen.names.graph.consumers()
    low = sorted(key for key, dtype in seen.types.items() if dtype in dtypes.LOW_PRECISION)

    def is_beyond(key: Key) -> bool:
        origin = key  # A cast has the values of its input, which may be any output of a node.
        while is_inserted(nodes[origin[0]]):
            origin = nodes[origin[0]].inputs[0].key
        same = exact.get((source.get(origin[0], -1), origin[1]))
        dtype = seen.types[key] if seen.types.get(key) in dtypes.LOW_PRECISION else dtypes.FLOAT16
        return same is not None and same.magnitude > dtypes.limits(dtype).max / (seen.scale if is_backward else 1.0)

    def behind(number: int) -> List[int]:
        beyond = (key for key in ((number, i) for i in range(nodes[number].num_outputs)) if is_beyond(key))
        return [reader for key in beyond for reader, _ in readers.get(key, ())]

    chain = {position} if is_backward else set(_closure([position], behind))
    for key in reversed(low) if is_backward else low:
        is_alike = is_backward or key[0] in chain or seen.names.of(key[0])[1] == finding.op
        if is_alike and is_beyond(key):
            keep += _to_keep(key[0], seen, readers)
    return replace(finding, keep=tuple(dict.fromkeys(keep)))


def _given_to(position: int, seen: Values) -> List[ValueRange]:
    """Return the gradients that a node's outputs get."""
    count = seen.names.graph.nodes[position].num_outputs
    return [seen.backward[position, n] for n in range(count) if (position, n) in seen.backward]


def _inputs_of(position: int, seen: Values) -> List[ValueRange]:
    keys = (entry.key for entry in seen.names.graph.nodes[position].inputs)
    return [seen.forward[key] for key in keys if key in seen.forward]


def _closure(first: Iterable[T], following: Callable[[T], Iterable[T]]) -> List[T]:
    """Return the items that steps reach from the first ones, these included, each once, the nearest first."""
    reached = dict.fromkeys(first)
    waiting = list(reached)
    for each in waiting:  # which grows
        new = [other for other in dict.fromkeys(following(each)) if other not in reached]
        reached.update(dict.fromkeys(new))
        waiting += new
    return waiting


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


def _inf_from(position: int, seen: Values) -> str:
    """Return the node that the first inf comes from which a node reads; '' if it reads none."""

    def is_inf(key: Key) -> bool:
        return key in seen.forward and seen.forward[key].infs > 0

    def sources(node: int) -> List[int]:
        return [entry.node for entry in seen.names.graph.nodes[node].inputs if is_inf(entry.key)]

    origins = [each for each in _closure([position], sources) if each != position and not sources(each)]
    return seen.names.of(min(origins))[0] if origins else ""


def _reaching(seen: Values) -> Set[Key]:
    """Return the outputs of nodes from which inf or NaN reaches an output of the network, all the way as inf or NaN."""
    graph = seen.names.graph

    def sources(key: Key) -> List[Key]:
        keys = [entry.key for entry in graph.nodes[key[0]].inputs]
        return [each for each in keys if each not in seen.forward or seen.forward[each].bad]

    return set(_closure([head.key for head, output in zip(graph.heads, seen.outputs) if output.bad], sources))


def _is_excused(position: int, seen: Values) -> bool:
    """Return whether a node gives inf because it reads inf, or NaN because it reads NaN; or reads only constants."""
    graph = seen.names.graph
    inputs = _inputs_of(position, seen)
    outputs = [output for key, output in seen.forward.items() if key[0] == position]
    if any(each.nans for each in outputs):
        return any(each.nans for each in inputs)
    sources = _closure([position], lambda each: (entry.node for entry in graph.nodes[each].inputs))
    return any(each.bad for each in inputs) or not any(graph.nodes[each].is_variable for each in sources)


def _finding(
    where: str,
    position: int,
    output: ValueRange,
    inputs: Sequence[ValueRange],
    seen: Values,
    same: Optional[ValueRange],
) -> NonFinite:
    """Return the finding at a node; the precision is that of its arithmetic: backward, that of its inputs."""
    read = [seen.types.get(entry.key) for entry in seen.names.graph.nodes[position].inputs]
    low = [each for each in read if each in dtypes.LOW_PRECISION] if where == BACKWARD else []
    precision = low[0] if low else seen.types.get((position, 0))
    same = same.times(seen.scale) if same is not None and where == BACKWARD else same
    name, op = seen.names.of(position)
    keep = _to_keep(position, seen, seen.names.graph.consumers())
    return NonFinite(where, name, op, str(precision or dtypes.FLOAT32), output, tuple(inputs), same, keep=keep)


def _to_keep(position: int, seen: Values, readers: Mapping[Key, Sequence[Tuple[int, int]]]) -> Tuple[str, ...]:
    """Return a node and those in low precision that read its output, casts passed over.

    For an inserted cast they are its readers, and the node that it casts if that is in low precision. ``readers`` are
    the graph's `consumers`.
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
