"""Linear algebra but for products: decompositions, solvers and transforms."""

from __future__ import annotations

from ..core import CLEAR, DENY
from .build import Rules, never_cast, rules

_SOLVER = "a decomposition or solver"  # in float32 and float64 alone

_SOLVERS = (
    *never_cast(DENY, "_linalg_potrf _linalg_potri _linalg_trsm _linalg_inverse _linalg_gelqf", _SOLVER),
    *never_cast(DENY, "_linalg_syevd _linalg_det _linalg_slogdet", _SOLVER),
    *never_cast(DENY, "_npi_cholesky _npi_svd _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh", _SOLVER),
    *never_cast(DENY, "_npi_solve _npi_pinv _npi_pinv_scalar_rcond _npi_tensorinv _npi_tensorsolve", _SOLVER),
    *never_cast(DENY, "_linalg_sumlogdiag", "logarithms and their sum"),
)

_OTHERS = (
    # They move values, but in float32 and float64 alone.
    *rules(CLEAR, "_linalg_extractdiag _linalg_makediag _linalg_extracttrian _linalg_maketrian", no_low=True),
    *never_cast(DENY, "_contrib_fft _contrib_ifft _contrib_count_sketch", "long sums"),
)

LINALG: Rules = _SOLVERS + _OTHERS
