"""The rounding operators, compiled: the bits of numpy and of MXNet's casts, in any graph."""

import ctypes

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.passes.emulate import ROUND, ROUND_FORWARD
from mxmp.rounding import build
from mxmp.symbol import convert_graph

pytestmark = [pytest.mark.compiler, pytest.mark.slow]


def values():
    """All float16 values, what lies between each two, the edges of the range, and a million random float32."""
    rng = np.random.RandomState(0)
    grid = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(grid[np.isfinite(grid)].astype(np.float64))
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    edges = [65504, 65519.99, 65520, 65536, 3e38, np.inf, np.nan, 0, 2**-24, 2**-25, 2**-26, 1e-45, 2**-14]
    edges = np.concatenate([edges, np.negative(edges)]).astype(np.float32)
    bits = rng.randint(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32).view(np.float32)
    around = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([grid, ties, *around, edges, bits, rng.standard_normal(1 << 20).astype(np.float32)])


def test_values_have_numpys_bits(operators):
    """By the processor's instructions and by integers, which stand in for them."""
    x = values()
    found = np.empty_like(x)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, found)]
    ctypes.CDLL(str(operators)).mxmp_round_by_bits(*pointers, ctypes.c_int64(x.size))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    sound = ~np.isnan(expected)
    for each in (found, mx.nd.CachedOp(build.operator(ROUND))(mx.nd.array(x)).asnumpy()):
        assert np.isnan(each[~sound]).all()
        np.testing.assert_array_equal(each[sound].view(np.uint32), expected[sound].view(np.uint32))


def test_other_dtypes_are_refused(operators):
    with pytest.raises(mx.MXNetError, match="only float32"):
        mx.nd.CachedOp(build.operator(ROUND))(mx.nd.ones(3, dtype="float64")).wait_to_read()


@pytest.mark.parametrize("policy, count", [("O1", 1), ("mixed_bfloat16", 0), ("O0", 0)])
def test_a_graph_with_float16_has_the_operators_in_the_place_of_casts(policy, count, native):
    data = mx.sym.var("data")
    conv = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name="conv")
    norm = mx.sym.BatchNorm(conv, name="norm", fix_gamma=False)
    again = mx.sym.Convolution(mx.sym.relu(norm + conv), kernel=(1, 1), num_filter=8, no_bias=True, name="again")
    symbol = mx.sym.FullyConnected(again, num_hidden=4, name="fc")
    text = convert_graph(symbol, Policy.parse(policy), {"data": (2, 4, 8, 8)}).on_cpu().tojson()
    assert (text.count(f'"{ROUND}"') > 3) == bool(count) and text.count(f'"{ROUND_FORWARD}"') == count
    assert '"Cast"' not in text and "BlockGrad" not in text
