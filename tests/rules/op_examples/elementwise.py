"""Arithmetic, comparisons, selection and functions of one value."""

from .core import MAP, POSITIVE, Example, same

COLUMN = (2, 4, 1, 1)
SCALAR_OPS = "_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar"
COMPARE = (
    "_greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar _equal_scalar _not_equal_scalar"
)
_ARITHMETIC = (
    *same("elemwise_add elemwise_sub elemwise_mul elemwise_div", MAP, MAP),
    *same("elemwise_add elemwise_mul", (2, 3, 5), (2, 3, 5)),
    *same("broadcast_add broadcast_sub broadcast_mul broadcast_div", MAP, COLUMN),
    *same("broadcast_add broadcast_mul", MAP, MAP),
    *same("broadcast_maximum broadcast_minimum", MAP, COLUMN),
    *same("broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal", MAP, COLUMN),
    *same("broadcast_lesser broadcast_lesser_equal", MAP, COLUMN),
    *same("floor ceil round rint fix trunc sign", MAP),
    *same("broadcast_power _power", MAP, MAP, kinds={0: "positive", 1: "positive"}),
    *same("add_n", MAP, MAP, MAP, num_args=3),
    *same("add_n", *[MAP] * 9, num_args=9),
    *same("elemwise_add", (2, 3, 2, 3, 4), (2, 3, 2, 3, 4)),
    *same(SCALAR_OPS, MAP, scalar=3.0),
    *same("_power_scalar _rpower_scalar", MAP, scalar=2.0, kinds=POSITIVE),
    *same("_maximum_scalar _minimum_scalar", MAP, scalar=0.5),
    *same(COMPARE, MAP, scalar=0.5),
    *same("clip", MAP, a_min=0, a_max=1),
    *same("sqrt rsqrt rcbrt reciprocal log log2 log10 log1p", MAP, kinds=POSITIVE),
    *same("exp expm1 square", MAP),
    *same("_contrib_div_sqrt_dim", (2, 4, 5)),
    *same("smooth_l1", MAP, scalar=1.0),
    *same("make_loss MakeLoss", MAP),
    *same("_scatter_elemwise_div _mod", MAP, MAP),
    *same("_grad_add", MAP, MAP, differentiable=False),
    *same("_npi_add _npi_subtract _npi_multiply _npi_true_divide", MAP, COLUMN),
    *same("_npi_add _npi_multiply", MAP, MAP),
    *same("broadcast_mod _npi_mod", MAP, COLUMN),
    *same("_npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar", MAP, scalar=3.0),
    *same("_npi_true_divide_scalar _npi_rtrue_divide_scalar _scatter_plus_scalar", MAP, scalar=3.0),
    *same("_scatter_minus_scalar _mod_scalar _rmod_scalar _npi_mod_scalar _npi_rmod_scalar", MAP, scalar=3.0),
    *same("_npi_diff", MAP, n=1),
    *same("_npi_ediff1d", (12,)),
    *same("_npi_ediff1d", (12,), to_begin_scalar=0.5, to_end_scalar=2.0),
    *same("_npi_floor _npi_ceil _npi_rint _npi_fix _npi_trunc _npi_sign", MAP),
    *same("_contrib_round_ste _contrib_sign_ste _npi_around", MAP),
    *same("_equal _not_equal _greater _greater_equal _lesser _lesser_equal", MAP, MAP),
    *same("_npi_equal _npi_not_equal _npi_greater _npi_greater_equal _npi_less _npi_less_equal", MAP, COLUMN),
    *same("_npi_equal_scalar _npi_not_equal_scalar _npi_greater_scalar", MAP, scalar=0.5),
    *same("_npi_greater_equal_scalar _npi_less_scalar _npi_less_equal_scalar", MAP, scalar=0.5),
    *same("_logical_and _logical_or _logical_xor", MAP, MAP),
    *same("broadcast_logical_and broadcast_logical_or broadcast_logical_xor", MAP, COLUMN),
    *same("logical_not _npi_logical_not", MAP),
    *same("_logical_and_scalar _logical_or_scalar _logical_xor_scalar", MAP, scalar=0.5),
    *same("_npi_isnan _npi_isinf _npi_isfinite _npi_isposinf _npi_isneginf", MAP),
    *same("_contrib_allclose _npi_share_memory", MAP, MAP, differentiable=False),
    *same("_npx_constraint_check", MAP, kinds={0: "bool"}, differentiable=False),
    *same("_npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor _npi_lcm", (4,), (4,), kinds={0: "int32", 1: "int32"}),
    *same(
        "_npi_bitwise_and_scalar _npi_bitwise_or_scalar _npi_bitwise_xor_scalar", (4,), kinds={0: "int32"}, scalar=3
    ),
    *same("_npi_lcm_scalar", (4,), kinds={0: "int32"}, scalar=3),
    *same("_npi_bitwise_not", (4,), kinds={0: "int32"}),
    *same("_npi_absolute _npi_negative", MAP),
    *same("_maximum _minimum", MAP, MAP),
    *same("_npi_copysign", MAP, MAP),
    *same("_npi_copysign", (2, 4, 1, 1), MAP),
    *same("_npi_copysign_scalar _npi_rcopysign_scalar", MAP, scalar=-0.5, differentiable=False),
    *same("_contrib_gradientmultiplier", MAP, scalar=0.75),
    *same("_npi_where", MAP, MAP, MAP, kinds={0: "index"}),
    *same("_npi_where_lscalar _npi_where_rscalar", MAP, MAP, kinds={0: "index"}, scalar=0.5),
    *same("_npi_where_scalar2", MAP, kinds={0: "index"}, x=0.5, y=2.0),
    *same("_npi_nan_to_num", MAP),
)

_ACTIVATIONS = (
    *same("relu sigmoid tanh softsign erf hard_sigmoid abs negative", MAP),
    *(Example("Activation", (MAP,), {"act_type": a}) for a in "relu sigmoid tanh softrelu softsign".split()),
    *(Example("LeakyReLU", (MAP,), {"act_type": a, "slope": 0.125}) for a in ("leaky", "elu")),
    *(Example("LeakyReLU", (MAP,), {"act_type": a}) for a in ("gelu", "selu")),
    *same("LeakyReLU", MAP, runs=False, act_type="rrelu"),  # a segmentation fault, in float32 too
    *(Example("LeakyReLU", (MAP,), {"act_type": a, "slope": 0.3}) for a in ("leaky", "elu")),
    Example("LeakyReLU", (MAP,)),
    Example("LeakyReLU", (MAP, (4,)), {"act_type": "prelu"}),
    Example("Dropout", (MAP,), {"p": 0.5}),
    *same("softmax log_softmax softmin SoftmaxActivation", (4, 8)),
    *same("_npx_relu _npx_sigmoid _npi_tanh", MAP),
    *same("softmax log_softmax softmin", (4, 8), dtype="float32"),
    *same("softmax", (4, 8), (4,), kinds={1: "int32"}, axis=1, use_length=True),
    *same("softmax", (4, 8), (4,), kinds={1: "int32"}, axis=1, use_length=True, dtype="float32"),
)

_FUNCTIONS = (
    *same("cbrt _npi_sqrt _npi_cbrt _npi_reciprocal", MAP, kinds=POSITIVE),
    *same("_npi_log _npi_log2 _npi_log10 _npi_log1p gamma gammaln", MAP, kinds=POSITIVE),
    *same("_npi_exp _npi_expm1 _npi_square", MAP),
    *same("_npi_power", MAP, MAP, kinds={0: "positive", 1: "positive"}),
    *same("_npi_power_scalar _npi_rpower_scalar", MAP, scalar=2.0, kinds=POSITIVE),
    *same("_npi_polyval", (3,), (5,)),
    *same("_npi_ldexp _hypot _npi_arctan2", MAP, MAP),
    *same("broadcast_hypot _npi_hypot", MAP, (2, 4, 1, 1)),
    *same("_npi_ldexp_scalar _npi_rldexp_scalar _hypot_scalar", MAP, scalar=1.5),
    *same("_npi_arctan2_scalar _npi_rarctan2_scalar", MAP, scalar=2.0),
    *same("_contrib_quadratic", MAP, a=0.5, b=2.0, c=1.0),
    *same("sin cos tan arctan sinh cosh arcsinh degrees radians", MAP),
    *same("_npi_sin _npi_cos _npi_tan _npi_arctan _npi_sinh _npi_cosh _npi_arcsinh _npi_degrees _npi_radians", MAP),
    *same("arcsin arccos arctanh erfinv _npi_arcsin _npi_arccos _npi_arctanh", MAP, kinds={0: "probability"}),
    *same("arccosh _npi_arccosh", MAP, kinds={0: "above one"}),
)

ELEMENTWISE = _FUNCTIONS + _ARITHMETIC + _ACTIVATIONS
