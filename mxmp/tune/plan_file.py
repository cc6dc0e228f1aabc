"""What a stored plan has in JSON, read with every value checked: a file may be damaged, or something else."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, NamedTuple

from ..errors import TuneError
from ..policy import Policy

FORMAT = "mxmp tuned plan 2"
"""Another number when the fields change."""

_BEFORE = "mxmp tuned plan 1"
_NOT_SAID = {"dtypes": None, "options": None}  # by the format before, of what a plan holds for

TRAINING, INFERENCE = "training", "inference"
OBJECTIVES = (TRAINING, INFERENCE)


class _Kind(NamedTuple):
    """What a value has to be: in words, and a function that returns it, or raises ValueError."""

    words: str
    read: Callable[[Any], Any]


def read(text: str) -> Dict[str, Any]:
    """Return the fields of a plan: policies as such, lists as tuples; TuneError says what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TuneError(f"this is no tuned plan of mxmp: it is no JSON ({e}).") from e
    found = data.pop("format", None) if isinstance(data, dict) else None
    if found not in (FORMAT, _BEFORE):
        raise TuneError(f"this is no tuned plan of this version of mxmp: format {found!r}; expected {FORMAT!r}.")
    if found == _BEFORE and isinstance(data.get("holds_for"), dict):
        data["holds_for"].update(_NOT_SAID)
    fields: Dict[str, Any] = _read(_PLAN, data, "the plan")
    return fields


def _read(kind: Any, value: Any, where: str) -> Any:
    """Return a value that has to be of a kind: a `_Kind`, [that of all items], {_ANY: that of all}, or {field: its}.

    What is (one of these,) may be null.
    """
    if isinstance(kind, _Kind):
        try:
            return kind.read(value)
        except ValueError as e:
            raise TuneError(
                f"the tuned plan is damaged: {where} is {value!r}; expected {kind.words}. {e}".strip()
            ) from e
    if isinstance(kind, tuple):
        return None if value is None else _read(kind[0], value, where)
    if not isinstance(value, type(kind)):
        words = "a list" if isinstance(kind, list) else "an object"
        raise TuneError(f"the tuned plan is damaged: {where} is {value!r}; expected {words}.")
    if isinstance(kind, list):
        return tuple(_read(kind[0], each, f"{where}[{number}]") for number, each in enumerate(value))
    if _ANY in kind:
        kind = dict.fromkeys(value, kind[_ANY])
    lacking, unknown = sorted(set(kind) - set(value)), sorted(set(value) - set(kind))
    if lacking or unknown:
        raise TuneError(f"the tuned plan is damaged: {where} lacks {lacking} and has unknown fields {unknown}.")
    return {name: _read(kind[name], each, name) for name, each in value.items()}


def _of(words: str, fits: Callable[[Any], bool]) -> _Kind:
    def same(value: Any) -> Any:
        if not fits(value):
            raise ValueError
        return value

    return _Kind(words, same)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _policy(value: Any) -> Policy:
    if not isinstance(value, str):
        raise ValueError
    return Policy.parse(value)  # a PolicyError is a ValueError


_ANY = "*"
_TEXT = _of("a text", lambda value: isinstance(value, str))
_FLAG = _of("true or false", lambda value: isinstance(value, bool))
_NUMBER = _of("a number from 0 on", _is_number)
_MAYBE = _of("a number from 0 on, or null", lambda value: value is None or _is_number(value))
_SIZE = _of("a whole number from 0 on", lambda value: type(value) is int and value >= 0)
_OBJECTIVE = _of(" or ".join(map(repr, OBJECTIVES)), lambda value: value in OBJECTIVES)
_POLICY = _Kind("a policy", _policy)

_PLAN: Dict[str, Any] = {
    "policy": _POLICY,
    "untuned": _POLICY,
    "objective": _OBJECTIVE,
    "for_inference": _FLAG,
    "seconds": {_ANY: _NUMBER},
    "candidates": [{"name": _TEXT, "seconds": _MAYBE, "ratio": _MAYBE, "won": _FLAG}],
    "changes": [{"op": _TEXT, "dtype": _TEXT, "names": [_TEXT]}],
    "notes": [_TEXT],
    "proved": _FLAG,
    "holds_for": {
        "machine": {
            "processor": _TEXT,
            "instructions": [_TEXT],
            "cores": _SIZE,
            "amx": _FLAG,
            "variables": [_TEXT],
            "mxnet": _TEXT,
        },
        "device": _TEXT,
        "shapes": {_ANY: [_SIZE]},
        "network": _TEXT,
        "dtypes": ({_ANY: _TEXT},),
        "options": ({_ANY: _TEXT},),
    },
}
