"""Reductions and normalization: sums, products, extrema, moments, norms."""

from __future__ import annotations

from ..conditions import short_reduction
from ..core import DENY, INFER
from .build import BFLOAT16_ALONE, TYPED, Rules, moves, never_cast, rules

_IN_DATA_DTYPE = "accumulates in the dtype of the data"
_STATISTICS = "statistics in the dtype of the data"

REDUCTIONS: Rules = (
    # Sums:
    *rules(INFER, "sum mean", condition=short_reduction, no_bfloat16=True),
    # numpy's accumulate in float32 whatever the dtype of the data (numpy/np_broadcast_reduce_op.h);
    # but the sum that a mean divides is stored in the dtype of the output first.
    *rules(INFER, "_np_sum _npi_mean", when=TYPED, keep_outputs=(0,), no_bfloat16=True),
    *rules(INFER, "_np_sum _npi_mean", condition=short_reduction, no_bfloat16=True, widens="dtype"),
    *moves("max min _np_max _np_min"),
    # Products:
    *rules(DENY, "prod nanprod nansum", reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *rules(DENY, "_np_prod", when=TYPED, keep_outputs=(0,), reason="a product", no_bfloat16=True),
    *rules(DENY, "_np_prod", reason="a product", no_bfloat16=True),
    *rules(DENY, "_np_cumsum", when=TYPED, keep_outputs=(0,), reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *rules(DENY, "_np_cumsum", reason=_IN_DATA_DTYPE, no_bfloat16=True),
    *rules(DENY, "_np_trace _npi_average", reason=_IN_DATA_DTYPE, no_bfloat16=True),
    # Moments:
    *rules(DENY, "moments _npi_var _npi_std", reason=_STATISTICS, no_bfloat16=True),
    # norm does not widen: behind out_dtype its gradient fails.
    *rules(DENY, "L2Normalization norm", reason="sum of squares", no_bfloat16=True),
    *rules(DENY, "_npi_norm", reason="sum of squares", no_low=True),
    *never_cast(DENY, "_npi_percentile _histogram _npi_bincount", "ranks and counts"),
    # Batch norms: Normalization with float32 parameters and statistics.
    *rules(INFER, "BatchNorm", keep=(1, 2, 3, 4), keep_outputs=(1, 2)),
    # On CPU alone (contrib/batch_norm_relu.cc).
    *rules(INFER, "_contrib_BatchNormWithReLU", keep=(1, 2, 3, 4), keep_outputs=(1, 2), dtypes=BFLOAT16_ALONE),
    # float16 passes type inference, but every kernel reads real_t (contrib/sync_batch_norm-inl.h, batch_norm_v1-inl.h).
    *rules(INFER, "_contrib_SyncBatchNorm BatchNorm_v1", keep=(1, 2, 3, 4), keep_outputs=(1, 2), no_low=True),
    # Other norms:
    *rules(DENY, "LayerNorm GroupNorm", reason=_STATISTICS, no_bfloat16=True),
    *rules(DENY, "InstanceNorm", reason=_STATISTICS, no_low=True),
    # Its own kernels read real_t (nn/lrn-inl.h), the bfloat16 one is oneDNN's.
    *rules(DENY, "LRN", reason="sum of squares", dtypes=BFLOAT16_ALONE),
)
