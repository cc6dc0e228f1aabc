"""Conditions on attributes and shapes, on both sides of each threshold."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.rules import RULES, Call
from mxmp.rules.conditions import (
    scalars_in_range,
    short_reduction,
    short_windows,
    small_magnification,
    taps_on_data,
    value_of,
    vectors_of_channels,
)


def forbids(condition, attrs, *shapes, dtype="float16"):
    return condition(Call(attrs, shapes, dtype))


@pytest.mark.parametrize(
    "text, value",
    [
        *[("3", 3), ("-1e-05", -1e-5), ("(2, 3)", (2, 3)), ("[2,3]", [2, 3]), ("(2L, -10L)", (2, -10))],  # Python 2's L
        *[("None", None), ("True", True), ("false", False), *((text, text) for text in ("NLC", "relu", "-inf", ""))],
    ],
)
def test_value_of_reads_what_mxnet_writes(text, value):
    assert value_of({"key": text}, "key") == value


def test_value_of_a_missing_attribute_is_none():
    assert value_of({}, "key") is None


SCALARS = {
    "largest float16": ("65504", "float16", None),
    "beyond float16": ("65505", "float16", "scalar=65505 is beyond float16's largest value 65504"),
    "mask": ("-1e9", "float16", "scalar=-1e+09 is beyond float16's largest value 65504"),
    "mask in bfloat16": ("-1e9", "bfloat16", None),
    "beyond bfloat16": ("3.4e38", "bfloat16", "scalar=3.4e+38 is beyond bfloat16's largest value 3.38953e+38"),
    "smallest normal float16": ("6.103515625e-05", "float16", None),
    "negative smallest normal": ("-6.103515625e-05", "float16", None),
    "below float16": ("6.1e-05", "float16", "scalar=6.1e-05 is below float16's smallest normal value 6.1e-05"),
    "epsilon": ("-1e-9", "float16", "scalar=-1e-09 is below float16's smallest normal value 6.1e-05"),
    "epsilon in bfloat16": ("1e-9", "bfloat16", None),
    "below bfloat16": ("1e-38", "bfloat16", "scalar=1e-38 is below bfloat16's smallest normal value 1.2e-38"),
    "zero": ("0", "float16", None),
    "negative zero": ("-0.0", "float16", None),
    "no number": ("None", "float16", None),
    "infinity": ("inf", "float16", None),  # float16 has it
}


@pytest.mark.parametrize("text, dtype, reason", SCALARS.values(), ids=SCALARS.keys())
def test_scalars_in_range(text, dtype, reason):
    assert forbids(scalars_in_range("scalar"), {"scalar": text}, dtype=dtype) == reason


def test_scalars_in_range_looks_at_every_key():
    condition = scalars_in_range("a_min", "a_max")
    assert forbids(condition, {"a_min": "0", "a_max": "6"}) is None
    assert "a_min=-1e+30" in forbids(condition, {"a_min": "-1e30", "a_max": "6"})
    assert "a_max=1e+30" in forbids(condition, {"a_min": "0", "a_max": "1e30"})
    assert forbids(condition, {}) is None


REDUCTIONS = {
    "last axis at the limit": ({"axis": "-1"}, (4, 1024), None),
    "last axis above it": ({"axis": "-1"}, (4, 1025), 1025),
    "first axis is short": ({"axis": "0"}, (4, 1025), None),
    "two axes at the limit": ({"axis": "(2, 3)"}, (2, 3, 32, 32), None),
    "two axes above it": ({"axis": "(2, 3)"}, (2, 3, 32, 33), 1056),
    "axes from the end": ({"axis": "(-2, -1)"}, (2, 3, 32, 33), 1056),
    "one axis named twice": ({"axis": "(1, -1)"}, (4, 1024), None),
    "excluded axes": ({"axis": "(0, 1)", "exclude": "True"}, (2, 3, 32, 33), 1056),
    "excluded negative axis": ({"axis": "-1", "exclude": "True"}, (32, 33, 5), 1056),
    "exclude as a number": ({"axis": "0", "exclude": "1"}, (2, 1025), 1025),
    "not excluded": ({"axis": "0", "exclude": "False"}, (2, 1025), None),
    "not excluded, in small letters": ({"axis": "0", "exclude": "false"}, (2, 1025), None),
    "all axes by default": ({}, (32, 33), 1056),
    "all axes at the limit": ({}, (32, 32), None),
    "None for all axes": ({"axis": "None"}, (32, 33), 1056),
    "an empty tuple for all axes": ({"axis": "()"}, (32, 33), 1056),
    "an empty list for all axes": ({"axis": "[]"}, (32, 33), 1056),
    "exclude of no axes reduces all": ({"axis": "()", "exclude": "True"}, (32, 33), 1056),
    "a scalar": ({}, (), None),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("attrs, shape, length", REDUCTIONS.values(), ids=REDUCTIONS.keys())
def test_short_reduction(attrs, shape, length, dtype):
    expected = None if length is None else f"it reduces {length} elements, more than 1024"
    assert forbids(short_reduction, attrs, shape, dtype=dtype) == expected


@pytest.mark.parametrize("shapes", [(), (None,), ((0, 4),), ((-1, 4),)], ids=["none", "None", "zero", "negative"])
def test_a_reduction_of_unknown_length_is_forbidden(shapes):
    assert forbids(short_reduction, {"axis": "1"}, *shapes) == "the length of the reduction is unknown"


WINDOWS = {
    "one window at the limit": ({"output_size": "1"}, (2, 3, 32, 32), None),
    "one window above it": ({"output_size": "1"}, (2, 3, 32, 33), 1056),
    "one window by default": ({}, (2, 3, 32, 33), 1056),
    "an empty size is one window": ({"output_size": "()"}, (2, 3, 32, 33), 1056),
    "square windows": ({"output_size": "(2,)"}, (2, 3, 64, 64), None),
    "windows that do not divide the map": ({"output_size": "(2,)"}, (2, 3, 65, 64), 1056),
    "flat windows": ({"output_size": "(33, 1)"}, (2, 3, 33, 1024), None),
    "flat windows above the limit": ({"output_size": "(33, 1)"}, (2, 3, 33, 1025), 1025),
    "an element in many windows": ({"output_size": "(64, 65)"}, (2, 3, 2, 2), 1056),
    "an element in windows at the limit": ({"output_size": "(64, 64)"}, (2, 3, 2, 2), None),
}


@pytest.mark.parametrize("attrs, shape, length", WINDOWS.values(), ids=WINDOWS.keys())
def test_short_windows(attrs, shape, length):
    expected = None if length is None else f"it or its gradient sums {length} elements, more than 1024"
    assert forbids(short_windows, attrs, shape) == expected


def test_windows_of_unknown_size_are_forbidden():
    assert forbids(short_windows, {"output_size": "1"}, None) == "the size of the windows is unknown"


@pytest.mark.parametrize("pool_type, category", [("avg", "deny"), ("sum", "deny"), ("max", "clear")])
def test_the_old_pooling_sums_in_float32(pool_type, category):
    assert RULES.find("Pooling_v1", {"kernel": "(2, 2)", "pool_type": pool_type}).category == category


@pytest.mark.parametrize("op, average", [("Pooling_v1", 2048 / 56**2), ("Pooling", 1)])
def test_the_old_poolings_sums_stop_growing_in_float16(op, average):
    ones = mx.nd.ones((1, 1, 56, 56), dtype="float16")
    found = getattr(mx.nd, op)(ones, kernel=(1, 1), global_pool=True, pool_type="avg")
    assert found.asscalar() == np.float16(average)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("lengths", ["True", "False"])
def test_a_fused_rnn_stays_where_it_may_have_tensor_cores(mode, lengths):
    attrs = {"mode": mode, "state_size": "6", "num_layers": "1", "use_sequence_length": lengths}
    rule = RULES.find("RNN", attrs)
    reason = rule.forbids(Call(attrs, ((5, 2, 8),), "float16"))
    assert reason == "MXNet runs it without tensor cores in float16, which float32 may have"
    assert rule.category == "allow" and not rule.taints  # its values are in range


RESIZES = {
    "size at the limit": ({"height": "80", "width": "80"}, [(1, 3, 10, 10)], None),
    "height above it": ({"height": "81", "width": "80"}, [(1, 3, 10, 10)], 8.1),
    "width above it": ({"height": "10", "width": "90"}, [(1, 3, 10, 10)], 9),
    "a smaller size": ({"height": "5", "width": "5"}, [(1, 3, 10, 10)], None),
    "size by default is one": ({}, [(1, 3, 10, 10)], None),
    "scale at the limit": ({"scale_height": "8", "scale_width": "8.0"}, [None], None),
    "scale above it": ({"scale_height": "8", "scale_width": "8.5"}, [None], 8.5),
    "scale beats size": ({"height": "99", "scale_height": "2", "scale_width": "2"}, [(1, 3, 1, 1)], None),
    "odd scale": ({"mode": "odd_scale", "scale_height": "9", "scale_width": "1"}, [None], 9),
    "like at the limit": ({"mode": "like"}, [(1, 3, 2, 2), (1, 3, 16, 16)], None),
    "like above it": ({"mode": "like"}, [(1, 3, 2, 2), (1, 3, 16, 17)], 8.5),
    "to even sizes": ({"mode": "to_even_up"}, [None], None),
}


@pytest.mark.parametrize("attrs, shapes, factor", RESIZES.values(), ids=RESIZES.keys())
def test_small_magnification(attrs, shapes, factor):
    expected = None if factor is None else f"it magnifies by {factor:g}, more than 8"
    assert forbids(small_magnification, attrs, *shapes) == expected


@pytest.mark.parametrize(
    "attrs, shapes",
    [
        ({"height": "8", "width": "8"}, [None]),
        ({"mode": "like"}, [(1, 3, 4, 4), None]),
        ({"mode": "like"}, [None, (1, 3, 4, 4)]),
    ],
)
def test_an_unknown_magnification_is_forbidden(attrs, shapes):
    assert forbids(small_magnification, attrs, *shapes) == "the magnification is unknown"


CONDITIONED = {
    "sum": ({"axis": "1"}, (2, 1024), {"axis": "1"}, (2, 1025)),
    "mean": ({"axis": "1"}, (2, 1024), {"axis": "1"}, (2, 1025)),
    "_np_sum": ({"axis": "(1,)"}, (2, 1024), {"axis": "(1,)"}, (2, 1025)),
    "_npi_mean": ({"axis": "None"}, (2, 512), {"axis": "None"}, (2, 513)),
    "_contrib_AdaptiveAvgPooling2D": ({}, (1, 1, 32, 32), {}, (1, 1, 33, 32)),
    "_contrib_BilinearResize2D": (
        {"height": "8", "width": "8"}, (1, 1, 1, 1), {"height": "9", "width": "9"}, (1, 1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("op, dtype", [(op, dtype) for op in CONDITIONED for dtype in ("float16", "bfloat16")])
def test_the_table_asks_about_shapes(op, dtype):
    safe, safe_shape, unsafe, unsafe_shape = CONDITIONED[op]
    assert RULES.find(op, safe).forbids(Call(safe, (safe_shape,), dtype)) is None
    assert RULES.find(op, unsafe).forbids(Call(unsafe, (unsafe_shape,), dtype)) is not None


def test_a_sum_that_gives_float32_may_be_long():
    attrs = {"axis": "1", "dtype": "float32"}
    assert RULES.find("_np_sum", attrs).forbids(Call(attrs, ((2, 70000),), "float16")) is None


# The largest value and the smallest normal one, and what lies beyond.
EDGES = {
    "float16": (("65504", "65505"), ("6.103515625e-05", "6.1e-05")),
    "bfloat16": (("3.3895313892515355e+38", "3.4e+38"), ("1.1754943508222875e-38", "1.17e-38")),
}
WITH_SCALARS = [
    pytest.param(rule, key, dtype, id=f"{rule.op}-{key}-{dtype}")
    for rule in RULES
    if rule.scalars and rule.category != "deny"
    for key in rule.scalars
    for dtype in EDGES
]


@pytest.mark.parametrize("rule, key, dtype", WITH_SCALARS)
def test_every_scalar_of_the_table_must_fit(rule, key, dtype):
    for inside, beyond in EDGES[dtype]:
        assert rule.forbids(Call({key: inside}, (), dtype)) is None
        assert key in rule.forbids(Call({key: beyond}, (), dtype))


MUST_FIT = """_plus_scalar _mul_scalar _npi_add_scalar _npi_multiply_scalar _npi_true_divide_scalar _maximum_scalar
_npi_equal_scalar clip LeakyReLU Pad _npi_pad SequenceMask _full _npi_full_like one_hot _npi_where_lscalar
_npi_where_scalar2 _slice_assign_scalar _npi_ediff1d _npi_insert_scalar _contrib_gradientmultiplier""".split()


@pytest.mark.parametrize("op", MUST_FIT)
def test_operators_with_scalars_name_them(op):
    assert RULES.find(op, {}).scalars


# Attributes that no float16 or bfloat16 does justice to, whatever their value.
ALWAYS_FLOAT32 = """_power_scalar _npi_power_scalar _rpower_scalar _rdiv_scalar _npi_rtrue_divide_scalar smooth_l1
_arange _npi_arange _linspace LayerNorm GroupNorm L2Normalization InstanceNorm""".split()


@pytest.mark.parametrize("op", ALWAYS_FLOAT32)
def test_exponents_epsilons_and_counts_are_for_float32(op):
    assert RULES.find(op, {}).category == "deny"


def reads_data(size, taps, stride, dilate, pad):
    """Return whether each tap of a window that slides over padded data meets data, by sliding it."""
    data = [False] * pad + [True] * size + [False] * pad
    starts = range(0, len(data) - dilate * (taps - 1), stride)
    return all(any(data[start + dilate * tap] for start in starts) for tap in range(taps))


@pytest.mark.parametrize(
    "taps, stride, dilate, pad", [(3, 2, 1, 1), (3, 1, 1, 1), (5, 1, 1, 2), (3, 1, 6, 6), (1, 2, 1, 0)]
)
def test_convolutions_whose_taps_read_padding_alone_are_forbidden(taps, stride, dilate, pad):
    names = {"kernel": taps, "stride": stride, "dilate": dilate, "pad": pad}
    attrs = {key: f"({value}, {value})" for key, value in names.items()}
    found = [size for size in range(1, 14) if taps_on_data(Call(attrs, ((1, 8, 64, size),), "bfloat16"))]
    assert found == [size for size in range(1, 14) if not reads_data(size, taps, stride, dilate, pad)]
    assert not taps_on_data(Call(attrs, ((1, 8, 1, 1),), "float16"))
    assert not taps_on_data(Call(attrs, (None,), "bfloat16"))


@pytest.mark.parametrize("channels, allowed", [(8, False), (16, True), (24, False), (116, True), (728, False)])
def test_bfloat16_depthwise_convolutions_need_whole_vectors_where_float32_has_half_ones(channels, allowed):
    attrs = {"kernel": "(3, 3)", "num_filter": str(channels), "num_group": str(channels)}
    assert (vectors_of_channels(Call(attrs, (None,), "bfloat16")) is None) == allowed
    assert vectors_of_channels(Call(attrs, (None,), "float16")) is None
    for groups in ("1", "2"):
        assert vectors_of_channels(Call({**attrs, "num_group": groups}, (None,), "bfloat16")) is None
