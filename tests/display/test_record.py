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
from tests import messages
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


def changed(**changes):
    return lambda: Result.from_dict({**MOST.to_dict(), **changes})


def loaded(content):
    def call(folder):
        (folder / "result.json").write_bytes(content)
        Result.load(folder / "result.json")

    return call


@dataclass(frozen=True)
class Plan(Record):
    _kind, _title, _error = "plan", "Plan", PolicyError
    name: str


TABLE = {
    '{"record": "other"}': (changed(**{"record": "other"}), StateError, "this is no result of mxmp: expected 'record': 'result', found 'other'."),
    '{"version": 2}': (changed(**{"version": 2}), StateError, "the result has version 2; this mxmp reads version 3."),
    '{"colour": "green"}': (changed(**{"colour": "green"}), StateError, "the result is damaged: colour is 'green'; expected the text of a Colour ('green' is not a valid Colour)."),
    '{"count": 1.5}': (changed(**{"count": 1.5}), StateError, "the result is damaged: count is 1.5; expected a whole number below 2**63."),
    '{"share": "half"}': (changed(**{"share": "half"}), StateError, "the result is damaged: share is 'half'; expected a number."),
    '{"layers": [{"name": "a"}, {"name": None}]}': (changed(**{"layers": [{"name": "a"}, {"name": None}]}), StateError, "the result is damaged: layers[1].name is None; expected text."),
    '{"pair": [1]}': (changed(**{"pair": [1]}), StateError, "the result is damaged: pair is [1]; expected 2 values."),
    '{"by_name": {"x": [[]]}}': (changed(**{"by_name": {"x": [[]]}}), StateError, "the result is damaged: by_name['x'][0] is []; expected a number."),
    "no JSON": (lambda: Result.from_json("{"), StateError, "this is no result of mxmp: it is no JSON (...)."),
    "too deep": (lambda: Result.from_json("[" * 100_000), StateError, "this is no result of mxmp: it is no JSON (...)."),
    "an error of its own": (lambda: Plan.from_dict({}), PolicyError, "this is no plan of mxmp: expected 'record': 'plan', found None."),
    "a page in no folder": (lambda folder: MOST.to_html(str(folder / "missing" / "page.html")), CheckpointError, ".../missing/...: there is no folder .../missing; make it first."),
    "no file": (lambda folder: Result.load(str(folder / "result.json")), CheckpointError, ".../result.json cannot be read: No such file or directory"),
    "bytes": (loaded(b"\xff\xfe"), CheckpointError, ".../result.json: it is no text in UTF-8."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


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


@pytest.mark.parametrize("width", [80, 100, 120])
def test_columns_of_numbers_leave_a_terminal_space_for_names(width):
    numbers = ["local error", "accumulated error", "output error", "gradient local error", "gradient accumulated error"]
    columns = [Column("node"), Column("operator"), Column("precision"), *(Column(title, NUMBER) for title in numbers)]
    row = ("ssd_batchnorm0_fwd", "BatchNorm", "float16", 0.00052213, 0.00065311, 0.00070611, 0.00030617, 0.00031711)
    lines = text(table(Table("Errors by layer", columns, [row]), width), width).splitlines()
    assert all(any(str(word) in line for line in lines) for word in ("ssd_batchnorm0_fwd", "BatchNorm", "float16"))
    assert max(map(len, lines)) <= width and any("accumulated" in line for line in lines)
