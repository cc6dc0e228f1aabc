"""The picture of a network, read back from its SVG; and where its boxes stand: below what they read, and apart."""

import random
import re
from collections import Counter
from xml.etree import ElementTree

import pytest

from mxmp.display import Network
from mxmp.display.network import group, layered, read_positions
from mxmp.report import Cast, Row
from tests.display.drawn import drawn as html

SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
BOX, GAP = 100.0, 10.0


def drawn(operators):
    """Return the boxes of a picture, each with its lines of detail and its cells' precisions, and the marks' titles."""
    tree = ElementTree.fromstring(SVG.search(html(Network(operators))).group())
    cells = [[rect.get("class", "") for rect in box.iter("rect")] for box in tree.iter("g")]
    precisions = [[each.split("p-")[1] for each in box if "cell" in each] for box in cells]
    boxes = list(zip((box.find("title").text.split("\n") for box in tree.iter("g")), precisions))
    marks = [path.find("title").text for path in tree.iter("path") if path.get("class") == "cast"]
    return boxes, marks, sum(path.get("class") == "edge" for path in tree.iter("path"))


def chain(count, **changes):
    names = [f"n{i}" for i in range(count)]
    return [
        Row(name, "relu", "float16", "clear", (), names[i - 1 : i] if i else ()) for i, name in enumerate(names)
    ]


def test_a_small_network_is_drawn_operator_by_operator():
    boxes, marks, edges = drawn(chain(5))
    assert [lines for lines, _ in boxes] == [[f"n{i} (relu): float16, clear"] for i in range(5)]
    assert (len(marks), edges) == (0, 4)


def test_operators_without_a_branch_share_a_box():
    assert ">n0 …<" in html(Network(chain(90))) and ">9 × relu<" in html(Network(chain(90)))
    boxes, _, edges = drawn(chain(90))
    assert [len(cells) for _, cells in boxes] == [9] * 10 and edges == 9


@pytest.mark.parametrize("seed", range(5))
def test_runs_hold_each_operator_once_and_no_branch(seed):
    """By brute force over random graphs."""
    rng = random.Random(seed)
    operators = [
        Row(
            f"n{i}",
            "relu",
            "float16",
            "",
            inputs=[f"n{rng.randrange(max(0, i - 4), i)}" for _ in range(rng.choice((1, 1, 2)))] if i else (),
        )
        for i in range(80)
    ]
    sources = read_positions(operators)
    readers, runs = Counter(name for each in operators for name in set(each.inputs)), group(sources)
    assert sorted(i for run in runs for i in run) == list(range(80))
    for run in runs:
        for before, after in zip(run, run[1:]):
            assert set(operators[after].inputs) == {f"n{before}"} and readers[f"n{before}"] == 1
    assert any(len(run) > 1 for run in runs)


def test_casts_are_marked_where_they_stand():
    operators = [
        Row("a", "Convolution", "float16", "allow", [Cast("data", "float16"), Cast("a_weight", "float16")]),
        Row("b", "softmax", "float32", "deny", [Cast("a_output", "float32", "a")], ["a"]),
        Row("c", "dot", "float16", "allow", [Cast("b_output", "float16", "b"), Cast("c_output", "float32", "c")], ["b"]),
    ]
    boxes, marks, _ = drawn(operators)
    assert sorted(marks) == ["a_output to float32", "b_output to float16", "c_output to float32"]
    assert [cells for _, cells in boxes] == [["float16"], ["float32"], ["float16"]]
    assert boxes[0][0] == ["a (Convolution): float16, allow; casts data to float16, a_weight to float16"]


def test_of_twins_the_last_one_before_the_reader_is_meant():
    def positions(*rows):
        return read_positions([Row(name, "x", "float16", "", inputs=inputs) for name, *inputs in rows])

    assert positions("d", "d", "sd") == [[], [], [1]] and positions("aba", "b") == [[], []]


def test_a_network_that_is_too_large_says_so():
    wide = [Row(f"n{i}", "x", "float16", "") for i in range(2000)]
    text = html(Network(wide))
    assert "<svg" not in text and "2,000 operators are too many" in text


# ---------------------------------------------------------------------- where boxes stand


def graph(count, seed, reads=3):
    rng = random.Random(seed)
    return sorted(
        {(rng.randrange(max(0, i - 20), i), i) for i in range(1, count) for _ in range(rng.randint(1, reads))}
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_box_is_below_those_that_it_reads_and_apart_from_its_row(seed):
    edges = graph(60, seed)
    found = layered(60, edges, BOX, GAP)
    assert all(found.layer[a] < found.layer[b] for a, b in edges)
    for i in range(60):
        for j in range(i):
            if found.layer[i] == found.layer[j]:
                assert abs(found.x[i] - found.x[j]) >= BOX + GAP - 1e-6
    assert min(found.x) >= BOX / 2 - 1e-6 and max(found.x) <= found.width - BOX / 2 + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_a_line_passes_between_boxes(seed):
    edges = graph(60, seed)
    found = layered(60, edges, BOX, GAP)
    for (source, target), route in zip(edges, found.routes):
        assert route[0] == (found.x[source], found.layer[source])
        assert route[-1] == (found.x[target], found.layer[target])
        assert [layer for _, layer in route] == list(range(found.layer[source], found.layer[target] + 1))
        for x, layer in route[1:-1]:
            others = [found.x[i] for i in range(60) if found.layer[i] == layer]
            assert all(abs(x - other) > BOX / 2 for other in others)


def test_a_chain_is_straight_and_a_branch_has_its_sides_level():
    assert set(layered(4, [(0, 1), (1, 2), (2, 3)], BOX, GAP).x) == {BOX / 2}
    found = layered(4, [(0, 1), (0, 2), (1, 3), (2, 3)], BOX, GAP)
    assert found.layer == [0, 1, 1, 2]
    assert found.x[0] == found.x[3] == pytest.approx((found.x[1] + found.x[2]) / 2)
