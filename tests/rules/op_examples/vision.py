"""Pooling, resizing, boxes and images."""

from .core import DISTINCT, MAP, Example, same

POOL = {"kernel": (2, 2), "stride": (2, 2)}
_SPATIAL = (
    Example("Pooling", (MAP,), {**POOL, "pool_type": "max"}, DISTINCT),
    Example(
        "Pooling",
        (MAP,),
        {"kernel": (3, 3), "pool_type": "max", "stride": (2, 2), "pooling_convention": "full"},
        DISTINCT,
    ),
    Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "max", "pad": (1, 1)}, DISTINCT),
    Example("Pooling", (MAP,), {"kernel": (1, 1), "pool_type": "max", "global_pool": True}, DISTINCT),
    Example("Pooling", (MAP,), {"pool_type": "max", "global_pool": True}, DISTINCT),
    Example("Pooling", (MAP,), {"kernel": (), "global_pool": True}, DISTINCT),
    Example("Pooling", (MAP,), {"pool_type": "avg", "global_pool": True}),
    Example("Pooling", (MAP,), {"kernel": (), "pool_type": "avg", "global_pool": True}),
    Example("Pooling", ((2, 4, 6),), {"kernel": (2,), "pool_type": "max"}, DISTINCT),
    Example("Pooling", (MAP,), {**POOL, "pool_type": "avg"}),
    Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "pad": (1, 1)}),
    Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "pad": (1, 1), "count_include_pad": False}),
    Example(
        "Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pooling_convention": "full"}
    ),
    Example("Pooling", (MAP,), {"kernel": (2, 2)}, DISTINCT),
    Example("Pooling", (MAP,), {"kernel": (1, 1), "pool_type": "avg", "global_pool": True}),
    Example("Pooling", ((2, 4, 3, 3, 3),), {"kernel": (2, 2, 2), "pool_type": "avg"}),
    Example("Pooling", (MAP,), {**POOL, "pool_type": "sum"}),
    Example("Pooling", (MAP,), {**POOL, "pool_type": "lp", "p_value": 2}),
    Example("_contrib_AdaptiveAvgPooling2D", (MAP,), {"output_size": (1, 1)}),
    Example("_contrib_AdaptiveAvgPooling2D", (MAP,), {"output_size": (3, 3)}),
    Example("_contrib_BilinearResize2D", (MAP,), {"height": 8, "width": 8}),
    Example("_contrib_BilinearResize2D", (MAP,), {"height": 7, "width": 3, "align_corners": False}),
    Example("_contrib_BilinearResize2D", (MAP, (2, 4, 8, 8)), {"mode": "like"}),
    Example("_contrib_BilinearResize2D", (MAP,), {"scale_height": 2, "scale_width": 2, "mode": "odd_scale"}),
    Example("UpSampling", (MAP,), {"scale": 2, "sample_type": "nearest", "num_args": 1}),
    Example(
        "UpSampling", (MAP, (4, 1, 4, 4)), {"scale": 2, "sample_type": "bilinear", "num_filter": 4, "num_args": 2}
    ),
    *same("depth_to_space space_to_depth", MAP, block_size=2),
    Example("Pad", (MAP,), {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1), "constant_value": 0.5}),
    Example("Pad", (MAP,), {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1)}),
    Example("Pooling_v1", (MAP,), {**POOL, "pool_type": "max"}, DISTINCT),
    Example("Pooling_v1", (MAP,), {**POOL, "pool_type": "avg"}),
    Example("Pooling_v1", (MAP,), {**POOL, "pool_type": "sum"}),
    *same("BilinearSampler", MAP, (2, 2, 3, 3)),
    *same("GridGenerator", (2, 6), transform_type="affine", target_shape=(3, 3)),
    *same("GridGenerator", (2, 2, 3, 3), transform_type="warp"),
    Example(
        "SpatialTransformer",
        (MAP, (2, 6)),
        {"transform_type": "affine", "sampler_type": "bilinear", "target_shape": (3, 3)},
    ),
)

ANCHORS, CORNERS = (1, 5, 4), {0: "boxes", 1: "boxes"}
PROPOSAL = {"feature_stride": 4, "scales": (1,), "ratios": (1,), "rpn_pre_nms_top_n": 12, "rpn_post_nms_top_n": 4}
_BOXES_EXAMPLES = (
    Example("_contrib_box_nms", ((2, 5, 6),), {}, {0: "scored"}),
    Example("_contrib_box_decode", (ANCHORS, ANCHORS), {}, {1: "boxes"}),
    Example(
        "_contrib_box_encode",
        ((1, 5), (1, 5), ANCHORS, (1, 2, 4), (4,), (4,)),
        {},
        {0: "index", 1: "index", 2: "boxes", 3: "boxes", 5: "positive"},
        outputs=2,
    ),
    Example("_contrib_box_iou", ((5, 4), (3, 4)), {}, CORNERS),
    Example("_contrib_bipartite_matching", ((1, 4, 3),), {"threshold": 0.1}, {0: "probability"}, outputs=2),
    Example("_contrib_MultiBoxPrior", (MAP,), {"sizes": (0.5,), "ratios": (1.0,)}),
    Example("_contrib_MultiBoxTarget", ((1, 5, 4), (1, 2, 5), (1, 3, 5)), {}, {0: "boxes", 1: "labels"}, outputs=3),
    Example("_contrib_MultiBoxDetection", ((1, 3, 5), (1, 20), (1, 5, 4)), {}, {0: "probability", 2: "boxes"}),
    Example("_contrib_Proposal", ((1, 2, 4, 4), (1, 4, 4, 4), (1, 3)), PROPOSAL, {0: "probability", 2: "positive"}),
    Example(
        "_contrib_MultiProposal", ((1, 2, 4, 4), (1, 4, 4, 4), (1, 3)), PROPOSAL, {0: "probability", 2: "positive"}
    ),
    Example(
        "_contrib_ROIAlign", ((1, 4, 8, 8), (3, 5)), {"pooled_size": (2, 2), "spatial_scale": 1.0}, {1: "rois"}
    ),
    Example("ROIPooling", ((1, 4, 8, 8), (3, 5)), {"pooled_size": (2, 2), "spatial_scale": 1.0}, {1: "rois"}),
    Example(
        "_contrib_RROIAlign",
        ((1, 4, 8, 8), (3, 6)),
        {"pooled_size": (2, 2), "spatial_scale": 1.0},
        {1: "zero"},
        1,
        False,
    ),
    Example(
        "_contrib_PSROIPooling",
        ((1, 4, 8, 8), (3, 5)),
        {"output_dim": 1, "pooled_size": 2, "group_size": 2, "spatial_scale": 1.0},
        {1: "rois"},
    ),
    Example(
        "_contrib_DeformablePSROIPooling",
        ((1, 4, 8, 8), (3, 5)),
        {"output_dim": 1, "pooled_size": 2, "group_size": 2, "spatial_scale": 1.0, "no_trans": True},
        {1: "rois"},
    ),
)

PICTURE, BYTE = (6, 6, 3), {0: "uint8"}
_IMAGES = (
    *same("_image_to_tensor", PICTURE, kinds=BYTE),
    *same("_image_normalize", (3, 6, 6), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
    *same("_image_resize", PICTURE, kinds=BYTE, size=(3, 3)),
    *same("_image_crop", PICTURE, x=1, y=1, width=3, height=3),
    *same("_image_flip_left_right _image_flip_top_bottom", PICTURE),
    *same("_image_random_flip_left_right _image_random_flip_top_bottom", PICTURE),
    *same("_image_adjust_lighting", PICTURE, alpha=(0.5, 0.5, 0.5)),
    *same(
        "_image_random_brightness _image_random_contrast _image_random_saturation",
        PICTURE,
        min_factor=0.5,
        max_factor=1.5,
    ),
    *same("_image_random_hue", PICTURE, min_factor=0.5, max_factor=1.5),
    *same("_image_random_color_jitter", PICTURE, brightness=0.5, contrast=0.5, saturation=0.5, hue=0.5),
    *same("_image_random_lighting", PICTURE),
)

VISION = _IMAGES + _SPATIAL + _BOXES_EXAMPLES
