"""Sums, extrema, statistics and normalization."""

from __future__ import annotations

from .core import DISTINCT, MAP, Example, same

FOUR = ((4,),) * 4
KINDS = {1: "positive", 4: "positive"}
WIDE = ((2, 32, 4, 4), *((32,),) * 4)
_NORMS = (
    Example("BatchNorm", (MAP, *FOUR), {"fix_gamma": False}, KINDS),
    Example("BatchNorm", (MAP, *FOUR), {"fix_gamma": True, "eps": 1e-5}, KINDS),
    Example("BatchNorm", (MAP, *FOUR), {"fix_gamma": False, "axis": -1}, KINDS),
    Example("BatchNorm", (MAP, *FOUR), {"fix_gamma": False, "axis": 2}, KINDS),
    Example("BatchNorm", (MAP, *FOUR), {"fix_gamma": False, "use_global_stats": True}, KINDS),
    Example("BatchNorm", ((8, 4), *FOUR), {"fix_gamma": False}, KINDS),
    Example("BatchNorm", ((2, 4, 6), *FOUR), {"fix_gamma": False}, KINDS),
    Example("BatchNorm", ((2, 4, 3, 3, 3), *FOUR), {"fix_gamma": False}, KINDS),
    Example("BatchNorm", WIDE, {"fix_gamma": False}, KINDS),
    Example("_contrib_SyncBatchNorm", (MAP, *FOUR), {"fix_gamma": False, "key": "norm"}, KINDS),
    Example("LayerNorm", ((4, 8), (8,), (8,))),
    Example("GroupNorm", (MAP, (2,), (2,)), {"num_groups": 2}),
    Example("InstanceNorm", (MAP, (4,), (4,))),
    Example("L2Normalization", (MAP,)),
    Example("LRN", (MAP,), {"nsize": 3}),
    Example("norm", (MAP,)),
    Example("BatchNorm_v1", (MAP, *FOUR), {"fix_gamma": False}, KINDS),
    Example("_contrib_BatchNormWithReLU", (MAP, *FOUR), {"fix_gamma": False}, KINDS),
)

_REDUCTIONS = (
    *same("sum mean", MAP, axis=1),
    *same("sum mean", MAP, axis=(2, 3), keepdims=True),
    *same("sum mean", MAP, axis=0, exclude=True),
    *same("max min", MAP, axis=1, kinds=DISTINCT),
    *same("max min", MAP, kinds=DISTINCT),
    *same("prod nanprod nansum _np_cumsum", (2, 5), axis=1),
    *same("argmax argmin sort argsort topk", (4, 8), axis=1, kinds=DISTINCT),
    *same("topk", (4, 8), axis=1, ret_typ="value", kinds=DISTINCT),
    *same("topk", (4, 8), axis=1, ret_typ="mask", kinds=DISTINCT),
    Example("topk", ((4, 8),), {"axis": 1, "ret_typ": "both"}, DISTINCT, outputs=2),
    Example("argmax_channel", ((4, 8),), {}, DISTINCT, differentiable=False),
    *same("_np_sum _npi_mean", MAP, axis=1),
    *same("_np_sum _npi_mean", MAP, axis=(2, 3), keepdims=True),
    *same("_np_sum _npi_mean", MAP, axis=1, dtype="float32"),
    *same("_np_max _np_min", MAP, axis=1, kinds=DISTINCT),
    *same("_np_prod _np_cumsum", (2, 5), axis=1, dtype="float32"),
    *same("_np_prod", (2, 5), axis=1),
    *same("_npi_argmax _npi_argmin", (4, 8), axis=1, kinds=DISTINCT, differentiable=False),
    *same("_np_any _np_all", MAP, axis=1, differentiable=False),
    *same("_np_trace", (4, 5)),
    Example("_npi_average", ((4, 5), (4, 5)), {"axis": 1, "returned": True}, {1: "positive"}, outputs=2),
    *same("moments", MAP, axes=(2, 3), outputs=2),
    *same("_npi_var _npi_std", MAP, axis=1),
    *same("_npi_norm", MAP),
    *same("_npi_percentile", (4, 5), (2,), axis=1, kinds={1: "positive"}, differentiable=False),
    Example("_histogram", ((16,),), {"bin_cnt": 4, "range": (-2, 2)}, {}, 2, False),
    *same("_npi_bincount", (8,), kinds={0: "int32"}, minlength=4, differentiable=False),
)

REDUCTIONS = _NORMS + _REDUCTIONS
