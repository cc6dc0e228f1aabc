"""The one place where the processor of this machine is read, with the state of AMX."""

from __future__ import annotations

import os

from ..processors import Processor, read_cpuinfo
from .amx import VARIABLE, amx_status

_HIDDEN = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX512_MIC", "AVX512_MIC_4OPS"), {"avx512bw", "avx512_bf16"}),
    **dict.fromkeys(("AVX512_CORE", "AVX512_CORE_VNNI"), {"avx512_bf16"}),
}
"""The flags that matter here, of those that oneDNN leaves unused under each value of its variable ("CPU Dispatcher
Control" in its documentation)."""


def read_processor() -> Processor:
    """Return the processor of this machine with the state of AMX, without instructions that a variable hides.

    The first call on a processor with AMX imports MXNet and asks oneDNN, by one small product (`amx.amx_status`).
    """
    processor = read_cpuinfo()
    hidden = _HIDDEN.get(os.environ.get(VARIABLE, "").upper(), set())
    return processor._replace(flags=processor.flags - hidden, amx=amx_status())
