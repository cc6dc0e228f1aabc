"""Reports read back from the JSON that they are written as."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ..errors import StateError
from .report import Report, Row


def report_from_dict(data: Any) -> Report:
    """Return the report that ``Report.to_dict`` gave, also what JSON made of it; fields beyond a report's are ignored.

    Raises:
        StateError: If it is none; the message names the field.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("rows"), (list, tuple)):
        raise StateError("it is no report of mxmp: it has no list 'rows'.")
    values: Dict[str, Any] = {name: read(data, name) for name, read in _FIELDS.items() if name in data}
    missing = [name for name in _FIELDS if name not in values and name not in _OPTIONAL]
    if missing:
        raise StateError(f"it is no report of mxmp: it lacks {', '.join(map(repr, missing))}.")
    return Report(rows=tuple(_row(i, row) for i, row in enumerate(data["rows"])), **values)


def _row(number: int, data: Any) -> Row:
    where = f"rows[{number}]"
    if not isinstance(data, Mapping):
        raise StateError(f"{where} is {data!r}; expected the values of an operator.")
    name, op, precision, reason = (_text(data, field, where) for field in ("name", "op", "precision", "reason"))
    inputs = _texts(data, "inputs", where) if "inputs" in data else ()
    return Row(name, op, precision, reason, _texts(data, "casts", where), inputs)


def _text(data: Mapping[str, Any], name: str, where: str = "it") -> str:
    if not isinstance(data.get(name), str):
        raise StateError(f"{where} has {name}={data.get(name)!r}; expected text.")
    return str(data[name])


def _texts(data: Mapping[str, Any], name: str, where: str = "it") -> Tuple[str, ...]:
    value = data.get(name)
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise StateError(f"{where} has {name}={value!r}; expected a list of texts.")
    return tuple(value)


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StateError(f"it has {name}={value!r}; expected a count.")
    return value


def _size(data: Mapping[str, Any], name: str) -> Optional[int]:
    return None if data[name] is None else _count(data, name)


def _sizes(data: Mapping[str, Any], name: str) -> Optional[Tuple[int, int]]:
    value = data[name]
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(each, int) for each in value):
        raise StateError(f"it has {name}={value!r}; expected two numbers of bytes.")
    return value[0], value[1]


def _readers(data: Mapping[str, Any], name: str) -> Tuple[Tuple[str, int], ...]:
    try:
        return tuple((str(tensor), int(readers)) for tensor, readers in data[name])
    except (TypeError, ValueError) as e:
        raise StateError(f"it has {name}={data[name]!r}; expected pairs of a name and a count.") from e


_FIELDS: Dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "policy": _text,
    "casts": _count,
    "activation_casts": _count,
    "cast_bytes": _size,
    "activation_bytes": _sizes,
    "without_rule": _texts,
    "widely_read": _readers,
    "param_bytes": _sizes,
}
_OPTIONAL = ("widely_read", "param_bytes")
