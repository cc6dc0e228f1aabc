"""``precision``: a region of ``hybrid_forward`` with a precision of its own."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .. import dtypes
from ..errors import DtypeError, PolicyError
from ..passes.classify import PRECISION_ATTR
from ..passes.verdict import LOW


def precision(dtype: str) -> Any:
    """Return a context manager whose operators run in float32, or in low precision.

    It marks the operators that are created inside, which conversion reads; it changes nothing on
    a net that is not converted. It overrules every other setting of the policy.

    Args:
        dtype: 'float32', or 'low' for the policy's compute dtype, or that dtype by name (which
            is an error under a policy with another one).

    Raises:
        DtypeError: If it is no dtype.
        PolicyError: If it is another dtype than these.

    Example::

        def hybrid_forward(self, F, x):
            x = self.body(x)
            with mxmp.gluon.precision("float32"):
                return F.broadcast_div(x, F.sum(x, axis=1, keepdims=True))
    """
    known = (dtypes.FLOAT32, LOW, *dtypes.LOW_PRECISION)
    try:
        name = dtype if dtype == LOW else dtypes.canonical(dtype)
    except DtypeError as e:
        raise DtypeError(f"precision({dtype!r}): {e}") from e
    if name not in known:
        raise PolicyError(f"precision({dtype!r}): expected one of {', '.join(known)}.")
    return mx.AttrScope(**{PRECISION_ATTR: name})
