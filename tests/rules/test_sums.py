"""How long the sums may be that kernels take in low precision, on both sides of each bound."""

from __future__ import annotations

import numpy as np
import pytest

from mxmp.passes.decide import depends_on_shapes
from mxmp.rules import RULES, Call
from mxmp.rules.conditions import SHAPE_CONDITIONS
from tests.graph.text import from_text


def forbids(op, attrs, *shapes, dtype="float16"):
    return RULES.find(op, attrs).forbids(Call(attrs, shapes, dtype))


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


@pytest.mark.parametrize("shapes", [(None, (2, 3, 4)), ((2, 3, 4), None), ((2, 0, 4), (2, 4, 5)), ()])
def test_a_product_of_unknown_length_is_forbidden(shapes):
    assert forbids("batch_dot", {}, *shapes) == "the length of the product is unknown"


MATMULS = {
    "two matrices": ({}, [(1024, 8), (8, 9)], None),
    "the rows of a batch add up in the weight's gradient": ({}, [(4, 512, 8), (8, 9)], 2048),
    "a batch broadcast on the left": ({}, [(8, 9), (200, 9, 6)], 1200),
    "two batches": ({}, [(200, 8, 9), (200, 9, 6)], None),
    "a vector on the right": ({}, [(2000, 9), (9,)], 2000),
    "a vector on the left": ({}, [(9,), (9, 2000)], 2000),
    "two vectors": ({}, [(1025,), (1025,)], 1025),
}
BOTH = [
    *(pytest.param("batch_dot", *case, id=name) for name, case in PRODUCTS.items()),
    *(pytest.param("_npi_matmul", *case, id=name) for name, case in MATMULS.items()),
]


@pytest.mark.parametrize("op, attrs, shapes, length", BOTH)
def test_batched_products(op, attrs, shapes, length):
    reason = None if length is None else f"it or its gradient sums {length} products in float16, more than 1024"
    assert forbids(op, attrs, *shapes) == reason


@pytest.mark.parametrize("op", ["dot", "FullyConnected", "_np_dot", "_npi_einsum", "_npi_tensordot"])
def test_what_accumulates_in_float32_may_be_long(op):
    assert forbids(op, {}, (70000, 5000), (5000, 70000)) is None


def test_the_bounds_of_gemm2_are_those_of_its_stand_in():
    assert forbids("_linalg_gemm2", {}, (70000, 5000), (5000, 70000)) is None  # dot
    assert "5000 products" in forbids("_linalg_gemm2", {}, (2, 7, 5000), (2, 5000, 7))  # batch_dot
    assert "alpha" in forbids("_linalg_gemm2", {"alpha": "1e9"}, (2, 7, 5), (2, 5, 7))


BROADCASTS = """broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_mod broadcast_maximum
broadcast_minimum _npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_mod _npi_arctan2 _npi_copysign""".split()


@pytest.mark.parametrize("op", BROADCASTS)
def test_the_gradient_of_what_is_broadcast_is_a_sum(op):
    assert forbids(op, {}, (4096, 64), (1, 64)) is None
    assert forbids(op, {}, (4097, 64), (1, 64)) == "its gradient sums 4097 terms in float16, more than 4096"
    assert "4097" in forbids(op, {}, (1, 64), (4097, 64))
    assert forbids(op, {}, (70000, 64), (70000, 64)) is None  # nothing is broadcast


def test_both_sides_may_be_broadcast():
    assert (
        forbids("broadcast_add", {}, (5000, 1), (1, 4000)) == "its gradient sums 5000 terms in float16, more than 4096"
    )


def test_numpys_shapes_are_aligned_at_the_end():
    assert "its gradient sums 32768 terms" in forbids("_npi_add", {}, (64, 512, 8), (8,))
    assert forbids("_npi_add", {}, (64, 512, 8), (512, 8)) is None


def test_a_gradient_of_unknown_length_forbids_nothing():
    for op in (*BROADCASTS, "broadcast_to", "broadcast_like", "Embedding", "take", "gather_nd"):
        assert forbids(op, {}, None, None) is None
        assert forbids(op, {"input_dim": "9", "shape": "(5000, 3)"}, (0, 3), (0, 3)) is None


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


@pytest.mark.parametrize("op, attrs, shapes, length", COPIES.values(), ids=COPIES.keys())
def test_copies(op, attrs, shapes, length):
    reason = None if length is None else f"its gradient sums {length} terms in float16, more than 4096"
    assert forbids(op, attrs, *shapes) == reason


BIASES = {
    "at the limit": ({}, (64, 3, 64, 64), None),
    "above it": ({"stride": "(1, 1)"}, (65, 3, 64, 64), 1040),
    "with a stride": ({"stride": "(2, 2)"}, (64, 3, 128, 128), None),
    "no bias": ({"no_bias": "True"}, (65, 3, 64, 64), None),
    "unknown": ({}, None, None),
}


@pytest.mark.parametrize("attrs, shape, length", BIASES.values(), ids=BIASES.keys())
def test_the_bias_of_an_old_convolution(attrs, shape, length):
    reason = None if length is None else f"its gradient sums up to {length} terms in float16, more than 1024"
    assert forbids("Convolution_v1", attrs, shape, (8, 3, 3, 3), (8,)) == reason
    assert forbids("Convolution", attrs, shape, (8, 3, 3, 3), (8,)) is None  # in float32


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


@pytest.mark.parametrize("op, attrs, shapes, length", ROWS.values(), ids=ROWS.keys())
def test_running_sums(op, attrs, shapes, length):
    reason = None if length is None else f"its gradient sums up to {length} terms in float16, more than 1024"
    assert forbids(op, attrs, *shapes) == reason


CONDITIONED = ["Convolution_v1", "batch_dot", "_npi_matmul", "_linalg_gemm2", "broadcast_add", "_npi_add", "broadcast_to", "Embedding",
               "broadcast_like", "gather_nd", "take"]  # fmt: skip


@pytest.mark.parametrize("op", CONDITIONED)
def test_conditions_on_lengths_are_known_to_read_shapes(op):
    assert RULES.find(op, {}).condition in SHAPE_CONDITIONS


@pytest.mark.parametrize("dtype, depends", [("float16", True), ("bfloat16", False), ("float32", False)])
@pytest.mark.parametrize("op", ["batch_dot", "_linalg_gemm2", "_npi_matmul", "broadcast_add", "sum"])
def test_a_graph_depends_on_shapes_where_there_is_a_kernel_to_choose(op, dtype, depends):
    assert depends_on_shapes(from_text(f"a = null()\ny = {op}(a, a)\nreturn y"), dtype) == depends


def _half(x):
    return x.astype(np.float16)


def _accumulated(terms, step):
    """Return sums (columns) accumulated in float16 that is rounded once every ``step`` terms."""
    total = np.zeros(terms.shape[1], np.float16)
    for start in range(0, len(terms), step):
        total = _half(total.astype(np.float32) + terms[start : start + step].sum(0, dtype=np.float64))
    return total.astype(np.float64)


def _relative_error(length, step):
    rng = np.random.default_rng(0)
    weights = np.exp(rng.normal(size=(length, 64)))
    values = np.abs(rng.normal(size=(length, 64)))
    terms = _half(weights / weights.sum(0)).astype(np.float64) * _half(values)
    exact = terms.sum(0)
    return np.sqrt(np.mean((_accumulated(terms, step) - exact) ** 2) / np.mean(exact**2))


def test_the_bound_on_products_is_where_half_accumulators_are_still_good():
    assert _relative_error(1024, 4) < 3 * np.finfo(np.float16).eps  # tensor cores
    assert _relative_error(1024, 1) < 0.02  # without
    assert _relative_error(4096, 1) > 0.05
    assert _relative_error(16384, 4) > 0.05
