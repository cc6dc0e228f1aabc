"""Losses and densities."""

from __future__ import annotations

from .core import Example, same

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

KINDS = dict.fromkeys(range(3), "probability")
_DENSITIES = (
    *same("_random_pdf_uniform _random_pdf_normal _random_pdf_gamma", (2, 5), (2,), (2,), kinds=KINDS),
    *same(
        "_random_pdf_negative_binomial _random_pdf_generalized_negative_binomial", (2, 5), (2,), (2,), kinds=KINDS
    ),
    *same("_random_pdf_exponential _random_pdf_poisson", (2, 5), (2,), kinds=KINDS),
    *same("_random_pdf_dirichlet", (2, 5, 3), (2, 3), kinds=KINDS),
)

LOSSES = _DENSITIES + _LOSSES
