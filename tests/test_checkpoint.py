"""The structure of a checkpoint's parameters: what MXNet wrote is accepted, what does not add up is named."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp.checkpoint import check_arrays_file
from mxmp.errors import CheckpointError
from mxmp.symbol.checkpoint import load_arrays, write_arrays
from mxmp.symbol.params import round_to
from tests.symbol.refusals import refused

FUZZER = Path(__file__).parent / "symbol" / "damaged_files.py"
DTYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"]


def named(file):
    arrays = {f"arg:{dtype}": mx.nd.ones((2, 3)).astype(dtype) for dtype in DTYPES if dtype != "bool"}
    arrays["aux:层"] = round_to(mx.nd.ones((3,)), "bfloat16")
    mx.nd.save(file, arrays)


def unnamed(file):
    mx.nd.save(file, [mx.nd.ones((2, 3, 1, 1)), mx.nd.arange(7, dtype="int32")])


def sparse(file):
    dense = mx.nd.array([[0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 0, 0]])
    arrays = {kind: dense.tostype(kind) for kind in ("row_sparse", "csr")}
    arrays.update({f"no {kind}": mx.nd.sparse.zeros(kind, (4, 3)) for kind in arrays})
    mx.nd.waitall()  # MXNet saves the shape of what is not computed yet, and reads other values from that
    mx.nd.save(file, arrays)


def nothing(file):
    mx.nd.save(file, {})


def arrays_file(entries, names):
    """Return a file of entries that are encoded already."""
    texts = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    head = struct.pack("<QQQ", 0x112, 0, len(entries))
    return head + b"".join(entries) + struct.pack("<Q", len(names)) + texts


def old_entry(value, version):
    """Return an array as MXNet up to 0.11 (version 0: sizes of 32 bits) and 0.12 (1) wrote it."""
    if version:
        shape = struct.pack("<Ii", 0xF993FAC8, value.ndim) + struct.pack(f"<{value.ndim}q", *value.shape)
    else:
        shape = struct.pack(f"<I{value.ndim}I", value.ndim, *value.shape)
    return shape + struct.pack("<iii", 1, 0, 0) + value.astype("float32").tobytes()


def old(version):
    def write(file):
        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        Path(file).write_bytes(arrays_file([old_entry(value, version), old_entry(value, version)], [b"a", b"b"]))

    return write


def numpys(file):
    with mx.util.np_shape(True), mx.util.np_array(True):
        mx.npx.save(file, {"a": mx.np.ones((2, 0)), "b": mx.np.array(3.0), "c": mx.np.ones((4, 5), dtype="int8")})


KINDS = {
    "named": named,
    "unnamed": unnamed,
    "sparse": sparse,
    "empty": nothing,
    "before 0.12": old(0),
    "0.12": old(1),
    "numpy": numpys,
}
ALL = pytest.mark.parametrize("write", KINDS.values(), ids=KINDS.keys())


@ALL
def test_what_mxnet_writes_is_accepted(write, tmp_path):
    file = str(tmp_path / "file")
    write(file)
    with mx.util.np_shape(write is numpys):
        assert check_arrays_file(file) == len(mx.nd.load(file))


@pytest.mark.parametrize("version", [0, 1])
def test_old_files_are_read_as_mxnet_reads_them(version, tmp_path):
    file = str(tmp_path / "file")
    old(version)(file)
    assert load_arrays(file)["b"].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]


@ALL
def test_a_file_cut_off_anywhere_is_named(write, tmp_path):
    path = tmp_path / "file"
    write(str(path))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with refused(CheckpointError, str(path), "truncated"):
            check_arrays_file(str(path))


def entry(magic=0xF993FAC9, storage=0, shape=(2, 3), device=1, number=0, flag=0, values=24, axes=None, form="q"):
    axes = len(shape) if axes is None else axes
    head = struct.pack("<Iii", magic, storage, axes) + struct.pack(f"<{len(shape)}{form}", *shape)
    return head + struct.pack("<iii", device, number, flag) + bytes(values)


DAMAGED = {
    "a huge size": ([entry(shape=(2**40, 3))], [], "entry 0: the shape (1099511627776, 3) of 4 bytes each needs"),
    "sizes whose product overflows": ([entry(shape=(2**32, 2**32))], [], "entry 0: the shape (4294967296, 4294967296)"),
    "a size below zero": ([entry(), entry(shape=(-2, 3))], [], "entry 1: found the shape (-2, 3), expected sizes"),
    "too many axes": ([entry(axes=2**31 - 1)], [], "entry 0: found 2147483647 axes, expected 0 to 32"),
    "axes below zero": ([entry(axes=-1)], [], "entry 0: found -1 axes, expected 0 to 32"),
    "a storage type": ([entry(storage=7)], [], "entry 0: found the storage type 7, expected one of [0, 1, 2]"),
    "a dtype": ([entry(flag=99)], [], "entry 0: found the dtype number 99, expected one of [0, 1, 2, 3, 4, 5, 6, 7"),
    "a device": ([entry(device=77)], [], "entry 0: found the device type 77, expected one of [1, 2, 3, 5]"),
    "an old entry": ([struct.pack("<I", 0xF993FAC0)], [], "entry 0: found 4187224768 axes, expected 0 to 32"),
    "too few names": ([entry(), entry()], [b"a"], "the names: found 1, expected 2, one for each array, or none"),
}


@pytest.mark.parametrize("entries, names, message", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_declared_and_not_there_is_named(entries, names, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(arrays_file(entries, names))
    with refused(CheckpointError, f"{path}: {message}", "damaged"):
        check_arrays_file(str(path))


@pytest.mark.parametrize("place, what", [(16, "arrays"), (-9, "bytes")], ids=["arrays", "name"])
def test_counts_beyond_the_file_are_named(place, what, tmp_path):
    path = tmp_path / "file"
    data = bytearray(arrays_file([entry()], [b"a"]))
    data[place : place + 8 if place > 0 else -1] = struct.pack("<Q", 2**60)
    path.write_bytes(bytes(data))
    with refused(CheckpointError, f"{2**60} {what} declared, but"):
        check_arrays_file(str(path))


def test_bytes_behind_the_end_are_named(tmp_path):
    path = tmp_path / "file"
    named(str(path))
    path.write_bytes(path.read_bytes() + b"12345")
    with refused(CheckpointError, "the end: found 5 bytes more, expected none"):
        check_arrays_file(str(path))


def test_a_name_that_is_no_text_is_refused_with_its_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(arrays_file([entry()], [b"\xff"]))
    with refused(CheckpointError, str(path), "cannot load it"):
        load_arrays(str(path))


def test_a_sparse_array_may_be_larger_than_its_file(tmp_path):
    file = str(tmp_path / "file")
    mx.nd.save(file, {"rows": mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [7]), shape=(10**9, 2))})
    assert load_arrays(file)["rows"].shape == (10**9, 2)


def test_sparse_arrays_are_saved_after_they_were_computed(tmp_path):
    """MXNet saves the shape of the values before it waits for them, and loads other values then."""
    file, dense = str(tmp_path / "file"), np.random.RandomState(0).rand(50, 40)
    for _ in range(20):
        write_arrays(file, {"a": mx.nd.array(dense).tostype("row_sparse"), "b": mx.nd.array(dense).tostype("csr")})
        for array in load_arrays(file).values():
            np.testing.assert_array_equal(array.asnumpy(), dense.astype(np.float32))


@pytest.fixture(scope="module")
def fuzzer():
    """Return a process that reads 1500 damaged copies of each file that it is asked for."""
    command = [sys.executable, str(FUZZER), "1", "1500"]
    environment = {**os.environ, "PYTHONPATH": str(FUZZER.parent.parent.parent), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        process.stdin.close()  # which ends it


@pytest.mark.parametrize(
    "kind",
    [
        "named",
        pytest.param("numpy", marks=pytest.mark.slow),
        pytest.param("before 0.12", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_is_refused_or_harmless(kind, tmp_path, fuzzer):
    """In a process with 1 GiB of addresses to spare: it neither dies nor fails otherwise, nor hangs."""
    file = str(tmp_path / "file")
    KINDS[kind](file)
    fuzzer.stdin.write(f"{file}\n")
    found = json.loads(fuzzer.stdout.readline())
    assert "died" not in found and not found["bad"]
    assert found["refused"] > 500 and found["loaded"] > 20
