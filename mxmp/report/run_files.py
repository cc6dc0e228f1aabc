"""The files of a run, read and checked: each error names the file and what is wrong with it."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ..errors import CheckpointError, StateError
from .report import Report
from .saved import report_from_dict

REPORT, LEDGER, COMPARE, STEPS = "report.json", "ledger.json", "compare.json", "steps.csv"

_VERSIONS = {"ledger": (1, 2), "compare": (1,)}
_NUMBERS = (
    *("step", "seconds", "scale", "next_scale", "grad_norm", "loss"),
    *("zero_share", "subnormal_share", "largest"),
)
"""Columns of a log of steps that hold numbers."""

_OF_LAYERS = ("elements", "zero_share", "subnormal_share", "largest", "skips", "lost_update_share")


def read_report(path: str) -> Report:
    """Return the report in a file that has what ``Report.to_json`` gives, or what `mxmp inspect --json` prints."""
    return report_from_dict(_json(path))


def read_ledger(path: str) -> Dict[str, Any]:
    """Return the ledger of gradients in a file, checked."""
    data = _of_kind(_json(path), "ledger")
    for name in ("every", "steps", "sampled", "skipped"):
        if not _is_count(data.get(name)):
            raise StateError(f"it has {name}={data.get(name)!r}; expected a count.")
    _require(data, "dtype", str, "the name of a dtype")
    _require(data, "advice", list, "a list of sentences")
    for i, sentence in enumerate(data["advice"]):
        if not isinstance(sentence, str):
            raise StateError(f"it has {sentence!r} at advice[{i}]; expected a sentence.")
    if data.get("scale") is not None:
        _require(data, "scale", dict, "an object with 'lowest', 'highest' and 'last'")
        _require_numbers(data["scale"], ("lowest", "highest", "last"), "scale")
    for i, layer in enumerate(_rows(data, "layers")):
        _check_layer(layer, f"layers[{i}]")
    return data


def read_compare(path: str) -> Dict[str, Any]:
    """Return the comparison in a file, checked."""
    data = _of_kind(_json(path), "compare")
    _require(data, "policy", str, "a policy")
    for i, row in enumerate(_rows(data, "rows")):
        for name in ("op", "precision"):
            _require(row, name, str, "text", f"rows[{i}]")
        _require_numbers(row, ("own", "carried", "contribution", "gradient_own", "gradient_carried"), f"rows[{i}]")
    for i, row in enumerate(_rows(data, "outputs")):
        _require_numbers(row, ("error",), f"outputs[{i}]")
    return data


def read_steps(path: str) -> List[Dict[str, Any]]:
    """Return a dict for each step of a log, in their order.

    Cells are numbers or None, 'taken' a bool, 'error' and 'why' text or None. Of a step that a
    resumed run made again, the last line counts.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if "step" not in (reader.fieldnames or ()):
            raise StateError("its first line has no column 'step'.")
        last = {step["step"]: step for step in (_step(row, reader.line_num) for row in reader)}
        return [last[number] for number in sorted(last)]


READERS: Dict[str, Callable[[str], Any]] = {
    REPORT: read_report,
    LEDGER: read_ledger,
    COMPARE: read_compare,
    STEPS: read_steps,
}
"""How each file of a run is read."""


def read_file(path: str, name: str) -> Any:
    """Return what a file has that is one of a run's, named by ``name``.

    Raises:
        CheckpointError: If it cannot be read, or is broken; the message names it.
    """
    try:
        return READERS[name](path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{path} cannot be shown: it is no text in UTF-8.") from e
    except (StateError, ValueError, csv.Error, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be shown: {str(e) or type(e).__name__}") from e


def name_of(path: str) -> str:
    """Return which of a run's files one is, whatever it is called: by its name, else by what is in it.

    Raises:
        CheckpointError: If it is none of them.
    """
    base = os.path.basename(path)
    if base in READERS:
        return base
    if base.lower().endswith(".csv"):
        return STEPS
    try:
        data = _json(path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
    except (StateError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be shown: {e}") from e
    kind = data.get("kind") if isinstance(data, Mapping) else None
    return {"ledger": LEDGER, "compare": COMPARE}.get(str(kind), REPORT)


def _json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except UnicodeDecodeError as e:
            raise StateError("it is no JSON: it is no text in UTF-8.") from e
        except json.JSONDecodeError as e:
            raise StateError(f"it is no JSON: {e}") from e


def _of_kind(data: Any, kind: str) -> Dict[str, Any]:
    found = data.get("kind") if isinstance(data, dict) else None
    if found != kind:
        raise StateError(f"it is no {kind} of mxmp: expected 'kind': {kind!r}, found {found!r}.")
    versions = _VERSIONS[kind]
    if data.get("version", versions[-1]) not in versions:
        read = " and ".join(map(str, versions))
        raise StateError(f"it is of version {data['version']!r}; this mxmp reads version {read}.")
    return dict(data)


def _check_layer(layer: Mapping[str, Any], where: str) -> None:
    """Check what is shown of a ledger's layer; of its counts by scale that is the number of zeros."""
    _require(layer, "histogram", dict, "counts by exponent", where)
    for key, count in layer["histogram"].items():
        if not _is_whole(key) or not _is_count(count):
            raise StateError(f"{where} has {key!r}: {count!r} in histogram; expected counts by exponent of two.")
    if layer.get("counts") is not None:
        _require(layer, "counts", dict, "counts by scale", where)
        for scale, counts in layer["counts"].items():
            if not isinstance(counts, dict) or not _is_count(counts.get("zero", 0)):
                raise StateError(f"{where} has {scale!r}: {counts!r} in counts; expected 'zero' and a count.")
    _require_numbers(layer, _OF_LAYERS, where)


def _rows(data: Mapping[str, Any], name: str) -> List[Dict[str, Any]]:
    """Return a list of dicts, each with a name."""
    _require(data, name, list, "a list")
    for i, row in enumerate(data[name]):
        if not isinstance(row, dict):
            raise StateError(f"{name}[{i}] is {row!r}; expected an object.")
        _require(row, "name", str, "a name", f"{name}[{i}]")
    return list(data[name])


def _require(data: Mapping[str, Any], name: str, kind: type, what: str, where: str = "it") -> None:
    value = data.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(f"{where} has {name}={value!r}; expected {what}.")


def _require_numbers(row: Mapping[str, Any], names: Tuple[str, ...], where: str) -> None:
    for name in names:
        if row.get(name) is not None and not _is_number(row[name]):
            raise StateError(f"{where} has {name}={row[name]!r}; expected a number, null or 'inf'.")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, (int, float)) or value in ("inf", "-inf", "nan"))


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,4}", text) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _step(row: Mapping[str, Any], line: int) -> Dict[str, Any]:
    texts = {name: row.get(name) or None for name in ("error", "why")}
    found: Dict[str, Any] = {**texts, "taken": _taken(row.get("taken"), line)}
    for name in _NUMBERS:
        text = (row.get(name) or "").strip()
        try:
            found[name] = float(text) if text else None
        except ValueError:
            raise StateError(f"line {line} has {name}={text!r}; expected a number.") from None
    if found["step"] is None or not math.isfinite(found["step"]):
        raise StateError(f"line {line} has no step.")
    return found


def _taken(text: Any, line: int) -> Any:
    values = {"": None, "1": True, "true": True, "0": False, "false": False}
    word = (text or "").strip().lower()
    if word not in values:
        raise StateError(f"line {line} has taken={text!r}; expected 1 or 0.")
    return values[word]
