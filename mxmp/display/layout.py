"""Where the boxes of a layered graph stand: each below those that it reads, with few crossings and straight lines.

References:
    Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981: layers,
    waypoints of long edges, order by barycentres. Positions within a layer are the nearest to the neighbours' that
    keep order and distance (isotonic regression by pooling adjacent violators).
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

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
    layers = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    routes = _waypoints(layers, edges)
    neighbours: Tuple[List[List[int]], ...] = tuple([[] for _ in layers] for _ in range(2))  # above, below
    for route in routes:
        for upper, lower in zip(route, route[1:]):
            neighbours[0][lower].append(upper)
            neighbours[1][upper].append(lower)
    rows: List[List[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for each, at in enumerate(layers):
        rows[at].append(each)
    widths = [box if each < count else _WAYPOINT for each in range(len(layers))]
    x = _place(rows, neighbours, widths, gap)
    left = min((at - width / 2 for at, width in zip(x, widths)), default=0.0)
    right = max((at + width / 2 for at, width in zip(x, widths)), default=0.0)
    paths = [[(x[each] - left, layers[each]) for each in route] for route in routes]
    return Layout([at - left for at in x[:count]], layers[:count], paths, right - left)


def _waypoints(layers: List[int], edges: Sequence[Edge]) -> List[List[int]]:
    """Return the points that each edge passes, one in each layer; the waypoints' layers are added to the boxes'."""
    bends = sum(layers[b] - layers[a] - 1 for a, b in edges) <= _MOST_WAYPOINTS
    routes = []
    for source, target in edges:
        between = range(layers[source] + 1, layers[target]) if bends else range(0)
        routes.append([source, *range(len(layers), len(layers) + len(between)), target])
        layers.extend(between)
    return routes


def _place(
    rows: Sequence[List[int]], neighbours: Sequence[Sequence[Sequence[int]]], widths: Sequence[float], gap: float
) -> List[float]:
    """Return the x of each point, as near to its neighbours' mean as order and distance allow.

    Rows are swept downwards and upwards in turn; the first sweeps put them in the order of the neighbours' means too.
    """
    x = [0.0] * len(widths)
    for row in rows:
        for each, at in zip(row, _apart([0.0] * len(row), [widths[e] for e in row], gap)):
            x[each] = at
    for sweep in range(3 * _SWEEPS):
        near = neighbours[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = {e: sum(x[n] for n in near[e]) / len(near[e]) if near[e] else x[e] for e in row}
            if sweep < _SWEEPS:
                row.sort(key=lambda each: wish[each])
            for each, at in zip(row, _apart([wish[e] for e in row], [widths[e] for e in row], gap)):
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
