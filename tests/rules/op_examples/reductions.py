"""Sums, extrema, statistics, normalization, losses and densities."""

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

LABELS = {1: "index"}
_LOSSES = (
    Example("SoftmaxOutput", ((4, 8), (4,)), {}, LABELS),
    *same("LinearRegressionOutput MAERegressionOutput", (4, 8), (4, 8)),
    *same("LogisticRegressionOutput", (4, 8), (4, 8), kinds={1: "probability"}),
    Example("SVMOutput", ((4, 8), (4,)), {}, LABELS),
    Example("softmax_cross_entropy", ((4, 8), (4,)), {}, LABELS),
    Example("CTCLoss", ((6, 2, 8), (2, 3)), {}, {1: "positive"}),
    Example(
        "CTCLoss",
        ((6, 2, 8), (2, 3), (2,), (2,)),
        {"use_data_lengths": True, "use_label_lengths": True},
        {1: "positive", 2: "length", 3: "length"},
    ),
    Example("IdentityAttachKLSparseReg", ((4, 8), (8,)), {}, {0: "probability", 1: "probability"}),
    Example(
        "_contrib_hawkesll",
        ((2, 3), (3,), (3,), (2, 3), (2, 4), (2, 4), (2,), (2,)),
        {},
        {**dict.fromkeys((0, 1, 2, 3, 4, 7), "probability"), 5: "int32", 6: "positive"},
        outputs=2,
    ),
)

PROBABILITIES = dict.fromkeys(range(3), "probability")
_DENSITIES = (
    *same("_random_pdf_uniform _random_pdf_normal _random_pdf_gamma", (2, 5), (2,), (2,), kinds=PROBABILITIES),
    *same(
        "_random_pdf_negative_binomial _random_pdf_generalized_negative_binomial", (2, 5), (2,), (2,), kinds=PROBABILITIES
    ),
    *same("_random_pdf_exponential _random_pdf_poisson", (2, 5), (2,), kinds=PROBABILITIES),
    *same("_random_pdf_dirichlet", (2, 5, 3), (2, 3), kinds=PROBABILITIES),
)

REDUCTIONS = _NORMS + _REDUCTIONS + _DENSITIES + _LOSSES
