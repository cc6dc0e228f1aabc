"""How often an array has been written, which MXNet counts but does not tell: so what was made of it can be kept.

Each write that MXNet's engine completes adds one to the ``version_`` of the array's variable
(CompleteWriteDependency in src/engine/threaded_engine.cc at tag 1.9.1), whoever asked for it: ``set_data``, an
optimizer, ``array[:] = x``, a view. oneDNN's operators in MXNet go by it when they keep what they have made of a weight
(``weight_ver_`` in src/operator/subgraph/mkldnn/mkldnn_conv.cc). C++ has ``NDArray::version()``, neither Python nor the
C interface has it. So it is read where it lies in memory. An array's handle is the address of an NDArray, whose first
member is a pointer to a Chunk; that has a pointer to a Var, which begins with a pointer to its virtual table and the
version. Where in the Chunk the pointer lies depends on how MXNet was built: it is looked for in arrays that are written
and read for the purpose, once in a process, through a file that refuses a wrong address. Where it is not found, no
counts are known.

Not counted: what is written past the engine, through memory that DLPack or shared memory (``cpu_shared``) hands out.
"""

from __future__ import annotations

import ctypes
import functools
import os
from operator import attrgetter, is_
from typing import Any, List, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from .mxnet_private import library

_WORD = 8  # bytes
_WORDS = 32  # of a Chunk that are looked at, of some 35; in the CPU build it is the tenth
_WRITES = (1, 3, 2)  # to the arrays that the pointer is looked for in
_HANDLE = attrgetter("handle")


class WriteCount:
    """The number of writes to one array, which it keeps alive."""

    def __init__(self, array: mx.nd.NDArray, offset: int) -> None:
        self.array = array
        self._handle = array.handle
        self._chunk = _word_at(self._handle.value)
        self._known_chunk = self._chunk.value
        self._offset = offset
        self._count = _word_at(_word_at(self._known_chunk + offset).value + _WORD)

    def __call__(self) -> Optional[int]:
        """Return the number of writes, once all that are pending are done; None if the array has other memory now."""
        if self.array.handle is not self._handle or self._chunk.value != self._known_chunk:
            return None
        self.array.wait_to_read()
        return self._count.value

    @property
    def places(self) -> Tuple[int, int, int]:
        """The addresses of the pointer to its memory, of the pointer to its variable, and of the count."""
        return ctypes.addressof(self._chunk), self._known_chunk + self._offset, ctypes.addressof(self._count)


class UnwrittenArrays:
    """Arrays that are watched together, since each of the many calls that ask costs time: see `are_unwritten`.

    Between two calls a network has emptied the processor's caches. So what all arrays have in memory is read at once,
    not through objects for each.
    """

    def __init__(self, counts: Sequence[WriteCount]) -> None:
        """Take the counts of the arrays, at least one, as they are now."""
        complete = all([count() is not None for count in counts])
        self._arrays = [count.array for count in counts]
        self._handles = [array.handle for array in self._arrays]
        self._copies = [ctypes.c_void_p(handle.value) for handle in self._handles]  # side by side
        self._chunks, self._variables, self._counts = map(_Words, zip(*(count.places for count in counts)))
        every = (self._chunks, self._variables, self._counts)
        self._known_chunks, self._known_variables, self._written = [each.read() if complete else b"" for each in every]

    def are_unwritten(self) -> bool:
        """Return whether none was written or got other memory, once all writes that are pending are done."""
        if not all(map(is_, map(_HANDLE, self._arrays), self._handles)):
            return False
        # In this order: where an array has other memory there may be no variable any more.
        if self._chunks.read() != self._known_chunks or self._variables.read() != self._known_variables:
            return False
        self._counts.read()  # brings into the caches, all at once, what the waits read one by one
        if any(map(library.MXNDArrayWaitToRead, self._copies)):
            mx.base.check_call(-1)  # raises what the write that failed said
        return self._counts.read() == self._written


class _Words:
    """Words of this process's memory that are read together."""

    def __init__(self, addresses: Sequence[int]) -> None:
        first = min(addresses)
        count = (max(addresses) - first) // _WORD + 1  # most of which are never looked at
        self._memory = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(first))
        self._places = np.array([(address - first) // _WORD for address in addresses])

    def read(self) -> bytes:
        """Return what they are now."""
        found: bytes = self._memory[self._places].tobytes()
        return found


def can_count() -> bool:
    """Return whether writes to most arrays can be counted here."""
    return _offset() is not None


def write_count(array: mx.nd.NDArray) -> Optional[WriteCount]:
    """Return what counts the writes to a dense array; None where they cannot be told."""
    offset = _offset()
    if offset is None or array.stype != "default" or array.ctx.device_type == "cpu_shared":
        return None
    return WriteCount(array, offset)


@functools.lru_cache(maxsize=None)
def _offset() -> Optional[int]:
    """Return where a Chunk has the pointer to its variable, in bytes, as new arrays show; None if nothing fits."""
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        with autograd.pause():
            found = set.intersection(*(_candidates(memory, writes) for writes in _WRITES))
    finally:
        os.close(memory)
    return found.pop() * _WORD if len(found) == 1 else None


def _candidates(memory: int, writes: int) -> Set[int]:
    """Return the words of a new array's Chunk that may point to its variable: writes are counted there, reads not."""
    array = mx.nd.zeros((2,), ctx=mx.cpu())
    before = _counts(memory, array)
    for _ in range(writes):
        array += 1
    written = _counts(memory, array)
    (array + array).asnumpy()
    array.asnumpy()
    read = _counts(memory, array)
    known = [word for word in range(_WORDS) if None not in (before[word], written[word], read[word])]
    return {word for word in known if (written[word], read[word]) == (before[word] + writes, before[word] + writes)}


def _counts(memory: int, array: mx.nd.NDArray) -> List[Any]:
    """Return for each word of an array's Chunk the second word of what it points to, None if it points nowhere."""
    array.wait_to_read()
    (chunk,) = _read(memory, array.handle.value, 1) or (0,)
    words = _read(memory, chunk, _WORDS) or []
    pointed = [_read(memory, word, 2) for word in words]
    return [each[1] if each else None for each in pointed] + [None] * (_WORDS - len(words))


def _read(memory: int, address: int, words: int) -> Optional[List[int]]:
    """Return words of this process's memory, None if there are none at an address."""
    try:
        data = os.pread(memory, words * _WORD, address)
    except (OSError, OverflowError):
        return None
    return list((ctypes.c_uint64 * words).from_buffer_copy(data)) if len(data) == words * _WORD else None


def _word_at(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)
