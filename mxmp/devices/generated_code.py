"""Whether oneDNN takes AMX in this process, seen in the machine code that it generates.

MXNet's library does not export what oneDNN says about itself, and oneDNN reads its variables once. But it generates
the code of each primitive anew, in memory of its own, where AMX's instructions can be found.

References:
    Intel, "Instruction Set Extensions Programming Reference", TDPBF16PS; proc(5) on /proc/pid/maps and mem.
"""

from __future__ import annotations

import functools
import re
from typing import Iterator

import mxnet as mx

from .. import dtypes

# TDPBF16PS, which multiplies tiles of bfloat16: VEX.128.F3.0F38.W0 5C /r. A tile is one of eight registers.
_MULTIPLY = re.compile(rb"\xc4\xe2[\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x5c[\xc0-\xff]", re.DOTALL)
_SHAPE = (1, 64, 7, 11)  # which no network is likely to have had, so that its code is generated now


@functools.lru_cache(maxsize=None)  # the code of a second convolution would be the first one's
def uses_amx() -> bool:
    """Return whether a bfloat16 convolution, which runs once, has AMX's instructions; False where it does not run.

    Only for a process that may use AMX: the instructions are run. Waits for the result.
    """
    before = _multiplications()
    try:
        with mx.autograd.pause():
            data, weight = (_ones(shape) for shape in (_SHAPE, (64, 64, 3, 3)))
            mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
    except mx.MXNetError:
        return False
    return _multiplications() > before


def generated_code() -> Iterator[bytes]:
    """Yield what stands in each executable part of this process's memory that is no file's."""
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for addresses, permissions, _, _, inode, *name in maps:
            if "x" in permissions and inode == "0" and not name:
                start, end = (int(address, 16) for address in addresses.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


def _multiplications() -> int:
    return sum(len(_MULTIPLY.findall(code)) for code in generated_code())


def _ones(shape: tuple[int, ...]) -> mx.nd.NDArray:
    return mx.nd.amp_cast(mx.nd.ones(shape, ctx=mx.cpu(), dtype="float32"), dtype=dtypes.to_numpy(dtypes.BFLOAT16))
