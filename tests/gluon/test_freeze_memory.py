"""What the native code of frozen nets writes stays within its memory, by the C library's checks in a process of its own."""

import ctypes
from ctypes.util import find_library

import mxnet as mx
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp.arrays import address
from mxmp.gluon import freeze
from tests.alone import alone


@pytest.fixture
def checked(monkeypatch):
    """Let new processes check each block of memory that they free."""
    library = find_library("c_malloc_debug")
    if library is None:
        pytest.skip("no libc_malloc_debug, which glibc has since 2.34")
    for name, value in {"LD_PRELOAD": library, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}.items():
        monkeypatch.setenv(name, value)


def infer_by_mobilenets():
    for name in ("mobilenet0.25", "mobilenetv2_0.25"):  # of 8, 16, 24 channels
        net = vision.get_model(name, classes=10)
        net.initialize()
        net.hybridize()
        net(mx.nd.ones((1, 3, 32, 32)))
        block = freeze(net, "mixed_bfloat16")
        for batch, size in ((2, 64), (1, 32), (3, 64)):  # memory and kernels anew
            block(mx.nd.ones((batch, 3, size, size))).wait_to_read()
        del net, block


def write_beyond_an_array():
    array = mx.nd.ones((1000,))
    ctypes.memset(address(array) + 4000, 1, 1)
    del array
    mx.nd.waitall()


@pytest.mark.bfloat16
def test_frozen_mobilenets_write_within_their_memory(checked):
    alone(infer_by_mobilenets)


def test_a_write_beyond_an_array_is_seen(checked):
    """Else the test above proves nothing."""
    with pytest.raises(AssertionError, match=r"free\(\): invalid pointer"):
        alone(write_beyond_an_array)
