"""The processor that a /proc/cpuinfo names first, and the kind that it is of."""

import pytest

from mxmp.devices.processor import read_processor
from mxmp.diagnose import AmxStatus
from tests.processors import AMD, AMX, EMULATED, HIDES, INTEL, NO_BFLOAT16, ON, UNKNOWN, Processor, read_cpuinfo

CPUINFO = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: {name}
flags		: fpu sse2 {flags}
bogomips	: 5000.00

processor	: 1
model name	: another
flags		: fpu
"""


@pytest.fixture
def read(tmp_path):
    def read(flags, name="Some CPU @ 2.00GHz: fast"):
        file = tmp_path / "cpuinfo"
        file.write_text(CPUINFO.format(name=name, flags=flags))
        return read_cpuinfo(file)

    return read


def test_read_cpuinfo_takes_the_first_one_and_its_whole_name(read):
    found = read("avx2")
    assert found.name == "Some CPU @ 2.00GHz: fast"
    assert found.flags == {"fpu", "sse2", "avx2"} and found.vendor == "GenuineIntel" and not found.amx.on


@pytest.mark.parametrize("text", [None, "", "processor : 0\nFeatures : fp asimd\n"], ids=["missing", "empty", "arm"])
def test_name_and_flags_are_unknown_without_them(tmp_path, text):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    found = read_cpuinfo(file)
    assert found == Processor("unknown processor", frozenset())


BF16, TILES = "avx512bw avx512_bf16", "amx_tile amx_bf16"


@pytest.mark.parametrize(
    ("flags", "vendor", "amx", "kind"),
    [
        ("", "", False, UNKNOWN),
        ("avx2", "AuthenticAMD", False, NO_BFLOAT16),
        ("avx512f", "GenuineIntel", False, NO_BFLOAT16),
        ("avx512bw", "GenuineIntel", False, EMULATED),
        (BF16, "AuthenticAMD", False, AMD),
        (BF16, "GenuineIntel", False, INTEL),  # Cooper Lake
        (BF16, "", False, INTEL),  # nothing else was measured, and this one loses
        (f"{BF16} {TILES}", "GenuineIntel", False, INTEL),
        (f"{BF16} {TILES}", "GenuineIntel", True, AMX),
    ],
)
def test_the_kind_follows_from_flags_vendor_and_amx(flags, vendor, amx, kind):
    status = ON if amx else AmxStatus(False, "This process has not asked for it.")
    assert Processor("X", frozenset(flags.split()), vendor, status).kind == kind


@pytest.mark.parametrize("flags", ["avx512_bf16", "avx512_bf16 amx_tile amx_int8", "amx_tile amx_bf16", ""])
def test_amx_takes_all_the_flags_that_onednn_asks_for(flags):
    assert Processor("X", frozenset(f"{BF16} {TILES}".split())).has_amx
    assert not Processor("X", frozenset(flags.split())).has_amx


@pytest.mark.parametrize(
    ("value", "kind"),
    [("AVX2", NO_BFLOAT16), ("AVX512_CORE", EMULATED), ("avx512_core_vnni", EMULATED), ("AVX512_CORE_BF16", AMD), ("ALL", AMD)],
)
def test_a_variable_that_hides_instructions_from_onednn_hides_them_here(value, kind, monkeypatch, on_processor):
    on_processor(AMD)
    monkeypatch.setenv(HIDES, value)
    assert read_processor().kind == kind
