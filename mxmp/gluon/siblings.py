"""State shared by the conversions of one net that has several graphs."""

from __future__ import annotations

import threading
from typing import Any, List, Set, Tuple


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters.

    Copies of nets have siblings of their own: the conversions that were copied with them.

    Attributes:
        conversions: The conversions.
        recorded: Ids of the parameters that autograd may hold, which must keep their dtypes.
        lock: Held while a net is called, or changed.
    """

    def __init__(self) -> None:
        self.conversions: List[Any] = []
        self.recorded: Set[int] = set()
        self.lock = threading.RLock()

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return what pickle and copy make new ones from: empty ones, to which the copied conversions are added."""
        return Siblings, ()

    def add(self, conversion: Any) -> None:
        """Add a conversion; it leaves the siblings that it had."""
        self.conversions.append(conversion)
        conversion.siblings = self
