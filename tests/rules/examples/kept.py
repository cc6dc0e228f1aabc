"""Solvers, samplers, 8 bit integers, sparse storage and optimizers, most of which are left as they are."""

from __future__ import annotations

from typing import Any, Dict, List

from .core import Example, same

WEIGHT = (4, 3)


def _linalg() -> List[Example]:
    square, matrix = (2, 3, 3), {0: "matrix"}
    return [
        *same("_linalg_potrf _linalg_potri _linalg_inverse _linalg_det _linalg_sumlogdiag", square, kinds=matrix),
        *same("_linalg_gelqf _linalg_syevd _linalg_slogdet", square, kinds=matrix, outputs=2),
        *same("_linalg_trsm", square, square, kinds=matrix),
        *same("_npi_cholesky _npi_eigvalsh _npi_pinv_scalar_rcond", square, kinds=matrix),
        *same("_npi_eigvals", square, kinds=matrix, differentiable=False),
        *same("_npi_eigh", square, kinds=matrix, outputs=2),
        *same("_npi_eig", square, kinds=matrix, outputs=2, differentiable=False),
        *same("_npi_svd", square, kinds=matrix, outputs=3),
        *same("_npi_solve", square, (2, 3, 1), kinds=matrix),
        *same("_npi_pinv", square, (2,), kinds={**matrix, 1: "zero"}, differentiable=False),
        *same("_npi_tensorinv", (3, 3), kinds=matrix, ind=1),
        *same("_npi_tensorsolve", (3, 3), (3,), kinds=matrix),
        *same("_linalg_extractdiag _linalg_extracttrian", square),
        *same("_linalg_makediag", (2, 3)),
        *same("_linalg_maketrian", (2, 6)),
        *same("_contrib_fft", (2, 4)),
        *same("_contrib_ifft", (2, 8)),
        *same("_contrib_count_sketch", (2, 4), (1, 4), (1, 4), out_dim=3, kinds={1: "index", 2: "index"}),
    ]


def _random() -> List[Example]:
    mean, probability = (3,), {0: "probability", 1: "probability"}
    return [
        *same("_random_uniform _random_normal _random_gamma _random_exponential _random_poisson", shape=mean),
        *same("_random_negative_binomial _random_generalized_negative_binomial", shape=mean),
        *same("_random_randint", shape=mean, low=0, high=5),
        *same("_random_uniform_like _random_normal_like _random_gamma_like _random_exponential_like", mean),
        *same("_random_poisson_like _random_negative_binomial_like", mean),
        *same("_random_generalized_negative_binomial_like", mean),
        *same("_sample_uniform _sample_normal _sample_gamma _sample_negative_binomial", mean, mean, kinds=probability),
        *same("_sample_generalized_negative_binomial", mean, mean, kinds=probability),
        *same("_sample_exponential _sample_poisson", mean, kinds=probability),
        *same("_sample_multinomial", (2, 4), kinds=probability, get_prob=True, outputs=2),
        *same("_sample_unique_zipfian", range_max=100, shape=(2, 3), outputs=2),
        *same("_npi_uniform _npi_uniform_n", low=0.0, high=1.0, size=mean, ctx="cpu"),
        *same("_npi_normal _npi_normal_n _npi_gumbel _npi_logistic", loc=0.0, scale=1.0, size=mean, ctx="cpu"),
        *same("_npi_normal", mean, loc=None, scale=1.0, size=None, ctx="cpu", kinds=probability),
        *same("_npi_gamma", shape=1.0, scale=1.0, size=mean, ctx="cpu"),
        *same("_npi_exponential _npi_rayleigh", scale=1.0, size=mean, ctx="cpu"),
        *same("_npi_pareto _npi_weibull", a=1.0, size=mean, ctx="cpu"),
        *same("_npi_powerd", a=1.0, size=mean),
        *same("_npi_bernoulli", prob=0.5, logit=None, is_logit=False, size=mean, ctx="cpu"),
        *same("_npi_multinomial", n=5, pvals=(0.5, 0.5), size=mean),
        *same("_npi_choice", a=5, size=mean, ctx="cpu"),
    ]


def _quantized() -> List[Example]:
    """Return calls with one input of bytes, and with two, which come with the ranges of each."""
    ranges = ((1,),) * 2
    one: Dict[str, Any] = {"kinds": {0: "int8"}, "outputs": 3}
    two: Dict[str, Any] = {"kinds": {0: "int8", 1: "int8"}, "outputs": 3}
    calibrated = {"min_calib_range": -2.0, "max_calib_range": 2.0}
    conv = {"kernel": (3, 3), "num_filter": 4, "no_bias": True}
    rnn = (5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6)
    both = "_contrib_quantized_elemwise_add _contrib_quantized_elemwise_mul"
    table: Dict[str, Any] = {"kinds": {1: "int8"}, "input_dim": 5, "output_dim": 4, "outputs": 3}
    return [
        *same("_contrib_quantize", WEIGHT, *ranges, outputs=3),
        *same("_contrib_quantize_v2", WEIGHT, outputs=3),
        *same("_contrib_quantize_asym", WEIGHT, outputs=3, **calibrated),
        *same("_contrib_dequantize", WEIGHT, *ranges, kinds=one["kinds"]),
        *same("_contrib_requantize", WEIGHT, *ranges, kinds={0: "int32"}, outputs=3),
        *same("_contrib_calibrate_entropy", (8,), (9,), num_quantized_bins=3, outputs=2),
        *same("_contrib_quantized_conv", (2, 4, 6, 6), (4, 4, 3, 3), *ranges, *ranges, **two, **conv),
        *same("_contrib_quantized_fully_connected", (2, 4), (3, 4), *ranges, *ranges, num_hidden=3, no_bias=True, **two),
        *same("_contrib_quantized_batch_norm", (2, 4, 3, 3), *((4,),) * 4, *ranges, **one, **calibrated),
        *same("_contrib_quantized_act", WEIGHT, *ranges, act_type="relu", **one),
        *same("_contrib_quantized_pooling", (2, 4, 6, 6), *ranges, kernel=(2, 2), **one),
        *same(both, WEIGHT, WEIGHT, *ranges, *ranges, **two),
        *same("_contrib_quantized_concat", WEIGHT, WEIGHT, *ranges, *ranges, num_args=2, **two),
        *same("_contrib_quantized_flatten", WEIGHT, *ranges, **one),
        *same("_contrib_quantized_embedding", (2,), (5, 4), *ranges, **table),
        *same("_contrib_quantized_rnn", *rnn, *ranges, kinds={0: "uint8"}, mode="lstm", state_size=6, num_layers=1),
    ]


def _sparse() -> List[Example]:
    return [
        *same("_square_sum", WEIGHT, axis=1),
        Example("_contrib_SparseEmbedding", ((2, 3), (5, 8)), {"input_dim": 5, "output_dim": 8}, {0: "index"}),
        *same("cast_storage", WEIGHT, stype="default"),
        *same("_sparse_retain", WEIGHT, (2,)),
        *same("_contrib_getnnz", WEIGHT),
        *same("_contrib_edge_id", WEIGHT, (2,), (2,)),
    ]


def _optimizers() -> List[Example]:
    half = {0: "float16", 1: "float16"}
    w, one = WEIGHT, (1,)
    rates, lists = {"lr": 0.5}, {"lrs": (0.5,), "wds": (0.0,), "num_weights": 1}
    scale = {"wd": 0.0, "t": 1}
    return [
        *same("sgd_update signsgd_update", w, w, **rates),
        *same("sgd_mom_update nag_mom_update signum_update", w, w, w, **rates),
        *same("_contrib_group_adagrad_update", w, w, (4,), **rates),
        *same("rmsprop_update _sparse_adagrad_update", w, w, w, **rates),
        *same("adam_update ftrl_update", w, w, w, w, **rates),
        *same("ftml_update", w, w, w, w, w, t=1, **rates),
        *same("rmspropalex_update", w, w, w, w, w, **rates),
        *same("_adamw_update", w, w, w, w, one, eta=1.0, **rates),
        *same("lamb_update_phase1", w, w, w, w, **scale),
        *same("lamb_update_phase2", w, w, one, one, **rates),
        *same("mp_sgd_update", w, w, w, kinds=half, **rates),
        *same("mp_sgd_mom_update mp_nag_mom_update", w, w, w, w, kinds=half, **rates),
        *same("_mp_adamw_update", w, w, w, w, w, one, kinds=half, eta=1.0, **rates),
        *same("mp_lamb_update_phase1", w, w, w, w, w, kinds=half, **scale),
        *same("mp_lamb_update_phase2", w, w, one, one, w, kinds={0: "float16"}, **rates),
        *same("multi_sgd_update", w, w, **lists),
        *same("multi_sgd_mom_update", w, w, w, **lists),
        *same("_multi_adamw_update", w, w, w, w, one, etas=(1.0,), **lists),
        *same("_multi_lamb_update", w, w, w, w, learning_rates=(0.5,), wds=(0.0,), step_count=(1,), num_tensors=1),
        *same("multi_lars", one, one, one, one, eta=0.5, eps=0.1),
        *same("multi_sum_sq multi_all_finite", w, w, num_arrays=2),
        *same("all_finite", w),
    ]


KEPT = tuple(_linalg() + _random() + _quantized() + _sparse() + _optimizers())
