"""A dictionary of bounded size; ``functools.lru_cache`` can neither list its items nor drop some of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

_Value = TypeVar("_Value")


class LRUCache(Generic[_Value]):
    """A dictionary of at most ``size`` items; to read or write one counts as a use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[Any, _Value] = OrderedDict()

    def get(self, key: Any) -> Optional[_Value]:
        """Return the value under a key and mark it as used; None if there is none."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: Any, value: _Value) -> None:
        """Store a value; the least recently used item is dropped if there are too many."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def retain(self, predicate: Callable[[_Value], bool]) -> None:
        """Keep only the values for which a predicate holds."""
        for key in [key for key, value in self._items.items() if not predicate(value)]:
            del self._items[key]

    def items(self) -> Dict[Any, _Value]:
        """Return a copy as a dict, the least recently used item first."""
        return dict(self._items)
