"""Reductions over axes, windows and batches: sums, products, moments, norms, pooling, resizing, losses."""

from __future__ import annotations

from typing import Any, Dict

from ..conditions import (
    pooled_elements,
    reduced_elements,
    short_pooling,
    short_reduction,
    short_upsampling,
    short_windows,
    small_magnification,
)
from ..core import DENY, GIVEN, INFER, LENGTHS, NORMALIZES, RESTARTS, SHIFTS
from .build import BFLOAT16_ALONE, TYPED, Rules, moves, never_cast, rules, short_sums, variant

_IN_DATA_DTYPE = "accumulates in the dtype of the data"
_STATISTICS = "statistics in the dtype of the data"
_HEADS = "SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput"
_BATCH_NORM: Dict[str, Any] = {"keep": (1, 2, 3, 4), "keep_outputs": (1, 2), "size": RESTARTS}
_MEAN: Dict[str, Any] = {"condition": short_reduction, "no_bfloat16": True, "distance": SHIFTS}
_GIVES_TYPE: Dict[str, Any] = {"keep_outputs": (0,), "no_bfloat16": True, "distance": SHIFTS}
_RESIZES: Dict[str, Any] = {"no_bfloat16": True, "distance": SHIFTS}
_DENSITY = "logarithms and exponentials"

REDUCTIONS: Rules = (
    # Sums:
    *rules(INFER, "sum", sums=reduced_elements, **_MEAN),
    *rules(INFER, "mean", **_MEAN),
    # numpy's accumulate in float32 for data of every dtype (numpy/np_broadcast_reduce_op.h). But the sum that a mean
    # divides is first stored in the dtype of the output.
    *rules(INFER, "_np_sum", when=TYPED, sums=reduced_elements, **_GIVES_TYPE),
    *rules(INFER, "_npi_mean", when=TYPED, **_GIVES_TYPE),
    *rules(INFER, "_np_sum", float32_attr="dtype", sums=reduced_elements, **_MEAN),
    *rules(INFER, "_npi_mean", float32_attr="dtype", **_MEAN),
    *moves("max min _np_max _np_min"),
    # Products:
    *rules(DENY, "prod nanprod nansum", reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *rules(DENY, "_np_prod", when=TYPED, keep_outputs=(0,), reason="a product", no_bfloat16=True),
    *rules(DENY, "_np_prod", reason="a product", no_bfloat16=True),
    *rules(DENY, "_np_cumsum", when=TYPED, keep_outputs=(0,), reason=_IN_DATA_DTYPE, no_bfloat16=True, counts=True),
    *rules(DENY, "_np_cumsum", reason=_IN_DATA_DTYPE, no_bfloat16=True, counts=True),
    *rules(DENY, "_np_trace _npi_average", reason=_IN_DATA_DTYPE, no_bfloat16=True, distance=SHIFTS),
    # Moments:
    *rules(DENY, "moments _npi_var _npi_std", reason=_STATISTICS, no_bfloat16=True),
    # norm does not widen: behind out_dtype its gradient fails.
    *rules(DENY, "norm", reason="sum of squares", no_bfloat16=True, distance=LENGTHS),
    *rules(DENY, "L2Normalization", reason="sum of squares", no_bfloat16=True, size=RESTARTS, distance=NORMALIZES),
    *rules(DENY, "_npi_norm", reason="sum of squares", no_low=True, distance=LENGTHS),
    *never_cast(DENY, "_npi_percentile _histogram _npi_bincount", "ranks and counts"),
    # Batch norms: Normalization with float32 parameters and statistics.
    *rules(INFER, "BatchNorm", **_BATCH_NORM),
    # Only on CPU (contrib/batch_norm_relu.cc).
    *rules(INFER, "_contrib_BatchNormWithReLU", dtypes=BFLOAT16_ALONE, **_BATCH_NORM),
    # float16 passes type inference, but every kernel reads real_t (contrib/sync_batch_norm-inl.h, batch_norm_v1-inl.h).
    *rules(INFER, "_contrib_SyncBatchNorm BatchNorm_v1", no_low=True, **_BATCH_NORM),
    # Other norms:
    *rules(DENY, "LayerNorm GroupNorm", reason=_STATISTICS, no_bfloat16=True, size=RESTARTS),
    *rules(DENY, "InstanceNorm", reason=_STATISTICS, no_low=True, size=RESTARTS),
    # Its own kernels read real_t (nn/lrn-inl.h), the bfloat16 one is oneDNN's.
    *rules(DENY, "LRN", reason="sum of squares", dtypes=BFLOAT16_ALONE),
    # Pooling:
    *rules(
        INFER,
        "Pooling",
        when=variant("pool_type", "sum"),
        condition=short_pooling,
        no_bfloat16=True,
        sums=pooled_elements,
        distance=SHIFTS,
    ),
    *rules(DENY, "Pooling", when=variant("pool_type", "lp"), reason="powers and a root", no_bfloat16=True),
    # oneDNN, which has the bfloat16 kernels, wants a kernel even where global_pool makes it needless.
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", "()"), no_bfloat16=True, distance=SHIFTS),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg", "kernel", GIVEN), distance=SHIFTS),
    *rules(INFER, "Pooling", when=variant("pool_type", "avg"), no_bfloat16=True, distance=SHIFTS),
    *moves("Pooling", when=variant("kernel", "()"), no_bfloat16=True),  # 'max', said or by default
    *moves("Pooling", when=variant("kernel", GIVEN)),
    *moves("Pooling", no_bfloat16=True),
    # The old one's is a plain running sum (mshadow's PoolingExp): of ones it stops growing at 2048.
    *rules(DENY, "Pooling_v1", when=variant("pool_type", "avg"), reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *rules(DENY, "Pooling_v1", when=variant("pool_type", "sum"), reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *moves("Pooling_v1", no_bfloat16=True),
    # Running sums: in bfloat16 the average of 56x56 values is off by 92%, ...
    *rules(INFER, "_contrib_AdaptiveAvgPooling2D", condition=short_windows, no_bfloat16=True, distance=SHIFTS),
    # ... and the gradient behind a magnification by 8 by 28%.
    *rules(INFER, "_contrib_BilinearResize2D", shape_only=(1,), condition=small_magnification, **_RESIZES),
    *moves("UpSampling", when=variant("sample_type", "nearest"), no_bfloat16=True, **short_sums(short_upsampling)),
    *rules(INFER, "UpSampling", **_RESIZES),
    # Losses:
    # They want labels in the dtype of the data, and labels above 2048 are no float16 integers.
    *rules(DENY, _HEADS, keep=(1,), reason="loss head", no_low=True, loss_head=True),
    *rules(DENY, "softmax_cross_entropy", keep=(1,), reason="loss", no_low=True),
    *rules(DENY, "CTCLoss", keep=(1, 2, 3), reason="loss", no_low=True),  # reads real_t (nn/ctc_loss-inl.h)
    *rules(DENY, "smooth_l1", reason="loss", scalars=("scalar",), no_bfloat16=True),
    *rules(DENY, "make_loss", reason="loss", loss_head=True),
    *rules(DENY, "MakeLoss", reason="loss", no_bfloat16=True, loss_head=True),
    *never_cast(DENY, "IdentityAttachKLSparseReg _contrib_hawkesll", "loss"),
    # Densities:
    *never_cast(DENY, "_random_pdf_uniform _random_pdf_normal _random_pdf_gamma _random_pdf_exponential", _DENSITY),
    *never_cast(DENY, "_random_pdf_poisson _random_pdf_negative_binomial _random_pdf_dirichlet", _DENSITY),
    *never_cast(DENY, "_random_pdf_generalized_negative_binomial", _DENSITY),
)
