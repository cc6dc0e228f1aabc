"""Operators of computer vision: pooling, resizing, boxes and images."""

from __future__ import annotations

from ..conditions import short_pooling, short_windows, small_magnification
from ..core import DENY, GIVEN, INFER
from ..sums import short_upsampling
from .build import Rules, moves, never_cast, rules, short_sums, variant

# float16 has no half pixels above 1024, so coordinates are float32 even where MXNet has a kernel.
_BOXES = "box coordinates"
_PREPROCESSING = """
    _image_to_tensor _image_normalize _image_resize _image_crop _image_adjust_lighting _image_flip_left_right
    _image_flip_top_bottom _image_random_flip_left_right _image_random_flip_top_bottom _image_random_lighting
    _image_random_brightness _image_random_contrast _image_random_saturation _image_random_hue
    _image_random_color_jitter
"""

VISION: Rules = (
    # Pooling:
    *rules(INFER, "Pooling", when=variant("pool_type", "sum"), no_bfloat16=True),
    *rules(DENY, "Pooling", when=variant("pool_type", "lp"), reason="powers and a root", no_bfloat16=True),
    # oneDNN, which has the bfloat16 kernels, wants a kernel even where global_pool makes it needless.
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", "()"), no_bfloat16=True),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", GIVEN)),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg"), no_bfloat16=True),
    *moves("Pooling", when=variant("kernel", "()"), no_bfloat16=True),  # 'max', said or by default
    *moves("Pooling", when=variant("kernel", GIVEN)),
    *moves("Pooling", no_bfloat16=True),
    *rules(INFER, "Pooling_v1", when=variant("pool_type", "avg"), condition=short_pooling, no_bfloat16=True),
    *rules(INFER, "Pooling_v1", when=variant("pool_type", "sum"), condition=short_pooling, no_bfloat16=True),
    *moves("Pooling_v1", no_bfloat16=True),
    # Running sums: in bfloat16 the average of 56x56 values is off by 92%, ...
    *rules(INFER, "_contrib_AdaptiveAvgPooling2D", condition=short_windows, no_bfloat16=True),
    # ... and the gradient behind a magnification by 8 by 28%.
    *rules(INFER, "_contrib_BilinearResize2D", shape_only=(1,), condition=small_magnification, no_bfloat16=True),
    *moves("UpSampling", when=variant("sample_type", "nearest"), no_bfloat16=True, **short_sums(short_upsampling)),
    *rules(INFER, "UpSampling", no_bfloat16=True),
    # Coordinates:
    *rules(DENY, "BilinearSampler GridGenerator SpatialTransformer", reason="coordinates", no_low=True),
    *rules(DENY, "_contrib_box_nms _contrib_box_iou _contrib_bipartite_matching", reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_MultiBoxPrior", shape_only=(0,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_box_decode _contrib_box_encode _contrib_MultiBoxDetection", reason=_BOXES, no_low=True),
    # MultiBoxTargetOp::Backward (src/operator/contrib/multibox_target-inl.h) writes the gradient of cls_pred alone.
    *rules(DENY, "_contrib_MultiBoxTarget", reason=_BOXES, no_low=True, unwritten_gradient=True),
    *rules(DENY, "_contrib_Proposal _contrib_MultiProposal", reason=_BOXES, no_low=True),
    *rules(DENY, "ROIPooling _contrib_ROIAlign _contrib_RROIAlign", keep=(1,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_PSROIPooling _contrib_DeformablePSROIPooling", keep=(1,), reason=_BOXES, no_low=True),
    *never_cast(DENY, _PREPROCESSING, "preprocesses pictures"),
)
