"""Check that each pattern of a policy matches something, over all graphs of a net."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Sequence, Tuple

from ..policy import Policy, check_matches
from ..symbol import Converted


class OverrideCheck:
    """Checks that each pattern of a policy matches something, once all graphs of a net are known."""

    def __init__(self, policy: Policy, prefixes: Sequence[str], conversions: Sequence[Any]) -> None:
        """Add the graphs that are known already; the conversions add the others when they are called.

        Raises:
            PolicyError: If all are known and a pattern matches nothing.
        """
        self.policy = policy
        self.prefixes = prefixes
        self.nodes: Dict[int, List[Tuple[str, str]]] = {}
        self.count = len(conversions)
        for number, conversion in enumerate(conversions):
            conversion.on_converted = functools.partial(self.add, number)
            if conversion.early is not None:
                conversion.on_converted(conversion.early)

    def add(self, number: int, converted: Converted) -> None:
        """Add the graph of one conversion, and check the patterns if it was the last one."""
        if not self.count:
            return
        found = [(row.op, row.name) for row in converted.report.rows]
        self.nodes.setdefault(number, []).extend(found)
        if len(self.nodes) == self.count:
            check_matches(self.policy, [node for nodes in self.nodes.values() for node in nodes], self.prefixes)
            self.nodes, self.count = {}, 0  # what matches once need not be looked for again
