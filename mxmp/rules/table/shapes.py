"""What moves values or makes new ones: shapes, joins, slices, constants."""

from __future__ import annotations

from ..core import CLEAR, DENY, INFER
from ..sums import short_broadcast_like, short_broadcast_to, short_copies
from .build import TYPED, Rules, kept, rules, scalar_rules

_SHAPES = (
    *rules(CLEAR, "Flatten Reshape SwapAxis expand_dims squeeze", exact=True),
    *rules(CLEAR, "_np_reshape _npx_reshape _np_squeeze _np_atleast_1d _np_atleast_2d _np_atleast_3d", exact=True),
    *rules(CLEAR, "transpose", exact=True, no_bfloat16=True),  # aborts
    *rules(CLEAR, "_np_transpose _np_moveaxis", exact=True),
    *rules(CLEAR, "reverse _npi_flip _npi_rot90 _np_roll _shuffle", exact=True),
    *rules(CLEAR, "depth_to_space space_to_depth", exact=True),
    *rules(CLEAR, "im2col", exact=True, no_bfloat16=True),
    *rules(INFER, "col2im", no_bfloat16=True),  # adds where windows overlap
    *rules(CLEAR, "BlockGrad _copy _np_copy", exact=True),
    *rules(CLEAR, "_identity_with_attr_like_rhs", shape_only=(1,), exact=True),
    *rules(CLEAR, "amp_multicast", exact=True),  # the identity on inputs of one dtype
)

_BROADCASTS = (
    # In bfloat16 the sums of their gradients cut off what does not fit.
    *rules(CLEAR, "broadcast_axis tile repeat", exact=True, no_bfloat16=True, condition=short_copies, taints=False),
    *rules(
        CLEAR,
        "broadcast_to _npi_broadcast_to",
        exact=True,
        no_bfloat16=True,
        condition=short_broadcast_to,
        taints=False,
    ),
    *rules(
        CLEAR, "broadcast_like", any=(1,), exact=True, no_bfloat16=True, condition=short_broadcast_like, taints=False
    ),
    *rules(CLEAR, "slice_like reshape_like", any=(1,), exact=True),  # the shape alone
    *rules(CLEAR, "shape_array size_array _contrib_index_array _npi_diag_indices_from", any=(0,), keep_outputs=(0,)),
)

_JOINS = (
    *rules(CLEAR, "Concat stack _rnn_param_concat", exact=True),
    *rules(CLEAR, "_npi_concatenate _npi_stack _npi_vstack _npi_column_stack", exact=True),
    # Behind a cast a bound symbol does not infer their shapes (HStackShape in numpy/np_matrix_op.cc).
    *rules(CLEAR, "_npi_hstack _npi_dstack", exact=True, no_low=True),
    *rules(CLEAR, "SliceChannel _split_v2 _npi_hsplit _npi_dsplit", exact=True),
)

_SLICES = (
    *rules(CLEAR, "slice slice_axis _slice_assign", exact=True),
    *rules(CLEAR, "Crop", shape_only=(1,), exact=True, no_low=True),  # refuses both
    *scalar_rules(CLEAR, "scalar", "_slice_assign_scalar", exact=True),
    *rules(CLEAR, "diag _np_diag _np_diagflat _np_diagonal _npi_tril", exact=True),
    *scalar_rules(CLEAR, "constant_value", "Pad", exact=True, no_bfloat16=True),
    *scalar_rules(CLEAR, "constant_value", "_npi_pad", exact=True),
)

# The dtype of what they make is an attribute. Those with a value are infer, so that one beyond the
# range of float16 (a mask of -1e9) keeps what computes with it in float32.
_CONSTANTS = (
    *rules(CLEAR, "_zeros _ones _npi_zeros _npi_ones _zeros_without_dtype", keep_outputs=(0,)),
    *rules(CLEAR, "_eye _npi_eye _npi_identity _npi_hanning _npi_hamming _npi_blackman", keep_outputs=(0,)),
    *scalar_rules(INFER, "value", "_full", keep_outputs=(0,)),
    *scalar_rules(INFER, "on_value off_value", "one_hot", keep=(0,), keep_outputs=(0,)),
    *rules(CLEAR, "ones_like zeros_like", shape_only=(0,), exact=True),
    *scalar_rules(INFER, "fill_value", "_npi_full_like", when=TYPED, any=(0,), keep_outputs=(0,)),
    *scalar_rules(INFER, "fill_value", "_npi_full_like", shape_only=(0,), exact=True),
)

COUNTS = "positions and counts above 2048 are no float16 integers"  # nor those above 256 bfloat16 ones

_RANGES = (
    *rules(DENY, "_arange _npi_arange _linspace _npi_indices", keep_outputs=(0,), reason=COUNTS, positions=True),
    *rules(DENY, "_npi_logspace", keep_outputs=(0,), reason="power"),
    *rules(DENY, "_contrib_arange_like", shape_only=(0,), reason=COUNTS, positions=True, no_bfloat16=True),
    *kept(DENY, "_ravel_multi_index _unravel_index", COUNTS, positions=True),
)

SHAPES: Rules = _SHAPES + _BROADCASTS + _JOINS + _SLICES + _CONSTANTS + _RANGES
