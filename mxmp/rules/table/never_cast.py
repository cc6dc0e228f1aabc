"""Operators that mxmp never casts for: control flow, int8, sparse storage, fused subgraphs, optimizers."""

from __future__ import annotations

from ..core import CLEAR, DENY
from .build import Rules, never_cast

_CONTROL_FLOW = never_cast(CLEAR, "_foreach _while_loop _cond", "control flow: entered")

_INT8 = """
    _contrib_quantize _contrib_quantize_v2 _contrib_quantize_asym _contrib_dequantize _contrib_requantize
    _contrib_calibrate_entropy _contrib_quantized_conv _contrib_quantized_fully_connected _contrib_quantized_rnn
    _contrib_quantized_batch_norm _contrib_quantized_act _contrib_quantized_pooling _contrib_quantized_elemwise_add
    _contrib_quantized_elemwise_mul _contrib_quantized_concat _contrib_quantized_flatten _contrib_quantized_embedding
"""

_QUANTIZED = never_cast(DENY, _INT8, "8 bit integers with float32 ranges")

_FUSED = "fused by a backend already"  # Symbol.optimize_for, get_backend_symbol

_BACKENDS = (
    *never_cast(DENY, "_sg_mkldnn_conv _sg_mkldnn_fully_connected", _FUSED),
    *never_cast(DENY, "_sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt", _FUSED),
)

_SPARSE_OPS = """
    cast_storage _sparse_retain _square_sum _contrib_SparseEmbedding _contrib_getnnz _contrib_edge_id
    _contrib_dgl_adjacency _contrib_dgl_subgraph _contrib_dgl_graph_compact _contrib_dgl_csr_neighbor_uniform_sample
    _contrib_dgl_csr_neighbor_non_uniform_sample
"""

_SPARSE = never_cast(DENY, _SPARSE_OPS, "sparse storage")

_UPDATES = """
    sgd_update sgd_mom_update mp_sgd_update mp_sgd_mom_update multi_sgd_update multi_sgd_mom_update
    multi_mp_sgd_update multi_mp_sgd_mom_update preloaded_multi_sgd_update preloaded_multi_sgd_mom_update
    preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update nag_mom_update mp_nag_mom_update signsgd_update
    signum_update adam_update ftml_update ftrl_update rmsprop_update rmspropalex_update _adamw_update _mp_adamw_update
    _multi_adamw_update _multi_mp_adamw_update lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1
    mp_lamb_update_phase2 _multi_lamb_update _multi_mp_lamb_update multi_lars _sparse_adagrad_update
    _contrib_group_adagrad_update multi_sum_sq all_finite multi_all_finite
"""

_OPTIMIZERS = never_cast(DENY, _UPDATES, "serves an optimizer, which chooses the dtypes")

NEVER_CAST: Rules = _CONTROL_FLOW + _QUANTIZED + _BACKENDS + _SPARSE + _OPTIMIZERS
