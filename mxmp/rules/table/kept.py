"""What has dtypes of its own and is left as it is: control flow, int8, sparse storage, optimizers."""

from __future__ import annotations

from ..core import CLEAR, DENY
from .build import Rules, kept

_CONTROL_FLOW = kept(CLEAR, "_foreach _while_loop _cond", "control flow: entered")

_INT8 = "8 bit integers with float32 ranges"

_QUANTIZED = (
    *kept(DENY, "_contrib_quantize _contrib_quantize_v2 _contrib_quantize_asym", _INT8),
    *kept(DENY, "_contrib_dequantize _contrib_requantize _contrib_calibrate_entropy", _INT8),
    *kept(DENY, "_contrib_quantized_conv _contrib_quantized_fully_connected _contrib_quantized_rnn", _INT8),
    *kept(DENY, "_contrib_quantized_batch_norm _contrib_quantized_act _contrib_quantized_pooling", _INT8),
    *kept(DENY, "_contrib_quantized_elemwise_add _contrib_quantized_elemwise_mul", _INT8),
    *kept(DENY, "_contrib_quantized_concat _contrib_quantized_flatten _contrib_quantized_embedding", _INT8),
)

_FUSED = "fused by a backend already"  # Symbol.optimize_for, get_backend_symbol

_BACKENDS = (
    *kept(DENY, "_sg_mkldnn_conv _sg_mkldnn_fully_connected", _FUSED),
    *kept(DENY, "_sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt", _FUSED),
)

_SPARSE_STORAGE = "sparse storage"

_SPARSE = (
    *kept(DENY, "cast_storage _sparse_retain _square_sum _contrib_SparseEmbedding", _SPARSE_STORAGE),
    *kept(DENY, "_contrib_getnnz _contrib_edge_id _contrib_dgl_adjacency _contrib_dgl_subgraph", _SPARSE_STORAGE),
    *kept(DENY, "_contrib_dgl_graph_compact _contrib_dgl_csr_neighbor_uniform_sample", _SPARSE_STORAGE),
    *kept(DENY, "_contrib_dgl_csr_neighbor_non_uniform_sample", _SPARSE_STORAGE),
)

_UPDATE = "serves an optimizer, which chooses the dtypes"

_OPTIMIZERS = (
    *kept(DENY, "sgd_update sgd_mom_update mp_sgd_update mp_sgd_mom_update", _UPDATE),
    *kept(DENY, "multi_sgd_update multi_sgd_mom_update multi_mp_sgd_update multi_mp_sgd_mom_update", _UPDATE),
    *kept(DENY, "preloaded_multi_sgd_update preloaded_multi_sgd_mom_update", _UPDATE),
    *kept(DENY, "preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update", _UPDATE),
    *kept(DENY, "nag_mom_update mp_nag_mom_update signsgd_update signum_update", _UPDATE),
    *kept(DENY, "adam_update ftml_update ftrl_update rmsprop_update rmspropalex_update", _UPDATE),
    *kept(DENY, "_adamw_update _mp_adamw_update _multi_adamw_update _multi_mp_adamw_update", _UPDATE),
    *kept(DENY, "lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1 mp_lamb_update_phase2", _UPDATE),
    *kept(DENY, "_multi_lamb_update _multi_mp_lamb_update multi_lars", _UPDATE),
    *kept(DENY, "_sparse_adagrad_update _contrib_group_adagrad_update", _UPDATE),
    *kept(DENY, "multi_sum_sq all_finite multi_all_finite", _UPDATE),
)

KEPT: Rules = _CONTROL_FLOW + _QUANTIZED + _BACKENDS + _SPARSE + _OPTIMIZERS
