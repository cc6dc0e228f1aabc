"""One processor of each kind, and what pins the processor that mxmp sees: the one place of the tests that knows both."""

from mxmp.processors import AMD as AMD
from mxmp.processors import AMX as AMX
from mxmp.processors import EMULATED as EMULATED
from mxmp.processors import INTEL as INTEL
from mxmp.processors import KINDS as KINDS
from mxmp.processors import NO_BFLOAT16 as NO_BFLOAT16
from mxmp.processors import UNKNOWN as UNKNOWN
from mxmp.processors import AmxStatus as AmxStatus
from mxmp.processors import Processor as Processor
from mxmp.processors import read_cpuinfo as read_cpuinfo

ON = AmxStatus(True, "mxmp switched it on.")
HIDES = "DNNL_MAX_CPU_ISA_OF_A_TEST"
"""The environment variable that hides instructions of a pinned processor, as DNNL_MAX_CPU_ISA hides those of a real one."""

_FLAGS = {
    NO_BFLOAT16: "avx2",
    EMULATED: "avx2 avx512f avx512bw",
    AMD: "avx2 avx512f avx512bw avx512_bf16",
    INTEL: "avx2 avx512f avx512bw avx512_bf16",
    AMX: "avx2 avx512f avx512bw avx512_bf16 amx_tile amx_int8 amx_bf16",
}
_VENDORS = {AMD: "AuthenticAMD", INTEL: "GenuineIntel", AMX: "GenuineIntel"}


def processor_of(kind, **fields):
    """Return a processor of a kind, with some fields changed."""
    flags, vendor = frozenset(_FLAGS.get(kind, "").split()), _VENDORS.get(kind, "")
    found = Processor(f"a processor: {kind.name}", flags, vendor)
    return (found._replace(amx=ON) if kind == AMX else found)._replace(**fields)


def pin(patch, processor):
    """Have mxmp see a processor, by pytest's monkeypatch, whatever the environment hides of this machine's."""
    patch.setattr("mxmp.devices.processor.read_cpuinfo", lambda: processor)
    patch.setattr("mxmp.devices.processor.VARIABLE", HIDES)
    patch.setattr("mxmp.devices.processor.amx_status", lambda: processor.amx)
