"""AMX's instructions in the code that a process generates."""

from __future__ import annotations

import mmap
import platform
import sys

import mxnet as mx
import pytest

from mxmp.devices import generated_code

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="AMX is x86-64's"
)
# What GNU as makes of TDPBF16PS; of TDPBSSD, LDTILECFG and VFMADD231PS.
MULTIPLY = {
    "%tmm5, %tmm4, %tmm3": "c4e2525cdc",
    "%tmm2, %tmm1, %tmm0": "c4e26a5cc1",
    "%tmm5, %tmm6, %tmm7": "c4e2525cfe",
}
OTHERS = ["c4e2535edc", "c4e2784900", "c4e27db8c0"]


def count():
    return generated_code._multiplications()


def run_convolution(width):
    ones = mx.nd.ones((1, 8, 3, width)), mx.nd.ones((8, 8, 3, 3))
    mx.nd.Convolution(*ones, kernel=(3, 3), num_filter=8, no_bias=True).wait_to_read()


@pytest.mark.parametrize("code", MULTIPLY.values(), ids=MULTIPLY)
def test_a_multiplication_is_found_in_executable_memory(code):
    before = count()
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory[1:6] = memory[101:106] = bytes.fromhex(code)
        assert count() == before + 2
    assert count() == before


@pytest.mark.parametrize("code", OTHERS)
def test_other_instructions_are_none(code):
    before = count()
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory[:5] = bytes.fromhex(code)
        assert count() == before


def test_memory_that_is_not_executable_is_not_looked_at():
    before = count()
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE) as memory:
        memory[:5] = bytes.fromhex("c4e2525cdc")
        assert count() == before


def test_the_code_of_onednn_is_there():
    """Each shape has code of its own, of which a convolution makes some."""
    run_convolution(41)
    before = sum(map(len, generated_code.generated_code()))
    run_convolution(41)
    assert sum(map(len, generated_code.generated_code())) == before > 0
    found = [set(generated_code.generated_code())]
    run_convolution(43)
    assert set(generated_code.generated_code()) != found[0]


@pytest.mark.skipif(mx.runtime.Features().is_enabled("CUDA"), reason="the test is about a CPU")
def test_without_amx_a_convolution_has_none(capfd):
    """Where it runs: oneDNN prints a line where it does not."""
    from mxmp.devices import amx

    assert generated_code.uses_amx() == amx.amx_status().on == generated_code.uses_amx()
