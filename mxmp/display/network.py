"""The picture of a network: operators are cells in the colour of their precision, casts are marks.

A small network is drawn operator by operator. In a larger network, operators in a row without a branch share a box,
with a cell for each. The operators of a box are named when the pointer is on it, and under the picture when it is
chosen. Sizes are pixels.

A box is below the boxes that it reads. There are few crossings, and lines are straight where possible.

References:
    Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981: layers,
    waypoints of long edges, order by barycentres. Positions within a layer are the nearest to the neighbours' that
    keep order and distance (isotonic regression by pooling adjacent violators).
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from markupsafe import Markup, escape

from ..errors import visible
from .blocks import Network

_EACH_ALONE = 40  # In a network of at most so many operators each has a box of its own.
_LONGEST = 9  # The largest number of operators in a box.
_MOST_BOXES = 1500

_BOX, _HEIGHT, _GAP, _RISE, _EDGE = 140.0, 40.0, 12.0, 66.0, 8.0
_CELLS = _BOX - 16.0  # The width of a box's cells.
_LETTERS = 19  # The number of letters that fit into a box.
_TELLING = ("Convolution", "Deconvolution", "FullyConnected", "dot", "batch_dot", "RNN", "Embedding")
_SUFFIX = "_fwd"  # The end of the names of Gluon's layers.

Edge = Tuple[int, int]
Route = Sequence[Tuple[float, int]]

_SWEEPS = 6
_MOST_WAYPOINTS = 4000  # With more waypoints long edges are drawn straight.
_WAYPOINT = 16.0  # The width that a line needs among boxes.
Values = Dict[str, Any]  # The values of a box or of the picture, by their names in the template.


def draw(block: Network) -> Values:
    """Return the picture of a network; it has no boxes if the network is too large to be drawn."""
    operators = block.operators
    sources = read_positions(operators)
    runs = group(sources) if len(operators) > _EACH_ALONE else [[i] for i in range(len(operators))]
    precisions = list(dict.fromkeys(each.precision for each in operators))
    picture = {"caption": block.caption, "count": len(operators), "precisions": precisions, "boxes": []}
    if len(runs) > _MOST_BOXES:
        return picture
    home = {each: number for number, run in enumerate(runs) for each in run}
    edges = sorted({(home[a], home[b]) for b, read in enumerate(sources) for a in read if home[a] != home[b]})
    layout = layered(len(runs), edges, _BOX, _GAP)
    names = [each.name for each in operators]
    prefix = os.path.commonprefix(names).rfind("_") + 1 if len(names) > 1 else 0  # of whole words
    boxes = [_box([operators[i] for i in run], layout, number, prefix) for number, run in enumerate(runs)]
    marks = _marks(operators, sources, runs, boxes, dict(zip(edges, layout.routes)))
    return {
        **picture,
        "width": round(layout.width + 2 * _EDGE),
        "height": round(max(layout.layer, default=0) * _RISE + _HEIGHT + 2 * _EDGE),
        "boxes": boxes,
        "paths": [_curve(route) for route in layout.routes],
        "marks": dict.fromkeys(marks),  # Two operators of a box may read one cast.
    }


def read_positions(operators: Sequence[Any]) -> List[List[int]]:
    """Return the positions that each operator reads: for a name, the last operator of that name before it."""
    last: Dict[str, int] = {}
    positions = []
    for position, each in enumerate(operators):
        positions.append(sorted({last[name] for name in each.inputs if name in last}))
        last[each.name] = position
    return positions


def group(sources: Sequence[Sequence[int]]) -> List[List[int]]:
    """Return operators in groups without a branch: each except the first reads only the operator before it."""
    readers = Counter(each for read in sources for each in read)
    group_of: Dict[int, List[int]] = {}
    groups: List[List[int]] = []
    for position, read in enumerate(sources):
        before = group_of.get(read[0]) if len(read) == 1 else None
        if before is None or readers[read[0]] > 1 or len(before) >= _LONGEST:
            before = []
            groups.append(before)
        before.append(position)
        group_of[position] = before
    return groups


# ---------------------------------------------------------------------- boxes


def _box(inside: Sequence[Any], layout: Layout, number: int, prefix: int) -> Values:
    """Return a box: its corner and size, two lines of text, a text with all details, and its cells."""
    x, y = layout.x[number] - _BOX / 2 + _EDGE, layout.layer[number] * _RISE + _EDGE
    width, gap = _CELLS / len(inside), 1 if len(inside) > 1 else 0
    label, below = _labels(inside, prefix)
    return {
        "x": x,
        "y": y,
        "width": _BOX,
        "height": _HEIGHT,
        "label": label,
        "below": below,
        "title": Markup("\n").join(escape(visible(_details(each))) for each in inside),
        "cells": [(x + 8 + i * width, width - gap, each.precision) for i, each in enumerate(inside)],
    }


def _details(operator: Any) -> str:
    """Return a line with all facts about an operator."""
    casts = f"; casts {', '.join(map(str, operator.casts))}" if operator.casts else ""
    return f"{operator.name} ({operator.op}): {operator.precision}, {operator.reason}{casts}"


def _labels(inside: Sequence[Any], prefix: int) -> Tuple[str, str]:
    """Return the two lines of a box: the first operator's name, and its most telling kind of operator."""
    name = visible(inside[0].name[prefix:])
    name = name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) and name != _SUFFIX else name
    counts = Counter(visible(each.op) for each in inside)
    kind = max(counts, key=lambda op: (op in _TELLING, counts[op]))
    times = f"{counts[kind]} × " if counts[kind] > 1 else ""
    more = f" + {len(inside) - counts[kind]}" if len(inside) > counts[kind] else ""
    end = " …" if len(inside) > 1 else ""
    return _shortened(name, _LETTERS - len(end)) + end, _shortened(times + kind, _LETTERS - len(more)) + more


def _shortened(text: str, most: int) -> str:
    """Return a text that fits into a box; a long text loses its middle."""
    keep = most - 1
    return text if len(text) <= most else f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"


# ---------------------------------------------------------------------- casts and edges


def _marks(
    operators: Sequence[Any],
    sources: Sequence[Sequence[int]],
    runs: Sequence[Sequence[int]],
    boxes: Sequence[Values],
    routes: Dict[Tuple[int, int], Route],
) -> Iterator[Tuple[float, float, str, float]]:
    """Yield x, y, text and half the width of a mark for each cast.

    A mark is within a box, on an edge near the reader, or below a box for an output of the network. On an edge it is at
    0.8 of the edge's last curve, a cubic Bézier curve.
    """
    place = {each: (number, i) for number, run in enumerate(runs) for i, each in enumerate(run)}
    for position, operator in enumerate(operators):
        number, cell = place[position]
        casts, box = {cast.source: str(cast) for cast in operator.casts}, boxes[number]
        for source in sources[position]:
            cast = casts.get(operators[source].name)
            if cast and place[source][0] == number:
                yield box["cells"][cell][0] - 0.5, box["y"] + _HEIGHT - 7.5, cast, 3.5
            elif cast:
                (x0, upper), (x1, lower) = routes[place[source][0], number][-2:]
                y0, y1 = upper * _RISE + _HEIGHT, lower * _RISE
                yield _EDGE + 0.104 * x0 + 0.896 * x1, _EDGE + 0.248 * y0 + 0.752 * y1, cast, 5.0
        if operator.name in casts:
            yield box["x"] + _BOX / 2, box["y"] + _HEIGHT, casts[operator.name], 5.0


def _curve(route: Route) -> str:
    """Return the path of an edge: curves between layers, upright lines within layers."""
    places = [(x + _EDGE, layer * _RISE + _EDGE) for x, layer in route]
    parts = [f"M{places[0][0]:.1f} {places[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in zip(places, places[1:]):
        middle = (y + _HEIGHT + to_y) / 2
        parts.append(f"V{y + _HEIGHT:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(parts)


# ---------------------------------------------------------------------- layout


class Layout(NamedTuple):
    """The places of boxes and edges.

    Attributes:
        x: The horizontal centre of each box; the left edge of the picture is at 0.
        layer: The layer of each box, from 0 at the top.
        routes: For each edge the (x, layer) of all points that it passes, both ends included.
        width: The width of the picture.
    """

    x: List[float]
    layer: List[int]
    routes: Sequence[Route]
    width: float


def layered(count: int, edges: Sequence[Edge], box: float, gap: float) -> Layout:
    """Return the layout of some boxes, in which each edge leads from a box to a later box.

    Args:
        count: The number of boxes.
        edges: Pairs (from, to) of the numbers of boxes, from < to.
        box: The width of a box.
        gap: The smallest distance between two boxes.
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
    """Return the points of each edge, one in each layer. The layers of new waypoints are added to ``layers``."""
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
    """Return the x of each point: near to the mean of its neighbours, with the order and the distances kept.

    The rows are visited downwards and upwards in turn. The first sweeps also sort each row by its neighbours' means.
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
    """Return the places that are nearest to the wished places, by least squares, with the order and distances kept."""
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
