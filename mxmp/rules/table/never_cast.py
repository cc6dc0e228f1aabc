"""Operators that mxmp never casts for: samplers, control flow, int8, sparse storage, subgraphs, optimizers, images."""

from __future__ import annotations

from ..core import CLEAR, DENY, INFER
from .build import Rules, never_cast

_SAMPLERS = """
    _random_uniform _random_normal _random_gamma _random_exponential _random_poisson _random_negative_binomial
    _random_generalized_negative_binomial _random_randint _random_uniform_like _random_normal_like _random_gamma_like
    _random_exponential_like _random_poisson_like _random_negative_binomial_like
    _random_generalized_negative_binomial_like _sample_uniform _sample_normal _sample_gamma _sample_exponential
    _sample_poisson _sample_negative_binomial _sample_generalized_negative_binomial _sample_multinomial
    _sample_unique_zipfian _npi_uniform _npi_uniform_n _npi_normal _npi_normal_n _npi_gamma _npi_exponential
    _npi_bernoulli _npi_multinomial _npi_choice _npi_gumbel _npi_logistic _npi_rayleigh _npi_pareto _npi_powerd
    _npi_weibull
"""

_INT8 = """
    _contrib_quantize _contrib_quantize_v2 _contrib_quantize_asym _contrib_dequantize _contrib_requantize
    _contrib_calibrate_entropy _contrib_quantized_conv _contrib_quantized_fully_connected _contrib_quantized_rnn
    _contrib_quantized_batch_norm _contrib_quantized_act _contrib_quantized_pooling _contrib_quantized_elemwise_add
    _contrib_quantized_elemwise_mul _contrib_quantized_concat _contrib_quantized_flatten _contrib_quantized_embedding
"""

_SUBGRAPHS = "_sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt"

_SPARSE_OPS = """
    cast_storage _sparse_retain _square_sum _contrib_SparseEmbedding _contrib_getnnz _contrib_edge_id
    _contrib_dgl_adjacency _contrib_dgl_subgraph _contrib_dgl_graph_compact _contrib_dgl_csr_neighbor_uniform_sample
    _contrib_dgl_csr_neighbor_non_uniform_sample
"""

_UPDATES = """
    sgd_update sgd_mom_update mp_sgd_update mp_sgd_mom_update multi_sgd_update multi_sgd_mom_update
    multi_mp_sgd_update multi_mp_sgd_mom_update preloaded_multi_sgd_update preloaded_multi_sgd_mom_update
    preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update nag_mom_update mp_nag_mom_update signsgd_update
    signum_update adam_update ftml_update ftrl_update rmsprop_update rmspropalex_update _adamw_update _mp_adamw_update
    _multi_adamw_update _multi_mp_adamw_update lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1
    mp_lamb_update_phase2 _multi_lamb_update _multi_mp_lamb_update multi_lars _sparse_adagrad_update
    _contrib_group_adagrad_update multi_sum_sq all_finite multi_all_finite
"""
_PREPROCESSING = """
    _image_to_tensor _image_normalize _image_resize _image_crop _image_adjust_lighting _image_flip_left_right
    _image_flip_top_bottom _image_random_flip_left_right _image_random_flip_top_bottom _image_random_lighting
    _image_random_brightness _image_random_contrast _image_random_saturation _image_random_hue
    _image_random_color_jitter
"""

NEVER_CAST: Rules = (
    *never_cast(INFER, _SAMPLERS, "samples have a dtype of their own"),
    *never_cast(CLEAR, "_foreach _while_loop _cond", "control flow: entered"),
    *never_cast(DENY, _INT8, "8 bit integers with float32 ranges"),
    *never_cast(DENY, _SUBGRAPHS, "fused by a backend already"),  # Symbol.optimize_for, get_backend_symbol
    *never_cast(DENY, _SPARSE_OPS, "sparse storage"),
    *never_cast(DENY, _UPDATES, "serves an optimizer, which chooses the dtypes"),
    *never_cast(DENY, _PREPROCESSING, "preprocesses images"),
)
