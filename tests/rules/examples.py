"""Calls of every operator that has a rule: shapes and values of the inputs, and attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from mxmp.rules import RULES, Rule

MAP = (2, 4, 4, 4)
"""A small batch of feature maps (N, C, H, W)."""


@dataclass(frozen=True)
class Example:
    """One call of an operator.

    Attributes:
        op: The operator's name in graphs.
        shapes: Shape of each input.
        attrs: The call's attributes.
        kinds: What an input that is no plain data holds: a key of ``KINDS``.
        outputs: How many outputs a graph sees.
        differentiable: Whether MXNet has a gradient for it.
    """

    op: str
    shapes: Tuple[Tuple[int, ...], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)
    outputs: int = 1
    differentiable: bool = True

    def __str__(self) -> str:
        attrs = ",".join(f"{key}={value}" for key, value in self.attrs.items()).replace(" ", "")
        return f"{self.op}({attrs})"

    @property
    def text_attrs(self) -> Dict[str, str]:
        """The attributes as a graph has them."""
        return {key: str(value) for key, value in self.attrs.items()}

    @property
    def rule(self) -> Rule:
        """The rule for this call."""
        found = RULES.find(self.op, self.text_attrs)
        assert found is not None, f"{self} has no rule"
        return found

    @property
    def data_ports(self) -> List[int]:
        """The inputs that the rule casts."""
        return [port for port in range(len(self.shapes)) if self.rule.is_data(port)]

    def arrays(self, seed: int = 0) -> List[np.ndarray]:
        """Return inputs, float32 values that float16 and bfloat16 both have."""
        rng = np.random.default_rng(seed)
        return [KINDS[self.kinds.get(port, "data")](rng, shape) for port, shape in enumerate(self.shapes)]


def _data(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    return (rng.integers(16, 128, shape) * rng.choice((-1, 1), shape) / 64).astype(np.float32)


def _distinct(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return values without ties, so that it is defined which one a maximum takes."""
    count = int(np.prod(shape))
    assert count <= 256
    return ((rng.permutation(count).reshape(shape) - count // 2) / 64).astype(np.float32)


def _boxes(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return rows (x, y, x + w, y + h) within the unit square."""
    corner, size = rng.integers(0, 16, (2, *shape[:-1], 2))
    return (np.concatenate([corner, corner + size + 1], axis=-1) / 32).astype(np.float32)


def _rois(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    return np.concatenate([np.zeros((*shape[:-1], 1), np.float32), _boxes(rng, (*shape[:-1], 4)) * 4], axis=-1)


def _scored(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return rows (class, score, box)."""
    scores = np.stack([np.zeros(shape[:-1]), rng.integers(1, 32, shape[:-1]) / 32], axis=-1)
    return np.concatenate([scores, _boxes(rng, (*shape[:-1], 4))], axis=-1).astype(np.float32)


KINDS = {
    "data": _data,
    "distinct": _distinct,
    "positive": lambda rng, shape: np.abs(_data(rng, shape)),
    "index": lambda rng, shape: rng.integers(0, 3, shape).astype(np.float32),
    "length": lambda rng, shape: rng.integers(1, shape[0] + 1, shape).astype(np.float32),
    "probability": lambda rng, shape: (rng.integers(1, 32, shape) / 32).astype(np.float32),
    "boxes": _boxes,
    "rois": _rois,
    "scored": _scored,
    "labels": lambda rng, shape: np.concatenate([np.zeros((*shape[:-1], 1)), _boxes(rng, (*shape[:-1], 4))], -1),
}

_ALL_DATA: Mapping[int, str] = {}
_POSITIVE = {0: "positive"}
_DISTINCT = {0: "distinct"}


def _same(ops: str, *shapes: Tuple[int, ...], kinds: Mapping[int, str] = _ALL_DATA, **attrs: Any) -> List[Example]:
    """Return one example for each of the operators that ``ops`` names."""
    return [Example(op, shapes, attrs, kinds) for op in ops.split()]


def _convolutions() -> List[Example]:
    image, three, row = (2, 8, 6, 6), {"kernel": (3, 3), "num_filter": 4}, (2, 8, 6)
    wide = (2, 32, 8, 8)  # channels in full vectors, so that oneDNN takes its fast kernels
    return [
        Example("Convolution", (image, (4, 8, 3, 3), (4,)), three),
        Example("Convolution", (image, (4, 8, 3, 3)), {**three, "no_bias": True, "pad": (1, 1), "stride": (2, 2)}),
        Example("Convolution", (image, (4, 8, 3, 3), (4,)), {**three, "dilate": (2, 2), "pad": (2, 2)}),
        Example("Convolution", (image, (4, 4, 3, 3), (4,)), {**three, "num_group": 2}),
        Example("Convolution", (image, (8, 1, 3, 3), (8,)), {"kernel": (3, 3), "num_filter": 8, "num_group": 8}),
        Example("Convolution", (image, (4, 8, 1, 1), (4,)), {"kernel": (1, 1), "num_filter": 4}),
        Example("Convolution", (row, (4, 8, 3), (4,)), {"kernel": (3,), "num_filter": 4}),
        Example("Convolution", ((2, 8, 4, 4, 4), (4, 8, 3, 3, 3), (4,)), {"kernel": (3, 3, 3), "num_filter": 4}),
        Example("Convolution", (wide, (32, 32, 3, 3)), {"kernel": (3, 3), "num_filter": 32, "no_bias": True}),
        Example("Convolution", (wide, (64, 32, 1, 1)), {"kernel": (1, 1), "num_filter": 64, "no_bias": True}),
        Example("Deconvolution", (image, (8, 4, 3, 3)), three),
        Example(
            "Deconvolution",
            (image, (8, 2, 4, 4), (4,)),
            {"kernel": (4, 4), "stride": (2, 2), "num_filter": 4, "num_group": 2, "no_bias": False},
        ),
    ]


def _products() -> List[Example]:
    lstm = {"state_size": 6, "num_layers": 1, "mode": "lstm", "state_outputs": True}
    gru = {"state_size": 6, "num_layers": 1, "mode": "gru", "bidirectional": True}
    return [
        Example("FullyConnected", ((4, 8), (5, 8), (5,)), {"num_hidden": 5}),
        Example("FullyConnected", ((2, 3, 8), (5, 8)), {"num_hidden": 5, "no_bias": True, "flatten": False}),
        Example("FullyConnected", (MAP, (32, 64), (32,)), {"num_hidden": 32}),
        Example("dot", ((4, 8), (8, 5))),
        Example("dot", ((8, 4), (5, 8)), {"transpose_a": True, "transpose_b": True}),
        Example("batch_dot", ((3, 4, 8), (3, 8, 5))),
        Example("batch_dot", ((3, 4, 8), (3, 5, 8)), {"transpose_b": True}),
        Example("RNN", ((5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6)), lstm, outputs=3),
        Example(
            "RNN",
            ((5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6), (2,)),
            {**lstm, "use_sequence_length": True},
            {4: "length"},
            outputs=3,
        ),
        Example(
            "RNN",
            ((5, 2, 8), (2 * 3 * 6 * (8 + 6 + 2),), (2, 2, 6), (2,)),
            {**gru, "use_sequence_length": True},
            {3: "length"},
        ),
        Example("RNN", ((5, 2, 8), (2 * 3 * 6 * (8 + 6 + 2),), (2, 2, 6)), gru),
        Example("_contrib_interleaved_matmul_selfatt_qk", ((5, 2, 24),), {"heads": 2}),
        Example("_contrib_interleaved_matmul_selfatt_valatt", ((5, 2, 24), (4, 5, 5)), {"heads": 2}),
        Example("_contrib_interleaved_matmul_encdec_qk", ((5, 2, 8), (5, 2, 16)), {"heads": 2}),
        Example("_contrib_interleaved_matmul_encdec_valatt", ((5, 2, 16), (4, 5, 5)), {"heads": 2}),
    ]


def _norms() -> List[Example]:
    four = ((4,),) * 4
    kinds = {1: "positive", 4: "positive"}
    wide = ((2, 32, 4, 4), *((32,),) * 4)
    return [
        Example("BatchNorm", (MAP, *four), {"fix_gamma": False}, kinds),
        Example("BatchNorm", (MAP, *four), {"fix_gamma": True, "eps": 1e-5}, kinds),
        Example("BatchNorm", (MAP, *four), {"fix_gamma": False, "axis": -1}, kinds),
        Example("BatchNorm", (MAP, *four), {"fix_gamma": False, "axis": 2}, kinds),
        Example("BatchNorm", (MAP, *four), {"fix_gamma": False, "use_global_stats": True}, kinds),
        Example("BatchNorm", ((8, 4), *four), {"fix_gamma": False}, kinds),
        Example("BatchNorm", ((2, 4, 6), *four), {"fix_gamma": False}, kinds),
        Example("BatchNorm", ((2, 4, 3, 3, 3), *four), {"fix_gamma": False}, kinds),
        Example("BatchNorm", wide, {"fix_gamma": False}, kinds),
        Example("_contrib_SyncBatchNorm", (MAP, *four), {"fix_gamma": False, "key": "norm"}, kinds),
        Example("LayerNorm", ((4, 8), (8,), (8,))),
        Example("GroupNorm", (MAP, (2,), (2,)), {"num_groups": 2}),
        Example("InstanceNorm", (MAP, (4,), (4,))),
        Example("L2Normalization", (MAP,)),
        Example("LRN", (MAP,), {"nsize": 3}),
        Example("norm", (MAP,)),
    ]


def _arithmetic() -> List[Example]:
    column = (2, 4, 1, 1)
    scalar_ops = "_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar"
    compare = (
        "_greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar _equal_scalar _not_equal_scalar"
    )
    return [
        *_same("elemwise_add elemwise_sub elemwise_mul elemwise_div", MAP, MAP),
        *_same("elemwise_add elemwise_mul", (2, 3, 5), (2, 3, 5)),
        *_same("broadcast_add broadcast_sub broadcast_mul broadcast_div", MAP, column),
        *_same("broadcast_add broadcast_mul", MAP, MAP),
        *_same("broadcast_maximum broadcast_minimum", MAP, column),
        *_same("broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal", MAP, column),
        *_same("broadcast_lesser broadcast_lesser_equal", MAP, column),
        *_same("floor ceil round rint fix trunc sign", MAP),
        *_same("broadcast_power _power", MAP, MAP, kinds={0: "positive", 1: "positive"}),
        *_same("add_n", MAP, MAP, MAP, num_args=3),
        *_same(scalar_ops, MAP, scalar=3.0),
        *_same("_power_scalar _rpower_scalar", MAP, scalar=2.0, kinds=_POSITIVE),
        *_same("_maximum_scalar _minimum_scalar", MAP, scalar=0.5),
        *_same(compare, MAP, scalar=0.5),
        *_same("clip", MAP, a_min=0, a_max=1),
        *_same("sqrt rsqrt rcbrt reciprocal log log2 log10 log1p", MAP, kinds=_POSITIVE),
        *_same("exp expm1 square _contrib_div_sqrt_dim", MAP),
        *_same("smooth_l1", MAP, scalar=1.0),
        *_same("make_loss MakeLoss", MAP),
    ]


def _activations() -> List[Example]:
    return [
        *_same("relu sigmoid tanh softsign erf hard_sigmoid abs negative", MAP),
        *(Example("Activation", (MAP,), {"act_type": a}) for a in "relu sigmoid tanh softrelu softsign".split()),
        *(Example("LeakyReLU", (MAP,), {"act_type": a, "slope": 0.125}) for a in ("leaky", "elu")),
        *(Example("LeakyReLU", (MAP,), {"act_type": a}) for a in ("gelu", "selu", "rrelu")),
        Example("LeakyReLU", (MAP,)),
        Example("LeakyReLU", (MAP, (4,)), {"act_type": "prelu"}),
        Example("Dropout", (MAP,), {"p": 0.5}),
        *_same("softmax log_softmax softmin SoftmaxActivation", (4, 8)),
    ]


def _spatial() -> List[Example]:
    pool = {"kernel": (2, 2), "stride": (2, 2)}
    return [
        Example("Pooling", (MAP,), {**pool, "pool_type": "max"}, _DISTINCT),
        Example(
            "Pooling",
            (MAP,),
            {"kernel": (3, 3), "pool_type": "max", "stride": (2, 2), "pooling_convention": "full"},
            _DISTINCT,
        ),
        Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "max", "pad": (1, 1)}, _DISTINCT),
        Example("Pooling", (MAP,), {"kernel": (1, 1), "pool_type": "max", "global_pool": True}, _DISTINCT),
        Example("Pooling", ((2, 4, 6),), {"kernel": (2,), "pool_type": "max"}, _DISTINCT),
        Example("Pooling", (MAP,), {**pool, "pool_type": "avg"}),
        Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "pad": (1, 1)}),
        Example("Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "pad": (1, 1), "count_include_pad": False}),
        Example(
            "Pooling", (MAP,), {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pooling_convention": "full"}
        ),
        Example("Pooling", (MAP,), {"kernel": (2, 2)}, _DISTINCT),
        Example("Pooling", (MAP,), {"kernel": (1, 1), "pool_type": "avg", "global_pool": True}),
        Example("Pooling", ((2, 4, 3, 3, 3),), {"kernel": (2, 2, 2), "pool_type": "avg"}),
        Example("Pooling", (MAP,), {**pool, "pool_type": "sum"}),
        Example("Pooling", (MAP,), {**pool, "pool_type": "lp", "p_value": 2}),
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
        *_same("depth_to_space space_to_depth", MAP, block_size=2),
        Example("Pad", (MAP,), {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1), "constant_value": 0.5}),
        Example("Pad", (MAP,), {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1)}),
    ]


def _shapes() -> List[Example]:
    column, small = (2, 4, 1, 1), (2, 4, 2, 2)
    return [
        *_same("Flatten BlockGrad _copy ones_like zeros_like", MAP),
        *_same("Reshape", MAP, shape=(2, -1)),
        *_same("Reshape", MAP, shape=(0, -4, 2, -1, -3)),
        *_same("transpose", MAP, axes=(0, 2, 3, 1)),
        *_same("SwapAxis", MAP, dim1=1, dim2=2),
        *_same("expand_dims", MAP, axis=1),
        *_same("squeeze", (2, 1, 4), axis=1),
        *_same("reshape_like", MAP, (2, 64)),
        *_same("slice_like", MAP, small, axes=(2, 3)),
        *_same("broadcast_like", column, MAP),
        *_same("broadcast_axis", column, axis=(2, 3), size=(4, 4)),
        *_same("broadcast_to", column, shape=MAP),
        *(Example("Concat", (MAP, MAP, MAP), {"num_args": 3, "dim": dim}) for dim in (0, 1, -1)),
        Example("Concat", ((2, 32, 4, 4), (2, 16, 4, 4)), {"num_args": 2, "dim": 1}),
        Example("stack", (MAP, MAP), {"num_args": 2, "axis": 1}),
        *_same("tile", MAP, reps=(2, 1, 1, 2)),
        *_same("repeat", MAP, repeats=2, axis=1),
        *_same("reverse", MAP, axis=1),
        *_same("slice", MAP, begin=(None, None, 1, 3), end=(None, None, 4, 0), step=(None, None, 1, -1)),
        *_same("slice_axis", MAP, axis=1, begin=1, end=4),
        Example("SliceChannel", (MAP,), {"num_outputs": 2, "axis": 1}, outputs=2),
        Example("SliceChannel", (MAP,), {"num_outputs": 4, "axis": 1, "squeeze_axis": True}, outputs=4),
        Example("_split_v2", (MAP,), {"indices": (0, 3), "axis": 1}, outputs=2),
        Example("amp_multicast", (MAP, MAP), {"num_outputs": 2}, outputs=2),
        *_same("shape_array size_array", MAP),
        *_same("_zeros _ones", shape=MAP),
        *_same("_full", shape=MAP, value=0.5),
        *_same("_arange", start=0, stop=8),
        *_same("_contrib_arange_like", MAP, axis=1),
    ]


def _rows() -> List[Example]:
    steps, lengths = (5, 2, 8), {1: "length"}
    by_length = {"use_sequence_length": True}
    return [
        Example("Embedding", ((2, 3), (5, 8)), {"input_dim": 5, "output_dim": 8}, {0: "index"}),
        Example("take", ((5, 8), (2, 3)), {}, {1: "index"}),
        Example("take", ((4, 5, 3), (2,)), {"axis": 1}, {1: "index"}),
        Example("gather_nd", ((5, 8), (1, 3)), {}, {1: "index"}),
        Example("pick", ((5, 8), (5,)), {}, {1: "index"}),
        Example("SequenceMask", (steps, (2,)), {**by_length, "value": -2.0}, lengths),
        Example("SequenceMask", (steps,)),
        Example("SequenceReverse", (steps, (2,)), by_length, lengths),
        Example("SequenceReverse", (steps,)),
        Example("SequenceLast", (steps, (2,)), by_length, lengths),
        Example("where", (MAP, MAP, MAP), {}, {0: "index"}),
        Example("where", ((2,), MAP, MAP), {}, {0: "index"}),
    ]


def _reductions() -> List[Example]:
    return [
        *_same("sum mean", MAP, axis=1),
        *_same("sum mean", MAP, axis=(2, 3), keepdims=True),
        *_same("sum mean", MAP, axis=0, exclude=True),
        *_same("max min", MAP, axis=1, kinds=_DISTINCT),
        *_same("max min", MAP, kinds=_DISTINCT),
        *_same("prod nanprod nansum _np_cumsum", (2, 5), axis=1),
        *_same("argmax argmin sort argsort topk", (4, 8), axis=1, kinds=_DISTINCT),
        *_same("topk", (4, 8), axis=1, ret_typ="value", kinds=_DISTINCT),
        *_same("topk", (4, 8), axis=1, ret_typ="mask", kinds=_DISTINCT),
        Example("topk", ((4, 8),), {"axis": 1, "ret_typ": "both"}, _DISTINCT, outputs=2),
        Example("argmax_channel", ((4, 8),), {}, _DISTINCT, differentiable=False),
    ]


def _losses() -> List[Example]:
    labels = {1: "index"}
    return [
        Example("SoftmaxOutput", ((4, 8), (4,)), {}, labels),
        *_same("LinearRegressionOutput MAERegressionOutput", (4, 8), (4, 8)),
        *_same("LogisticRegressionOutput", (4, 8), (4, 8), kinds={1: "probability"}),
        Example("SVMOutput", ((4, 8), (4,)), {}, labels),
        Example("softmax_cross_entropy", ((4, 8), (4,)), {}, labels),
        Example("CTCLoss", ((6, 2, 8), (2, 3)), {}, {1: "positive"}),
        Example(
            "CTCLoss",
            ((6, 2, 8), (2, 3), (2,), (2,)),
            {"use_data_lengths": True, "use_label_lengths": True},
            {1: "positive", 2: "length", 3: "length"},
        ),
    ]


def _boxes_examples() -> List[Example]:
    anchors, corners = (1, 5, 4), {0: "boxes", 1: "boxes"}
    proposal = {"feature_stride": 4, "scales": (1,), "ratios": (1,), "rpn_pre_nms_top_n": 12, "rpn_post_nms_top_n": 4}
    return [
        Example("_contrib_box_nms", ((2, 5, 6),), {}, {0: "scored"}),
        Example("_contrib_box_decode", (anchors, anchors), {}, {1: "boxes"}),
        Example(
            "_contrib_box_encode",
            ((1, 5), (1, 5), anchors, (1, 2, 4), (4,), (4,)),
            {},
            {0: "index", 1: "index", 2: "boxes", 3: "boxes", 5: "positive"},
            outputs=2,
        ),
        Example("_contrib_box_iou", ((5, 4), (3, 4)), {}, corners),
        Example("_contrib_bipartite_matching", ((1, 4, 3),), {"threshold": 0.1}, {0: "probability"}, outputs=2),
        Example("_contrib_MultiBoxPrior", (MAP,), {"sizes": (0.5,), "ratios": (1.0,)}),
        Example("_contrib_MultiBoxTarget", ((1, 5, 4), (1, 2, 5), (1, 3, 5)), {}, {0: "boxes", 1: "labels"}, outputs=3),
        Example("_contrib_MultiBoxDetection", ((1, 3, 5), (1, 20), (1, 5, 4)), {}, {0: "probability", 2: "boxes"}),
        Example("_contrib_Proposal", ((1, 2, 4, 4), (1, 4, 4, 4), (1, 3)), proposal, {0: "probability", 2: "positive"}),
        Example(
            "_contrib_MultiProposal", ((1, 2, 4, 4), (1, 4, 4, 4), (1, 3)), proposal, {0: "probability", 2: "positive"}
        ),
        Example(
            "_contrib_ROIAlign", ((1, 4, 8, 8), (3, 5)), {"pooled_size": (2, 2), "spatial_scale": 1.0}, {1: "rois"}
        ),
        Example("ROIPooling", ((1, 4, 8, 8), (3, 5)), {"pooled_size": (2, 2), "spatial_scale": 1.0}, {1: "rois"}),
    ]


EXAMPLES: Tuple[Example, ...] = tuple(
    _convolutions()
    + _products()
    + _norms()
    + _arithmetic()
    + _activations()
    + _spatial()
    + _shapes()
    + _rows()
    + _reductions()
    + _losses()
    + _boxes_examples()
)
