"""Where the boxes of a layered graph stand: each below those that it reads, with few crossings and straight lines.

References:
    Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981: layers,
    waypoints of long edges, order by barycentres. Positions within a layer are the nearest to the neighbours' that
    keep order and distance (isotonic regression by pooling adjacent violators).
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

Edge = Tuple[int, int]
Route = Sequence[Tuple[float, int]]

_SWEEPS = 6
_MOST_WAYPOINTS = 4000  # beyond it long edges are drawn straight
_WAYPOINT = 16.0  # width that a line takes among boxes


class Layout(NamedTuple):
    """Centres of boxes.

    Attributes:
        x: By box, in the units of the width; the leftmost edge is at 0.
        layer: By box, from 0 at the top.
        routes: By edge, the x and the layer of what it passes, both ends included.
        width: Of all.
    """

    x: List[float]
    layer: List[int]
    routes: Sequence[Route]
    width: float


def layered(count: int, edges: Sequence[Edge], box: float, gap: float) -> Layout:
    """Return the layout of boxes 0 to ``count`` - 1; each edge leads from a box to a later one.

    Args:
        count: Number of boxes.
        edges: Pairs (from, to), from < to.
        box: Width of a box.
        gap: Least distance of two.
    """
    layer = _layers(count, edges)
    routes, layers = _waypoints(layer, edges)
    neighbours = _neighbours(len(layers), routes)
    rows: List[List[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for each, at in enumerate(layers):
        rows[at].append(each)
    widths = [box if each < count else _WAYPOINT for each in range(len(layers))]
    _order(rows, neighbours)
    x = _place(rows, neighbours, widths, gap)
    left = min((x[i] - widths[i] / 2 for i in range(len(x))), default=0.0)
    right = max((x[i] + widths[i] / 2 for i in range(len(x))), default=0.0)
    moved = [each - left for each in x]
    paths = [[(moved[each], layers[each]) for each in route] for route in routes]
    return Layout(moved[:count], layer, paths, right - left)


def _layers(count: int, edges: Sequence[Edge]) -> List[int]:
    """Return each box's layer: one below the lowest that it reads."""
    layer = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    return layer


def _waypoints(layer: Sequence[int], edges: Sequence[Edge]) -> Tuple[List[List[int]], List[int]]:
    """Return what each edge passes, one point in each layer, and the layers of boxes and waypoints."""
    layers = list(layer)
    bends = sum(layer[b] - layer[a] - 1 for a, b in edges) <= _MOST_WAYPOINTS
    routes = []
    for source, target in edges:
        between = range(layer[source] + 1, layer[target]) if bends else range(0)
        route = [source, *range(len(layers), len(layers) + len(between)), target]
        layers.extend(between)
        routes.append(route)
    return routes, layers


def _neighbours(count: int, routes: Sequence[Sequence[int]]) -> Tuple[List[List[int]], List[List[int]]]:
    """Return what is directly above and what is directly below each box and waypoint."""
    above: List[List[int]] = [[] for _ in range(count)]
    below: List[List[int]] = [[] for _ in range(count)]
    for route in routes:
        for upper, lower in zip(route, route[1:]):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _order(rows: List[List[int]], neighbours: Tuple[List[List[int]], List[List[int]]]) -> None:
    """Sort each row by the mean place of the neighbours, downwards and upwards in turn."""
    place: Dict[int, float] = {each: i for row in rows for i, each in enumerate(row)}
    for sweep in range(_SWEEPS):
        near = neighbours[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = {e: sum(place[n] for n in near[e]) / len(near[e]) if near[e] else place[e] for e in row}
            row.sort(key=lambda each: wish[each])
            place.update({each: i for i, each in enumerate(row)})


def _place(
    rows: Sequence[Sequence[int]],
    neighbours: Tuple[List[List[int]], List[List[int]]],
    widths: Sequence[float],
    gap: float,
) -> List[float]:
    """Return the x of each box and waypoint, as near to its neighbours' as order and distance allow."""
    x = [0.0] * len(widths)
    for sweep in range(2 * _SWEEPS):
        near = neighbours[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = [sum(x[n] for n in near[e]) / len(near[e]) if near[e] else x[e] for e in row]
            for each, at in zip(row, _apart(wish, [widths[e] for e in row], gap)):
                x[each] = at
    return x


def _apart(wish: Sequence[float], widths: Sequence[float], gap: float) -> List[float]:
    """Return the places nearest to those wished for, by least squares, that keep the order and a distance."""
    offsets, end = [], 0.0
    for width in widths:
        offsets.append(end + width / 2)
        end += width + gap
    pools: List[Tuple[float, int]] = []  # (sum, count) of wishes less their offsets, growing means
    for at, offset in zip(wish, offsets):
        total, count = at - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets)]
