"""Matrix products and convolutions, which tensor cores and AVX512-BF16 run faster in low precision; linear algebra."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from ..conditions import (
    einsum_elements,
    multiplied_elements,
    short_bias,
    short_gemm2,
    short_products,
    sound_convolution,
    tensordot_elements,
    without_tensor_cores,
)
from ..core import ALLOW, CLEAR, DENY, Call
from .build import Rules, never_cast, rules, short_sums, variant

# With a matrix or a vector on the right numpy's dot is the same product, accumulated in float32.
_NUMPY_DOT: Dict[str, Any] = {"substitutes": ((1, "_np_dot"), (2, "_np_dot")), "substitute_port": 1}

# Products of matrices: of positions they stay float32, and of computed values they may be as large as sums.
def _contracts(sums: Callable[[Call], Optional[int]]) -> Dict[str, Any]:
    return {"maps_indices": True, "sums": sums}


_MATRICES = _contracts(multiplied_elements)

_LENGTHS = variant("use_sequence_length", "True")
_RNN: Dict[str, Any] = {"condition": without_tensor_cores, "taints": False}

# They would gain, but have kernels only in float32 and float64 (tensor/la_op.h). Attention is written with gemm2, which
# is a product that has float16 kernels and a factor (``alpha`` of it).
_GEMM2: Dict[str, Any] = {
    "substitutes": ((2, "dot"), (3, "batch_dot")),
    "substitute_defaults": (("axis", "-2"),),
    "scalars": ("alpha",),
}

_POSITIONS = "adds positions and offsets in the dtype of the data"  # contrib/nn/deformable_im2col.cuh
_SOLVER = "a decomposition or solver"  # in float32 and float64 alone

PRODUCTS: Rules = (
    # Products:
    *rules(ALLOW, "Convolution", condition=sound_convolution, taints=False),
    *rules(ALLOW, "FullyConnected", **_MATRICES),
    *rules(ALLOW, "Convolution_v1", no_bfloat16=True, **short_sums(short_bias)),
    *rules(ALLOW, "Deconvolution", no_bfloat16=True),
    *rules(ALLOW, "dot _np_dot", no_bfloat16=True, **_MATRICES),
    *rules(ALLOW, "_npi_tensordot _npi_tensordot_int_axes", no_bfloat16=True, **_contracts(tensordot_elements)),
    *rules(ALLOW, "_npi_einsum", no_bfloat16=True, **_contracts(einsum_elements)),
    *rules(ALLOW, "batch_dot", no_bfloat16=True, condition=short_products, **_MATRICES),
    *rules(ALLOW, "_npi_matmul", no_bfloat16=True, condition=short_products, **_NUMPY_DOT, **_MATRICES),
    # Attention:
    *rules(ALLOW, "_contrib_interleaved_matmul_selfatt_qk", no_bfloat16=True),
    *rules(ALLOW, "_contrib_interleaved_matmul_selfatt_valatt", no_bfloat16=True),
    *rules(ALLOW, "_contrib_interleaved_matmul_encdec_qk", no_bfloat16=True),
    *rules(ALLOW, "_contrib_interleaved_matmul_encdec_valatt", no_bfloat16=True),
    # Recurrent: in low precision only where a policy asks for it. The last input of an RNN with lengths has a dtype of
    # its own; an LSTM has one input more.
    *rules(ALLOW, "RNN", when=variant("mode", "lstm") + _LENGTHS, keep=(4,), no_bfloat16=True, **_RNN),
    *rules(ALLOW, "RNN", when=_LENGTHS, keep=(3,), no_bfloat16=True, **_RNN),
    *rules(ALLOW, "RNN", no_bfloat16=True, **_RNN),
    # Linear algebra:
    *rules(ALLOW, "_linalg_gemm _linalg_syrk", no_low=True, **_MATRICES),
    *rules(ALLOW, "_linalg_trmm", no_low=True),
    *rules(ALLOW, "_linalg_gemm2", no_low=True, condition=short_gemm2, **_GEMM2, **_MATRICES),
    # Other products:
    *rules(DENY, "_contrib_DeformableConvolution", reason=_POSITIONS, no_low=True),
    *rules(DENY, "_contrib_ModulatedDeformableConvolution", reason=_POSITIONS, no_low=True),
    *rules(DENY, "Correlation", reason="sums over channels in the dtype of the data", no_bfloat16=True),
    *rules(DENY, "khatri_rao", reason="no kernel on GPU, none with a gradient", no_low=True),
    # Decompositions, solvers:
    *never_cast(DENY, "_linalg_potrf _linalg_potri _linalg_trsm _linalg_inverse _linalg_gelqf", _SOLVER),
    *never_cast(DENY, "_linalg_syevd _linalg_det _linalg_slogdet", _SOLVER),
    *never_cast(DENY, "_npi_cholesky _npi_svd _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh", _SOLVER),
    *never_cast(DENY, "_npi_solve _npi_pinv _npi_pinv_scalar_rcond _npi_tensorinv _npi_tensorsolve", _SOLVER),
    *never_cast(DENY, "_linalg_sumlogdiag", "logarithms and their sum"),
    # Other linear algebra:
    # They move values, but only in float32 and float64.
    *rules(CLEAR, "_linalg_extractdiag _linalg_makediag _linalg_extracttrian _linalg_maketrian", no_low=True),
    *never_cast(DENY, "_contrib_fft _contrib_ifft _contrib_count_sketch", "long sums"),
)
