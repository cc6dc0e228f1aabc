"""The table: every operator that mxmp knows, one line per fact.

Operators that stand here run in low precision, or stay in float32, for the reason given; an
operator that does not stand here stays in float32 and is named in the report.

What MXNet 1.9.1 has kernels for was found by running each operator. ``no_bfloat16``: its bfloat16
kernel on CPU is missing ('Unknown type enum 12', a failed check), aborts the process or gives
wrong numbers. ``no_low``: it takes float32 alone, in neither low precision.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Tuple

from .. import dtypes
from .conditions import scalars_in_range, short_reduction, short_windows, small_magnification
from .core import ALLOW, CLEAR, DENY, INFER, Rule, RuleSet

Rules = Tuple[Rule, ...]

_FLOAT16_ALONE = frozenset({dtypes.FLOAT16})
_BFLOAT16_ALONE = frozenset({dtypes.BFLOAT16})
_NEITHER: FrozenSet[str] = frozenset()


def _rules(category: str, *ops: str, no_bfloat16: bool = False, no_low: bool = False, **fields: Any) -> Rules:
    """Return one rule per operator, alike but for the name."""
    if no_low:
        fields["dtypes"] = _NEITHER
    elif no_bfloat16:
        fields["dtypes"] = _FLOAT16_ALONE
    return tuple(Rule(op, category, **fields) for op in ops)


def _scalar_rules(category: str, keys: Tuple[str, ...], *ops: str, **fields: Any) -> Rules:
    """Return rules for operators with scalars, which must fit the low precision dtype."""
    return _rules(category, *ops, scalars=keys, condition=scalars_in_range(*keys), **fields)


def _variant(key: str, value: str) -> Tuple[Tuple[str, str], ...]:
    """Return the ``when`` of a rule for one value of one attribute."""
    return ((key, value),)


# What tensor cores and AVX512-BF16 are for.
_PRODUCTS = (
    *_rules(ALLOW, "Convolution", "FullyConnected"),
    *_rules(ALLOW, "Deconvolution", "dot", "batch_dot", no_bfloat16=True),
    *_rules(ALLOW, "_contrib_interleaved_matmul_selfatt_qk", no_bfloat16=True),
    *_rules(ALLOW, "_contrib_interleaved_matmul_selfatt_valatt", no_bfloat16=True),
    *_rules(ALLOW, "_contrib_interleaved_matmul_encdec_qk", no_bfloat16=True),
    *_rules(ALLOW, "_contrib_interleaved_matmul_encdec_valatt", no_bfloat16=True),
    # The last input of an RNN with lengths has a dtype of its own; an LSTM has one input more.
    *_rules(ALLOW, "RNN", when=(("mode", "lstm"), ("use_sequence_length", "True")), keep=(4,), no_bfloat16=True),
    *_rules(ALLOW, "RNN", when=_variant("use_sequence_length", "True"), keep=(3,), no_bfloat16=True),
    *_rules(ALLOW, "RNN", no_bfloat16=True),
)

_ARITHMETIC = (
    *_rules(INFER, "elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "add_n"),
    *_rules(INFER, "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div"),
    *_rules(INFER, "sqrt", "_contrib_div_sqrt_dim"),
    *_rules(INFER, "floor", "ceil", "round", "rint", "fix", "trunc", "sign", exact=True),
    *_rules(INFER, "broadcast_equal", "broadcast_not_equal", exact=True),
    *_rules(INFER, "broadcast_greater", "broadcast_greater_equal", exact=True),
    *_rules(INFER, "broadcast_lesser", "broadcast_lesser_equal", exact=True),
    *_rules(INFER, "sum", "mean", condition=short_reduction),
    *_scalar_rules(INFER, ("scalar",), "_plus_scalar", "_minus_scalar", "_rminus_scalar"),
    *_scalar_rules(INFER, ("scalar",), "_mul_scalar", "_div_scalar"),
    *_scalar_rules(INFER, ("scalar",), "_greater_scalar", "_greater_equal_scalar", exact=True),
    *_scalar_rules(INFER, ("scalar",), "_lesser_scalar", "_lesser_equal_scalar", exact=True),
    *_scalar_rules(INFER, ("scalar",), "_equal_scalar", "_not_equal_scalar", exact=True),
)

# Normalization with float32 parameters and statistics.
_NORMALIZATION = (
    *_rules(INFER, "BatchNorm", keep=(1, 2, 3, 4), keep_outputs=(1, 2)),
    # float16 passes type inference, but every kernel reads real_t (contrib/sync_batch_norm-inl.h).
    *_rules(INFER, "_contrib_SyncBatchNorm", keep=(1, 2, 3, 4), keep_outputs=(1, 2), no_low=True),
)

_ACTIVATIONS = (
    *_rules(CLEAR, "relu", exact=True),
    *_rules(INFER, "sigmoid", "tanh", "softsign", "erf"),
    *_rules(INFER, "hard_sigmoid", no_bfloat16=True),
    *_rules(CLEAR, "Activation", when=_variant("act_type", "relu"), exact=True),
    *_rules(DENY, "Activation", when=_variant("act_type", "softrelu"), reason="log(1 + exp(x))"),
    *_rules(INFER, "Activation", when=_variant("act_type", "softsign"), no_bfloat16=True),
    *_rules(INFER, "Activation"),
    *_rules(INFER, "LeakyReLU", when=_variant("act_type", "prelu"), no_bfloat16=True),
    *_rules(INFER, "LeakyReLU", when=_variant("act_type", "selu"), no_bfloat16=True),
    *_rules(INFER, "LeakyReLU", when=_variant("act_type", "rrelu"), no_bfloat16=True),
    *_scalar_rules(INFER, ("slope",), "LeakyReLU"),
    *_rules(INFER, "Dropout", no_bfloat16=True),
)

_POOLING = (
    *_rules(INFER, "Pooling", when=_variant("pool_type", "avg")),
    *_rules(INFER, "Pooling", when=_variant("pool_type", "sum"), no_bfloat16=True),
    *_rules(DENY, "Pooling", when=_variant("pool_type", "lp"), reason="powers and a root", no_bfloat16=True),
    *_rules(CLEAR, "Pooling", exact=True),  # 'max', said or by default
    # Running sums: in bfloat16 the average of 56x56 values is off by 92%, ...
    *_rules(INFER, "_contrib_AdaptiveAvgPooling2D", condition=short_windows, no_bfloat16=True),
    # ... and the gradient behind a magnification by 8 by 28%.
    *_rules(INFER, "_contrib_BilinearResize2D", condition=small_magnification, no_bfloat16=True),
    *_rules(CLEAR, "UpSampling", when=_variant("sample_type", "nearest"), exact=True, no_bfloat16=True),
    *_rules(INFER, "UpSampling", no_bfloat16=True),
)

# Selection by value.
_SELECTION = (
    *_rules(CLEAR, "abs", "negative", exact=True),
    *_rules(CLEAR, "max", "min", "broadcast_maximum", "broadcast_minimum", exact=True),
    *_scalar_rules(CLEAR, ("scalar",), "_maximum_scalar", "_minimum_scalar", exact=True),
    *_scalar_rules(CLEAR, ("a_min", "a_max"), "clip", exact=True),
    *_rules(CLEAR, "where", keep=(0,), exact=True),
)

_SHAPE = (
    *_rules(CLEAR, "Flatten", "Reshape", "SwapAxis", "expand_dims", "squeeze", exact=True),
    *_rules(CLEAR, "transpose", exact=True, no_bfloat16=True),  # aborts
    *_rules(CLEAR, "Concat", "stack", "tile", "repeat", "reverse", exact=True),
    *_rules(CLEAR, "slice", "slice_axis", "SliceChannel", "_split_v2", exact=True),
    *_rules(CLEAR, "slice_like", "reshape_like", "broadcast_like", any=(1,), exact=True),  # the shape alone
    *_rules(CLEAR, "shape_array", "size_array", any=(0,), keep_outputs=(0,)),
    *_rules(CLEAR, "broadcast_axis", "broadcast_to", exact=True),
    *_rules(CLEAR, "depth_to_space", "space_to_depth", exact=True),
    *_scalar_rules(CLEAR, ("constant_value",), "Pad", exact=True, no_bfloat16=True),
    *_rules(CLEAR, "amp_multicast", exact=True),  # the identity on inputs of one dtype
    *_rules(CLEAR, "BlockGrad", "_copy", "ones_like", "zeros_like", exact=True),
    *_rules(CLEAR, "_zeros", "_ones", "_full", keep_outputs=(0,)),  # their dtype is an attribute
)

# Indices and lengths above 2048 are no float16 integers.
_ROWS = (
    # In bfloat16 the gradient of a row read 5000 times is 256, a running sum that has stopped.
    *_rules(CLEAR, "Embedding", keep=(0,), exact=True, no_bfloat16=True),
    *_rules(CLEAR, "take", keep=(1,), exact=True, no_bfloat16=True),
    *_rules(CLEAR, "gather_nd", keep=(1,), exact=True, no_bfloat16=True),
    *_rules(CLEAR, "pick", keep=(1,), exact=True),
    *_scalar_rules(CLEAR, ("value",), "SequenceMask", keep=(1,), exact=True),
    *_rules(CLEAR, "SequenceReverse", "SequenceLast", keep=(1,), exact=True),
)

_FUNCTIONS = (
    *_rules(DENY, "softmax", "log_softmax", reason="exponentials and their sum"),
    *_rules(DENY, "softmin", "SoftmaxActivation", reason="exponentials and their sum", no_bfloat16=True),
    *_rules(DENY, "exp", "expm1", reason="exponential"),
    *_rules(DENY, "log", "log2", "log10", "log1p", reason="logarithm"),
    *_rules(DENY, "square", "broadcast_power", "_power", reason="power"),
    *_rules(DENY, "_power_scalar", "_rpower_scalar", reason="power", scalars=("scalar",)),
    *_rules(DENY, "rsqrt", "rcbrt", "reciprocal", reason="reciprocal"),
    *_rules(DENY, "_rdiv_scalar", reason="reciprocal", scalars=("scalar",)),
)

_STATISTICS = (
    *_rules(DENY, "LayerNorm", "GroupNorm", reason="statistics in the dtype of the data", no_bfloat16=True),
    *_rules(DENY, "InstanceNorm", reason="statistics in the dtype of the data", no_low=True),
    *_rules(DENY, "L2Normalization", "norm", reason="sum of squares", no_bfloat16=True),
    # Its own kernels read real_t (nn/lrn-inl.h), the bfloat16 one is oneDNN's.
    *_rules(DENY, "LRN", reason="sum of squares", dtypes=_BFLOAT16_ALONE),
    *_rules(DENY, "prod", "nanprod", "nansum", reason="accumulates in the dtype of the data", no_bfloat16=True),
    *_rules(DENY, "_np_cumsum", reason="accumulates in the dtype of the data", no_bfloat16=True),
)

_COUNTS = "positions and counts above 2048 are no float16 integers"  # nor those above 256 bfloat16 ones

_POSITIONS = (
    *_rules(DENY, "argmax", "argmin", "argmax_channel", reason=_COUNTS, no_bfloat16=True),
    *_rules(DENY, "topk", when=_variant("ret_typ", "value"), reason=_COUNTS, no_bfloat16=True),
    *_rules(DENY, "topk", when=_variant("ret_typ", "mask"), reason=_COUNTS, no_bfloat16=True),
    *_rules(DENY, "topk", when=_variant("ret_typ", "both"), keep_outputs=(1,), reason=_COUNTS, no_bfloat16=True),
    *_rules(DENY, "topk", keep_outputs=(0,), reason=_COUNTS, no_bfloat16=True),
    *_rules(DENY, "sort", reason="MXNet sorts no float16", no_low=True),
    *_rules(DENY, "argsort", keep_outputs=(0,), reason="MXNet sorts no float16", no_low=True),
    *_rules(DENY, "_arange", keep_outputs=(0,), reason=_COUNTS),
    *_rules(DENY, "_contrib_arange_like", reason=_COUNTS, no_bfloat16=True),
)

_LOSSES = (
    # They want labels in the dtype of the data, and labels above 2048 are no float16 integers.
    *_rules(DENY, "SoftmaxOutput", "SVMOutput", keep=(1,), reason="loss head", no_low=True),
    *_rules(DENY, "LinearRegressionOutput", "LogisticRegressionOutput", keep=(1,), reason="loss head", no_low=True),
    *_rules(DENY, "MAERegressionOutput", keep=(1,), reason="loss head", no_low=True),
    *_rules(DENY, "softmax_cross_entropy", keep=(1,), reason="loss", no_low=True),
    *_rules(DENY, "CTCLoss", keep=(1, 2, 3), reason="loss", no_low=True),  # reads real_t (nn/ctc_loss-inl.h)
    *_rules(DENY, "smooth_l1", reason="loss", scalars=("scalar",)),
    *_rules(DENY, "make_loss", reason="loss"),
    *_rules(DENY, "MakeLoss", reason="loss", no_bfloat16=True),
)

# float16 has no half pixels above 1024, so boxes are float32 even where MXNet has a kernel.
_BOXES = (
    *_rules(DENY, "_contrib_box_nms", "_contrib_box_iou", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_box_decode", "_contrib_box_encode", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_bipartite_matching", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_MultiBoxPrior", "_contrib_MultiBoxTarget", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_MultiBoxDetection", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_Proposal", "_contrib_MultiProposal", reason="box coordinates", no_low=True),
    *_rules(DENY, "_contrib_ROIAlign", "ROIPooling", keep=(1,), reason="box coordinates", no_low=True),
)

RULES = RuleSet(
    _PRODUCTS
    + _ARITHMETIC
    + _NORMALIZATION
    + _ACTIVATIONS
    + _POOLING
    + _SELECTION
    + _SHAPE
    + _ROWS
    + _FUNCTIONS
    + _STATISTICS
    + _POSITIONS
    + _LOSSES
    + _BOXES
)
"""The rules of mxmp."""
