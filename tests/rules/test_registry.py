"""Every operator that MXNet has registered is in the table once, or is no business of a table."""

import ctypes
import re

import mxnet as mx
import pytest
from mxnet.base import _LIB, c_str, check_call, py_str
from mxnet.contrib.amp.lists import symbol_fp16 as contrib

from mxmp.passes.facts import CAST_OPS
from mxmp.rules import ALLOW, DENY, RULES

BACKWARD = re.compile("(^|_)backward(_|$)")
"""Operators of the backward pass: MXNet adds them when a graph is bound."""

WITHOUT_RULE = {
    "what the engine itself inserts and absorbs": set(CAST_OPS),
    "added when a graph is bound": {"_NoGradient", "_CrossDeviceCopy"},
    "stands on autograd's tape alone": {"_CachedOp", "_CachedOpThreadSafe", "_CustomFunction"},
    "runs the user's own code, which knows its dtypes; the report names it": {"Custom", "_NDArray", "_Native"},
    "has no output, so that nothing in a symbol can read it": {"reset_arrays"},
    "a function of NDArrays, whose types no symbol infers": {
        "_copyto", "_set_value", "_onehot_encode", "fill_element_0index",
        "_cvimread", "_cvimdecode", "_cvimresize", "_cvcopyMakeBorder", "_imdecode",
    },
}  # fmt: skip


def canonical(alias):
    """Return the name that graphs have for an operator."""
    handle, name, text = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_char_p()
    check_call(_LIB.NNGetOpHandle(c_str(alias), ctypes.byref(handle)))
    count, lists = ctypes.c_uint(), [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    unused = (text, count, *lists, ctypes.c_char_p(), ctypes.c_char_p())
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, ctypes.byref(name), *map(ctypes.byref, unused)))
    return py_str(name.value)


# Every name of the operators of the installed MXNet, aliases too.
REGISTRY = {name: canonical(name) for name in mx.operator.get_all_registered_operators()}
OPERATORS = set(REGISTRY.values())


@pytest.mark.behaviour("one list per operator")
def test_every_registered_operator_has_a_rule_or_a_reason():
    assert len(REGISTRY) > 1100 and len(OPERATORS) > 850
    forward = {op for op in OPERATORS if not BACKWARD.search(op)}
    assert forward - set(RULES.ops()) == set().union(*WITHOUT_RULE.values())
    assert set(RULES.ops()) <= forward  # by the names that graphs have


def categories(names):
    """Return the categories of operators given by any of their names."""
    ops = {REGISTRY[name] for name in names if name in REGISTRY}
    return {op: {rule.category for rule in RULES if rule.op == op} for op in ops & set(RULES.ops())}


# contrib.amp keeps these in float32; why mxmp does not.
LOWER_THAN_CONTRIB_AMP = {
    "low precision is what a product is for": {"Convolution_v1"},
    "would gain; MXNet has no low precision kernel": {
        "_linalg_gemm", "_linalg_gemm2", "_linalg_syrk", "_linalg_trmm"},
    "moves values; no low precision kernel either": {
        "_linalg_makediag", "_linalg_extractdiag", "_linalg_maketrian", "_linalg_extracttrian"},
    "only where the sum is short": {"sum", "mean"},
    "no kernel in float16": {"_contrib_SyncBatchNorm"},
}  # fmt: skip


def test_what_contrib_amp_keeps_in_float32_is_denied():
    found = categories(contrib.FP32_FUNCS)
    assert len(found) > 80
    lower = {op for op, category in found.items() if category != {DENY}}
    assert lower == set().union(*LOWER_THAN_CONTRIB_AMP.values())


# https://pytorch.org/docs/1.13/amp.html#autocast-op-reference, those that MXNet has by that name.
TORCH_FLOAT32 = """arccos arcsin cosh erfinv exp expm1 log log10 log1p log2 log_softmax norm prod reciprocal rsqrt
sinh softmax softmin tan smooth_l1 _power _power_scalar _rpower_scalar _np_cumsum _np_prod LayerNorm GroupNorm""".split()
TORCH_LOW = """Convolution Deconvolution FullyConnected dot batch_dot _npi_matmul _linalg_gemm2 RNN""".split()


LISTS = {
    "torch's float32": (TORCH_FLOAT32, DENY),
    "torch's low precision": (TORCH_LOW, ALLOW),
    "contrib.amp's low precision": ([name for name in contrib.FP16_FUNCS if name in REGISTRY], ALLOW),
}


@pytest.mark.parametrize("names, category", LISTS.values(), ids=LISTS)
def test_categories_are_those_of_torch_autocast_and_contrib_amp(names, category):
    assert categories(names) == {REGISTRY[name]: {category} for name in names}


TWINS = {
    "_npi_add": "broadcast_add", "_npi_multiply": "broadcast_mul", "_npi_add_scalar": "_plus_scalar",
    "_npi_multiply_scalar": "_mul_scalar", "_npi_rsubtract_scalar": "_rminus_scalar", "_npi_matmul": "batch_dot",
    "_npi_tensordot": "dot", "_np_dot": "dot", "_npi_mean": "mean", "_np_sum": "sum", "_np_max": "max",
    "_npi_exp": "exp", "_npi_log": "log", "_npi_power": "broadcast_power", "_npi_sqrt": "sqrt", "_npi_tanh": "tanh",
    "_npx_relu": "relu", "_npx_sigmoid": "sigmoid", "_np_reshape": "Reshape", "_np_transpose": "transpose",
    "_npi_concatenate": "Concat", "_npi_stack": "stack", "_npi_where": "where", "_npi_pad": "Pad",
    "_npi_argmax": "argmax", "_npi_arange": "_arange", "_npi_zeros": "_zeros", "_npi_square": "square",
    "_contrib_BatchNormWithReLU": "BatchNorm", "_npi_full_like": "_full",
}  # fmt: skip


def test_numpy_operators_are_in_the_category_of_their_twins():
    found = categories([*TWINS, *TWINS.values()])
    assert {op: found[op] for op in TWINS} == {op: found[REGISTRY[twin]] for op, twin in TWINS.items()}
