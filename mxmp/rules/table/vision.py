"""Pooling, resizing, boxes and images."""

from __future__ import annotations

from ..conditions import short_windows, small_magnification
from ..core import CLEAR, DENY, GIVEN, INFER
from ..sums import short_upsampling
from .build import Rules, kept, rules, variant

_POOLING = (
    *rules(INFER, "Pooling", when=variant("pool_type", "sum"), no_bfloat16=True),
    *rules(DENY, "Pooling", when=variant("pool_type", "lp"), reason="powers and a root", no_bfloat16=True),
    # oneDNN, which has the bfloat16 kernels, wants a kernel even where global_pool makes it needless.
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", "()"), no_bfloat16=True),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", GIVEN)),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg"), no_bfloat16=True),
    *rules(CLEAR, "Pooling", when=variant("kernel", "()"), exact=True, no_bfloat16=True),  # 'max', said or by default
    *rules(CLEAR, "Pooling", when=variant("kernel", GIVEN), exact=True),
    *rules(CLEAR, "Pooling", exact=True, no_bfloat16=True),
    *rules(INFER, "Pooling_v1", when=variant("pool_type", "avg"), no_bfloat16=True),
    *rules(INFER, "Pooling_v1", when=variant("pool_type", "sum"), no_bfloat16=True),
    *rules(CLEAR, "Pooling_v1", exact=True, no_bfloat16=True),
    # Running sums: in bfloat16 the average of 56x56 values is off by 92%, ...
    *rules(INFER, "_contrib_AdaptiveAvgPooling2D", condition=short_windows, no_bfloat16=True),
    # ... and the gradient behind a magnification by 8 by 28%.
    *rules(INFER, "_contrib_BilinearResize2D", shape_only=(1,), condition=small_magnification, no_bfloat16=True),
    *rules(
        CLEAR,
        "UpSampling",
        when=variant("sample_type", "nearest"),
        exact=True,
        no_bfloat16=True,
        condition=short_upsampling,
        taints=False,
    ),
    *rules(INFER, "UpSampling", no_bfloat16=True),
)

# float16 has no half pixels above 1024, so coordinates are float32 even where MXNet has a kernel.
_BOXES = "box coordinates"

_COORDINATES = (
    *rules(DENY, "BilinearSampler GridGenerator SpatialTransformer", reason="coordinates", no_low=True),
    *rules(DENY, "_contrib_box_nms _contrib_box_iou _contrib_bipartite_matching", reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_box_decode _contrib_box_encode", reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_MultiBoxPrior", shape_only=(0,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_MultiBoxDetection", reason=_BOXES, no_low=True),
    # MultiBoxTargetOp::Backward (src/operator/contrib/multibox_target-inl.h) writes the gradient of cls_pred alone.
    *rules(DENY, "_contrib_MultiBoxTarget", reason=_BOXES, no_low=True, unwritten_gradient=True),
    *rules(DENY, "_contrib_Proposal _contrib_MultiProposal", reason=_BOXES, no_low=True),
    *rules(DENY, "ROIPooling _contrib_ROIAlign _contrib_RROIAlign", keep=(1,), reason=_BOXES, no_low=True),
    *rules(DENY, "_contrib_PSROIPooling _contrib_DeformablePSROIPooling", keep=(1,), reason=_BOXES, no_low=True),
)

_PICTURE = "preprocesses pictures"

_IMAGES = (
    *kept(DENY, "_image_to_tensor _image_normalize _image_resize _image_crop _image_adjust_lighting", _PICTURE),
    *kept(DENY, "_image_flip_left_right _image_flip_top_bottom", _PICTURE),
    *kept(DENY, "_image_random_flip_left_right _image_random_flip_top_bottom _image_random_lighting", _PICTURE),
    *kept(DENY, "_image_random_brightness _image_random_contrast _image_random_saturation", _PICTURE),
    *kept(DENY, "_image_random_hue _image_random_color_jitter", _PICTURE),
)

VISION: Rules = _POOLING + _COORDINATES + _IMAGES
