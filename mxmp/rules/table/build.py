"""Functions that make the rules of the table, several operators at once."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from ... import dtypes
from ..conditions import scalars_in_range, scalars_representable
from ..core import CLEAR, EVERY, GIVEN, INFER, Condition, Rule

Rules = Tuple[Rule, ...]

BFLOAT16_ALONE = frozenset({dtypes.BFLOAT16})


def rules(category: str, ops: str, no_bfloat16: bool = False, no_low: bool = False, **fields: Any) -> Rules:
    """Return one rule for each operator that ``ops`` names, with the same ``fields`` of Rule.

    ``no_bfloat16`` says that MXNet's bfloat16 kernel on CPU is missing ('Unknown type enum 12', a failed check), aborts
    the process or gives wrong numbers. Most of MXNet's own kernels truncate. So every result, or the sum in a gradient,
    is some 0.3 % too small, and this adds up over layers. The kernels of oneDNN round. ``no_low`` says that there is a
    sound kernel in neither low precision.
    """
    if no_low:
        fields["dtypes"] = frozenset()
    elif no_bfloat16:
        fields["dtypes"] = frozenset({dtypes.FLOAT16})
    return tuple(Rule(op, category, **fields) for op in ops.split())


def scalar_rules(category: str, keys: str, ops: str, **fields: Any) -> Rules:
    """Return rules for operators with scalars, named in ``keys``, which must fit the low precision dtype.

    Where the operator preserves the grid the scalar may become a result, and MXNet would truncate it to bfloat16.
    """
    scalars = tuple(keys.split())
    fits = scalars_representable if fields.get("preserves_grid") else scalars_in_range
    return rules(category, ops, scalars=scalars, condition=fits(*scalars), **fields)


def moves(ops: str, scalars: str = "", category: str = CLEAR, **fields: Any) -> Rules:
    """Return rules for operators that move or select values, so that outputs are on the grid if inputs are.

    ``scalars`` names attributes whose values may be among the outputs.
    """
    fields["preserves_grid"] = True
    return scalar_rules(category, scalars, ops, **fields) if scalars else rules(category, ops, **fields)


def compares(ops: str, scalars: str = "") -> Rules:
    """Return rules for operators that compare, and give 0 and 1 in the dtype of the data."""
    return moves(ops, scalars, category=INFER, is_boolean=True)


def short_sums(condition: Condition) -> Dict[str, Any]:
    """Return the fields of rules whose condition bounds a sum: a longer one is inaccurate, but not out of range."""
    return {"condition": condition, "taints": False}


def never_cast(category: str, ops: str, reason: str, **fields: Any) -> Rules:
    """Return rules for operators whose inputs and outputs mxmp never casts."""
    return rules(category, ops, keep=EVERY, keep_outputs=EVERY, reason=reason, **fields)


def variant(*pairs: str) -> Tuple[Tuple[str, str], ...]:
    """Return the ``when`` of a rule from attributes and their values: ``variant("mode", "lstm")``."""
    return tuple(zip(pairs[::2], pairs[1::2]))


TYPED = variant("dtype", GIVEN)
"""The ``when`` of a rule for calls whose attribute ``dtype`` says what they give."""
