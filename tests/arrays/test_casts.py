"""Casts of arrays that oneDNN has given a layout of its own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.arrays import amp_cast
from mxmp.dtypes import NUMPY_BFLOAT16

pytestmark = pytest.mark.bfloat16

# Kernel sizes, groups and channels per group of convolutions of 32 channels.
CONVOLUTIONS = {
    "plain": ((3, 3), 1),
    "grouped": ((3, 3), 4),
    "depthwise": ((3, 3), 32),
    "pointwise": ((1, 1), 1),
    "sequences": ((3,), 4),
    "volumes": ((3, 3, 3), 4),
}


def laid_out(kernel, groups, op=mx.nd.Convolution):
    """Return a weight after inference, which leaves it in oneDNN's layout, and its values."""
    values = np.random.RandomState(0).randn(32, 32 // groups, *kernel).astype("float32")
    weight, x = mx.nd.array(values), mx.nd.ones((2, 32, *(8 for _ in kernel)))
    for _ in range(2):
        op(x, weight, num_filter=32, kernel=kernel, num_group=groups, no_bias=True).wait_to_read()
    return weight, values


def rounded(values):
    """Return values rounded to nearest even to bfloat16, as float32."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def test_mxnet_cannot_cast_the_layout_of_a_depthwise_weight():
    """The defect that the module is for; when this fails, MXNet is mended and the module can go."""
    weight, _ = laid_out(*CONVOLUTIONS["depthwise"])
    with pytest.raises(mx.MXNetError, match="reorder primitive"):
        mx.nd.amp_cast(weight, dtype=NUMPY_BFLOAT16).wait_to_read()


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_weight_is_rounded_from_any_layout(case):
    weight, values = laid_out(*CONVOLUTIONS[case])
    low = amp_cast(weight, NUMPY_BFLOAT16)
    assert low.shape == values.shape
    np.testing.assert_array_equal(amp_cast(low, "float32").asnumpy(), rounded(values))
    np.testing.assert_array_equal(weight.asnumpy(), values)


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_a_low_precision_weight_is_widened_from_any_layout(groups):
    values = np.random.RandomState(0).randn(32, 32 // groups, 3, 3).astype("float32")
    weight = amp_cast(mx.nd.array(values), NUMPY_BFLOAT16)
    x = amp_cast(mx.nd.ones((2, 32, 8, 8)), NUMPY_BFLOAT16)
    for _ in range(2):
        mx.nd.Convolution(x, weight, num_filter=32, kernel=(3, 3), num_group=groups, no_bias=True).wait_to_read()
    np.testing.assert_array_equal(amp_cast(weight, "float32").asnumpy(), rounded(values))


def test_what_is_written_over_loses_its_layout():
    weight, values = laid_out(*CONVOLUTIONS["depthwise"])
    other = amp_cast(mx.nd.array(values + 1), NUMPY_BFLOAT16)
    assert amp_cast(other, "float32", out=weight) is weight
    np.testing.assert_array_equal(weight.asnumpy(), rounded(values + 1))


def test_a_cast_is_not_recorded():
    weight = mx.nd.array(np.ones((2, 3)))
    weight.attach_grad()
    with autograd.record():
        low = amp_cast(weight, NUMPY_BFLOAT16)
    with pytest.raises(mx.MXNetError, match="computational graph"):
        low.backward()
