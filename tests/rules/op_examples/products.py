"""Matrix products and convolutions."""

from .core import MAP, Example, same

IMAGE, THREE, ROW = (2, 8, 6, 6), {"kernel": (3, 3), "num_filter": 4}, (2, 8, 6)
WIDE = (2, 32, 8, 8)  # channels in full vectors, so that oneDNN takes its fast kernels
_CONVOLUTIONS = (
    Example("Convolution", (IMAGE, (4, 8, 3, 3), (4,)), THREE),
    Example("Convolution", (IMAGE, (4, 8, 3, 3)), {**THREE, "no_bias": True, "pad": (1, 1), "stride": (2, 2)}),
    Example("Convolution", (IMAGE, (4, 8, 3, 3), (4,)), {**THREE, "dilate": (2, 2), "pad": (2, 2)}),
    Example("Convolution", (IMAGE, (4, 4, 3, 3), (4,)), {**THREE, "num_group": 2}),
    Example("Convolution", (IMAGE, (8, 1, 3, 3), (8,)), {"kernel": (3, 3), "num_filter": 8, "num_group": 8}),
    Example("Convolution", (IMAGE, (4, 8, 1, 1), (4,)), {"kernel": (1, 1), "num_filter": 4}),
    Example("Convolution", (ROW, (4, 8, 3), (4,)), {"kernel": (3,), "num_filter": 4}),
    Example("Convolution", ((2, 8, 4, 4, 4), (4, 8, 3, 3, 3), (4,)), {"kernel": (3, 3, 3), "num_filter": 4}),
    Example("Convolution", (WIDE, (32, 32, 3, 3)), {"kernel": (3, 3), "num_filter": 32, "no_bias": True}),
    Example("Convolution", (WIDE, (64, 32, 1, 1)), {"kernel": (1, 1), "num_filter": 64, "no_bias": True}),
    Example("Deconvolution", (IMAGE, (8, 4, 3, 3)), THREE),
    Example(
        "Deconvolution",
        (IMAGE, (8, 2, 4, 4), (4,)),
        {"kernel": (4, 4), "stride": (2, 2), "num_filter": 4, "num_group": 2, "no_bias": False},
    ),
)

LSTM = {"state_size": 6, "num_layers": 1, "mode": "lstm", "state_outputs": True}
GRU = {"state_size": 6, "num_layers": 1, "mode": "gru", "bidirectional": True}
_PRODUCTS = (
    Example("FullyConnected", ((4, 8), (5, 8), (5,)), {"num_hidden": 5}),
    Example("FullyConnected", ((2, 3, 8), (5, 8)), {"num_hidden": 5, "no_bias": True, "flatten": False}),
    Example("FullyConnected", (MAP, (32, 64), (32,)), {"num_hidden": 32}),
    Example("dot", ((4, 8), (8, 5))),
    Example("dot", ((8, 4), (5, 8)), {"transpose_a": True, "transpose_b": True}),
    Example("batch_dot", ((3, 4, 8), (3, 8, 5))),
    Example("batch_dot", ((3, 4, 8), (3, 5, 8)), {"transpose_b": True}),
    Example("RNN", ((5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6)), LSTM, outputs=3),
    Example(
        "RNN",
        ((5, 2, 8), (4 * 6 * (8 + 6 + 2),), (1, 2, 6), (1, 2, 6), (2,)),
        {**LSTM, "use_sequence_length": True},
        {4: "length"},
        outputs=3,
    ),
    Example(
        "RNN",
        ((5, 2, 8), (2 * 3 * 6 * (8 + 6 + 2),), (2, 2, 6), (2,)),
        {**GRU, "use_sequence_length": True},
        {3: "length"},
    ),
    Example("RNN", ((5, 2, 8), (2 * 3 * 6 * (8 + 6 + 2),), (2, 2, 6)), GRU),
    Example("_contrib_interleaved_matmul_selfatt_qk", ((5, 2, 24),), {"heads": 2}),
    Example("_contrib_interleaved_matmul_selfatt_valatt", ((5, 2, 24), (4, 5, 5)), {"heads": 2}),
    Example("_contrib_interleaved_matmul_encdec_qk", ((5, 2, 8), (5, 2, 16)), {"heads": 2}),
    Example("_contrib_interleaved_matmul_encdec_valatt", ((5, 2, 16), (4, 5, 5)), {"heads": 2}),
    Example("Convolution_v1", ((2, 8, 6, 6), (4, 8, 3, 3), (4,)), {"kernel": (3, 3), "num_filter": 4}),
    *same("_np_dot _npi_matmul", (4, 8), (8, 5)),
    *same("_np_dot _npi_matmul", (2, 4, 8), (8,)),
    *same("_npi_matmul", (3, 4, 8), (3, 8, 5)),
    *same("_npi_tensordot", (4, 8), (8, 5), a_axes_summed=(1,), b_axes_summed=(0,)),
    *same("_npi_tensordot_int_axes", (4, 2, 4), (2, 4, 5), axes=2),
    *same("_npi_einsum", (3, 4, 8), (3, 8, 5), num_args=2, subscripts="bij,bjk->bik"),
    *same("_npi_einsum", (4, 8), (8, 5), num_args=2, subscripts="ij,jk->ik", optimize=1),
    *same("khatri_rao", (4, 3), (5, 3), num_args=2, differentiable=False),
    *same("_linalg_gemm", (3, 4, 8), (3, 8, 5), (3, 4, 5)),
    *same("_linalg_gemm2", (3, 4, 8), (3, 8, 5)),
    *same("_linalg_syrk", (3, 4, 8)),
    *same("_linalg_trmm", (3, 4, 4), (3, 4, 5)),
    *same("Correlation", MAP, MAP, max_displacement=1, pad_size=1),
    Example(
        "_contrib_DeformableConvolution",
        ((2, 4, 6, 6), (2, 18, 4, 4), (4, 4, 3, 3), (4,)),
        {"kernel": (3, 3), "num_filter": 4},
    ),
    Example(
        "_contrib_ModulatedDeformableConvolution",
        ((2, 4, 6, 6), (2, 18, 4, 4), (2, 9, 4, 4), (4, 4, 3, 3), (4,)),
        {"kernel": (3, 3), "num_filter": 4, "im2col_step": 2},
        runs=False,  # its gradients are for GPUs alone
    ),
)

PRODUCTS = _CONVOLUTIONS + _PRODUCTS
