"""Lists of operators for bfloat16, by the names that contrib.amp has for them."""

from __future__ import annotations

from ..operators import fixed_lists

_LISTS = fixed_lists("bfloat16")
BF16_FUNCS, BF16_FP32_FUNCS, BF16_USE_FP32_PARAMS = _LISTS[:3]
FP32_FUNCS, CONDITIONAL_FP32_FUNCS, WIDEST_TYPE_CASTS, LOSS_OUTPUT_FUNCTIONS = _LISTS[3:]
