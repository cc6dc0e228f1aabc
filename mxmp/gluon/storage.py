"""Parameters in low precision, and back."""

from __future__ import annotations

from typing import Any, List

from mxnet import autograd, gluon

from .. import dtypes
from ..optimizer import masters
from ..symbol.params import round_to


def dtype_of(param: gluon.Parameter) -> str:
    """Return the name of a parameter's dtype."""
    return dtypes.canonical(param.dtype)


def is_initialized(param: gluon.Parameter) -> bool:
    """Return whether a parameter has values."""
    return param._data is not None


def store_low(param: gluon.Parameter, dtype: str) -> None:
    """Store an initialized float32 parameter in low precision, rounded to nearest even.

    The float32 values are kept beside it for the optimizer's master copy, unless the parameter
    is not trained.
    """
    exact = param.list_data()
    rounded = [round_to(array, dtype) for array in exact]
    if param.grad_req != "null":
        masters.stash_master(param, exact)
    _replace(param, dtype, rounded)


def store_float32(param: gluon.Parameter) -> None:
    """Store a low precision parameter in float32: its exact values if they are still known."""
    exact = [masters.new_master(array, param) for array in param.list_data()]
    _replace(param, dtypes.FLOAT32, exact)


def _replace(param: gluon.Parameter, dtype: str, arrays: List[Any]) -> None:
    """Give a parameter other arrays, as ``Parameter.cast`` does."""
    with autograd.pause():
        param._dtype = dtypes.to_numpy(dtype) if dtype == dtypes.BFLOAT16 else dtype
        param._data = arrays
        if param._grad is not None:
            param._grad = [round_to(grad, dtype) for grad in param._grad]
            autograd.mark_variables(param._data, param._grad, param.grad_req)
