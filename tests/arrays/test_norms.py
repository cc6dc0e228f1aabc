from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays as norms
from mxmp.arrays import clip_coefficient, clip_in_place, host_norm, scale_in_place, sum_of_squares


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_sum_of_squares_matches_float64(device, monkeypatch):
    monkeypatch.setattr(norms, "on_gpu", lambda _: device == "gpu")
    draw = np.random.RandomState(0)
    arrays = [draw.randn(*shape).astype(np.float32) for shape in [(3,), (40, 50), (2, 3, 4, 5), *[(7,)] * 130]]
    expected = sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays)
    with mx.util.np_shape(device == "gpu"):
        found = sum_of_squares([mx.nd.array(a) for a in arrays])
        assert found.shape == (1,)
    # On CPU MXNet's own operator adds the 2,000 squares of the largest array one by one.
    assert found.asscalar() == pytest.approx(expected, rel=100 * float(np.finfo(np.float32).eps))


def test_sum_of_squares_adds_dense_and_sparse_arrays_on_a_gpu(monkeypatch):
    monkeypatch.setattr(norms, "on_gpu", lambda _: True)
    rows = mx.nd.sparse.row_sparse_array(([[3.0, 0.0], [0.0, 4.0]], [0, 3]), shape=(6, 2))
    assert sum_of_squares([mx.nd.ones((2, 3)), rows, mx.nd.full((2,), 2.0)]).asscalar() == pytest.approx(39, rel=1e-6)


def test_sum_of_squares_does_not_stagnate_on_many_equal_terms():
    # Adding 2**25 ones one by one in float32 would stop at 2**24.
    assert sum_of_squares([mx.nd.ones((2**25,))]).asscalar() == 2.0**25


def test_sum_of_squares_reads_row_sparse_arrays():
    rows = mx.nd.sparse.row_sparse_array(([[3.0, 0.0], [0.0, 4.0]], [0, 3]), shape=(6, 2))
    assert sum_of_squares([rows]).asscalar() == pytest.approx(25, rel=1e-6)


def test_host_norm_does_not_overflow():
    arrays = [mx.nd.full((2,), 3e38), mx.nd.full((2,), 1.0)]
    assert host_norm(arrays) == pytest.approx(3e38 * math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(
    ("norm", "max_norm", "expected"), [(2.0, 1.0, 0.5), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (5.0, math.inf, 1.0)]
)
def test_clip_coefficient(norm, max_norm, expected):
    assert clip_coefficient(norm, max_norm) == expected


def test_scale_in_place_keeps_the_array():
    dense = mx.nd.array([1.0, 2.0])
    rows = mx.nd.sparse.row_sparse_array(([[1.0, 2.0]], [1]), shape=(3, 2))
    alias = dense.reshape(2, 1)
    scale_in_place([dense, rows], 0.5)
    assert alias.asnumpy().tolist() == [[0.5], [1.0]]
    assert rows.stype == "row_sparse"
    assert rows.asnumpy().tolist() == [[0, 0], [0.5, 1.0], [0, 0]]


@pytest.mark.parametrize(
    "change", [lambda a: scale_in_place(a, 0.3), lambda a: clip_in_place(a, 0.3)], ids=["scale", "clip"]
)
def test_changes_in_place_are_the_same_on_a_gpu(change, monkeypatch):
    draw = np.random.RandomState(0)
    shapes = [(3, 4), (5,), (2, 3, 2)] * 25
    found = []
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(norms, "on_gpu", lambda _, device=device: device == "gpu")
        draw.seed(0)
        arrays = [mx.nd.array(draw.randn(*shape), ctx=mx.cpu(i % 2)) for i, shape in enumerate(shapes)]
        arrays[0][1] = mx.nd.array([np.inf, -np.inf, np.nan, 1e-42])
        arrays += [mx.nd.ones((4,), dtype=dtype) for dtype in ("float16", "float64")]
        arrays.append(mx.nd.sparse.row_sparse_array(([[1.0, 2.0]], [1]), shape=(3, 2)))
        with mx.autograd.record():
            change(arrays)
        found.append([array.asnumpy() for array in arrays])
    for cpu, gpu in zip(*found):
        assert cpu.dtype == gpu.dtype
        np.testing.assert_array_equal(cpu, gpu)
