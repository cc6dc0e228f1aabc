"""The picture of a network: operators as cells coloured by precision, casts as marks where they stand."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..errors import visible
from .layout import Layout, layered
from .templating import render

if TYPE_CHECKING:
    from markupsafe import Markup

_EACH_ALONE = 40  # operators up to which each has a box of its own
_LONGEST = 9  # operators in a box
_MOST_BOXES = 1500
_MOST_LINES = 24  # of the details of a box

_BOX, _HEIGHT, _GAP, _RISE, _EDGE = 140.0, 40.0, 12.0, 66.0, 8.0  # pixels
_TELLING = ("Convolution", "Deconvolution", "FullyConnected", "dot", "batch_dot", "RNN", "Embedding")
_SUFFIX = "_fwd"  # of the nodes of Gluon's layers
_OUTPUTS = ("output", "state")  # what MXNet calls outputs: fc_output, split_output1, rnn_state
_CELLS = _BOX - 16.0
_LETTERS = 19  # that fit into a box


@dataclass(frozen=True)
class Operator:
    """An operator of the network, in the order in which they run.

    Attributes:
        name: The node's name.
        op: Its operator.
        precision: A dtype, or 'as it was', 'folded', 'dropped'.
        reason: Why.
        casts: What is cast for it, each such as 'data to float16'.
        inputs: Names of the operators that it reads; all stand before it.
    """

    name: str
    op: str
    precision: str
    reason: str = ""
    casts: Sequence[str] = ()
    inputs: Sequence[str] = ()


class _Mark(NamedTuple):
    x: float
    y: float
    title: str
    radius: float = 5.0


class _Cell(NamedTuple):
    x: float
    width: float
    precision: str


class _Box(NamedTuple):
    x: float
    y: float
    label: str
    below: str
    title: str
    cells: List[_Cell]


def network(operators: Sequence[Operator], caption: str = "The network, from its inputs down to its outputs") -> Markup:
    """Return the picture of a network.

    A small network is drawn operator by operator. In a larger one operators that follow each other with no branch
    between them share a box, with a cell for each; the box says which they are where the pointer rests on it, and
    under the picture when it is chosen.
    """
    sources = _sources(operators)
    runs = _runs(sources) if len(operators) > _EACH_ALONE else [[i] for i in range(len(operators))]
    present = list(dict.fromkeys(each.precision for each in operators))
    if len(runs) > _MOST_BOXES:
        return render("network", too_many=len(operators), caption=caption, precisions=present)
    home = {each: number for number, run in enumerate(runs) for each in run}
    edges = sorted({(home[a], home[b]) for b, read in enumerate(sources) for a in read if home[a] != home[b]})
    layout = layered(len(runs), edges, _BOX, _GAP)
    prefix = _prefix([each.name for each in operators])
    boxes = [_box(operators, run, layout, number, prefix) for number, run in enumerate(runs)]
    marks = _inner_marks(operators, runs, boxes) + _output_marks(operators, home, boxes)
    marks += _edge_marks(operators, sources, home, dict(zip(edges, layout.routes)))
    height = (max(layout.layer, default=0) + 1) * _RISE - (_RISE - _HEIGHT) + 2 * _EDGE
    return render(
        "network",
        too_many=0,
        caption=caption,
        precisions=present,
        width=round(layout.width + 2 * _EDGE),
        height=round(height),
        box=_BOX,
        box_height=_HEIGHT,
        boxes=boxes,
        paths=[_curve(route) for route in layout.routes],
        marks=marks,
        grouped=len(runs) < len(operators),
        count=len(operators),
    )


def _sources(operators: Sequence[Operator]) -> List[List[int]]:
    """Return what each operator reads, by position: the last one of each name that stands before it."""
    last: Dict[str, int] = {}
    found = []
    for position, each in enumerate(operators):
        found.append(sorted({last[name] for name in each.inputs if name in last}))
        last[each.name] = position
    return found


def _runs(sources: Sequence[Sequence[int]]) -> List[List[int]]:
    """Return operators in groups that have no branch within: each but the first reads the one before it alone."""
    readers = Counter(each for read in sources for each in read)
    run_of: Dict[int, List[int]] = {}
    runs: List[List[int]] = []
    for position, read in enumerate(sources):
        before = run_of.get(read[0]) if len(read) == 1 else None
        if before is not None and readers[read[0]] == 1 and len(before) < _LONGEST:
            before.append(position)
            run_of[position] = before
        else:
            run_of[position] = [position]
            runs.append(run_of[position])
    return runs


def _box(operators: Sequence[Operator], run: Sequence[int], layout: Layout, number: int, prefix: int) -> _Box:
    inside = [operators[i] for i in run]
    x, y = layout.x[number] - _BOX / 2 + _EDGE, layout.layer[number] * _RISE + _EDGE
    label, below = _labels(inside, prefix)
    width = _CELLS / len(run)
    drawn = width - (1 if len(run) > 1 else 0)
    cells = [_Cell(x + 8 + i * width, drawn, each.precision) for i, each in enumerate(inside)]
    return _Box(x, y, label, below, _details(inside), cells)


def _prefix(names: Sequence[str]) -> int:
    """Return the number of letters that all names begin with, up to the end of a word."""
    return os.path.commonprefix(names).rfind("_") + 1 if len(names) > 1 else 0


def _labels(inside: Sequence[Operator], prefix: int) -> Tuple[str, str]:
    """Return what a box says: the operators' names, shortened, and their kinds."""
    name = visible(inside[0].name[prefix:])
    name = name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) and len(name) > len(_SUFFIX) else name
    if len(inside) == 1:
        return _shortened(name), _shortened(visible(inside[0].op))
    kinds = Counter(visible(each.op) for each in inside)
    kind = max(kinds, key=lambda op: (op in _TELLING, kinds[op]))
    times = f"{kinds[kind]} × " if kinds[kind] > 1 else ""
    more = f" + {len(inside) - kinds[kind]}" if len(inside) > kinds[kind] else ""
    return _shortened(name, _LETTERS - 2) + " …", _shortened(f"{times}{kind}", _LETTERS - len(more)) + more


def _details(operators: Sequence[Operator]) -> str:
    """Return what a box says of its operators, a line each."""
    lines = []
    for each in operators[:_MOST_LINES]:
        cast = f"; casts {', '.join(map(visible, each.casts[:4]))}" if each.casts else ""
        more = f" and {len(each.casts) - 4} more" if len(each.casts) > 4 else ""
        lines.append(f"{visible(each.name)} ({visible(each.op)}): {each.precision}, {visible(each.reason)}{cast}{more}")
    return "\n".join(lines)


def _inner_marks(operators: Sequence[Operator], runs: Sequence[Sequence[int]], boxes: Sequence[_Box]) -> List[_Mark]:
    """Return marks for casts between the operators of a box."""
    marks = []
    for run, box in zip(runs, boxes):
        for before, after, cell in zip(run, run[1:], box.cells[1:]):
            cast = _cast_of(operators[after].casts, operators[before].name)
            if cast:
                marks.append(_Mark(cell.x - 0.5, box.y + _HEIGHT - 7.5, visible(cast), 3.5))
    return marks


def _edge_marks(
    operators: Sequence[Operator],
    sources: Sequence[Sequence[int]],
    home: Dict[int, int],
    routes: Dict[Tuple[int, int], List[Tuple[float, int]]],
) -> List[_Mark]:
    """Return marks for casts between boxes, near the reader."""
    marks: List[_Mark] = []
    seen: Set[Tuple[int, int, str]] = set()
    for position, read in enumerate(sources):
        for source in read:
            edge = home[source], home[position]
            cast = _cast_of(operators[position].casts, operators[source].name) if edge[0] != edge[1] else None
            if cast and (*edge, cast) not in seen:
                seen.add((*edge, cast))
                (x0, upper), (x1, lower) = routes[edge][-2:]
                x, y = _on_curve(x0, upper * _RISE + _HEIGHT, x1, lower * _RISE, 0.8)
                marks.append(_Mark(x + _EDGE, y + _EDGE, visible(cast)))
    return marks


def _output_marks(operators: Sequence[Operator], home: Dict[int, int], boxes: Sequence[_Box]) -> List[_Mark]:
    """Return marks for casts of the network's outputs, below their boxes."""
    found = ((boxes[home[i]], _cast_of(each.casts, each.name)) for i, each in enumerate(operators))
    return [_Mark(box.x + _BOX / 2, box.y + _HEIGHT, visible(cast)) for box, cast in found if cast]


def _cast_of(casts: Sequence[str], producer: str) -> Optional[str]:
    """Return the cast among some that is of an output of a producer."""
    starts = tuple(f"{producer}_{output}" for output in _OUTPUTS)
    return next((each for each in casts if each.startswith(starts)), None)


def _curve(route: Sequence[Tuple[float, int]]) -> str:
    """Return the path of an edge through the points that it passes: curves between layers, upright within them."""
    (x, layer), rest = route[0], route[1:]
    y = layer * _RISE + _HEIGHT
    parts = [f"M{x + _EDGE:.1f} {y + _EDGE:.1f}"]
    for i, (to_x, to_layer) in enumerate(rest):
        top = to_layer * _RISE
        middle = (y + top) / 2 + _EDGE
        parts.append(
            f"C{x + _EDGE:.1f} {middle:.1f} {to_x + _EDGE:.1f} {middle:.1f} {to_x + _EDGE:.1f} {top + _EDGE:.1f}"
        )
        x, y = to_x, top
        if i + 1 < len(rest):
            y = top + _HEIGHT
            parts.append(f"V{y + _EDGE:.1f}")
    return "".join(parts)


def _on_curve(x0: float, y0: float, x1: float, y1: float, t: float) -> Tuple[float, float]:
    """Return a point of the curve that `_curve` draws between two layers."""
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
    middle = (y0 + y1) / 2
    return (
        sum(w * x for w, x in zip(weights, (x0, x0, x1, x1))),
        sum(w * y for w, y in zip(weights, (y0, middle, middle, y1))),
    )


def _shortened(text: str, most: int = _LETTERS) -> str:
    """Return a text that fits into a box, without its middle if it is too long."""
    if len(text) <= most:
        return text
    keep = most - 1
    return f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"
