"""The processor that a /proc/cpuinfo names first."""

import pytest

from mxmp.devices import processor

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
        return processor.read_processor(file)

    return read


def test_read_processor_takes_the_first_one_and_its_whole_name(read):
    found = read("avx2")
    assert found.name == "Some CPU @ 2.00GHz: fast"
    assert found.flags == {"fpu", "sse2", "avx2"}


@pytest.mark.parametrize("text", [None, "", "processor : 0\nFeatures : fp asimd\n"], ids=["missing", "empty", "arm"])
def test_name_and_flags_are_unknown_without_them(tmp_path, text):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    found = processor.read_processor(file)
    assert found == processor.Processor("unknown processor", frozenset())
