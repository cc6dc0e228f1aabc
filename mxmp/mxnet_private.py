"""Functions that reach into MXNet by private names or by its C library, where no public name gives the same.

All other files use MXNet's private names directly; tests/test_mxnet_private.py lists them. This module is internal.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.base import _LIB, c_str, c_str_array, check_call, py_str

# ------------------------------------------------------------------ parameters and arrays


def is_initialized(param: gluon.Parameter) -> bool:
    """Return whether a parameter has values."""
    return param._data is not None


def is_deferred(param: gluon.Parameter) -> bool:
    """Return whether a parameter gets its values at the first call, when its shape is known."""
    return bool(param._deferred_init)


def checked_arrays(param: gluon.Parameter) -> List[mx.nd.NDArray]:
    """Return a parameter's values on each context, dense or sparse; raise MXNet's error if it has none yet."""
    return list(param._check_and_get(param._data, list))


# ------------------------------------------------------------------ modules


def made_with(module: mx.mod.BaseModule) -> Dict[str, Any]:
    """Return the options that a Module or BucketingModule of MXNet was made with, by the constructor's names."""
    names = ("context", "work_load_list", "fixed_param_names", "state_names", "group2ctxs", "compression_params")
    return {name: getattr(module, f"_{name}") for name in names}


# ------------------------------------------------------------------ operators


def ignores_output_gradient(attrs: Mapping[str, str]) -> bool:
    """Return whether a ``Custom`` operator declares that it ignores its outputs' gradients (``need_top_grad=False``).

    Its CustomOpProp is made once more, as for each symbol. The result is False if it cannot be made.
    """
    keys_before = set(mx.operator._registry.ref_holder)
    try:
        symbol = mx.sym.Custom(name="mxmp", **{key: text for key, text in attrs.items() if not key.startswith("__")})
    except mx.MXNetError:
        return False
    held = list(mx.operator._registry.ref_holder.items())
    del symbol  # MXNet then drops the CustomOpProp from the registry
    props = [each for key, each in held if key not in keys_before and isinstance(each, mx.operator.CustomOpProp)]
    return bool(props) and not any(map(_uses_output_gradient, props))


def _uses_output_gradient(prop: mx.operator.CustomOpProp) -> bool:
    outputs, inputs = len(prop.list_outputs()), len(prop.list_arguments())
    numbers = list(range(outputs + inputs + outputs))
    parts = numbers[:outputs], numbers[outputs : outputs + inputs], numbers[outputs + inputs :]
    return any(number < outputs for number in prop.declare_backward_dependency(*parts))


@functools.lru_cache(maxsize=None)
def operator_handle(op: str) -> Any:
    """Return MXNet's handle of an operator or alias; raise MXNetError if no operator has that name."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return handle


def operator_name(op: str) -> str:
    """Return the name of an operator or alias in graphs, 'Concat' for 'concat'; raise MXNetError if there is none."""
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(operator_handle(op), ctypes.byref(name)))
    return str(py_str(name.value))


# Attributes of variables in files before 0.9 (kHiddenKeys in src/c_api/c_api_symbolic.cc at tag 1.9.1).
_OF_VARIABLES = re.compile("^(?:{0})|(?:{0})$".format("ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage"))
_UNNAMED_INPUTS = 16  # more than any operator with unnamed inputs has


def count_inputs(op: str, attrs: Tuple[Tuple[str, str], ...], count: int) -> Optional[Tuple[int, int]]:
    """Return the numbers of arguments and of all inputs, auxiliary states too, of an operator that reads ``count``.

    None if MXNet does not make the operator with these attributes.
    """
    attrs = tuple((key, value) for key, value in attrs if not _OF_VARIABLES.search(key))
    # Not from the cache: a user's class may be registered anew.
    count_them = _count_inputs.__wrapped__ if op in ("Custom", "_npi_Custom") else _count_inputs
    return count_them(op, attrs, count)


@functools.lru_cache(maxsize=4096)
def _count_inputs(op: str, attrs: Tuple[Tuple[str, str], ...], count: int) -> Optional[Tuple[int, int]]:
    # An operator with named inputs gets variables for missing ones. Another takes only the right number.
    for number in (count, *range(_UNNAMED_INPUTS)):
        symbol = _make_symbol(op, attrs)
        if symbol is None:
            return None
        with contextlib.suppress(mx.MXNetError):
            symbol._compose(*(mx.sym.var(f"input{i}") for i in range(number)), name="node")
            return len(symbol.list_arguments()), len(symbol.list_inputs())
    # MXNet reads the number of multi_sgd_mom_update's inputs from another operator's parameters, and fails.
    return max(count, 1), max(count, 1)


def _make_symbol(op: str, attrs: Tuple[Tuple[str, str], ...]) -> Any:
    """Return an operator without inputs; None if MXNet refuses its attributes."""
    handle, create = ctypes.c_void_p(), _LIB.MXSymbolCreateAtomicSymbol
    with contextlib.suppress(mx.MXNetError, UnicodeEncodeError):
        keys, values = (c_str_array([pair[i] for pair in attrs]) for i in (0, 1))
        check_call(create(operator_handle(op), len(attrs), keys, values, ctypes.byref(handle)))
        return mx.sym.Symbol(handle)
    return None
