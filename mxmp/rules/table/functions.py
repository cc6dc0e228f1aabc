"""Mathematical functions and softmax: activations, roots, exponentials, powers, trigonometry."""

from __future__ import annotations

from ..core import DENY, INFER
from ..sums import short_gradients, short_slopes
from .build import TYPED, Rules, moves, rules, scalar_rules, short_sums, variant

_SUM = "exponentials and their sum"
_LENGTHS = variant("use_length", "True")
_STEEP = "steep where float16 and bfloat16 are coarse"

FUNCTIONS: Rules = (
    # Activations:
    *moves("relu _npx_relu"),
    # In bfloat16 Activation rounds, which is oneDNN's; these cut off.
    *rules(INFER, "sigmoid _npx_sigmoid tanh _npi_tanh softsign erf hard_sigmoid", no_bfloat16=True),
    *moves("Activation", when=variant("act_type", "relu")),
    *rules(DENY, "Activation", when=variant("act_type", "softrelu"), reason="log(1 + exp(x))"),
    *rules(INFER, "Activation", when=variant("act_type", "softsign"), no_bfloat16=True),
    *rules(INFER, "Activation"),
    *rules(INFER, "LeakyReLU", when=variant("act_type", "prelu"), no_bfloat16=True, **short_sums(short_slopes)),
    *rules(INFER, "LeakyReLU", when=variant("act_type", "selu"), no_bfloat16=True),
    *rules(INFER, "LeakyReLU", when=variant("act_type", "rrelu"), no_bfloat16=True),
    *scalar_rules(INFER, "slope", "LeakyReLU"),
    *rules(INFER, "Dropout", no_bfloat16=True),
    # Roots:
    *rules(INFER, "sqrt cbrt _npi_sqrt _npi_cbrt _contrib_div_sqrt_dim", no_bfloat16=True),
    *rules(DENY, "rsqrt rcbrt reciprocal _npi_reciprocal", reason="reciprocal", no_bfloat16=True),
    *rules(DENY, "_rdiv_scalar _npi_rtrue_divide_scalar", reason="reciprocal", scalars=("scalar",), no_bfloat16=True),
    # Softmax: none of these widens: where ``dtype`` asks for float32 of float16 data, MXNet still subtracts the maximum
    # and sums the exponentials in float16, or at least the former with MXNET_SAFE_ACCUMULATION (nn/softmax-inl.h).
    *rules(DENY, "softmax", when=_LENGTHS + TYPED, keep=(1,), keep_outputs=(0,), reason=_SUM, no_bfloat16=True),
    *rules(DENY, "softmax", when=_LENGTHS, keep=(1,), reason=_SUM, no_bfloat16=True),
    *rules(DENY, "softmax log_softmax softmin", when=TYPED, keep_outputs=(0,), reason=_SUM, no_bfloat16=True),
    *rules(DENY, "softmax log_softmax", reason=_SUM),
    *rules(DENY, "softmin", reason=_SUM, no_bfloat16=True),
    *rules(DENY, "SoftmaxActivation", reason=_SUM, no_low=True),  # the gradient reads real_t
    # Exponentials:
    *rules(DENY, "exp expm1 sinh cosh _npi_exp _npi_expm1 _npi_sinh _npi_cosh", reason="exponential", no_bfloat16=True),
    *rules(DENY, "log log2 log10 log1p _npi_log _npi_log2 _npi_log10 _npi_log1p", reason="logarithm", no_bfloat16=True),
    # Powers:
    *rules(DENY, "square _npi_square broadcast_power _power _npi_power", reason="power", no_bfloat16=True),
    *rules(DENY, "_npi_ldexp _npi_polyval", reason="power", no_bfloat16=True),
    *rules(DENY, "_power_scalar _rpower_scalar", reason="power", scalars=("scalar",), no_bfloat16=True),
    *rules(DENY, "_npi_power_scalar _npi_rpower_scalar", reason="power", scalars=("scalar",), no_bfloat16=True),
    *rules(DENY, "_npi_ldexp_scalar _npi_rldexp_scalar", reason="power", scalars=("scalar",), no_bfloat16=True),
    *rules(DENY, "_contrib_quadratic", reason="power", scalars=("a", "b", "c"), no_bfloat16=True),
    *rules(DENY, "_hypot broadcast_hypot _npi_hypot", reason="sum of squares", no_bfloat16=True),
    *rules(DENY, "_hypot_scalar", reason="sum of squares", scalars=("scalar",), no_bfloat16=True),
    # Trigonometry:
    *rules(INFER, "sin cos arctan arcsinh degrees radians", no_bfloat16=True),
    *rules(INFER, "_npi_sin _npi_cos _npi_arctan _npi_arcsinh _npi_degrees _npi_radians", no_bfloat16=True),
    *rules(INFER, "_npi_arctan2", no_bfloat16=True, **short_sums(short_gradients)),
    *scalar_rules(INFER, "scalar", "_npi_arctan2_scalar _npi_rarctan2_scalar", no_bfloat16=True),
    *rules(DENY, "tan arcsin arccos arctanh arccosh gamma gammaln erfinv", reason=_STEEP, no_bfloat16=True),
    *rules(DENY, "_npi_tan _npi_arcsin _npi_arccos _npi_arctanh _npi_arccosh", reason=_STEEP, no_bfloat16=True),
)
