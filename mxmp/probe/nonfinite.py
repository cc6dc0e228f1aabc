"""Finds the first node of a network whose output or gradient is inf or NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Key, Node
from ..passes.attributes import MARK_ATTR, original
from ..report.counts import positions
from .finding import BACKWARD, FORWARD, NonFinite
from .looking import Seen
from .value_range import ValueRange


class Names:
    """What the nodes of a converted graph are called in the network that it was made of."""

    def __init__(self, before: Graph, after: Graph) -> None:
        self._before, self._after = before, after
        self.known = {new: old for old, new in positions(before, after).items()}

    def of(self, position: int) -> Tuple[str, str]:
        """Return the name and operator of a node; of a cast, the name of what it casts."""
        if position in self.known:
            node = self._before.nodes[self.known[position]]
            return node.name, node.op
        node = self._after.nodes[position]
        if node.get(MARK_ATTR) is None or not node.inputs:
            return node.name, original(node).op
        return self.of(node.inputs[0].node)[0], "cast"

    def ranged(self, key: Key, found: ValueRange) -> ValueRange:
        """Return the range of an output under the name that it has in the network; of a cast, that of what it casts."""
        node = self._after.nodes[key[0]]
        if key[0] not in self.known:
            is_cast = node.get(MARK_ATTR) is not None and bool(node.inputs)
            return self.ranged(node.inputs[0].key, found) if is_cast else found
        if node.is_variable:
            return replace(found, name=self._before.nodes[self.known[key[0]]].name)
        return replace(found, name=self._before.entry_name(Entry(self.known[key[0]], key[1])))


def first_forward(
    seen: Seen, exact: Seen, before: Graph, allowed: bool = True, harmful: bool = True
) -> Optional[NonFinite]:
    """Return the first operator whose output has more inf and NaN than in float32.

    Args:
        seen: The network as it was converted.
        exact: The same in float32.
        before: The graph in float32.
        allowed: Whether inf and NaN that float32 has too are no fault (an attention mask); if not, an operator counts
            that has inf or NaN though all its inputs are finite. One whose own constant is inf (a mask's ``m * -inf``)
            only counts if no operator after it makes NaN of it.
        harmful: Whether only those count from which inf and NaN reach an output of the network.
    """
    names = Names(before, seen.graph)
    reaching = _reaching(seen)
    intended: Optional[NonFinite] = None
    for key in sorted(key for key in seen.forward if not seen.graph.nodes[key[0]].is_variable):
        if harmful and key not in reaching:
            continue
        found, same = seen.forward[key], _same(names, key, exact)
        known = same.bad if same is not None and allowed else 0
        if found.bad > known and (allowed or not _excused(key[0], seen)):
            if same is None and allowed and _excused(key[0], seen):
                continue  # a cast of what is infinite by intention
            made = _made(FORWARD, key[0], names.ranged(key, found), _read(key[0], seen, names), names, seen, same)
            if allowed or found.nans or not _is_infinite(seen.graph.nodes[key[0]]):
                return replace(made, inf_from=_inf_from(key[0], seen, names)) if found.nans else made
            intended = intended or made
    return intended


def _is_infinite(node: Node) -> bool:
    """Return whether an operator has a constant that is inf in float32."""
    for _, text in node.attrs:
        try:
            value = float(text)
        except ValueError:
            continue
        if abs(value) > dtypes.limits(dtypes.FLOAT32).max:
            return True
    return False


def _inf_from(position: int, seen: Seen, names: Names) -> str:
    """Return the node that the first inf comes from which a node reads; '' if it reads none."""
    found = -1
    waiting, known = [position], {position}
    while waiting:
        number = waiting.pop()
        bad = [each for each in seen.graph.nodes[number].inputs if each.key in seen.forward]
        bad = [each for each in bad if seen.forward[each.key].infs]
        if not bad and number != position:
            found = number if found < 0 else min(found, number)
        new = {each.node for each in bad} - known
        known |= new
        waiting += new
    return "" if found < 0 else names.of(found)[0]


def _reaching(seen: Seen) -> Set[Key]:
    """Return the outputs of nodes from which inf or NaN reaches an output of the network, all the way as inf or NaN."""
    waiting = [head.key for head, found in zip(seen.graph.heads, seen.outputs) if found.bad]
    known = set(waiting)
    while waiting:
        for entry in seen.graph.nodes[waiting.pop()[0]].inputs:
            found = seen.forward.get(entry.key)
            if entry.key not in known and (found is None or found.bad):
                known.add(entry.key)
                waiting.append(entry.key)
    return known


def _same(names: Names, key: Key, exact: Seen) -> Optional[ValueRange]:
    """Return an output in float32; of a cast, what it casts."""
    position = names.known.get(key[0])
    return None if position is None else exact.forward.get((position, key[1]))


def _excused(position: int, seen: Seen) -> bool:
    """Return whether a node hands on what it reads: inf for inf, NaN for NaN; or depends on constants alone."""
    node = seen.graph.nodes[position]
    read = [seen.forward[entry.key] for entry in node.inputs if entry.key in seen.forward]
    given = [found for key, found in seen.forward.items() if key[0] == position]
    if any(each.nans for each in given):
        return any(each.nans for each in read)
    return any(each.bad for each in read) or not _reads_variables(seen.graph, position)


def _reads_variables(graph: Graph, position: int) -> bool:
    waiting, known = [position], {position}
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.is_variable:
            return True
        new = {entry.node for entry in node.inputs} - known
        known |= new
        waiting += new
    return False


def first_backward(seen: Seen, exact: Optional[Seen], before: Graph) -> Optional[NonFinite]:
    """Return the operator whose backward gives inf or NaN first, in the order in which backward runs.

    ``exact`` is float32's run, whose gradients are no fault where they are not finite by themselves.
    """
    graph, names, readers = seen.graph, Names(before, seen.graph), seen.graph.consumers()
    numbers = {node.name: (i, 0) for i, node in enumerate(before.nodes) if node.is_variable}
    last = {key: max((reader for reader, _ in readers.get(key, ())), default=key[0]) for key in seen.backward}
    for key in sorted(seen.backward, key=lambda each: (-last[each], -each[0], each[1])):
        found = seen.backward[key]
        node = graph.nodes[key[0]]
        place = numbers.get(node.name) if node.is_variable else (names.known.get(key[0], -1), key[1])
        same = None if exact is None or place is None else exact.backward.get(place)
        if not found.bad or (exact is not None and same is not None and found.bad <= same.bad):
            continue
        return _gradient(key, found, seen, names, readers, same)
    return None


def _gradient(
    key: Key, found: ValueRange, seen: Seen, names: Names, readers: Mapping[Key, Any], same: Optional[ValueRange]
) -> NonFinite:
    """Return the finding for the gradient of one output: the operator that gives it, with what that gets and reads."""
    reader = _reader(key, seen, readers)
    found = names.ranged(key, found)
    if reader is None:  # an output of the network
        ends = dict(zip((head.key for head in seen.graph.heads), seen.head_gradients or ()))
        given = [each for each in (ends.get(key),) if each is not None]
        return _made(BACKWARD, key[0], found, given, names, seen, same)
    gets = [names.ranged(each, seen.backward[each]) for each in sorted(seen.backward) if each[0] == reader]
    return _made(BACKWARD, reader, found, [*gets, *_read(reader, seen, names)], names, seen, same)


def _reader(key: Key, seen: Seen, readers: Mapping[Key, Any]) -> Optional[int]:
    """Return the node that hands an inf or NaN gradient to an output first: its own gradients are finite."""
    found: List[int] = []
    waiting, known = [key], {key}
    while waiting:
        for reader, _ in readers.get(waiting.pop(), ()):
            outputs = [(reader, index) for index in range(seen.graph.nodes[reader].num_outputs)]
            if seen.graph.nodes[reader].get(MARK_ATTR) == "loss_scale":
                waiting += [each for each in outputs if each not in known]
                known |= set(outputs)
            elif not any(seen.backward[each].bad for each in outputs if each in seen.backward):
                found.append(reader)
    return max(found, default=None)


def _read(position: int, seen: Seen, names: Names) -> List[ValueRange]:
    keys = (entry.key for entry in seen.graph.nodes[position].inputs)
    return [names.ranged(key, seen.forward[key]) for key in keys if key in seen.forward]


def _made(
    where: str,
    position: int,
    found: ValueRange,
    inputs: Sequence[ValueRange],
    names: Names,
    seen: Seen,
    same: Optional[ValueRange],
) -> NonFinite:
    name, op = names.of(position)
    precision = _precision(position, seen, where)
    return NonFinite(where, name, op, precision, found, tuple(inputs), same, keep=_to_keep(position, names, seen))


def _to_keep(position: int, names: Names, seen: Seen) -> Tuple[str, ...]:
    """Return a node and those in low precision that read its output, casts passed over.

    Of an inserted cast those that read it, and the node that it casts if that is in low precision.
    """
    readers, graph = seen.graph.consumers(), seen.graph
    source = position
    while graph.nodes[source].get(MARK_ATTR) is not None and graph.nodes[source].inputs:
        source = graph.nodes[source].inputs[0].node
    if not graph.nodes[source].is_variable and _is_low(source, seen):
        position = source
    found: Dict[str, None] = {}
    waiting = [position]
    while waiting:
        number = waiting.pop(0)
        is_inserted = graph.nodes[number].get(MARK_ATTR) is not None
        if not is_inserted:
            found[names.of(number)[0]] = None
        if is_inserted or number == position:
            outputs = range(graph.nodes[number].num_outputs)
            following = [reader for index in outputs for reader, _ in readers.get((number, index), ())]
            low = [each for each in following if _is_low(each, seen) or graph.nodes[each].get(MARK_ATTR) is not None]
            waiting += sorted(set(low))
    return tuple(found)


def _is_low(position: int, seen: Seen) -> bool:
    entries = [(position, 0), *(entry.key for entry in seen.graph.nodes[position].inputs)]
    return any(seen.facts.dtypes.get(key) in dtypes.LOW_PRECISION for key in entries)


def _precision(position: int, seen: Seen, where: str) -> str:
    """Return the precision of a node's arithmetic: backward, that of what it reads."""
    node = seen.graph.nodes[position]
    types = [seen.facts.dtypes.get((position, 0))]
    if where == BACKWARD:
        read = [seen.facts.dtypes.get(entry.key) for entry in node.inputs]
        types = [each for each in read if each in dtypes.LOW_PRECISION] or types
    return str(types[0] or dtypes.FLOAT32)
