"""Files of arrays as MXNet writes and wrote them, and such as it never wrote."""

import struct
from pathlib import Path

import mxnet as mx
import numpy as np

from tests.values import BFLOAT16


def named(file):
    dtypes = "float32", "float64", "float16", "uint8", "int32", "int8", "int64"
    arrays = {f"arg:{dtype}": mx.nd.ones((2, 3)).astype(dtype) for dtype in dtypes}
    arrays["aux:层"] = mx.nd.amp_cast(mx.nd.ones((3,)), dtype=BFLOAT16)
    mx.nd.save(file, arrays)


def sparse(file):
    dense = mx.nd.array([[0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 0, 0]])
    kinds = ("row_sparse", "csr")
    arrays = {f"arg:{kind}": dense.tostype(kind) for kind in kinds}
    arrays.update({f"arg:no {kind}": mx.nd.sparse.zeros(kind, (4, 3)) for kind in kinds})
    mx.nd.waitall()  # MXNet saves the shape of what is not computed yet, and reads other values from that
    mx.nd.save(file, arrays)


def arrays_file(entries, names):
    """Return a file of entries that are encoded already."""
    texts = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    head = struct.pack("<QQQ", 0x112, 0, len(entries))
    return head + b"".join(entries) + struct.pack("<Q", len(names)) + texts


def old_entry(value, version):
    """Return an array as MXNet up to 0.11 (version 0: sizes of 32 bits) and 0.12 (1) wrote it."""
    axes, form = struct.pack("<Ii" if version else "<I", *[0xF993FAC8] * version, value.ndim), "q" if version else "I"
    shape = struct.pack(f"<{value.ndim}{form}", *value.shape)
    return axes + shape + struct.pack("<iii", 1, 0, 0) + value.astype("float32").tobytes()


def old(version):
    def write(file):
        value = old_entry(np.arange(6, dtype=np.float32).reshape(2, 3), version)
        Path(file).write_bytes(arrays_file([value, value], [b"arg:a", b"arg:b"]))

    return write


def numpys(file):
    with mx.util.np_shape(True), mx.util.np_array(True):
        mx.npx.save(file, {"arg:a": mx.np.ones((2, 0)), "arg:b": mx.np.array(3.0), "arg:c": mx.np.ones((4, 5), dtype="int8")})


def entry(magic=0xF993FAC9, storage=0, shape=(2, 3), device=1, number=0, flag=0, values=24, axes=None, form="q"):
    axes = len(shape) if axes is None else axes
    head = struct.pack("<Iii", magic, storage, axes) + struct.pack(f"<{len(shape)}{form}", *shape)
    return head + struct.pack("<iii", device, number, flag) + bytes(values)


def sparse_entry(shape, stored, *indices, dtype="int64"):
    """Return a row_sparse array of ones, with the indices of its rows, or a csr array, with starts and columns."""
    indices = [np.array(each, dtype) for each in indices]
    head = struct.pack("<Iii", 0xF993FAC9, len(indices), len(stored)) + struct.pack(f"<{len(stored)}q", *stored)
    head += struct.pack("<i", len(shape)) + struct.pack(f"<{len(shape)}q", *shape) + struct.pack("<iii", 1, 0, 0)
    for each in indices:
        head += struct.pack("<ii", {"int64": 6, "int32": 4}[dtype], each.ndim) + struct.pack(f"<{each.ndim}q", *each.shape)
    return b"".join([head, np.ones(stored, np.float32).tobytes(), *(each.tobytes() for each in indices)])


KINDS = {
    "named": named,
    "sparse": sparse,
    "empty": lambda file: mx.nd.save(file, {}),
    "before 0.12": old(0),
    "0.12": old(1),
    "numpy": numpys,
}
