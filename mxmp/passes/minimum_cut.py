"""Minimum cuts in whole numbers of any size, by a maximum preflow.

The push-relabel method sends all the flow that the source can give from vertex to vertex, nearer to the sink each time.
Flow that cannot get there stays where it is: a maximum preflow has the value of the maximum flow and the same smallest
sink side, so no second phase takes it back to the source.

References:
    Goldberg and Tarjan, "A New Approach to the Maximum-Flow Problem", 1988, https://doi.org/10.1145/48014.61051
    Cherkassky and Goldberg, "On Implementing the Push-Relabel Method", 1997, for heights that are measured again after
    many relabels; https://doi.org/10.1007/PL00009180
"""

from __future__ import annotations

from collections import deque
from typing import List, Sequence, Set, Tuple

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
