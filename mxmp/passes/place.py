"""Placement: the cheapest precision for each free node, by an exact minimum cut on bytes moved.

With two labels the cheapest placement of casts is a minimum s-t cut: the source side is float32, the sink side low
precision. A free operator costs the bytes that it reads and writes in its dtype. A tensor that changes dtype costs one
cast, which all its readers of the other dtype share. A cast reads four bytes per element and writes two, or the
reverse. Pins are hard: a pinned node is the source or the sink itself.

Among the cheapest placements the one with the fewest casts is taken. Among those it is the one with the most float32:
the smallest sink side of a minimum cut. That side is unique, so the result does not depend on the solver. The value of
the flow is the certificate that nothing cheaper exists: it is compared with the cost.

References:
    Kolmogorov and Zabih, "What Energy Functions Can Be Minimized via Graph Cuts?", 2004, for
    energies as cuts; https://doi.org/10.1109/TPAMI.2004.1262177
    Goldberg and Tarjan, "A New Approach to the Maximum-Flow Problem", 1988, for the maximum flow by push-relabel;
    https://doi.org/10.1145/48014.61051
    Cherkassky and Goldberg, "On Implementing the Push-Relabel Method", 1997, for heights that are measured again after
    many relabels; https://doi.org/10.1007/PL00009180
"""

from __future__ import annotations

from collections import deque
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Set, Tuple

from .. import dtypes
from ..errors import PassError
from ..graph import Entry, Graph, Key
from .decide import FREE, LOW, Decision
from .facts import Facts

Arc = Tuple[int, int, int, int]
"""Two vertices, the capacity from the first to the second, and the capacity back."""


def minimum_cut(count: int, arcs: Sequence[Arc], source: int, sink: int) -> Tuple[int, Set[int]]:
    """Return the value of the minimum cut of vertices 0 to count - 1, and the smallest sink side of that value.

    Example:
        >>> minimum_cut(3, [(0, 1, 5, 0), (1, 2, 3, 0)], source=0, sink=2)
        (3, {2})
    """
    heads: List[int] = []  # by residual arc; arc ^ 1 is the way back
    room: List[int] = []
    leaving: List[List[int]] = [[] for _ in range(count)]
    for start, end, capacity, back in arcs:
        leaving[start].append(len(heads))
        leaving[end].append(len(heads) + 1)
        heads += (end, start)
        room += (capacity, back)
    excess = [0] * count
    for arc in leaving[source]:
        excess[heads[arc]] += room[arc]
        room[arc], room[arc ^ 1] = 0, room[arc ^ 1] + room[arc]
    waiting = deque(vertex for vertex in range(count) if excess[vertex] and vertex != sink)
    heights, relabels = _distances(sink, heads, room, leaving), 0
    while waiting:
        vertex = waiting.popleft()
        while excess[vertex] and heights[vertex] < count:
            lowest = count - 1
            for arc in leaving[vertex]:
                end = heads[arc]
                if room[arc] and heights[end] < heights[vertex]:
                    flow = min(excess[vertex], room[arc])
                    room[arc], room[arc ^ 1] = room[arc] - flow, room[arc ^ 1] + flow
                    if not excess[end] and end != sink:
                        waiting.append(end)
                    excess[vertex], excess[end] = excess[vertex] - flow, excess[end] + flow
                    if not excess[vertex]:
                        break
                elif room[arc]:
                    lowest = min(lowest, heights[end])
            else:
                heights[vertex], relabels = lowest + 1, relabels + 1
        if relabels >= count:  # flow that is cut off from the sink would climb step by step
            heights, relabels = _distances(sink, heads, room, leaving), 0
    heights = _distances(sink, heads, room, leaving)
    return excess[sink], {vertex for vertex in range(count) if heights[vertex] < count}


def _distances(sink: int, heads: List[int], room: List[int], leaving: List[List[int]]) -> List[int]:
    """Return how many residual arcs lead from each vertex to the sink; the number of vertices if none do."""
    distances = [len(leaving)] * len(leaving)
    distances[sink] = 0
    reached = deque([sink])
    while reached:
        vertex = reached.popleft()
        for arc in leaving[vertex]:
            if room[arc ^ 1] and distances[heads[arc]] == len(leaving):
                distances[heads[arc]] = distances[vertex] + 1
                reached.append(heads[arc])
    return distances


_SOURCE = -1
_SINK = -2

# Costs are counted in units of two bytes. A free operator in low precision saves 4 - 2 bytes on each element of a
# tensor, which is one unit. A cast moves 4 + 2 bytes.
_CAST_UNITS = 3


class Tensor(NamedTuple):
    """One tensor that may need a cast, in the placement problem.

    ``producer`` is the node that decides its dtype: the position of a free node or parameter, ``_SOURCE`` (float32) or
    ``_SINK`` (low precision). ``readers`` are the nodes that need it in their dtype, with the same numbers. ``saving``
    are the units that a free operator saves if it reads or gives the tensor in low precision. ``price`` are those of a
    cast.
    """

    producer: int
    readers: FrozenSet[int]
    saving: int
    price: int


def place(
    graph: Graph,
    decisions: Sequence[Decision],
    facts: Facts,
    low_params: FrozenSet[int] = frozenset(),
    output_low: bool = False,
    any_heads: FrozenSet[int] = frozenset(),
    free_params: FrozenSet[int] = frozenset(),
) -> FrozenSet[int]:
    """Return the nodes in low precision of the cheapest placement that keeps every pin.

    The cheapest one moves the fewest bytes. If a shape is missing, it has the fewest casts. The parameters
    ``low_params``, by position, are stored in low precision. ``free_params`` may be stored in either: those that are
    cheaper in low precision are among the nodes. ``output_low`` says whether the graph's float32 outputs are wanted in
    low precision. Positions never are. ``any_heads`` are the numbers of the outputs that may have either.
    """
    tensors = _find_tensors(graph, decisions, facts, low_params, output_low, any_heads, free_params)
    saving = {position: 0 for position, decision in enumerate(decisions) if decision.label == FREE}
    for tensor in tensors:
        for side in (tensor.producer, *tensor.readers):
            if side in saving:
                saving[side] += tensor.saving
    flow, low = _cheapest(tensors, saving)
    cost = sum(units for node, units in saving.items() if node not in low)
    for tensor in tensors:
        is_low = {side == _SINK or side in low for side in (tensor.producer, *tensor.readers)}
        cost += tensor.price if len(is_low) > 1 else 0
    if cost != flow:
        raise PassError(f"place: the cut costs {cost}, but the maximum flow is {flow}; this is a bug in mxmp.")
    return frozenset(low) | {position for position, decision in enumerate(decisions) if decision.label == LOW}


def _find_tensors(
    graph: Graph,
    decisions: Sequence[Decision],
    facts: Facts,
    low_params: FrozenSet[int],
    output_low: bool,
    any_heads: FrozenSet[int],
    free_params: FrozenSet[int],
) -> List[Tensor]:
    """Return the float32 tensors of a graph that may be cast, and that a free node or parameter gives or reads.

    The arguments are those of `place`.
    """
    sides_of = [_SINK if v.label == LOW else i if v.label == FREE else _SOURCE for i, v in enumerate(decisions)]
    readers: Dict[Key, Set[int]] = {}
    for position, node in enumerate(graph.nodes):
        decision = decisions[position]
        for port, entry in enumerate(node.inputs):
            sides = readers.setdefault(entry.key, set())
            if port in decision.low_ports:
                sides.add(_SINK)
            elif not decision.accepts_any(port):
                sides.add(sides_of[position] if decision.input_in_precision(port) else _SOURCE)
    for number, head in enumerate(graph.heads):
        sides = readers.setdefault(head.key, set())
        if number not in any_heads:
            sides.add(_SINK if output_low and head.index not in decisions[head.node].index_outputs else _SOURCE)
    tensors: List[Tuple[int, Set[int], int]] = []
    in_bytes = True
    for (position, index), sides in readers.items():
        entry = Entry(position, index)
        if facts.dtype(entry) != dtypes.FLOAT32:
            continue
        decision, size = decisions[position], facts.size(entry)
        in_bytes = in_bytes and size is not None
        if position in low_params or index in decision.low_outputs:
            producer = _SINK
        elif position in free_params:
            producer = position
        else:
            producer = sides_of[position] if decision.output_in_precision(index) else _SOURCE
        if producer >= 0 or max(sides, default=_SOURCE) >= 0:
            tensors.append((producer, sides, size or 0))
    return [
        Tensor(producer, frozenset(sides), size if in_bytes else 0, _CAST_UNITS * size if in_bytes else 1)
        for producer, sides, size in tensors
    ]


def _cheapest(tensors: Sequence[Tensor], saving: Mapping[int, int]) -> Tuple[int, Set[int]]:
    """Return the maximum flow in units, and the nodes on the smallest sink side of a minimum cut.

    ``saving`` has the units that each free node saves in low precision.
    """
    # A cost times this, plus one for each cast: the fewest casts among the cheapest placements.
    scale = len(tensors) + 1
    infinite = (sum(saving.values()) + sum(tensor.price for tensor in tensors) + 1) * scale  # more than all others
    vertices: Dict[int, int] = {_SOURCE: 0, _SINK: 1}
    arcs: List[Arc] = []

    def connect(start: int, end: int, capacity: int, back: int = 0) -> None:
        if capacity:
            first, second = (vertices.setdefault(key, len(vertices)) for key in (start, end))
            arcs.append((first, second, capacity, back))

    for node, units in saving.items():
        connect(node, _SINK, units * scale)
    for number, (producer, readers, _, price) in enumerate(tensors):
        weight = price * scale + 1
        others = readers - {producer}
        if len(others) == 1:  # as most tensors have: one arc with a way back does
            (reader,) = others
            connect(producer, reader, weight, weight)
            continue
        # Two vertices are the tensor's casts down and up, which all readers of the other side share.
        down, up = -3 - 2 * number, -4 - 2 * number
        if producer != _SINK and others - {_SOURCE}:
            connect(producer, down, weight)
            for reader in sorted(others - {_SOURCE}):
                connect(down, reader, infinite)
        if producer != _SOURCE and others - {_SINK}:
            connect(up, producer, weight)
            for reader in sorted(others - {_SINK}):
                connect(reader, up, infinite)
    flow, sink_side = minimum_cut(len(vertices), arcs, source=0, sink=1)
    return flow // scale, {key for key, vertex in vertices.items() if key >= 0 and vertex in sink_side}
