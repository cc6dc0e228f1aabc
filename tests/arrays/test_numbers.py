"""Norms, and gradients times a number or clipped: one by one as on a CPU, many by one operator as on a GPU.

MXNet's operator of the optimizer that a GPU takes exists on a CPU too; `on_gpu` is told to ask for it.
"""

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays

FLOAT32 = np.finfo(np.float32)


def sparse(values=((3.0, 0.0), (0.0, 4.0))):
    return mx.nd.sparse.row_sparse_array((np.float32(values), [0, 3]), shape=(6, 2))


def draw_any(size, seed=0):
    """Return float32 numbers of any sign and exponent, subnormal ones among them."""
    draw = np.random.RandomState(seed)
    values = draw.randint(0, 0x7F800000, size).astype(np.uint32).view(np.float32)
    return values * draw.choice([-1, 1], size).astype(np.float32)


def test_sum_of_squares_matches_float64(device):
    draw = np.random.RandomState(0)
    values = [draw.randn(*shape).astype(np.float32) for shape in [(3,), (40, 50), (2, 3, 4, 5), *[(7,)] * 130]]
    expected = sum(float((a.astype(np.float64) ** 2).sum()) for a in values) + 25  # of the sparse one
    with mx.util.np_shape(device == "gpu"):
        found = arrays.sum_of_squares([sparse(), *map(mx.nd.array, values)])
        assert found.shape == (1,)
    # On CPU MXNet's own operator adds the 2,000 squares of the largest array one by one.
    assert found.asscalar() == pytest.approx(expected, rel=100 * float(FLOAT32.eps))
    assert arrays.sum_of_squares([sparse()]).asscalar() == pytest.approx(25, rel=1e-6)


def test_norms_of_many_terms_and_of_large_ones():
    # Adding 2**25 ones one by one in float32 would stop at 2**24.
    assert arrays.sum_of_squares([mx.nd.ones((2**25,))]).asscalar() == 2.0**25
    large = [mx.nd.full((2,), 3e38), mx.nd.full((2,), 1.0)]
    assert arrays.host_norm(large) == pytest.approx(3e38 * math.sqrt(2), rel=1e-6)


FACTORS = [2.0**-16, 2.0**-90, 2.0**24, 1 / 3, 7e-9, 7e-31, math.pi, 3.3e38, 1e-40]
BOUNDS = [0.001, 1 / 3, 65504, math.inf]


@pytest.mark.parametrize(
    "change, number, exact",
    [
        *((arrays.scale_in_place, factor, np.multiply) for factor in FACTORS),
        *((arrays.clip_in_place, bound, lambda values, bound: values.clip(-bound, bound)) for bound in BOUNDS),
    ],
)
def test_changes_in_place_are_those_of_numpy(change, number, exact, device):
    """Of arrays of every kind: several pieces, more than one launch takes, on two contexts, sparse and not float32."""
    values = [draw_any(size, size) for size in (1, 2**20, 2**20 + 1, *range(2, 150))]
    values += [np.float32([np.inf, -np.inf, np.nan, 2]), np.ones(4, "float16"), np.zeros(4, "float64")]
    changed = [mx.nd.array(value, ctx=mx.cpu(i % 2), dtype=value.dtype) for i, value in enumerate(values)]
    views, rows = [array.reshape((1, -1)) for array in changed], sparse()
    with mx.autograd.record():
        change([*views, rows], number)
    assert rows.stype == "row_sparse"
    for array, before in zip([*changed, rows], [*values, sparse().asnumpy()]):
        with np.errstate(over="ignore", under="ignore"):
            np.testing.assert_array_equal(array.asnumpy(), exact(before, before.dtype.type(number)))
        assert array.dtype == before.dtype


@pytest.mark.parametrize("count", [1, 60, 61, 130])
def test_copy_all_copies_every_bit_of_finite_values(count):
    sources = [draw_any(1 + seed * 37 % 300, seed) for seed in range(count)]
    copies = [*map(mx.nd.array, [*sources, np.float32([FLOAT32.max, -0.0, np.inf, -np.inf, np.nan])])]
    joined = mx.nd.full((sum(array.size for array in copies),), np.nan)  # what was there does not matter
    arrays.copy_all(copies, arrays.views(joined, copies))
    expected = np.float32([*np.concatenate(sources), FLOAT32.max, 0, np.nan, np.nan, np.nan])  # an inf becomes NaN
    assert (joined.asnumpy().view(np.uint32)[:-3] == expected.view(np.uint32)[:-3]).all()
    np.testing.assert_array_equal(joined.asnumpy(), expected)


