"""One processor of each kind, and what pins the processor that mxmp sees."""

from mxmp.processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16, AmxStatus, Processor

ON = AmxStatus(True, "mxmp switched it on.")
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
    patch.setattr("mxmp.devices.processor.VARIABLE", "NO_SUCH_VARIABLE")
    patch.setattr("mxmp.devices.processor.amx_status", lambda: processor.amx)
