"""Records: every field survives JSON, what is wrong is named, and one value is shown in three places."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

import pytest

from mxmp import Policy
from mxmp.display import NUMBER, Column, Figures, Notes, Record, Section, Table
from mxmp.display.page import fragment
from mxmp.display.terminal import table, text
from mxmp.errors import CheckpointError, PolicyError, StateError
from tests.display.runs import HOSTILE as HOSTILE_TEXT

HOSTILE = f"{HOSTILE_TEXT}\x1b[31m"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Layer:
    name: str
    error: Optional[float] = None


@dataclass(frozen=True)
class Inner(Record):
    _kind, _title = "inner", "Inner"
    text: str

    def to_dict(self):
        return {**super().to_dict(), "length": len(self.text)}


@dataclass(frozen=True)
class Result(Record):
    _kind, _title, _version = "result", "A result", 3
    policy: Policy
    colour: Colour
    count: int
    share: float
    is_done: bool
    layers: Tuple[Layer, ...]
    pair: Optional[Tuple[int, float]] = None
    by_exponent: Mapping[int, int] = field(default_factory=dict)
    by_name: Mapping[str, Tuple[float, ...]] = field(default_factory=dict)
    inner: Optional[Inner] = None
    extra: Any = None
    note: str = field(default="", compare=False)

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count={self.count}; expected 0 or more")

    def _sections(self):
        rows = [(each.name, each.error) for each in self.layers]
        table = Table("Layers", [Column("layer"), Column("error", NUMBER)], rows, "layers")
        return [Section("Summary", [Figures([("count", "32,768", "")]), Notes(["Look."], "Warning")]), Section("Layers", [table])]


LAYERS = Layer("a", math.inf), Layer("b", 1e-3), Layer(HOSTILE)
LEAST = Result(Policy.parse("O1"), Colour.BLUE, 3, math.nan, True, ())
MOST = Result(
    Policy.parse("O2,op:exp=float16"), Colour.RED, 3, 0.5, False, LAYERS, (1, -math.inf), {-3: 4}, {"x": (1.0, math.inf)}, Inner("four"), [1]
)


@pytest.mark.parametrize("made", [LEAST, MOST], ids=["least", "most"])
def test_every_field_survives_json(made):
    again = Result.from_json(made.to_json())
    assert repr(again) == repr(made) and repr(Result.from_dict(made.to_dict())) == repr(made)  # NaN is not itself
    assert json.loads(made.to_json())["record"] == "result" and json.loads(made.to_json())["version"] == 3


def test_a_file_says_what_is_not_finite_in_words_and_has_values_for_others():
    values = json.loads(MOST.to_json())
    assert values["layers"][0]["error"] == "inf" and values["pair"] == [1, "-inf"] and values["inner"]["length"] == 4
    assert values["policy"] == str(MOST.policy) and values["colour"] == "red"


def test_fields_that_are_not_compared_are_not_written_and_unknown_ones_passed_over():
    noted = Result(*(getattr(MOST, name) for name in list(vars(MOST))[:-1]), note="on this machine")
    assert noted == MOST and "note" not in noted.to_dict()
    assert Result.from_dict({**MOST.to_dict(), "note": "x", "mine": 1}).note == ""


DAMAGED = {
    "another record": ({"record": "other"}, "this is no result of mxmp: expected 'record': 'result', found 'other'."),
    "another version": ({"version": 2}, "the result has version 2; this mxmp reads version 3."),
    "a choice": ({"colour": "green"}, "the result is damaged: colour is 'green'; expected the text of a Colour ("),
    "a count": ({"count": 1.5}, "the result is damaged: count is 1.5; expected a whole number below 2**63."),
    "a number": ({"share": "half"}, "the result is damaged: share is 'half'; expected a number."),
    "a flag": ({"is_done": 1}, "the result is damaged: is_done is 1; expected true or false."),
    "a list": ({"layers": {}}, "the result is damaged: layers is {}; expected a list."),
    "a text in a list": ({"layers": [{"name": "a"}, {"name": None}]}, "the result is damaged: layers[1].name is None; expected text."),
    "a missing field": ({"layers": [{"error": 1}]}, "the result is damaged: layers[0].name is missing; expected a value."),
    "a pair": ({"pair": [1]}, "the result is damaged: pair is [1]; expected 2 values."),
    "a key": ({"by_exponent": {"x": 1}}, "the result is damaged: by_exponent has the key 'x'; expected a whole number below 2**63."),
    "a number in a dict": ({"by_name": {"x": [[]]}}, "the result is damaged: by_name['x'][0] is []; expected a number."),
    "a check of the record": ({"count": -1}, "the result is damaged: count=-1; expected 0 or more"),
}  # fmt: skip


@pytest.mark.parametrize("changes, text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_refused_with_the_place(changes, text):
    with pytest.raises(StateError) as caught:
        Result.from_dict({**MOST.to_dict(), **changes})
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("text", ["{", "[" * 100_000], ids=["no JSON", "too deep"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(StateError, match=r"^this is no result of mxmp: it is no JSON \("):
        Result.from_json(text)


@dataclass(frozen=True)
class Plan(Record):
    _kind, _title, _error = "plan", "Plan", PolicyError
    name: str


def test_a_record_has_an_error_of_its_own():
    with pytest.raises(PolicyError, match="this is no plan of mxmp: expected 'record': 'plan', found None"):
        Plan.from_dict({})


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(CheckpointError, match="result.json cannot be read: No such file or directory"):
        Result.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="result.json: it is no text in UTF-8"):
        Result.load(path)
    with pytest.raises(CheckpointError, match="there is no folder .*missing; make it first"):
        MOST.to_html(str(tmp_path / "missing" / "page.html"))


def test_a_record_is_saved_whole_and_loaded(tmp_path):
    MOST.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == MOST


def test_a_page_is_written_and_returned(tmp_path):
    path = tmp_path / "page.html"
    text = MOST.to_html(str(path), title="Mine")
    assert path.read_text(encoding="utf-8") == text and "<title>Mine</title>" in text and "<h1>Mine" in text
    assert "<title>A result</title>" in MOST.to_html()


def test_a_notebook_shows_the_same_without_a_frame():
    text = MOST._repr_html_()
    assert "<html" not in text and "<h1" not in text and "32,768" in text and "broken = true" in text
    assert "<script>window" not in text


def test_a_notebook_names_a_part_only_if_its_title_is_another():
    html = fragment("Gradients", [Section("Gradients", ()), Section("By layer", ())])
    assert html.count(">Gradients</p>") == html.count(">By layer</p>") == 1


def test_a_terminal_shows_tables_first_and_what_matters_last():
    text = str(MOST)
    assert text.index("layer") < text.index("32,768") < text.index("Warning: Look.")
    assert "\x1b" not in text and "\\x1b[31m" in text and "∞" in text


def test_a_long_name_leaves_80_columns_space_for_texts():
    """As in `mxmp doctor`."""
    sentence = "Use float32, MXNet's default, to train here"
    rows = [("MXNET_CUDA_TENSOR_OP_MATH_ALLOW", sentence, sentence)]
    shown = text(table(Table("Findings", [Column("subject"), Column("finding"), Column("what to do")], rows), 80), 80)
    assert rows[0][0] in shown and len(shown.splitlines()) < 9 and max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 100, 120])
def test_columns_of_numbers_leave_a_terminal_space_for_names(width):
    numbers = ["local error", "accumulated error", "output error", "gradient local error", "gradient accumulated error"]
    columns = [Column("node"), Column("operator"), Column("precision"), *(Column(title, NUMBER) for title in numbers)]
    row = ("ssd_batchnorm0_fwd", "BatchNorm", "float16", 0.00052213, 0.00065311, 0.00070611, 0.00030617, 0.00031711)
    lines = text(table(Table("Errors by layer", columns, [row]), width), width).splitlines()
    assert all(any(str(word) in line for line in lines) for word in ("ssd_batchnorm0_fwd", "BatchNorm", "float16"))
    assert max(map(len, lines)) <= width and any("accumulated" in line for line in lines)
