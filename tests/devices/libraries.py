"""Libraries with GPU code, written byte by byte as nvcc and a linker lay them out."""

from __future__ import annotations

import struct
import zlib

PTX, CUBIN = 1, 2
COMPRESSED = 0x2011  # 64 bit, Linux, compressed: the flags in the wheel mxnet-cu112 1.9.1
PLAIN = 0x11

WHEEL = [(CUBIN, 50), (CUBIN, 60), (CUBIN, 70), (CUBIN, 80), (CUBIN, 86)]


def entry(kind, architecture, payload=b"some code", flags=PLAIN, header=64):
    """Return an entry; headers are longer for some architectures from sm_100 on."""
    raw, stored = len(payload), zlib.compress(payload) if flags == COMPRESSED else payload
    padded = stored + b"\xff" * (-len(stored) % 8)
    text = struct.pack("<HHIQIIHHI", kind, 0x101, header, len(padded), len(stored), 64, 0, 1, architecture)
    text += struct.pack("<IIQQQ", 0, 0, flags, 0, raw)
    return text + b"\xee" * (header - len(text)) + padded


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def fatbin(images, **options):
    return container(*(entry(kind, architecture, **options) for kind, architecture in images))


def elf(sections, kind=1):
    """Return a library with sections by name, behind those that every library has."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    body, headers = b"", [bytes(64)]
    for name, text in (*sections.items(), (".shstrtab", names)):
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        shown = 3 if name == ".shstrtab" else kind
        headers.append(struct.pack("<IIQQQQIIQQ", where, shown, 0, 0, 64 + len(body), len(text), 0, 0, 8, 0))
        body += text + bytes(-len(text) % 8)
    start = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 0, 0)
    start = start[:58] + struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return start + body + b"".join(headers)


def cuda_library(folder, images=WHEEL):
    """Write a CUDA build whose modules all hold the same images, and return its path."""
    path = folder / "libmxnet.so"
    path.write_bytes(elf({".text": b"\x90" * 16, ".nv_fatbin": fatbin(images) * 2}))
    return path


def cpu_library(folder):
    path = folder / "libmxnet.so"
    path.write_bytes(elf({".text": b"\x90" * 16}))
    return path
