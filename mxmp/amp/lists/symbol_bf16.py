"""Lists of operators for bfloat16, by the names that contrib.amp has for them."""

from __future__ import annotations

from ..operators import fixed_lists

(
    BF16_FUNCS,
    BF16_FP32_FUNCS,
    BF16_USE_FP32_PARAMS,
    FP32_FUNCS,
    CONDITIONAL_FP32_FUNCS,
    WIDEST_TYPE_CASTS,
    LOSS_OUTPUT_FUNCTIONS,
) = fixed_lists("bfloat16")
