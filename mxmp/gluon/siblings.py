"""The conversions of one call of `convert`, and the check that all names which the user gave exist."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from ..errors import ConvertError, PolicyError
from ..passes.base import marked_blocks
from ..policy import Policy, check_matches
from ..symbol import Converted
from ..symbol.arguments import beyond_range


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters. A copy of a net has siblings of its own.

    `check` waits for all graphs of the net. Then each pattern of the policy must match something. Each output whose
    range is beyond low precision must be one of the net's. At least one output with a range must be the net's.

    Attributes:
        conversions: The conversions.
        awaits_graphs: Whether the check of names is still to come.
    """

    def __init__(
        self,
        policy: Optional[Policy] = None,
        names: Sequence[str] = (),
        ranges: Optional[Mapping[str, float]] = None,
    ) -> None:
        """Take the policy, the names of the net's blocks, and the user's ranges."""
        self.conversions: List[Any] = []
        self._policy, self._names, self._ranges = policy or Policy(), names, dict(ranges or {})
        self.awaits_graphs = bool(self._policy.has_overrides or ranges)
        self._graphs: Dict[Any, List[Converted]] = {}  # by their conversions, up to the check

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for pickle and copy; the copied conversions add themselves, and their graphs."""
        return {**vars(self), "conversions": [], "_graphs": {}}

    def check(self, conversion: Any, converted: Converted) -> None:
        """Note a converted graph. If it is the last one, require that the names exist.

        Raises:
            PolicyError: If a pattern matches nothing. Then all parameters of the net are stored in float32 again.
            ConvertError: If an output that has a range does not exist; parameters are float32 again too.
        """
        if not self.awaits_graphs:
            return
        self._graphs.setdefault(conversion, []).append(converted)
        if len(self._graphs) < len(self.conversions):
            return
        try:
            self._require_names([graph for graphs in self._graphs.values() for graph in graphs])
        except (PolicyError, ConvertError):
            for each in self.conversions:
                each.store_float32()
            raise
        self._graphs, self.awaits_graphs = {}, False
        for each in self.conversions:
            each.forget_exact_values()

    def _require_names(self, graphs: Sequence[Converted]) -> None:
        rows = [row for graph in graphs for row in graph.report.rows]
        marks: Set[str] = set().union(*(marked_blocks(graph.decisions.before) for graph in graphs))
        check_matches(self._policy, [(row.op, row.name) for row in rows], self._names, marks)
        variables: Set[str] = set()
        outputs: Set[str] = set()
        for graph in graphs:
            nodes = graph.decisions.before.nodes
            for (position, _), name in graph.decisions.facts.output_names.items():
                (variables if nodes[position].is_variable else outputs).add(name)
        missing = beyond_range(self._ranges, self._policy) - variables - outputs
        if missing:
            raise ConvertError(
                f"ranges: the net has no output {min(missing)!r}; measure the net that is converted. If its "
                f"operators get other names each time it is traced, make it with a prefix."
            )
        measured = self._ranges.keys() - variables
        if measured and measured.isdisjoint(outputs):
            raise ConvertError(
                f"ranges: the net has none of these outputs, such as {min(measured)!r}; measure the net that is "
                f"converted, not another one."
            )
