"""A conversion for inputs of unknown shape, taken over for inputs of known shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from ..passes.plan import place_again
from .inference import Shapes, infer_later, require_shapes
from .rewrite import Converted


def for_shapes(converted: Converted, shapes: Shapes) -> Optional[Converted]:
    """Return what `convert_graph` gives for inputs of some shapes, given its result for inputs of unknown shape.

    Where sizes cannot change the placement, shapes are inferred when they are asked for, but for those that say whether
    these inputs fit at all.

    Args:
        converted: The result for unknown shapes; its plan is steady, and these shapes change no verdict.
        shapes: Shapes of inputs and parameters.

    Returns:
        None if these shapes make it cheaper to place casts elsewhere.

    Raises:
        InferenceError: If the network does not take such shapes; it names the node.
    """
    require_shapes(converted.source, shapes)
    known = converted.decisions
    facts = infer_later(known.before, known.facts, shapes, converted.source)
    plan = place_again(known.plan, known.before, known.policy, facts)
    if plan.placement.low != known.plan.placement.low:
        return None
    after = infer_later(converted.graph, converted.facts, shapes, converted.symbol)
    return replace(converted, facts=after, decisions=replace(known, facts=facts, plan=plan))
