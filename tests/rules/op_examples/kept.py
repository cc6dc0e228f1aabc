"""Solvers, samplers, 8 bit integers, sparse storage and optimizers, most of which are left as they are."""

from .core import Example, same

WEIGHT = (4, 3)

SQUARE, MATRIX = (2, 3, 3), {0: "matrix"}
_LINALG = (
    *same("_linalg_potrf _linalg_potri _linalg_inverse _linalg_det _linalg_sumlogdiag", SQUARE, kinds=MATRIX),
    *same("_linalg_gelqf _linalg_syevd _linalg_slogdet", SQUARE, kinds=MATRIX, outputs=2),
    *same("_linalg_trsm", SQUARE, SQUARE, kinds=MATRIX),
    *same("_npi_cholesky _npi_eigvalsh _npi_pinv_scalar_rcond", SQUARE, kinds=MATRIX),
    *same("_npi_eigvals", SQUARE, kinds=MATRIX, differentiable=False),
    *same("_npi_eigh", SQUARE, kinds=MATRIX, outputs=2),
    *same("_npi_eig", SQUARE, kinds=MATRIX, outputs=2, differentiable=False),
    *same("_npi_svd", SQUARE, kinds=MATRIX, outputs=3),
    *same("_npi_solve", SQUARE, (2, 3, 1), kinds=MATRIX),
    *same("_npi_pinv", SQUARE, (2,), kinds={**MATRIX, 1: "zero"}, differentiable=False),
    *same("_npi_tensorinv", (3, 3), kinds=MATRIX, ind=1),
    *same("_npi_tensorsolve", (3, 3), (3,), kinds=MATRIX),
    *same("_linalg_extractdiag _linalg_extracttrian", SQUARE),
    *same("_linalg_makediag", (2, 3)),
    *same("_linalg_maketrian", (2, 6)),
    *same("_contrib_fft", (2, 4)),
    *same("_contrib_ifft", (2, 8)),
    *same("_contrib_count_sketch", (2, 4), (1, 4), (1, 4), out_dim=3, kinds={1: "index", 2: "index"}),
)

MEAN, PROBABILITY = (3,), {0: "probability", 1: "probability"}
_RANDOM = (
    *same("_random_uniform _random_normal _random_gamma _random_exponential _random_poisson", shape=MEAN),
    *same("_random_negative_binomial _random_generalized_negative_binomial", shape=MEAN),
    *same("_random_randint", shape=MEAN, low=0, high=5),
    *same("_random_uniform_like _random_normal_like _random_gamma_like _random_exponential_like", MEAN),
    *same("_random_poisson_like _random_negative_binomial_like", MEAN),
    *same("_random_generalized_negative_binomial_like", MEAN),
    *same("_sample_uniform _sample_normal _sample_gamma _sample_negative_binomial", MEAN, MEAN, kinds=PROBABILITY),
    *same("_sample_generalized_negative_binomial", MEAN, MEAN, kinds=PROBABILITY),
    *same("_sample_exponential _sample_poisson", MEAN, kinds=PROBABILITY),
    *same("_sample_multinomial", (2, 4), kinds=PROBABILITY, get_prob=True, outputs=2),
    *same("_sample_unique_zipfian", range_max=100, shape=(2, 3), outputs=2),
    *same("_npi_uniform _npi_uniform_n", low=0.0, high=1.0, size=MEAN, ctx="cpu"),
    *same("_npi_normal _npi_normal_n _npi_gumbel _npi_logistic", loc=0.0, scale=1.0, size=MEAN, ctx="cpu"),
    *same("_npi_normal", MEAN, loc=None, scale=1.0, size=None, ctx="cpu", kinds=PROBABILITY),
    *same("_npi_gamma", shape=1.0, scale=1.0, size=MEAN, ctx="cpu"),
    *same("_npi_exponential _npi_rayleigh", scale=1.0, size=MEAN, ctx="cpu"),
    *same("_npi_pareto _npi_weibull", a=1.0, size=MEAN, ctx="cpu"),
    *same("_npi_powerd", a=1.0, size=MEAN),
    *same("_npi_bernoulli", prob=0.5, logit=None, is_logit=False, size=MEAN, ctx="cpu"),
    *same("_npi_multinomial", n=5, pvals=(0.5, 0.5), size=MEAN),
    *same("_npi_choice", a=5, size=MEAN, ctx="cpu"),
)

RANGES = ((1,),) * 2
ONE = {"kinds": {0: "int8"}, "outputs": 3}
TWO = {"kinds": {0: "int8", 1: "int8"}, "outputs": 3}
CALIBRATED = {"min_calib_range": -2.0, "max_calib_range": 2.0}
CONV = {"kernel": (3, 3), "num_filter": 4, "no_bias": True}
RNN = (5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6)
BOTH = "_contrib_quantized_elemwise_add _contrib_quantized_elemwise_mul"
TABLE = {"kinds": {1: "int8"}, "input_dim": 5, "output_dim": 4, "outputs": 3}
# Calls with one input of bytes, and with two, which come with the ranges of each.
_QUANTIZED = (
    *same("_contrib_quantize", WEIGHT, *RANGES, outputs=3),
    *same("_contrib_quantize_v2", WEIGHT, outputs=3),
    *same("_contrib_quantize_asym", WEIGHT, outputs=3, **CALIBRATED),
    *same("_contrib_dequantize", WEIGHT, *RANGES, kinds=ONE["kinds"]),
    *same("_contrib_requantize", WEIGHT, *RANGES, kinds={0: "int32"}, outputs=3),
    *same("_contrib_calibrate_entropy", (8,), (9,), num_quantized_bins=3, outputs=2),
    *same("_contrib_quantized_conv", (2, 4, 6, 6), (4, 4, 3, 3), *RANGES, *RANGES, **TWO, **CONV),
    *same("_contrib_quantized_fully_connected", (2, 4), (3, 4), *RANGES, *RANGES, num_hidden=3, no_bias=True, **TWO),
    *same("_contrib_quantized_batch_norm", (2, 4, 3, 3), *((4,),) * 4, *RANGES, **ONE, **CALIBRATED),
    *same("_contrib_quantized_act", WEIGHT, *RANGES, act_type="relu", **ONE),
    *same("_contrib_quantized_pooling", (2, 4, 6, 6), *RANGES, kernel=(2, 2), **ONE),
    *same(BOTH, WEIGHT, WEIGHT, *RANGES, *RANGES, **TWO),
    *same("_contrib_quantized_concat", WEIGHT, WEIGHT, *RANGES, *RANGES, num_args=2, **TWO),
    *same("_contrib_quantized_flatten", WEIGHT, *RANGES, **ONE),
    *same("_contrib_quantized_embedding", (2,), (5, 4), *RANGES, **TABLE),
    *same("_contrib_quantized_rnn", *RNN, *RANGES, kinds={0: "uint8"}, mode="lstm", state_size=6, num_layers=1),
)

_SPARSE = (
    *same("_square_sum", WEIGHT, axis=1),
    Example("_contrib_SparseEmbedding", ((2, 3), (5, 8)), {"input_dim": 5, "output_dim": 8}, {0: "index"}),
    *same("cast_storage", WEIGHT, stype="default"),
    *same("_sparse_retain", WEIGHT, (2,)),
    *same("_contrib_getnnz", WEIGHT),
    *same("_contrib_edge_id", WEIGHT, (2,), (2,)),
)

HALF = {0: "float16", 1: "float16"}
W, OPTIMIZERS_ONE = WEIGHT, (1,)
RATES, LISTS = {"lr": 0.5}, {"lrs": (0.5,), "wds": (0.0,), "num_weights": 1}
SCALE = {"wd": 0.0, "t": 1}
_OPTIMIZERS = (
    *same("sgd_update signsgd_update", W, W, **RATES),
    *same("sgd_mom_update nag_mom_update signum_update", W, W, W, **RATES),
    *same("_contrib_group_adagrad_update", W, W, (4,), **RATES),
    *same("rmsprop_update _sparse_adagrad_update", W, W, W, **RATES),
    *same("adam_update ftrl_update", W, W, W, W, **RATES),
    *same("ftml_update", W, W, W, W, W, t=1, **RATES),
    *same("rmspropalex_update", W, W, W, W, W, **RATES),
    *same("_adamw_update", W, W, W, W, OPTIMIZERS_ONE, eta=1.0, **RATES),
    *same("lamb_update_phase1", W, W, W, W, **SCALE),
    *same("lamb_update_phase2", W, W, OPTIMIZERS_ONE, OPTIMIZERS_ONE, **RATES),
    *same("mp_sgd_update", W, W, W, kinds=HALF, **RATES),
    *same("mp_sgd_mom_update mp_nag_mom_update", W, W, W, W, kinds=HALF, **RATES),
    *same("_mp_adamw_update", W, W, W, W, W, OPTIMIZERS_ONE, kinds=HALF, eta=1.0, **RATES),
    *same("mp_lamb_update_phase1", W, W, W, W, W, kinds=HALF, **SCALE),
    *same("mp_lamb_update_phase2", W, W, OPTIMIZERS_ONE, OPTIMIZERS_ONE, W, kinds={0: "float16"}, **RATES),
    *same("multi_sgd_update", W, W, **LISTS),
    *same("multi_sgd_mom_update", W, W, W, **LISTS),
    *same("_multi_adamw_update", W, W, W, W, OPTIMIZERS_ONE, etas=(1.0,), **LISTS),
    *same("_multi_lamb_update", W, W, W, W, learning_rates=(0.5,), wds=(0.0,), step_count=(1,), num_tensors=1),
    *same("multi_lars", OPTIMIZERS_ONE, OPTIMIZERS_ONE, OPTIMIZERS_ONE, OPTIMIZERS_ONE, eta=0.5, eps=0.1),
    *same("multi_sum_sq multi_all_finite", W, W, num_arrays=2),
    *same("all_finite", W),
)

KEPT = tuple(_LINALG + _RANDOM + _QUANTIZED + _SPARSE + _OPTIMIZERS)
