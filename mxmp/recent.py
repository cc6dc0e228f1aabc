"""A dictionary that keeps what was used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """A dictionary of bounded size, which forgets what was used longest ago."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[Any, _Value] = OrderedDict()

    def find(self, key: Any) -> Optional[_Value]:
        """Return what is kept under a key, which counts as a use; None if nothing is."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def keep(self, key: Any, value: _Value) -> None:
        """Keep a value, in the place of the one used longest ago if there are too many."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def keep_only(self, wanted: Callable[[_Value], bool]) -> None:
        """Forget the values that are not wanted."""
        for key in [key for key, value in self._items.items() if not wanted(value)]:
            del self._items[key]

    def items(self) -> Dict[Any, _Value]:
        """Return all, that used longest ago first."""
        return dict(self._items)
