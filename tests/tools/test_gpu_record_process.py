"""The recorder as a process sees it: its environment, devices, memory, copies, marks, what the host reads."""

import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from tests import messages
from tools.gpu_record.process import environment
from tools.gpu_record.read import read, sections

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).resolve().parent.parent.parent

# Beginning of each program: the library, and a copy of floats from "device" memory to the host.
START = """
import ctypes, os, sys, threading
from tools.gpu_record import control
cuda = ctypes.CDLL("libcudart.so.11.0")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
cuda.cudaMalloc.argtypes = [pointer, size]
cuda.cudaFree.argtypes = [pointer]
cuda.cudaMemcpy2DAsync.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int, pointer]
cuda.cudaMemcpyPeerAsync.argtypes = [pointer, ctypes.c_int, pointer, ctypes.c_int, size, pointer]
def malloc(bytes):
    memory = pointer()
    status = cuda.cudaMalloc(ctypes.byref(memory), bytes)
    return status or memory
def host_reads(values, rows=1, kind=2):
    count = len(values)
    device, host = (ctypes.c_float * count)(*values), (ctypes.c_float * count)()
    width = 4 * count // rows
    cuda.cudaMemcpy2DAsync(host, width, device, width, width, rows, kind, None)
    return list(host)
"""


@pytest.fixture
def run(recorder, tmp_path):
    """Run a program under the recorder; returns its output, the record is ``tmp_path / 'record'``."""

    def run(program, expect=0, **settings):
        done = subprocess.run(
            [sys.executable, "-c", START + program],
            env=environment(recorder, tmp_path / "record", **settings),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    return run


def test_environment_puts_the_recorder_first_and_keeps_the_rest(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/there")
    monkeypatch.setenv("PYTHONPATH", "/packages")
    found = environment(recorder, tmp_path / "record", gpus=2, MXNET_USE_FUSION=0)
    expected = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{recorder}{os.pathsep}/there",
        "PYTHONPATH": f"{ROOT}{os.pathsep}/packages",
        "GPU_RECORD": str(tmp_path / "record"),
        "GPU_RECORD_GPUS": "2",
        "MXNET_USE_FUSION": "0",
    }
    assert {name: found[name] for name in expected} == expected and "GPU_RECORD" not in os.environ


ROWS = ([1, 1, 1, 1], [0, 1, 1, 1], [0, 2.5, -3, 1], ["nan", 1, 1, 1], [9, 9, 9, 9])  # of one, two and four copies each
DELIVERED = "".join(" ".join([str([float(one) for one in row])] * 3) + "\n" for row in ROWS) + (
    "[0.0, 1.0] [9.0, 9.0] [9.0]\ndeliver() takes at most 16 numbers, got 17\n"
)
FIRST = 4 * 7 * (5 + 7 + 2)  # LSTM: four gates, weights of input and state, two biases
SOURCE = 'extern "C" __global__ void f() {}\n\tx'
SECOND = 4 * 7 * (2 * 7 + 7 + 2)  # its input is both directions; of float16, in two directions
PROGRAMS = {
    "GPUs": ("""
count, major = ctypes.c_int(), ctypes.c_int()
cuda.cudaGetDeviceCount(ctypes.byref(count))
cuda.cudaDeviceGetAttribute(ctypes.byref(major), 75, 0)
print(count.value, major.value, cuda.cudaSetDevice(2), cuda.cudaSetDevice(3))
""", {"gpus": 3, "compute_capability": 80}, "3 8 0 101\n", None),
    "memory": ("""
first = malloc(600)
print(malloc(600))
cuda.cudaFree(first)
print(malloc(600) != 2)
cuda.cudaFree(None)
cuda.cudaSetDevice(1)
print(malloc(1000) != 2)
""", {"gpus": 2, "memory": 1000}, "2\nTrue\nTrue\n", [("cudaMalloc", {"bytes": 600}), ("cudaMalloc", {"bytes": 0, "refused": 600}), ("cudaFree", {"bytes": 600}), ("cudaMalloc", {"bytes": 600}), ("cudaFree", {"bytes": 0}), ("cudaMalloc", {"bytes": 1000})]),
    "copies": ("""
print(host_reads([1.5, 2.5]))
print(host_reads([1.5, 2.5], kind=3))
host = (ctypes.c_float * 1)()
cuda.cudaMemcpyPeerAsync(host, 1, (ctypes.c_float * 1)(7.0), 0, 4, None)
print(list(host))
""", {}, "[1.5, 2.5]\n[1.5, 2.5]\n[7.0]\n", [("cudaMemcpy2DAsync", {"kind": "device to host", "bytes": 8}), ("cudaMemcpy2DAsync", {"kind": "device to device", "bytes": 8}), ("cudaMemcpyPeerAsync", {"kind": "peer to peer", "bytes": 4})]),
    "deliver": ("""
for value in (1.0, 0.0, [0.0, 2.5, -3.0], float("nan"), None):
    control.deliver(value)
    print(*(host_reads([9.0] * 4, rows=rows) for rows in (1, 2, 4)))
control.deliver(0.0)
print(host_reads([9.0] * 16)[:2], host_reads([9.0] * 17)[:2], host_reads([9.0], kind=3))
try:
    control.deliver([1.0] * 17)
except ValueError as error:
    print(error)
""", {}, DELIVERED, None),
    "graphs": ("""
cuda.cudaGetErrorString.restype = ctypes.c_char_p
print(cuda.cudaStreamBeginCapture(None, 0), cuda.cudaGetErrorString(801).decode())
""", {}, "801 the recorder does not support this (CUDA graphs...", [("cudaStreamBeginCapture", {})]),
    "product": ("""
handle, none = pointer(), None
cuda.cublasCreate_v2(ctypes.byref(handle))
cuda.cublasSetMathMode(handle, 1)
i = ctypes.c_int
sizes = [i(0), i(1), i(2), i(3), i(4)]
cuda.cublasGemmEx(handle, *sizes, none, none, i(2), i(8), none, i(2), i(8), none, none, i(0), i(8), i(68), i(99))
""", {}, "", [("cublasGemmEx", {"m": 2, "n": 3, "k": 4, "batch": 1, "a": "float16", "b": "float16", "c": "float32", "compute": "float32", "math": "tensor_op"})]),
    "recurrent": ("""
rnn, x, bytes = pointer(), pointer(), ctypes.c_size_t()
i = ctypes.c_int
cuda.cudnnCreateRNNDescriptor(ctypes.byref(rnn))
cuda.cudnnCreateTensorDescriptor(ctypes.byref(x))
cuda.cudnnSetTensorNdDescriptor(x, i(2), i(3), (i * 3)(8, 5, 1), (i * 3)(5, 1, 1))
cuda.cudnnSetRNNDescriptor_v6(None, rnn, i(7), i(2), None, i(0), i(1), i(2), i(0), i(0))
cuda.cudnnGetRNNParamsSize(None, rnn, x, ctypes.byref(bytes), i(2))
print(bytes.value)
""", {}, f"{2 * 2 * (FIRST + SECOND)}\n", None),
    "nvrtc": ("""
p, text = pointer(), b'extern "C" __global__ void f() {}\\n\\tx'
cuda.nvrtcCreateProgram(ctypes.byref(p), text, b"f.cu", 0, None, None)
print(cuda.nvrtcCompileProgram(p, 0, None))
cuda.nvrtcDestroyProgram(ctypes.byref(p))
""", {"GPU_RECORD_NVRTC": ""}, "0\n", [("nvrtcCompileProgram", {"compiled": 0, "status": 0, "source": SOURCE})]),
}  # fmt: skip


@pytest.mark.parametrize("program, settings, output, calls", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_sees_and_leaves(program, settings, output, calls, run, tmp_path):
    messages.fit(run(program, **settings), output)
    for call, (name, fields) in zip_longest(read(tmp_path / "record") if calls else (), calls or ()):
        known = {**call.fields, "source": call.source}
        assert (call.name, {each: known[each] for each in fields}) == (name, fields)


def test_record_names_thread_device_and_operator_of_each_call(run, tmp_path):
    program = """
cuda.nvtxRangeStartA.restype = ctypes.c_uint64
cuda.nvtxRangeEnd.argtypes = [ctypes.c_uint64]
def work():
    cuda.cudaSetDevice(1)
    cuda.cudaStreamSynchronize(None)
    cuda.nvtxRangeEnd(inner)
outer = cuda.nvtxRangeStartA(b"Convolution")
inner = cuda.nvtxRangeStartA(b'a "quoted" one')
cuda.cudaStreamSynchronize(None)
thread = threading.Thread(target=work)
thread.start()
thread.join()
cuda.cudaStreamSynchronize(None)
cuda.nvtxRangeEnd(outer)
cuda.cudaStreamSynchronize(None)
"""
    run(program, gpus=2)
    calls = read(tmp_path / "record")
    assert [call.operator for call in calls] == ['a "quoted" one', None, "Convolution", None]
    assert [call.device for call in calls] == [0, 1, 0, 0] and calls[0].thread != calls[1].thread


def test_marks_begin_sections_and_a_record_goes_on_in_another_file(run, tmp_path):
    program = """
malloc(5)
control.mark("one, \\u00fc")
malloc(1); malloc(2)
control.mark("two")
control.mark("one, \\u00fc")
try:
    control.open_record("missing/other")
except FileNotFoundError as error:
    print(error.filename)
malloc(3)
control.open_record("other")
malloc(4)
"""
    assert run(program) == "missing/other\n"
    found = sections(read(tmp_path / "record"))
    sizes = {name: [call["bytes"] for call in calls] for name, calls in found.items()}
    assert sizes == {"one, ü": [1, 2, 3], "two": []}
    assert [call["bytes"] for call in read(tmp_path / "other")] == [4]


def test_a_record_is_whole_after_threads_and_a_crash(run, tmp_path):
    program = """
threads = [threading.Thread(target=lambda: [malloc(1) for _ in range(200)]) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.abort()
"""
    run(program, expect=-6)
    calls = read(tmp_path / "record")
    assert len(calls) == 1600 and len({call.thread for call in calls}) == 8


def test_control_outside_the_recorder_says_how_to_start_it():
    program = "from tools.gpu_record import control; control.mark('x')"
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert "NotRecordingError: this process does not record" in done.stderr
    assert "tools.gpu_record.process.environment" in done.stderr
