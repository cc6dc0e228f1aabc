"""The conversions of one call of `convert`: their lock, and the check that all names which the user gave exist."""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..errors import ConvertError, PolicyError
from ..passes.base import marked_blocks
from ..policy import Policy, check_matches
from ..symbol import Converted
from ..symbol.arguments import beyond_range
from ..train.window import Alive


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters. A copy of a net has siblings of its own.

    `check` waits for all graphs of the net. Then each pattern of the policy must match something. Each output whose
    range is beyond low precision must be one of the net's. At least one output with a range must be the net's.

    Attributes:
        conversions: The conversions.
        lock: Held while a graph is made, or a net is copied.
    """

    _alive = Alive()  # a fork gives all of them new locks

    def __init__(
        self,
        policy: Optional[Policy] = None,
        names: Sequence[str] = (),
        ranges: Optional[Mapping[str, float]] = None,
        count: int = 1,
    ) -> None:
        """Take the policy, the names of the net's blocks, the user's ranges, and the number of conversions to come."""
        self.conversions: List[Any] = []
        self.lock = threading.RLock()
        self._policy, self._names, self._ranges = policy or Policy(), names, set(ranges or ())
        self._beyond = set(beyond_range(ranges or {}, self._policy))
        self._is_measured = False  # whether an output of the net has a range
        self._nodes: Dict[object, List[Tuple[str, str]]] = {}  # (operator, name) by a conversion's token
        self._marks: Set[str] = set()  # the patterns of blocks that nodes are marked with
        self._unchecked = count if self._policy.has_overrides or ranges else 0  # conversions; 0 after it
        self._alive.add(self)

    @classmethod
    def renew_locks(cls) -> None:
        """Give all siblings new locks after a fork, because a lock that another thread held is never released."""
        for siblings in cls._alive:
            siblings.lock = threading.RLock()

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for pickle and copy; the copied conversions add themselves."""
        return {name: value for name, value in vars(self).items() if name not in ("conversions", "lock")}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state, conversions=[], lock=threading.RLock())
        self._alive.add(self)

    @property
    def awaits_graphs(self) -> bool:
        """Whether the check of names is still to come."""
        return self._unchecked > 0

    def add(self, conversion: Any) -> None:
        """Add a conversion."""
        self.conversions.append(conversion)
        conversion.siblings = self

    def check(self, conversion: Any, converted: Converted) -> None:
        """Note a converted graph. If it is the last one, require that the names exist.

        Raises:
            PolicyError: If a pattern matches nothing. Then all parameters of the net are stored in float32 again.
            ConvertError: If an output that has a range does not exist; parameters are float32 again too.
        """
        if not self._unchecked:
            return
        self._nodes.setdefault(conversion.token, []).extend((row.op, row.name) for row in converted.report.rows)
        self._marks |= marked_blocks(converted.decisions.before)
        nodes, names = converted.decisions.before.nodes, converted.decisions.facts.output_names
        self._beyond -= set(names.values())
        self._is_measured |= any(name in self._ranges for key, name in names.items() if not nodes[key[0]].is_variable)
        self._ranges -= {name for key, name in names.items() if nodes[key[0]].is_variable}
        if len(self._nodes) < self._unchecked:
            return
        try:
            self._require_names()
        except (PolicyError, ConvertError):
            for each in self.conversions:
                each.store_float32()
            raise
        self._nodes, self._unchecked = {}, 0
        for each in self.conversions:
            each.forget_exact_values()

    def _require_names(self) -> None:
        all_nodes = [node for nodes in self._nodes.values() for node in nodes]
        check_matches(self._policy, all_nodes, self._names, self._marks)
        if self._beyond:
            raise ConvertError(
                f"ranges: the net has no output {min(self._beyond)!r}; measure the net that is converted. If its "
                f"operators get other names each time it is traced, make it with a prefix."
            )
        if self._ranges and not self._is_measured:
            raise ConvertError(
                f"ranges: the net has none of these outputs, such as {min(self._ranges)!r}; measure the net that is "
                f"converted, not another one."
            )


os.register_at_fork(after_in_child=Siblings.renew_locks)
