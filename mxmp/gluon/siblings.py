"""State shared by the conversions of one net that has several graphs, and a check of all of them."""

from __future__ import annotations

import functools
import threading
from typing import Any, Dict, List, Sequence, Set, Tuple

from ..policy import Policy, check_matches
from ..symbol import Converted


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters; copies have siblings of their own."""

    def __init__(self) -> None:
        self.conversions: List[Any] = []
        self.recorded: Set[int] = set()  # ids of the parameters that autograd may hold, which must keep their dtypes
        self.lock = threading.RLock()  # held while a net is called, or changed

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return what pickle and copy make new ones from: empty ones, to which the copied conversions are added."""
        return Siblings, ()

    def add(self, conversion: Any) -> None:
        """Add a conversion; it leaves the siblings that it had."""
        self.conversions.append(conversion)
        conversion.siblings = self


class OverrideCheck:
    """Checks that each pattern of a policy matches something, once all graphs of a net are known.

    Here if they are known already; else the conversions add them when they are called.
    """

    def __init__(self, policy: Policy, prefixes: Sequence[str], conversions: Sequence[Any]) -> None:
        self.policy = policy
        self.prefixes = prefixes
        self.nodes: Dict[int, List[Tuple[str, str]]] = {}
        self.count = len(conversions)
        for number, conversion in enumerate(conversions):
            conversion.on_converted = functools.partial(self.add, number)
            if conversion.early is not None:
                conversion.on_converted(conversion.early)

    def add(self, number: int, converted: Converted) -> None:
        """Add the graph of one conversion; raise a PolicyError if it was the last and a pattern matches nothing."""
        if not self.count:
            return
        self.nodes.setdefault(number, []).extend((row.op, row.name) for row in converted.report.rows)
        if len(self.nodes) == self.count:
            check_matches(self.policy, [node for nodes in self.nodes.values() for node in nodes], self.prefixes)
            self.nodes, self.count = {}, 0  # what matches once need not be looked for again
