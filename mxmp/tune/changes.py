"""What a tuned policy changes: the operators whose precision is another than under the untuned one."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from .. import dtypes
from ..passes.plan import make_plan
from ..policy import Policy
from ..report import Decisions
from .result import Change


def find_changes(decided: Sequence[Decisions], policy: Policy) -> Tuple[Change, ...]:
    """Return what a policy changes in networks that were decided under another one; bodies of loops are left out."""
    found: Dict[Tuple[str, str], List[str]] = {}
    for each in decided:
        low = make_plan(each.before, policy, each.facts).placement.low
        for position in sorted(low ^ each.plan.placement.low):
            node = each.before.nodes[position]
            dtype = policy.compute_dtype if position in low else dtypes.FLOAT32
            if not node.is_variable:
                found.setdefault((node.op, dtype), []).append(node.name)
    return tuple(Change(op, dtype, tuple(names)) for (op, dtype), names in found.items())
