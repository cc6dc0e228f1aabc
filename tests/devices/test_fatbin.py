"""What GPUs a library holds code for, against libraries that the tests write."""

from __future__ import annotations

import struct
import time

import mxnet as mx
import pytest

from mxmp.devices.fatbin import MACHINE_CODE, RELEASED, GpuCode, Image, read_gpu_code
from mxmp.errors import DependencyError
from tests.devices.libraries import (
    COMPRESSED,
    CUBIN,
    PTX,
    WHEEL,
    container,
    cpu_library,
    cuda_library,
    elf,
    entry,
    fatbin,
)


def code(*modules):
    return GpuCode(frozenset(frozenset(Image(kind, divmod(sm, 10)) for kind, sm in module) for module in modules))


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "lib.so"
        path.write_bytes(data)
        return read_gpu_code(path)

    return read


def test_the_released_wheels_are_read_as_such(tmp_path):
    assert read_gpu_code(cuda_library(tmp_path)) == RELEASED


def test_compressed_entries_need_no_decompression(read):
    assert read(elf({".nv_fatbin": fatbin(WHEEL, payload=b"a" * 999, flags=COMPRESSED)})) == RELEASED


def test_a_payload_may_look_like_a_container(read):
    inner = fatbin([(PTX, 90)])
    assert read(elf({".nv_fatbin": container(entry(CUBIN, 70, payload=inner))})) == code([(CUBIN, 70)])


def test_each_container_is_a_module(read):
    found = read(elf({".nv_fatbin": fatbin([(CUBIN, 70)]) + fatbin([(CUBIN, 80), (PTX, 80)]) + fatbin([(CUBIN, 70)])}))
    assert found == code([(CUBIN, 70)], [(CUBIN, 80), (PTX, 80)])


def test_padding_between_containers_is_skipped(read):
    section = fatbin([(CUBIN, 70)]) + bytes(24) + fatbin([(PTX, 61)]) + bytes(8)
    assert read(elf({".nv_fatbin": section})) == code([(CUBIN, 70)], [(PTX, 61)])


def test_long_headers_and_other_kinds_are_skipped(read):
    section = container(entry(64, 75), entry(CUBIN, 120, header=112), entry(PTX, 100, header=80))
    assert read(elf({".nv_fatbin": section})) == code([(CUBIN, 120), (PTX, 100)])


def test_relocatable_code_counts(read):
    assert read(elf({"__nv_relfatbin": fatbin([(CUBIN, 86)]), ".text": b"x"})) == code([(CUBIN, 86)])


def test_an_empty_container_holds_no_module(read):
    assert read(elf({".nv_fatbin": container() + fatbin([(CUBIN, 70)])})) == code([(CUBIN, 70)])


def test_a_section_without_room_in_the_file_is_none(read):
    assert read(elf({".nv_fatbin": fatbin(WHEEL)}, kind=8)) == GpuCode()


def test_a_cpu_build_holds_none(tmp_path):
    assert read_gpu_code(cpu_library(tmp_path)) == GpuCode()


def test_the_installed_library_says_what_mxnet_says():
    found = read_gpu_code(mx.libinfo.find_lib_path()[0])
    assert bool(found.modules) == mx.runtime.Features().is_enabled("CUDA")


@pytest.mark.parametrize(
    ("images", "runs"),
    [
        (WHEEL, [False, True, True, True, True, True, True, False, False]),
        ([(PTX, 70)], [False, False, False, True, True, True, True, True, True]),
        ([(CUBIN, 61)], [False, False, True, False, False, False, False, False, False]),
        ([(CUBIN, 86)], [False, False, False, False, False, False, True, False, False]),
        ([(CUBIN, 90), (PTX, 90)], [False] * 7 + [True, True]),
        ([], [False] * 9),
    ],
    ids=["the wheels", "PTX", "Pascal", "8.6", "Hopper", "CPU"],
)
def test_machine_code_runs_within_its_major_version_and_ptx_later_too(images, runs):
    cards = [(3, 7), (5, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)]
    found = code(images) if images else GpuCode()
    assert [found.runs_on(card) for card in cards] == runs


def test_a_card_must_run_every_module():
    found = code([(CUBIN, 70), (CUBIN, 80)], [(CUBIN, 70)])
    assert found.runs_on((7, 0)) and not found.runs_on((8, 0))


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        ([WHEEL], "machine code for 5.0, 6.0, 7.0, 8.0, 8.6; no PTX"),
        ([[(CUBIN, 120), (PTX, 90)], [(CUBIN, 75)]], "machine code for 7.5, 12.0; PTX for 9.0 and later"),
        ([[(PTX, 50)]], "machine code for no card; PTX for 5.0 and later"),
        ([], "no GPU code"),
    ],
)
def test_code_is_described(modules, text):
    assert str(code(*modules)) == text


def test_a_truncated_library_is_refused_wherever_it_ends(tmp_path, read):
    """The linker writes the table of sections last."""
    whole = cuda_library(tmp_path).read_bytes()
    for end in range(1, len(whole), 7):
        with pytest.raises(DependencyError, match=r"lib.so: its GPU code cannot be read: "):
            read(whole[:end])


def test_a_section_beyond_the_end_is_refused(read):
    """A table of sections that comes first survives truncation."""
    data = bytearray(elf({".nv_fatbin": fatbin(WHEEL)}))
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, table + 64 + 32, 1 << 40)
    with pytest.raises(DependencyError, match="a section with GPU code ends behind the file's end"):
        read(bytes(data))


@pytest.mark.parametrize(
    ("section", "match"),
    [
        (b"\1" * 32, "no fat binary at byte 64; the file is damaged"),
        (fatbin(WHEEL)[:-8], "no fat binary at byte 64"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0) * 2, "no fat binary at byte 64"),
        (container(bytes(64)), "a damaged entry at byte 80"),
        (container(struct.pack("<HHIQ", CUBIN, 257, 64, 1 << 50) + bytes(48)), "a damaged entry at byte 80"),
    ],
    ids=["no magic", "cut", "no header", "empty entry", "endless entry"],
)
def test_a_damaged_section_is_refused(read, section, match):
    with pytest.raises(DependencyError, match=match):
        read(elf({".nv_fatbin": section}))


@pytest.mark.parametrize("data", [b"", b"MZ\x90", b"\xcf\xfa\xed\xfe" + bytes(99), b"\x7fELF\1\1" + bytes(99)])
def test_what_is_no_library_for_linux_is_refused(read, data):
    with pytest.raises(DependencyError, match="its GPU code cannot be read: "):
        read(data)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DependencyError, match=r"none.so: it cannot be read: No such file"):
        read_gpu_code(tmp_path / "none.so")


def test_two_gigabytes_are_not_read(tmp_path):
    """A sparse file: payloads of 256 MB that are only skipped."""
    size, path = 1 << 28, tmp_path / "large.so"
    names, start = b"\0.nv_fatbin\0", 64
    entries = 8 * (64 + size)
    with open(path, "wb") as file:
        table = start + 16 + entries
        head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 2, 1)
        file.write(head + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, entries))
        for number in range(8):
            file.write(struct.pack("<HHIQIIHHI", CUBIN, 257, 64, size, size, 64, 0, 1, 70 + number) + bytes(32))
            file.seek(size, 1)
        file.write(struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, start, 16 + entries, 0, 0, 8, 0))
        file.write(struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, table + 128, len(names), 0, 0, 1, 0) + names)
    assert path.stat().st_size > 2 * 10**9
    begin = time.perf_counter()
    found = read_gpu_code(path)
    assert time.perf_counter() - begin < 1
    assert found.capabilities(MACHINE_CODE) == tuple((7, minor) for minor in range(8))
