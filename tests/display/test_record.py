"""Records: every field survives JSON, what is wrong is named, and one value is shown in three places."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

import pytest

from mxmp.display import NUMBER, Column, Figures, Notes, Record, Section, Table
from mxmp.errors import CheckpointError, PolicyError, StateError
from mxmp.policy import Policy

HOSTILE = "<script>window.broken = true</script>\"'&<img src=x onerror=alert(1)>\x1b[31m"


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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"record": "other"}, "this is no result of mxmp: expected 'record': 'result', found 'other'"),
        ({"version": 2}, "the result has version 2; this mxmp reads version 3"),
        ({"policy": "compute=fp61"}, "policy is 'compute=fp61'; expected the text of a Policy .*unknown dtype"),
        ({"colour": "green"}, "colour is 'green'; expected the text of a Colour"),
        ({"count": 1.5}, "count is 1.5; expected a whole number"),
        ({"count": True}, "count is True; expected a whole number"),
        ({"count": -1}, "count=-1; expected 0 or more"),
        ({"share": "half"}, "share is 'half'; expected a number"),
        ({"share": 10**400}, "expected a number .*too large"),
        ({"is_done": 1}, "is_done is 1; expected true or false"),
        ({"layers": {}}, r"layers is {}; expected a list"),
        ({"layers": [1]}, r"layers\[0\] is 1; expected an object"),
        ({"layers": [{"name": "a"}, {"name": None}]}, r"layers\[1\].name is None; expected text"),
        ({"layers": [{"error": 1}]}, r"layers\[0\].name is missing; expected a value"),
        ({"pair": [1]}, r"pair is \[1\]; expected 2 values"),
        ({"by_exponent": {"x": 1}}, "by_exponent has the key 'x'; expected a whole number"),
        ({"by_name": {"x": [[]]}}, r"by_name\['x'\]\[0\] is \[\]; expected a number"),
        ({"by_name": []}, r"by_name is \[\]; expected an object"),
        ({"inner": {"text": 1}}, "inner.text is 1; expected text"),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    with pytest.raises(StateError, match=message) as caught:
        Result.from_dict({**MOST.to_dict(), **changes})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("text, message", [("{", "it is no JSON"), ("[" * 100_000, "it is no JSON"), ("[1]", "found None")])
def test_a_text_that_is_no_record_is_refused(text, message):
    with pytest.raises(StateError, match=message):
        Result.from_json(text)


def test_a_class_has_its_own_error():
    @dataclass(frozen=True)
    class Plan(Record):
        _kind, _title, _error = "plan", "Plan", PolicyError
        name: str

    with pytest.raises(PolicyError, match="plan"):
        Plan.from_dict({})


def test_a_file_is_saved_whole_and_loaded(tmp_path):
    path = tmp_path / "result.json"
    MOST.save(path)
    assert Result.load(path) == MOST
    with pytest.raises(CheckpointError, match="there is no folder"):
        MOST.save(str(tmp_path / "missing" / "result.json"))


@pytest.mark.parametrize(
    "content, message",
    [(None, "cannot be read: No such file"), (b"{}", "this is no result"), (b"\xff\xfe", "no text in UTF-8")],
)
def test_a_file_that_is_none_is_named(tmp_path, content, message):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"result.json.*{message}") as caught:
        Result.load(str(path))
    assert "\n" not in str(caught.value)


def test_a_page_is_written_and_returned(tmp_path):
    path = tmp_path / "page.html"
    text = MOST.to_html(str(path), title="Mine")
    assert path.read_text(encoding="utf-8") == text and "<title>Mine</title>" in text and "<h1>Mine" in text
    assert "<title>A result</title>" in MOST.to_html()
    with pytest.raises(CheckpointError, match="there is no folder"):
        MOST.to_html(str(tmp_path / "missing" / "page.html"))


def test_a_notebook_shows_the_same_without_a_frame():
    text = MOST._repr_html_()
    assert "<html" not in text and "<h1" not in text and "32,768" in text and "broken = true" in text
    assert "<script>window" not in text


def test_a_terminal_shows_tables_first_and_what_matters_last():
    text = str(MOST)
    assert text.index("layer") < text.index("32,768") < text.index("Warning: Look.")
    assert "\x1b" not in text and "\\x1b[31m" in text and "∞" in text
