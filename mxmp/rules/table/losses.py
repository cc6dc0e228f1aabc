"""Losses, loss heads and probability densities."""

from __future__ import annotations

from ..core import DENY
from .build import Rules, never_cast, rules

_HEADS = "SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput"
_DENSITY = "logarithms and exponentials"

LOSSES: Rules = (
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
