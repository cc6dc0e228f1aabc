"""Results as frozen dataclasses: written as JSON, checked when they are read, shown on a terminal, page and notebook.

A result of mxmp is a `Record`. The type hints of its fields decide how they are written, and which values are accepted
when they are read. So no class has a reader of its own. `Record._sections` gives the plain blocks that are shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..errors import CheckpointError, MxmpError, StateError
from ..files import saving
from .blocks import Section

Self = TypeVar("Self", bound="Record")


class Shown:
    """Base of values that a terminal, a page and a notebook show from one list of sections."""

    #: The title of its page.
    _title: ClassVar[str]

    def _sections(self) -> List[Section]:
        """Return the parts of its page, from top to bottom."""
        raise NotImplementedError

    @property
    def _lead(self) -> str:
        """The line under the title."""
        return ""

    def to_html(self, path: Optional[str] = None, title: Optional[str] = None) -> str:
        """Return the record as one self-contained HTML page, and write the page to a file if ``path`` is given.

        Args:
            path: The file to write; a file that exists is replaced.
            title: The page's title; that of the class unless given.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        from . import page  # Jinja2 is imported when a page is made.

        text = page.page(title or self._title, self._sections(), self._lead)
        if path is not None:
            save_text(text, path)
        return text

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from . import page

        return page.fragment(self._title, self._sections(), self._lead)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """Yield its parts, for a console of rich."""
        from . import terminal

        return terminal.parts(self, options.max_width)

    def __str__(self) -> str:
        from . import terminal

        return terminal.text(self)


class Record(Shown):
    """Base of results: frozen dataclasses that are saved, loaded and shown.

    `from_dict` checks each field by its type hint. The hint is int, float, bool, str, Any, Optional, a tuple, a mapping
    from str or int, an Enum, a dataclass, or a class with a method ``parse`` that reads its ``str``, as `Policy`. inf
    and NaN are the texts 'inf', '-inf' and 'nan', and an Enum is its value. A field with ``compare=False`` is not
    written. A field with a default may be missing in a file. Other names are passed over, so that `to_dict` of a class
    may add values for other readers. A class that checks more raises a ValueError in ``__post_init__``.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Speed(Record):
        ...     _kind, _title = "speed", "Speed"
        ...     name: str
        ...     seconds: float = math.inf
        >>> Speed("conv").to_dict()
        {'record': 'speed', 'version': 1, 'name': 'conv', 'seconds': 'inf'}
        >>> Speed.from_json('{"record": "speed", "version": 1, "name": "conv", "seconds": "fast"}')
        Traceback (most recent call last):
        mxmp.errors.StateError: the speed is damaged: seconds is 'fast'; expected a number.
    """

    #: The noun for the record, in files and in errors.
    _kind: ClassVar[str]
    #: The version of the fields and their meaning; no other version is read.
    _version: ClassVar[int] = 1
    #: The class of errors about damaged values.
    _error: ClassVar[Type[MxmpError]] = StateError

    # ------------------------------------------------------------------ values and files

    def to_dict(self) -> Dict[str, Any]:
        """Return the record as plain values, which JSON can hold and `from_dict` reads."""
        return {"record": self._kind, "version": self._version, **_fields_to_plain(self)}

    @classmethod
    def from_dict(cls: Type[Self], values: Any) -> Self:
        """Return the record of the values that `to_dict` returned. Tuples may be lists, as JSON has them.

        Raises:
            MxmpError: If the values are those of another class, or damaged; the message names the field.
        """
        kind, version = (values.get(name) if isinstance(values, Mapping) else None for name in ("record", "version"))
        if kind != cls._kind:
            raise cls._error(f"this is no {cls._kind} of mxmp: expected 'record': {cls._kind!r}, found {kind!r:.80}.")
        if version != cls._version:
            raise cls._error(f"the {cls._kind} has version {version!r:.80}; this mxmp reads version {cls._version}.")
        try:
            record: Self = _fields_from_plain(cls, values, "")
            return record
        except (ValueError, MxmpError) as e:
            raise cls._error(f"the {cls._kind} is damaged: {str(e):.500}") from e

    def to_json(self) -> str:
        """Return the record as JSON, which `from_json` reads."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls: Type[Self], text: str) -> Self:
        """Return the record that `to_json` wrote; raises as `from_dict`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise cls._error(f"this is no {cls._kind} of mxmp: it is no JSON ({e}).") from e
        return cls.from_dict(values)

    def save(self, path: str) -> None:
        """Write the record to a file as JSON, whole or not at all.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        save_text(self.to_json() + "\n", path)

    @classmethod
    def load(cls: Type[Self], path: str) -> Self:
        """Return the record that `save` wrote.

        Raises:
            CheckpointError: If the file cannot be read, or holds no such record; the message names the file.
        """
        with reading(path, cls._error):
            return cls.from_json(Path(path).read_text(encoding="utf-8"))


@contextlib.contextmanager
def reading(path: str, *damage: Type[Exception]) -> Iterator[None]:
    """Turn errors of reading, and errors of the classes ``damage``, into a CheckpointError that names the file."""
    try:
        yield
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{path}: it is no text in UTF-8.") from e
    except damage as e:
        raise CheckpointError(f"{path}: {e}") from e
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e


def save_text(text: str, path: str) -> None:
    """Write a text to a file, whole or not at all; a file that exists is replaced.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    with saving(str(path), str(path)) as (name,):
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")


# ---------------------------------------------------------------------- plain values by type hints

# The plain values that a field accepts, by its type hint, with the words for them in errors.
_EXPECTED: Dict[Any, Tuple[str, Any]] = {
    float: ("a number", (int, float)),
    int: ("a whole number below 2**63", int),
    bool: ("true or false", bool),
    str: ("text", str),
}


def to_plain(value: Any) -> Any:
    """Return a value as JSON holds it. Numbers that are not finite and unknown objects become texts."""
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(each) for each in value]
    return _fields_to_plain(value) if _has_fields(value) else str(value)


def _has_fields(value: Any) -> bool:
    """Return whether a value, or a class, is written field by field: a dataclass without a method ``parse``."""
    return dataclasses.is_dataclass(value) and not hasattr(value, "parse")


def _fields_to_plain(value: Any) -> Dict[str, Any]:
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.compare}


def _fields_from_plain(cls: Any, values: Any, where: str) -> Any:
    """Return the dataclass with these plain values; ``where`` is the path to it in the record, ending in a dot."""
    arguments, hints = {}, get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in values and field.compare:
            arguments[field.name] = _from_plain(hints[field.name], values[field.name], where + field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}{field.name} is missing; expected a value.")
    return cls(**arguments)


def _from_plain(hint: Any, value: Any, where: str) -> Any:
    """Return the value of a type from its plain value, or raise a ValueError that names the path ``where``."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or (origin is Union and value is None):
        return value
    if origin is Union:  # Optional
        return _from_plain(inner[0], value, where)
    types: Any
    if origin is tuple:
        expected, types = "a list", (list, tuple)
        inner = (inner[0],) * len(value) if inner[-1] is Ellipsis and isinstance(value, types) else inner
    elif origin is not None or _has_fields(hint):
        expected, types = "an object", Mapping
    else:
        expected, types = _EXPECTED.get(hint, (f"the text of a {hint.__name__}", str))
    is_text = hint is float and value in ("inf", "-inf", "nan")
    is_large = hint is int and isinstance(value, int) and abs(value) >= 2**63  # which overflow elsewhere
    if not (is_text or isinstance(value, types)) or isinstance(value, bool) != (hint is bool) or is_large:
        raise ValueError(f"{where} is {value!r:.80}; expected {expected}.")
    if origin is tuple:
        if len(inner) != len(value):
            raise ValueError(f"{where} is {value!r:.80}; expected {len(inner)} values.")
        return tuple(_from_plain(each, value[i], f"{where}[{i}]") for i, each in enumerate(inner))
    if origin is not None:
        return {_key(inner[0], key, where): _from_plain(inner[1], value[key], f"{where}[{key!r}]") for key in value}
    if _has_fields(hint):
        return _fields_from_plain(hint, value, where + ".")
    try:
        return getattr(hint, "parse", hint)(value)
    except (ValueError, OverflowError) as e:  # of a number beyond all floats
        raise ValueError(f"{where} is {value!r:.80}; expected {expected} ({str(e):.200}).") from e


def _key(hint: Any, key: str, where: str) -> Any:
    """Return the key of a mapping: JSON has numbers as text."""
    try:
        return hint(key)
    except ValueError as e:
        raise ValueError(f"{where} has the key {key!r:.80}; expected {_EXPECTED[hint][0]}.") from e
