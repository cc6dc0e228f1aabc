"""Whether MXNet runs bfloat16 on this machine's processor."""

from __future__ import annotations

import mxnet as mx

from .. import dtypes
from .processor import read_processor


def runs_bfloat16() -> bool:
    """Return whether MXNet runs a bfloat16 convolution on this machine's CPU, by trying one.

    The oneDNN of MXNet 1.9.1 has none below AVX-512: "could not create a primitive descriptor
    iterator". It prints so too, and is not asked where the processor is known to lack it. Waits for the result.
    """
    flags = read_processor().flags
    if flags and "avx512bw" not in flags:
        return False
    try:
        with mx.autograd.pause(), mx.cpu():
            ones = mx.nd.amp_cast(mx.nd.ones((1, 1, 3, 3)), dtype=dtypes.to_numpy(dtypes.BFLOAT16))
            mx.nd.Convolution(ones, ones, kernel=(3, 3), num_filter=1, no_bias=True).wait_to_read()
    except mx.MXNetError:
        return False
    return True
