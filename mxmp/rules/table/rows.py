"""Reading, writing and finding by index. Indices and lengths above 2048 are no float16 integers."""

from __future__ import annotations

from ..core import CLEAR, DENY
from ..sums import few_points, few_rows
from .build import Rules, kept, rules, scalar_rules, variant
from .shapes import COUNTS

_READS = (
    # In bfloat16 the gradient of a row read 5000 times is 256, a running sum that has stopped.
    *rules(CLEAR, "Embedding", keep=(0,), exact=True, no_bfloat16=True, condition=few_rows, taints=False),
    *rules(CLEAR, "take", keep=(1,), exact=True, no_bfloat16=True, condition=few_rows, taints=False),
    *rules(CLEAR, "gather_nd", keep=(1,), exact=True, no_bfloat16=True, condition=few_points, taints=False),
    *rules(CLEAR, "pick batch_take _contrib_boolean_mask", keep=(1,), exact=True),
)

_IN_PLACE = "writes into its input"

_WRITES = (
    *rules(CLEAR, "scatter_nd _contrib_index_copy _npi_delete", keep=(1,), exact=True),
    *scalar_rules(CLEAR, "val", "_npi_insert_scalar _npi_insert_slice", exact=True),
    *scalar_rules(CLEAR, "val", "_npi_insert_tensor", keep=(2,), exact=True),
    *kept(DENY, "_scatter_set_nd _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor", _IN_PLACE),
)

_SEQUENCES = (
    *scalar_rules(CLEAR, "value", "SequenceMask", keep=(1,), exact=True),
    *rules(CLEAR, "SequenceReverse SequenceLast", keep=(1,), exact=True),
)

_POSITIONS = (
    *rules(DENY, "argmax argmin argmax_channel", reason=COUNTS, positions=True, no_bfloat16=True),
    *rules(DENY, "_npi_argmax _npi_argmin", keep_outputs=(0,), reason=COUNTS, positions=True, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "value"), reason=COUNTS, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "mask"), reason=COUNTS, no_bfloat16=True),
    *rules(
        DENY,
        "topk",
        when=variant("ret_typ", "both"),
        keep_outputs=(1,),
        reason=COUNTS,
        positions=True,
        no_bfloat16=True,
    ),
    *rules(DENY, "topk", keep_outputs=(0,), reason=COUNTS, positions=True, no_bfloat16=True),
    *rules(DENY, "sort", reason="MXNet sorts no float16", no_low=True),
    *rules(DENY, "argsort", keep_outputs=(0,), reason="MXNet sorts no float16", positions=True, no_low=True),
    *kept(DENY, "_npx_nonzero _npi_unique", COUNTS, positions=True),
)

ROWS: Rules = _READS + _WRITES + _SEQUENCES + _POSITIONS
