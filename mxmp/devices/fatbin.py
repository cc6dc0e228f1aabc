"""Which GPUs a library holds code for, read from its fat binary without any CUDA tool.

Layout, all little-endian. The sections ``.nv_fatbin`` and ``__nv_relfatbin`` of the ELF file hold
one container after the other, aligned to 8 bytes, for each file that nvcc compiled::

    container  u32 magic 0xBA55ED50, u16 version, u16 size of this header, u64 size of the entries
    entry      u16 kind, u16 version, u32 size of this header, u64 size of the payload, padded,
               u32 size of the payload, u32, u16 minor, u16 major, u32 architecture (86 for sm_86), ...

Kind 1 is PTX, which a driver compiles for its own card and for any later one; kind 2 is machine code
(a cubin), which runs on cards of its major version, from its minor version on. Payloads may be compressed;
the headers never are, and nothing else is read, so that a library of 900 MB takes some milliseconds.

References:
    NVIDIA documents the tool that lists the same (cuobjdump, "CUDA Binary Utilities") and which card runs
    which code ("CUDA C++ Programming Guide", binary and PTX compatibility), not the layout. That is in
    readers such as https://github.com/n-eiling/cuda-fatbin-decompression, and holds for the wheel
    mxnet-cu112 1.9.1: 198 containers of the same five entries. ELF: the System V ABI, chapter 4.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import FrozenSet, Iterator, NamedTuple, Tuple, Union

from ..errors import DependencyError

Capability = Tuple[int, int]  # compute capability, (major, minor)

PTX, MACHINE_CODE = 1, 2

_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_ELF_HEADER = struct.Struct("<40xQ10xHHH")  # e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<II8x8xQQ")  # sh_name, sh_type, sh_offset, sh_size
_NO_BITS = 8  # sh_type of a section that takes no room in the file
_ALIGNMENT = 8


class Image(NamedTuple):
    """GPU code for one architecture."""

    kind: int  # `PTX` or `MACHINE_CODE`
    capability: Capability

    def runs_on(self, card: Capability) -> bool:
        """Return whether a card runs this image."""
        return self.capability <= card and (self.kind == PTX or self.capability[0] == card[0])


@dataclass(frozen=True)
class GpuCode:
    """The GPU code in a library."""

    modules: FrozenSet[FrozenSet[Image]] = frozenset()  # the images of each container; empty for a CPU build

    def runs_on(self, card: Capability) -> bool:
        """Return whether a card runs every module; kernels of the others would fail."""
        return bool(self.modules) and all(any(image.runs_on(card) for image in module) for module in self.modules)

    def capabilities(self, kind: int) -> Tuple[Capability, ...]:
        """Return the compute capabilities that there is PTX or machine code for, in order."""
        return tuple(sorted({image.capability for module in self.modules for image in module if image.kind == kind}))

    def __str__(self) -> str:
        if not self.modules:
            return "no GPU code"
        code, ptx = (
            ", ".join(f"{major}.{minor}" for major, minor in self.capabilities(k)) for k in (MACHINE_CODE, PTX)
        )
        return f"machine code for {code or 'no card'}; " + (f"PTX for {ptx} and later" if ptx else "no PTX")


# The wheels mxnet-cu112, -cu115 and -cu117 1.9.1.
RELEASED = GpuCode(frozenset([frozenset(Image(MACHINE_CODE, c) for c in ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6)))]))


def read_gpu_code(library: Union[str, Path]) -> GpuCode:
    """Return the GPU code in a shared library for 64-bit Linux, none if it was built without CUDA.

    Raises:
        DependencyError: If it cannot be read, is no such library, or is truncated or damaged.
    """
    try:
        with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            modules = frozenset(module for start, end in _sections(data) for module in _modules(data, start, end))
    except OSError as e:
        raise DependencyError(f"{library}: it cannot be read: {e.strerror or e}.") from e
    except (ValueError, struct.error) as e:  # ValueError also for an empty file
        raise DependencyError(f"{library}: its GPU code cannot be read: {e}.") from e
    return GpuCode(modules - {frozenset()})


def _sections(data: mmap.mmap) -> Iterator[Tuple[int, int]]:
    """Yield begin and end of each section with fat binaries."""
    if data[: len(_ELF64_LITTLE_ENDIAN)] != _ELF64_LITTLE_ENDIAN:
        raise ValueError("it is no library for 64-bit Linux")
    table, size, count, names = _ELF_HEADER.unpack_from(data)
    if size < _SECTION.size or not count or table + size * count > len(data) or names >= count:
        raise ValueError("its table of sections is missing or damaged; is the file truncated?")
    headers = [_SECTION.unpack_from(data, table + size * number) for number in range(count)]
    for name, kind, start, length in headers:
        begin = headers[names][2] + name
        if kind != _NO_BITS and data[begin : data.find(b"\0", begin)] in _SECTIONS:
            if start + length > len(data):
                raise ValueError("a section with GPU code ends behind the file's end; the file is truncated")
            yield start, start + length


def _modules(data: mmap.mmap, start: int, end: int) -> Iterator[FrozenSet[Image]]:
    """Yield the images of each container in a section."""
    while start + _CONTAINER.size <= end:
        magic, _, header, size = _CONTAINER.unpack_from(data, start)
        if magic == 0:  # padding
            start += _ALIGNMENT
            continue
        begin, start = start + header, start + header + size
        if magic != _MAGIC or header < _CONTAINER.size or start > end:
            raise ValueError(f"no fat binary at byte {begin - header}; the file is damaged")
        yield frozenset(_images(data, begin, start))
        start += -start % _ALIGNMENT


def _images(data: mmap.mmap, start: int, end: int) -> Iterator[Image]:
    """Yield the PTX and machine code of a container; other kinds no driver loads by themselves."""
    while start < end:
        kind, _, header, size, _, _, _, _, architecture = _ENTRY.unpack_from(data, start)
        if header < _ENTRY.size or start + header + size > end:
            raise ValueError(f"a fat binary has a damaged entry at byte {start}")
        if kind in (PTX, MACHINE_CODE):
            yield Image(kind, divmod(architecture, 10))
        start += header + size
