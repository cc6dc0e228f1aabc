"""Conditions on attributes and shapes, on both sides of each threshold, as the table asks them."""

import pytest

from mxmp.passes.sizes import depends_on_shapes
from mxmp.rules import RULES, Call
from mxmp.rules.conditions import (
    scalars_in_range,
    scalars_representable,
    taps_on_data,
    value_of,
    vectors_of_channels,
)
from tests.graph.text import from_text


def forbids(op, attrs, *shapes, dtype="float16"):
    return RULES.find(op, attrs).forbids(Call(attrs, shapes, dtype))


@pytest.mark.parametrize(
    "text, value",
    [
        *[("3", 3), ("-1e-05", -1e-5), ("(2, 3)", (2, 3)), ("[2,3]", (2, 3)), ("(2L, -10L)", (2, -10))],  # Python 2's L
        *[("None", None), ("True", True), ("false", False), *((text, text) for text in ("NLC", "relu", "-inf", ""))],
    ],
)
def test_value_of_reads_what_mxnet_writes(text, value):
    assert value_of({"key": text}, "key") == value


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
    "rounded to one": ("0.9999", "float16", "scalar=0.9999 becomes 1 in float16"),
    "rounded in bfloat16 alone": ("-0.999", "bfloat16", "scalar=-0.999 becomes -1 in bfloat16"),
    "not rounded to one": ("-0.999", "float16", None),
    "zero": ("0", "float16", None),
    "negative zero": ("-0.0", "float16", None),
    "no number": ("None", "float16", None),
    "infinity": ("inf", "float16", None),  # float16 has it
}


@pytest.mark.parametrize("text, dtype, reason", SCALARS.values(), ids=SCALARS.keys())
def test_scalars_in_range(text, dtype, reason):
    assert scalars_in_range("scalar")(Call({"scalar": text}, (), dtype)) == reason


@pytest.mark.parametrize("value, held", [("6", True), ("-2.5", True), ("1e-9", False), ("0.1", False), ("257", False)])
def test_a_scalar_that_becomes_a_result_must_be_one_of_bfloat16(value, held):
    reason = scalars_representable("a_min", "a_max")(Call({"a_min": "0", "a_max": value}, (), "bfloat16"))
    assert reason == (None if held else f"a_max={float(value):g} is none of bfloat16's values, and MXNet truncates it")


# Attributes and shapes of calls, and the length of the longest sum (or the factor) where it is too long, by operator.
REDUCTIONS = {
    "last axis at the limit": ({"axis": "-1"}, [(4, 1024)], None),
    "last axis above it": ({"axis": "-1"}, [(4, 1025)], 1025),
    "first axis is short": ({"axis": "0"}, [(4, 1025)], None),
    "two axes at the limit": ({"axis": "(2, 3)"}, [(2, 3, 32, 32)], None),
    "two axes above it": ({"axis": "(2, 3)"}, [(2, 3, 32, 33)], 1056),
    "axes from the end": ({"axis": "(-2, -1)"}, [(2, 3, 32, 33)], 1056),
    "one axis named twice": ({"axis": "(1, -1)"}, [(4, 1024)], None),
    "excluded axes": ({"axis": "(0, 1)", "exclude": "True"}, [(2, 3, 32, 33)], 1056),
    "excluded negative axis": ({"axis": "-1", "exclude": "True"}, [(32, 33, 5)], 1056),
    "exclude as a number": ({"axis": "0", "exclude": "1"}, [(2, 1025)], 1025),
    "not excluded": ({"axis": "0", "exclude": "False"}, [(2, 1025)], None),
    "not excluded, in small letters": ({"axis": "0", "exclude": "false"}, [(2, 1025)], None),
    "all axes by default": ({}, [(32, 33)], 1056),
    "all axes at the limit": ({}, [(32, 32)], None),
    "None for all axes": ({"axis": "None"}, [(32, 33)], 1056),
    "an empty tuple for all axes": ({"axis": "()"}, [(32, 33)], 1056),
    "an empty list for all axes": ({"axis": "[]"}, [(32, 33)], 1056),
    "exclude of no axes reduces all": ({"axis": "()", "exclude": "True"}, [(32, 33)], 1056),
    "a scalar": ({}, [()], None),
}

WINDOWS = {
    "one window at the limit": ({"output_size": "1"}, [(2, 3, 32, 32)], None),
    "one window above it": ({"output_size": "1"}, [(2, 3, 32, 33)], 1056),
    "one window by default": ({}, [(2, 3, 32, 33)], 1056),
    "an empty size is one window": ({"output_size": "()"}, [(2, 3, 32, 33)], 1056),
    "square windows": ({"output_size": "(2,)"}, [(2, 3, 64, 64)], None),
    "windows that do not divide the map": ({"output_size": "(2,)"}, [(2, 3, 65, 64)], 1056),
    "flat windows": ({"output_size": "(33, 1)"}, [(2, 3, 33, 1024)], None),
    "flat windows above the limit": ({"output_size": "(33, 1)"}, [(2, 3, 33, 1025)], 1025),
    "an element in many windows": ({"output_size": "(64, 65)"}, [(2, 3, 2, 2)], 1056),
    "an element in windows at the limit": ({"output_size": "(64, 64)"}, [(2, 3, 2, 2)], None),
}

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

PRODUCTS = {
    "attention scores": ({"transpose_b": "True"}, [(96, 512, 64), (96, 512, 64)], None),
    "attention values": ({}, [(96, 512, 512), (96, 512, 64)], None),
    "inner at the limit": ({}, [(2, 3, 1024), (2, 1024, 5)], None),
    "inner above it": ({}, [(2, 3, 1025), (2, 1025, 5)], 1025),
    "inner, both transposed": ({"transpose_a": "True", "transpose_b": "1"}, [(2, 1025, 3), (2, 5, 1025)], 1025),
    "rows are summed by the gradient": ({}, [(2, 2048, 3), (2, 3, 5)], 2048),
    "rows, transposed": ({"transpose_a": "True"}, [(2, 3, 2048), (2, 3, 5)], 2048),
    "columns are summed by the gradient": ({}, [(2, 3, 4), (2, 4, 4096)], 4096),
    "columns, transposed": ({"transpose_b": "True"}, [(2, 3, 4), (2, 4096, 4)], 4096),
    "a large batch is no sum": ({}, [(70000, 3, 4), (70000, 4, 5)], None),
    "four dimensions": ({}, [(2, 7, 3, 1025), (2, 7, 1025, 5)], 1025),
}

MATMULS = {
    "two matrices": ({}, [(1024, 8), (8, 9)], None),
    "the rows of a batch add up in the weight's gradient": ({}, [(4, 512, 8), (8, 9)], 2048),
    "a batch broadcast on the left": ({}, [(8, 9), (200, 9, 6)], 1200),
    "two batches": ({}, [(200, 8, 9), (200, 9, 6)], None),
    "a vector on the right": ({}, [(2000, 9), (9,)], 2000),
    "a vector on the left": ({}, [(9,), (9, 2000)], 2000),
    "two vectors": ({}, [(1025,), (1025,)], 1025),
}

BIASES = {
    "at the limit": ({}, [(64, 3, 64, 64)], None),
    "above it": ({"stride": "(1, 1)"}, [(65, 3, 64, 64)], 1040),
    "with a stride": ({"stride": "(2, 2)"}, [(64, 3, 128, 128)], None),
    "no bias": ({"no_bias": "True"}, [(65, 3, 64, 64)], None),
    "unknown": ({}, [None], None),
}

# By operator too, with one sum for some input.
COPIES = {
    "tile": ("tile", {"reps": "(4097, 1)"}, [(1, 3)], 4097),
    "tile by a number": ("tile", {"reps": "4096"}, [(1, 3)], None),
    "repeat": ("repeat", {"repeats": "5000", "axis": "0"}, [(2, 3)], 5000),
    "broadcast_axis": ("broadcast_axis", {"axis": "(0, 1)", "size": "(64, 65)"}, [(1, 1, 3)], 4160),
    "broadcast_axis, one": ("broadcast_axis", {"axis": "0", "size": "64"}, [(1, 1, 3)], None),
    "broadcast_to": ("broadcast_to", {"shape": "(5000, 0)"}, [(1, 3)], 5000),
    "broadcast_to, a number": ("broadcast_to", {"shape": "5000"}, [(1,)], 5000),
    "broadcast_to, nothing": ("broadcast_to", {"shape": "(5000, 0)"}, [(5000, 3)], None),
    "numpy's broadcast_to": ("_npi_broadcast_to", {"shape": "(5000, 3)"}, [(3,)], 5000),
    "broadcast_like": ("broadcast_like", {}, [(1, 3), (5000, 3)], 5000),
    "broadcast_like, some axes": (
        "broadcast_like", {"lhs_axes": "(0,)", "rhs_axes": "(-1,)"}, [(1, 3), (7, 5000)], 5000),
    "PReLU": ("LeakyReLU", {"act_type": "prelu"}, [(8, 16, 32, 32), (16,)], 8192),
    "PReLU, short": ("LeakyReLU", {"act_type": "prelu"}, [(4, 16, 32, 32), (16,)], None),
}  # fmt: skip

ROWS = {
    "Embedding": ("Embedding", {"input_dim": "30522", "output_dim": "8"}, [(8, 129), (30522, 8)], 1032),
    "Embedding at the limit": ("Embedding", {"input_dim": "30522", "output_dim": "8"}, [(8, 128), (30522, 8)], None),
    "take": ("take", {}, [(9, 8), (1025,)], 1025),
    "take of a few": ("take", {}, [(70000, 8), (9,)], None),
    "gather_nd": ("gather_nd", {}, [(9, 8), (2, 1025)], 1025),
    "gather_nd at the limit": ("gather_nd", {}, [(9, 8), (2, 1024)], None),
    "UpSampling": ("UpSampling", {"scale": "33", "sample_type": "nearest"}, [(1, 3, 2, 2)], 1089),
    "UpSampling at the limit": ("UpSampling", {"scale": "32", "sample_type": "nearest"}, [(1, 3, 2, 2)], None),
    "UpSampling of unknown size": ("UpSampling", {"scale": "33", "sample_type": "nearest"}, [None], 1089),
    "UpSampling of two": ("UpSampling", {"scale": "8", "sample_type": "nearest"}, [(1, 3, 8, 8), (1, 3, 1, 1)], 4096),
}

TOO_LONG = {
    "sum": (REDUCTIONS, "it reduces {} elements, more than 1024"),
    "mean": (REDUCTIONS, "it reduces {} elements, more than 1024"),
    "_npi_mean": (REDUCTIONS, "it reduces {} elements, more than 1024"),
    "_np_sum": (REDUCTIONS, "it reduces {} elements, more than 1024"),
    "_contrib_AdaptiveAvgPooling2D": (WINDOWS, "it or its gradient sums {} elements, more than 1024"),
    "_contrib_BilinearResize2D": (RESIZES, "it magnifies by {:g}, more than 8"),
    "batch_dot": (PRODUCTS, "it or its gradient sums {} products in float16, more than 1024"),
    "_npi_matmul": (MATMULS, "it or its gradient sums {} products in float16, more than 1024"),
    "Convolution_v1": (BIASES, "its gradient sums up to {} terms in float16, more than 1024"),
}
BY_OPERATOR = [(COPIES, "its gradient sums {} terms in float16, more than 4096"),
               (ROWS, "its gradient sums up to {} terms in float16, more than 1024")]  # fmt: skip
CALLS = [
    *((f"{op}, {name}", text, op, *case) for op, (table, text) in TOO_LONG.items() for name, case in table.items()),
    *((name, text, *case) for table, text in BY_OPERATOR for name, case in table.items()),
]


@pytest.mark.parametrize("text, op, attrs, shapes, length", [pytest.param(*call, id=name) for name, *call in CALLS])
def test_sums_beyond_a_length_stay_in_float32(text, op, attrs, shapes, length):
    for dtype in ("float16", "bfloat16"):
        reason = None if length is None else text.format(length).replace("float16", dtype)
        assert forbids(op, attrs, *shapes, dtype=dtype) == reason


UNKNOWN = {
    "sum": ("the length of the reduction is unknown", [(), (None,), ((0, 4),), ((-1, 4),)]),
    "_contrib_AdaptiveAvgPooling2D": ("the size of the windows is unknown", [(None,)]),
    "_contrib_BilinearResize2D": ("the magnification is unknown", [(None,)]),
    "batch_dot": ("the length of the product is unknown",
                  [(None, (2, 3, 4)), ((2, 3, 4), None), ((2, 0, 4), (2, 4, 5)), ()]),
    "Embedding": (None, [(None, None), ((0, 3), (0, 3))]),  # a gradient of unknown length forbids nothing
    "take": (None, [(None, None), ((0, 3), (0, 3))]),
    "gather_nd": (None, [(None, None), ((0, 3), (0, 3))]),
    "broadcast_to": (None, [(None, None), ((0, 3), (0, 3))]),
    "broadcast_like": (None, [(None, None), ((0, 3), (0, 3))]),
    "broadcast_add": (None, [(None, None), ((0, 3), (0, 3))]),
}  # fmt: skip


@pytest.mark.parametrize("op", UNKNOWN)
def test_sums_of_unknown_length(op):
    reason, calls = UNKNOWN[op]
    attrs = {"axis": "1", "height": "8", "width": "8", "shape": "(5000, 3)"}
    for shapes in calls:
        assert forbids(op, {**attrs, "input_dim": "9"} if op == "Embedding" else attrs, *shapes) == reason


BROADCASTS = """broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_mod broadcast_maximum
broadcast_minimum _npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_mod _npi_arctan2 _npi_copysign""".split()


@pytest.mark.parametrize("op", BROADCASTS)
def test_the_gradient_of_what_is_broadcast_is_a_sum(op):
    lengths = {
        ((4096, 64), (1, 64)): None,
        ((4097, 64), (1, 64)): 4097,
        ((1, 64), (4097, 64)): 4097,
        ((5000, 1), (1, 4000)): 5000,  # both sides
        ((64, 512, 8), (8,)): 32768,  # shapes are aligned at the end
        ((70000, 64), (70000, 64)): None,
        ((64, 512, 8), (512, 8)): None,
    }
    text = "its gradient sums {} terms in float16, more than 4096"
    expected = {shapes: n and text.format(n) for shapes, n in lengths.items()}
    assert {shapes: forbids(op, {}, *shapes) for shapes in lengths} == expected


LONG = (70000, 5000), (5000, 70000)
IN_FLOAT32 = {
    **{op: ({}, LONG) for op in ("dot", "FullyConnected", "_np_dot", "_npi_einsum", "_npi_tensordot", "_linalg_gemm2")},
    "Convolution": ({}, ((65, 3, 64, 64), (8, 3, 3, 3), (8,))),
    "_np_sum": ({"axis": "1", "dtype": "float32"}, ((2, 70000),)),
}


@pytest.mark.parametrize("op", IN_FLOAT32)
def test_what_accumulates_in_float32_may_be_long(op):
    assert forbids(op, IN_FLOAT32[op][0], *IN_FLOAT32[op][1]) is None


TERMS = {
    "einsum of matrices": ("_npi_einsum", {"subscripts": "bij,bjk->bik"}, [(2, 3, 5), (2, 5, 7)], 5),
    "einsum to a number": ("_npi_einsum", {"subscripts": "ij, ij->"}, [(3, 5), (3, 5)], 15),
    "einsum without an arrow": ("_npi_einsum", {"subscripts": "ij,jk"}, [(3, 5), (5, 7)], 5),
    "einsum with dots": ("_npi_einsum", {"subscripts": "...ij,jk->...ik"}, [(9, 3, 5), (5, 7)], 5),
    "einsum with dots in front": ("_npi_einsum", {"subscripts": "i...,i...->..."}, [(3, 5), (3, 5)], 3),
    "einsum of unknown shapes": ("_npi_einsum", {"subscripts": "ij,jk->ik"}, [(3, 5), None], None),
    "tensordot": ("_npi_tensordot", {"a_axes_summed": "[0, 2]", "b_axes_summed": "[0, 1]"}, [(3, 5, 7), (3, 7)], 21),
    "inner": ("_npi_tensordot", {"a_axes_summed": "[-1]", "b_axes_summed": "[-1]"}, [(3, 5), (7, 5)], 5),
    "tensordot over axes by number": ("_npi_tensordot_int_axes", {"axes": "2"}, [(3, 5, 7), (5, 7)], 35),
    "an outer product": ("_npi_tensordot_int_axes", {"axes": "0"}, [(3,), (5,)], 1),
}


@pytest.mark.parametrize("op, attrs, shapes, terms", TERMS.values(), ids=TERMS)
def test_terms_of_a_contraction(op, attrs, shapes, terms):
    assert RULES.find(op, attrs).sums(Call(attrs, tuple(shapes), "float16")) == terms


CONDITIONED = """Convolution_v1 batch_dot _npi_matmul _linalg_gemm2 broadcast_add _npi_add broadcast_to Embedding
broadcast_like gather_nd take sum""".split()


@pytest.mark.parametrize("op", CONDITIONED)
def test_a_graph_depends_on_shapes_where_there_is_a_kernel_to_choose(op):
    graph = from_text(f"a = null()\ny = {op}(a, a)\nreturn y")
    found = {dtype: depends_on_shapes(graph, dtype) for dtype in ("float16", "bfloat16", "float32")}
    assert found == {"float16": True, "bfloat16": False, "float32": False}


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_a_fused_rnn_stays_where_it_may_have_tensor_cores(mode):
    attrs = {"mode": mode, "state_size": "6", "num_layers": "1", "use_sequence_length": "True"}
    assert forbids("RNN", attrs, (5, 2, 8)) == "MXNet runs it without tensor cores in float16, which float32 may have"
    rule = RULES.find("RNN", attrs)
    assert rule.category == "allow" and not rule.taints  # its values are in range


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


@pytest.mark.parametrize("pool_type, category", [("avg", "deny"), ("sum", "deny"), ("max", "clear")])
def test_the_old_pooling_sums_in_float32(pool_type, category):
    assert RULES.find("Pooling_v1", {"kernel": "(2, 2)", "pool_type": pool_type}).category == category


def reads_data(size, taps, stride, dilate, pad):
    """Return whether each tap of a window that slides over padded data meets data, by sliding it."""
    data = [False] * pad + [True] * size + [False] * pad
    starts = range(0, len(data) - dilate * (taps - 1), stride)
    return all(any(data[start + dilate * tap] for start in starts) for tap in range(taps))


TAPS = [(3, 2, 1, 1), (3, 1, 1, 1), (5, 1, 1, 2), (3, 1, 6, 6), (1, 2, 1, 0)]


@pytest.mark.parametrize("window", TAPS)
def test_convolutions_whose_taps_read_padding_alone_are_forbidden(window):
    names = ("kernel", "stride", "dilate", "pad")
    attrs = {name: f"({value}, {value})" for name, value in zip(names, window)}
    found = [size for size in range(1, 14) if taps_on_data(Call(attrs, ((1, 8, 64, size),), "bfloat16"))]
    assert found == [size for size in range(1, 14) if not reads_data(size, *window)]
    others = Call(attrs, ((1, 8, 1, 1),), "float16"), Call(attrs, (None,), "bfloat16")
    assert not any(map(taps_on_data, others))


@pytest.mark.parametrize("channels, allowed", [(8, False), (16, True), (24, False), (116, True), (728, False)])
def test_bfloat16_depthwise_convolutions_need_whole_vectors_where_float32_has_half_ones(channels, allowed):
    attrs = {"kernel": "(3, 3)", "num_filter": str(channels), "num_group": str(channels)}
    calls = [Call(attrs, (None,), "bfloat16"), Call(attrs, (None,), "float16")]
    calls += [Call({**attrs, "num_group": groups}, (None,), "bfloat16") for groups in ("1", "2")]
    assert [vectors_of_channels(call) is None for call in calls] == [allowed, True, True, True]
