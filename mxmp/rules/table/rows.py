"""Operators that read, write or find rows by index; indices above 2048 are no float16 integers."""

from __future__ import annotations

from typing import Any, Dict

from ..core import DENY
from ..sums import few_points, few_rows
from .build import Rules, moves, never_cast, rules, short_sums, variant
from .shapes import COUNTS

_READS = (
    # In bfloat16 the gradient of a row read 5000 times is 256, a running sum that has stopped.
    *moves("Embedding", keep=(0,), no_bfloat16=True, **short_sums(few_rows)),
    *moves("take", keep=(1,), no_bfloat16=True, **short_sums(few_rows)),
    *moves("gather_nd", keep=(1,), no_bfloat16=True, **short_sums(few_points)),
    *moves("pick batch_take _contrib_boolean_mask", keep=(1,)),
)

_IN_PLACE = "writes into its input"

_WRITES = (
    *moves("scatter_nd _contrib_index_copy _npi_delete", keep=(1,)),
    *moves("_npi_insert_scalar _npi_insert_slice", scalars="val"),
    *moves("_npi_insert_tensor", scalars="val", keep=(2,)),
    *never_cast(DENY, "_scatter_set_nd _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor", _IN_PLACE),
)

_SEQUENCES = (
    *moves("SequenceMask", scalars="value", keep=(1,)),
    *moves("SequenceReverse SequenceLast", keep=(1,)),
)

_COUNTS: Dict[str, Any] = {"reason": COUNTS, "positions": True, "no_bfloat16": True}

_POSITIONS = (
    *rules(DENY, "argmax argmin argmax_channel", **_COUNTS),
    *rules(DENY, "_npi_argmax _npi_argmin", keep_outputs=(0,), **_COUNTS),
    *rules(DENY, "topk", when=variant("ret_typ", "value"), reason=COUNTS, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "mask"), reason=COUNTS, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "both"), keep_outputs=(1,), **_COUNTS),
    *rules(DENY, "topk", keep_outputs=(0,), **_COUNTS),
    *rules(DENY, "sort", reason="MXNet sorts no float16", no_low=True),
    *rules(DENY, "argsort", keep_outputs=(0,), reason="MXNet sorts no float16", positions=True, no_low=True),
    *never_cast(DENY, "_npx_nonzero _npi_unique", COUNTS, positions=True),
)

ROWS: Rules = _READS + _WRITES + _SEQUENCES + _POSITIONS
