"""Whether this machine's processor runs bfloat16: natively, by emulation or not at all."""

from __future__ import annotations

import mxnet as mx

from .. import dtypes
from .processor import BFLOAT16_FLAGS, Processor


def runs_bfloat16() -> bool:
    """Return whether MXNet runs a bfloat16 convolution on this machine's CPU, by trying one.

    The oneDNN of MXNet 1.9.1 has none below AVX-512: "could not create a primitive descriptor
    iterator". Waits for the result.
    """
    try:
        ones = mx.nd.amp_cast(mx.nd.ones((1, 1, 3, 3)), dtype=dtypes.to_numpy(dtypes.BFLOAT16))
        mx.nd.Convolution(ones, ones, kernel=(3, 3), num_filter=1, no_bias=True).wait_to_read()
    except mx.MXNetError:
        return False
    return True


def describe_bfloat16(processor: Processor, runs: bool) -> str:
    """Return one sentence on how bfloat16 runs on a processor; ``runs`` is whether it does at all."""
    if not runs:
        return f"bfloat16 does not run on this processor ({processor.name}): MXNet needs AVX-512 for it."
    if processor.native_bfloat16 is None:
        return "Whether bfloat16 is native is unknown: this system does not list its processor's flags."
    if processor.native_bfloat16:
        flags = ", ".join(flag for flag in BFLOAT16_FLAGS if flag in processor.flags)
        return f"bfloat16 is native on this processor ({processor.name}: {flags})."
    return f"bfloat16 is not native on this processor ({processor.name}): oneDNN emulates it, which is slow."
