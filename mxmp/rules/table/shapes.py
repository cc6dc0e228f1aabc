"""Operators that move values, make constants or give positions: shapes, slices, rows by index, ranges, coordinates."""

from __future__ import annotations

from typing import Any, Dict

from ..conditions import (
    few_points,
    few_rows,
    row_sparse_gradient,
    short_broadcast_like,
    short_broadcast_to,
    short_copies,
)
from ..core import CLEAR, DENY, INFER
from .build import TYPED, Rules, moves, never_cast, rules, scalar_rules, short_sums, variant

COUNTS = "positions and counts above 2048 are no float16 integers"  # nor those above 256 bfloat16 ones

_SPARSE = variant("sparse_grad", "True")
_IN_PLACE = "writes into its input"
# float16 has no half pixels above 1024, so coordinates are float32 even where MXNet has a kernel.
_BOXES = "box coordinates"
_COUNTS: Dict[str, Any] = {"reason": COUNTS, "gives_indices": True, "no_bfloat16": True}

SHAPES: Rules = (
    # Shapes:
    *moves("Flatten Reshape SwapAxis expand_dims squeeze"),
    *moves("_np_reshape _npx_reshape _np_squeeze _np_atleast_1d _np_atleast_2d _np_atleast_3d"),
    *moves("transpose", no_bfloat16=True),  # aborts
    *moves("_np_transpose _np_moveaxis"),
    *moves("reverse _npi_flip _npi_rot90 _np_roll _shuffle depth_to_space space_to_depth"),
    *moves("im2col", no_bfloat16=True),
    *rules(INFER, "col2im", no_bfloat16=True),  # adds where windows overlap
    *moves("BlockGrad _copy _np_copy"),
    *moves("_identity_with_attr_like_rhs", shape_only=(1,)),
    *moves("amp_multicast"),  # the identity on inputs of one dtype
    # Broadcasts:
    # In bfloat16 the sums of their gradients truncate.
    *moves("broadcast_axis tile repeat", no_bfloat16=True, **short_sums(short_copies)),
    *moves("broadcast_to _npi_broadcast_to", no_bfloat16=True, **short_sums(short_broadcast_to)),
    *moves("broadcast_like", any_dtype=(1,), no_bfloat16=True, **short_sums(short_broadcast_like)),
    *moves("slice_like reshape_like", any_dtype=(1,)),  # the shape alone
    *rules(CLEAR, "shape_array size_array _contrib_index_array", any_dtype=(0,), keep_outputs=(0,)),
    *rules(CLEAR, "_npi_diag_indices_from", any_dtype=(0,), keep_outputs=(0,)),
    # Joins:
    *moves("Concat stack _rnn_param_concat"),
    *moves("_npi_concatenate _npi_stack _npi_vstack _npi_column_stack"),
    # Behind a cast a bound symbol does not infer their shapes (HStackShape in numpy/np_matrix_op.cc).
    *moves("_npi_hstack _npi_dstack", no_low=True),
    *moves("SliceChannel _split_v2 _npi_hsplit _npi_dsplit"),
    # Slices:
    *moves("slice slice_axis _slice_assign"),
    *moves("Crop", shape_only=(1,), no_low=True),  # refuses both
    *moves("_slice_assign_scalar", scalars="scalar"),
    *moves("diag _np_diag _np_diagflat _np_diagonal _npi_tril"),
    *moves("Pad", scalars="constant_value", no_bfloat16=True),
    *moves("_npi_pad", scalars="constant_value"),
    # Constants: The dtype of their output is an attribute. Those with a value are infer. So a value beyond the range of
    # float16 (a mask of -1e9) keeps its readers in float32.
    *rules(CLEAR, "_zeros _ones _npi_zeros _npi_ones _zeros_without_dtype", keep_outputs=(0,)),
    *rules(CLEAR, "_eye _npi_eye _npi_identity _npi_hanning _npi_hamming _npi_blackman", keep_outputs=(0,)),
    *scalar_rules(INFER, "value", "_full", keep_outputs=(0,)),
    *scalar_rules(INFER, "on_value off_value", "one_hot", keep=(0,), keep_outputs=(0,)),
    *moves("ones_like zeros_like", shape_only=(0,)),
    *scalar_rules(INFER, "fill_value", "_npi_full_like", when=TYPED, any_dtype=(0,), keep_outputs=(0,)),
    *scalar_rules(INFER, "fill_value", "_npi_full_like", shape_only=(0,), preserves_grid=True),
    # Ranges:
    *rules(DENY, "_arange _npi_arange _linspace _npi_indices", keep_outputs=(0,), reason=COUNTS, gives_indices=True),
    *rules(DENY, "_npi_logspace", keep_outputs=(0,), reason="power"),
    *rules(DENY, "_contrib_arange_like", shape_only=(0,), reason=COUNTS, gives_indices=True, no_bfloat16=True),
    *never_cast(DENY, "_ravel_multi_index _unravel_index", COUNTS, gives_indices=True),
    # Rows read by index:
    # In bfloat16 the gradient of a row read 5000 times is 256, a running sum that has stopped.
    *moves("Embedding", when=_SPARSE, keep=(0,), no_bfloat16=True, condition=row_sparse_gradient, taints=False),
    *moves("Embedding", keep=(0,), no_bfloat16=True, **short_sums(few_rows)),
    *moves("take", keep=(1,), no_bfloat16=True, **short_sums(few_rows)),
    *moves("gather_nd", keep=(1,), no_bfloat16=True, **short_sums(few_points)),
    *moves("pick batch_take _contrib_boolean_mask", keep=(1,)),
    # Rows written by index:
    *moves("scatter_nd _contrib_index_copy _npi_delete", keep=(1,)),
    *moves("_npi_insert_scalar _npi_insert_slice", scalars="val"),
    *moves("_npi_insert_tensor", scalars="val", keep=(2,)),
    *never_cast(DENY, "_scatter_set_nd _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor", _IN_PLACE),
    # Sequences:
    *moves("SequenceMask", scalars="value", keep=(1,)),
    *moves("SequenceReverse SequenceLast", keep=(1,)),
    # Positions:
    *rules(DENY, "argmax argmin argmax_channel", **_COUNTS),
    *rules(DENY, "_npi_argmax _npi_argmin", keep_outputs=(0,), **_COUNTS),
    *rules(DENY, "topk", when=variant("ret_typ", "value"), reason=COUNTS, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "mask"), reason=COUNTS, no_bfloat16=True),
    *rules(DENY, "topk", when=variant("ret_typ", "both"), keep_outputs=(1,), **_COUNTS),
    *rules(DENY, "topk", keep_outputs=(0,), **_COUNTS),
    *rules(DENY, "sort", reason="MXNet sorts no float16", no_low=True),
    *rules(DENY, "argsort", keep_outputs=(0,), reason="MXNet sorts no float16", gives_indices=True, no_low=True),
    *never_cast(DENY, "_npx_nonzero _npi_unique", COUNTS, gives_indices=True),
    # Coordinates:
    *rules(DENY, "BilinearSampler GridGenerator SpatialTransformer", reason="coordinates", no_low=True),
    *rules(DENY, "_contrib_box_nms _contrib_box_iou _contrib_bipartite_matching", reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_MultiBoxPrior", shape_only=(0,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_box_decode _contrib_box_encode _contrib_MultiBoxDetection", reason=_BOXES, no_low=True),
    # MultiBoxTargetOp::Backward (src/operator/contrib/multibox_target-inl.h) writes only the gradient of cls_pred.
    *rules(DENY, "_contrib_MultiBoxTarget", reason=_BOXES, no_low=True, unwritten_gradient=True),
    *rules(DENY, "_contrib_Proposal _contrib_MultiProposal", reason=_BOXES, no_low=True),
    *rules(DENY, "ROIPooling _contrib_ROIAlign _contrib_RROIAlign", keep=(1,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_PSROIPooling _contrib_DeformablePSROIPooling", keep=(1,), reason=_BOXES, no_low=True),
)
