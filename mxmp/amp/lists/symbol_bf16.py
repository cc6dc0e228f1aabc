"""Lists of operators for bfloat16, by the names that contrib.amp has for them."""

from __future__ import annotations

from ..operators import (
    list_conditional_fp32_ops,
    list_fp32_ops,
    list_loss_output_functions,
    list_lp16_fp32_ops,
    list_lp16_ops,
    list_lp16_use_fp32_params,
    list_widest_type_cast,
)
from .fixed import FixedDict, FixedList

_DTYPE = "bfloat16"

BF16_FUNCS = FixedList(list_lp16_ops(_DTYPE))
BF16_FP32_FUNCS = FixedList(list_lp16_fp32_ops(_DTYPE))
BF16_USE_FP32_PARAMS = FixedDict(list_lp16_use_fp32_params(_DTYPE))
FP32_FUNCS = FixedList(list_fp32_ops(_DTYPE))
CONDITIONAL_FP32_FUNCS = FixedList(list_conditional_fp32_ops(_DTYPE))
WIDEST_TYPE_CASTS = FixedList(list_widest_type_cast(_DTYPE))
LOSS_OUTPUT_FUNCTIONS = FixedList(list_loss_output_functions(_DTYPE))
