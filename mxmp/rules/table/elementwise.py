"""Elementwise operators and softmax: arithmetic, comparisons, logic, selection, activations, mathematical functions."""

from __future__ import annotations

from typing import Any, Dict

from ..conditions import share, short_gradients, short_slopes
from ..core import (
    ADDS,
    DENY,
    DIVIDES,
    ENDS,
    INFER,
    MAGNIFIES,
    MULTIPLIES,
    OVER,
    RESTARTS,
    SATURATES,
    SHIFTS,
    SUBTRACTS,
    TIMES,
)
from .build import BFLOAT16_ALONE, TYPED, Rules, compares, moves, never_cast, rules, scalar_rules, short_sums, variant

# The gradient of a broadcast input is a sum.
_BROADCAST = short_sums(short_gradients)
_SUM = "exponentials and their sum"
_SOFTMAX: Dict[str, Any] = {"reason": _SUM, "size": RESTARTS, "sums": share, "distance": SATURATES}
_LENGTHS = variant("use_length", "True")
_STEEP = "steep where float16 and bfloat16 are coarse"
_ADDS: Dict[str, Any] = {"size": ADDS, "distance": SHIFTS}
_BOUNDED: Dict[str, Any] = {"size": RESTARTS, "distance": SATURATES}
_RECIPROCAL: Dict[str, Any] = {"reason": "reciprocal", "no_bfloat16": True, "distance": MAGNIFIES}
_POWER: Dict[str, Any] = {"reason": "power", "no_bfloat16": True, "distance": MAGNIFIES}
_LOGARITHM: Dict[str, Any] = {"reason": "logarithm", "no_bfloat16": True, "distance": MAGNIFIES}
_INVERSE: Dict[str, Any] = {"reason": _STEEP, "no_bfloat16": True, "distance": ENDS}

ELEMENTWISE: Rules = (
    # Arithmetic:
    *rules(INFER, "elemwise_add add_n", **_ADDS),
    # MXNet's own bfloat16 kernels truncate. See ``rules`` in build.py.
    *rules(INFER, "elemwise_sub _grad_add", no_bfloat16=True, **_ADDS),
    *rules(INFER, "elemwise_mul", no_bfloat16=True, size=MULTIPLIES),
    *rules(INFER, "elemwise_div _scatter_elemwise_div", no_bfloat16=True, distance=DIVIDES),
    *rules(INFER, "broadcast_add broadcast_sub _npi_add _npi_subtract", no_bfloat16=True, **_ADDS, **_BROADCAST),
    *rules(INFER, "broadcast_mul _npi_multiply", no_bfloat16=True, size=MULTIPLIES, **_BROADCAST),
    *rules(INFER, "broadcast_div", no_bfloat16=True, distance=DIVIDES, **_BROADCAST),
    # numpy's division takes bfloat16 for an integer, and means to give float32.
    *rules(INFER, "_npi_true_divide", no_bfloat16=True, distance=DIVIDES, **_BROADCAST),
    *scalar_rules(INFER, "scalar", "_plus_scalar _minus_scalar", no_bfloat16=True, distance=SHIFTS),
    *scalar_rules(INFER, "scalar", "_rminus_scalar _npi_rsubtract_scalar", no_bfloat16=True, distance=SUBTRACTS),
    *scalar_rules(INFER, "scalar", "_scatter_plus_scalar _scatter_minus_scalar", no_bfloat16=True),
    *scalar_rules(INFER, "scalar", "_npi_add_scalar _npi_subtract_scalar", no_bfloat16=True, distance=SHIFTS),
    *scalar_rules(INFER, "scalar", "_mul_scalar _npi_multiply_scalar", no_bfloat16=True, distance=SHIFTS, size=TIMES),
    *scalar_rules(INFER, "scalar", "_div_scalar _npi_true_divide_scalar", no_bfloat16=True, distance=SHIFTS, size=OVER),
    # Their bfloat16 gradients are 0.
    *rules(INFER, "_mod broadcast_mod _npi_mod", no_bfloat16=True, **_BROADCAST),
    *scalar_rules(INFER, "scalar", "_mod_scalar _rmod_scalar _npi_mod_scalar _npi_rmod_scalar", no_bfloat16=True),
    *rules(INFER, "_npi_diff", no_bfloat16=True),
    *scalar_rules(INFER, "to_begin_scalar to_end_scalar", "_npi_ediff1d", no_bfloat16=True),
    # Rounding:
    *rules(INFER, "floor ceil round rint fix trunc sign _contrib_round_ste _contrib_sign_ste", preserves_grid=True),
    *rules(INFER, "_npi_floor _npi_ceil _npi_rint _npi_fix _npi_trunc _npi_sign", preserves_grid=True),
    *rules(INFER, "_npi_around", dtypes=BFLOAT16_ALONE),  # refuses float16
    # Comparisons: The answers are 0 and 1; those of numpy's operators are booleans.
    *compares("broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal broadcast_lesser"),
    *compares("broadcast_lesser_equal _equal _not_equal _greater _greater_equal _lesser _lesser_equal"),
    *compares("_equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar", scalars="scalar"),
    *compares("_lesser_scalar _lesser_equal_scalar", scalars="scalar"),
    *rules(INFER, "_npi_equal _npi_not_equal _npi_greater _npi_greater_equal", keep_outputs=(0,), is_boolean=True),
    *rules(INFER, "_npi_less _npi_less_equal", keep_outputs=(0,), is_boolean=True),
    *scalar_rules(INFER, "scalar", "_npi_equal_scalar _npi_not_equal_scalar", keep_outputs=(0,), is_boolean=True),
    *scalar_rules(INFER, "scalar", "_npi_greater_scalar _npi_greater_equal_scalar", keep_outputs=(0,), is_boolean=True),
    *scalar_rules(INFER, "scalar", "_npi_less_scalar _npi_less_equal_scalar", keep_outputs=(0,), is_boolean=True),
    # Logic:
    *compares("_logical_and _logical_or _logical_xor logical_not"),
    *compares("broadcast_logical_and broadcast_logical_or broadcast_logical_xor"),
    *compares("_logical_and_scalar _logical_or_scalar _logical_xor_scalar", scalars="scalar"),
    *rules(INFER, "_npi_logical_not _np_any _np_all", keep_outputs=(0,), is_boolean=True),
    *never_cast(DENY, "_npi_isnan _npi_isinf _npi_isfinite _npi_isposinf _npi_isneginf", "asks what overflow changes"),
    *never_cast(DENY, "_contrib_allclose _npx_constraint_check _npi_share_memory", "a check"),
    *never_cast(DENY, "_npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor _npi_bitwise_not _npi_lcm", "integers"),
    *never_cast(
        DENY, "_npi_bitwise_and_scalar _npi_bitwise_or_scalar _npi_bitwise_xor_scalar _npi_lcm_scalar", "integers"
    ),
    # Selection: By value, or by a condition of any dtype.
    *moves("abs negative _npi_absolute _npi_negative _maximum _minimum"),
    *moves("broadcast_maximum broadcast_minimum _npi_copysign", no_bfloat16=True, **_BROADCAST),
    *moves("_maximum_scalar _minimum_scalar _npi_copysign_scalar _npi_rcopysign_scalar", scalars="scalar"),
    *moves("clip", scalars="a_min a_max"),
    *moves("_contrib_gradientmultiplier", scalars="scalar", no_bfloat16=True),  # the identity
    *moves("where", keep=(0,)),
    *moves("_npi_where", keep=(0,), no_bfloat16=True),
    *moves("_npi_where_lscalar _npi_where_rscalar", scalars="scalar", keep=(0,), no_bfloat16=True),
    # Makes float32 of two numbers. Infer, so that an operator that adds a mask of -1e9 stays in float32.
    *scalar_rules(INFER, "x y", "_npi_where_scalar2", keep=(0,), keep_outputs=(0,)),
    *rules(DENY, "_npi_nan_to_num", reason="what it puts for inf depends on the dtype", no_bfloat16=True),
    # Activations:
    *moves("relu _npx_relu"),
    # In bfloat16 Activation rounds, which is oneDNN's; these cut off.
    *rules(INFER, "sigmoid _npx_sigmoid tanh _npi_tanh softsign erf", no_bfloat16=True, **_BOUNDED),
    *rules(INFER, "hard_sigmoid", no_bfloat16=True, size=RESTARTS),
    *moves("Activation", when=variant("act_type", "relu")),
    *rules(DENY, "Activation", when=variant("act_type", "softrelu"), reason="log(1 + exp(x))"),
    *rules(INFER, "Activation", when=variant("act_type", "softsign"), no_bfloat16=True, **_BOUNDED),
    *rules(INFER, "Activation", **_BOUNDED),  # sigmoid, tanh
    *rules(INFER, "LeakyReLU", when=variant("act_type", "prelu"), no_bfloat16=True, **short_sums(short_slopes)),
    *rules(INFER, "LeakyReLU", when=variant("act_type", "selu"), no_bfloat16=True),
    *rules(INFER, "LeakyReLU", when=variant("act_type", "rrelu"), no_bfloat16=True),
    *scalar_rules(INFER, "slope", "LeakyReLU"),
    *rules(INFER, "Dropout", no_bfloat16=True),
    # Roots:
    *rules(INFER, "sqrt cbrt _npi_sqrt _npi_cbrt", no_bfloat16=True, distance=MAGNIFIES),
    *rules(INFER, "_contrib_div_sqrt_dim", no_bfloat16=True),
    *rules(DENY, "rsqrt rcbrt reciprocal _npi_reciprocal", **_RECIPROCAL),
    *rules(DENY, "_rdiv_scalar _npi_rtrue_divide_scalar", scalars=("scalar",), **_RECIPROCAL),
    # Softmax: none of these has a ``float32_attr``. With ``dtype`` "float32" and float16 data MXNet still subtracts the
    # maximum in float16. It sums in float16 too, unless MXNET_SAFE_ACCUMULATION is set (nn/softmax-inl.h).
    *rules(DENY, "softmax", when=_LENGTHS + TYPED, keep=(1,), keep_outputs=(0,), no_bfloat16=True, **_SOFTMAX),
    *rules(DENY, "softmax", when=_LENGTHS, keep=(1,), no_bfloat16=True, **_SOFTMAX),
    *rules(DENY, "softmax softmin", when=TYPED, keep_outputs=(0,), no_bfloat16=True, **_SOFTMAX),
    *rules(DENY, "log_softmax", when=TYPED, keep_outputs=(0,), reason=_SUM, no_bfloat16=True),
    *rules(DENY, "softmax", **_SOFTMAX),
    *rules(DENY, "log_softmax", reason=_SUM),
    *rules(DENY, "softmin", no_bfloat16=True, **_SOFTMAX),
    *rules(DENY, "SoftmaxActivation", reason=_SUM, no_low=True),  # the gradient reads real_t
    # Exponentials:
    *rules(DENY, "exp expm1 sinh cosh _npi_exp _npi_expm1 _npi_sinh _npi_cosh", reason="exponential", no_bfloat16=True),
    *rules(DENY, "log log2 log10 log1p _npi_log _npi_log2 _npi_log10 _npi_log1p", **_LOGARITHM),
    # Powers:
    *rules(DENY, "square _npi_square broadcast_power _power _npi_power", **_POWER),
    *rules(DENY, "_npi_ldexp _npi_polyval", **_POWER),
    *rules(DENY, "_power_scalar _rpower_scalar", scalars=("scalar",), **_POWER),
    *rules(DENY, "_npi_power_scalar _npi_rpower_scalar", scalars=("scalar",), **_POWER),
    *rules(DENY, "_npi_ldexp_scalar _npi_rldexp_scalar", scalars=("scalar",), **_POWER),
    *rules(DENY, "_contrib_quadratic", scalars=("a", "b", "c"), **_POWER),
    *rules(DENY, "_hypot broadcast_hypot _npi_hypot", reason="sum of squares", no_bfloat16=True),
    *rules(DENY, "_hypot_scalar", reason="sum of squares", scalars=("scalar",), no_bfloat16=True),
    # Trigonometry:
    *rules(INFER, "sin cos _npi_sin _npi_cos", no_bfloat16=True, size=RESTARTS),
    *rules(INFER, "arctan arcsinh degrees radians", no_bfloat16=True),
    *rules(INFER, "_npi_arctan _npi_arcsinh _npi_degrees _npi_radians", no_bfloat16=True),
    *rules(INFER, "_npi_arctan2", no_bfloat16=True, **_BROADCAST),
    *scalar_rules(INFER, "scalar", "_npi_arctan2_scalar _npi_rarctan2_scalar", no_bfloat16=True),
    *rules(DENY, "tan gamma gammaln _npi_tan", reason=_STEEP, no_bfloat16=True),
    *rules(DENY, "arcsin arccos arctanh arccosh erfinv", **_INVERSE),
    *rules(DENY, "_npi_arcsin _npi_arccos _npi_arctanh _npi_arccosh", **_INVERSE),
)
