"""mx.np.linalg.qr, which is numpy's, works on MXNet's arrays with any numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]


def test_qr_returns_arrays_of_mxnet():
    q, r = mx.np.linalg.qr(mx.np.array(VALUES))
    assert type(q) is type(r) is mx.np.ndarray
    assert q.shape == (3, 2) and r.asnumpy()[1, 0] == 0
    assert q.asnumpy() @ r.asnumpy() == pytest.approx(np.array(VALUES), abs=1e-5)


def test_qr_knows_the_modes_of_numpys():
    r = mx.np.linalg.qr(mx.np.array(VALUES), mode="r")
    assert type(r) is mx.np.ndarray
    assert r.asnumpy() == pytest.approx(np.linalg.qr(np.array(VALUES, "float32"), mode="r"), abs=1e-6)


def test_qr_takes_an_array_of_numpy_too():
    q, r = mx.np.linalg.qr(np.array(VALUES))
    assert q @ r == pytest.approx(np.array(VALUES))
