"""Objects that are kept only as long as somebody else refers to them."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Iterator, Tuple


class Alive:
    """Objects as long as somebody else refers to them, in the order in which they came.

    Unlike a ``WeakSet`` it may be iterated while other threads add to it: all are looked up at once. A copy of it, or
    one from a pickle, has the copies of the objects.
    """

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        for each in objects:
            self.add(each)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Alive, (list(self),)

    def __iter__(self) -> Iterator[Any]:
        found = [ref() for ref in self._objects.valuerefs()]
        return (each for each in found if each is not None)

    def discard(self, each: Any) -> None:
        """Forget an object, if it is there."""
        self._objects.pop(id(each), None)

    def add(self, each: Any) -> None:
        """Add an object; one that is there already is there once."""
        self._objects[id(each)] = each
