"""What the results of a diagnosis have in common: plain values, JSON, files, pages for a browser and a notebook."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from .. import html
from ..display import save_text
from ..errors import CheckpointError, ConvertError

Self = TypeVar("Self", bound="Result")


class Result(ABC):
    """A result that can be written, read back and looked at; its class gives and takes the plain values."""

    _mark: ClassVar[Tuple[str, str]]
    """The key of the plain values that says what they are, and what it says."""

    _what: ClassVar[str]
    """What errors call it."""

    _title: ClassVar[str]
    """The title of its page."""

    @abstractmethod
    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain values, which JSON can hold."""

    @classmethod
    @abstractmethod
    def _read(cls: Type[Self], values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave, or raise a KeyError, TypeError, ValueError or AttributeError."""

    @abstractmethod
    def _sections(self) -> List[html.Section]:
        """Return what a page shows."""

    @property
    def _lead(self) -> str:
        """What stands under the title of a page."""
        return ""

    def to_json(self) -> str:
        """Return it as JSON, which `from_json` reads."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls: Type[Self], values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave.

        Raises:
            ConvertError: If the values are not that.
        """
        key, wanted = cls._mark
        if not isinstance(values, Mapping) or values.get(key) != wanted:
            found = values.get(key) if isinstance(values, Mapping) else type(values).__name__
            raise ConvertError(f"this is no {cls._what}: its {key} is {found!r}, expected {wanted!r}.")
        try:
            return cls._read(values)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ConvertError(f"the {cls._what} is damaged: {type(e).__name__}: {e}") from e

    @classmethod
    def from_json(cls: Type[Self], text: str) -> Self:
        """Return what `to_json` gave; raises as `from_dict`."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as e:
            raise ConvertError(f"this is no {cls._what}: it is no JSON ({e}).") from e

    def save(self, path: str) -> None:
        """Write it to a file as JSON, whole or not at all.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        save_text(self.to_json() + "\n", path)

    @classmethod
    def load(cls: Type[Self], path: str) -> Self:
        """Return what `save` wrote.

        Raises:
            CheckpointError: If the file cannot be read, or is none.
        """
        try:
            with open(path, encoding="utf-8") as file:
                return cls.from_json(file.read())
        except (OSError, UnicodeDecodeError, ConvertError) as e:
            raise CheckpointError(f"{path}: {getattr(e, 'strerror', None) or e}") from e

    def to_html(self, path: Optional[str] = None, title: Optional[str] = None) -> str:
        """Return it as one self-contained HTML file, and write that if asked to; raises as `save`."""
        text = html.page(title or self._title, self._sections(), self._lead)
        if path is not None:
            save_text(text, path)
        return text

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html.fragment(self._title, self._sections(), self._lead)
