"""What the recorder makes of MXNet's CUDA build: two programs and their records."""

import subprocess
import sys

import pytest

from tools.gpu_record.build import build as build_recorder
from tools.gpu_record.build import find_libmxnet, read_needs
from tools.gpu_record.process import environment, find_nvrtc
from tools.gpu_record.read import read, sections
from tools.gpu_record.summary import MatrixProduct, summarize

pytestmark = pytest.mark.xdist_group("recorder")  # its programs run once

START = """
import sys
import mxnet as mx
from tools.gpu_record import control
gpu = mx.gpu(0)

def begin(name):
    mx.nd.waitall()
    control.mark(name)

def fails(run):
    try:
        run()
    except mx.MXNetError as error:
        print(str(error).splitlines())

def fused():
    symbol = mx.sym.cast(mx.sym.exp(mx.sym.sin(mx.sym.var("x")) + 1), dtype="float16")
    executor = symbol.simple_bind(gpu, x=(2, 3))
    for _ in range(2):
        executor.forward()[0].wait_to_read()
"""

FIRST = """
begin("delivered")
control.deliver([0.0, 3.0])
array = mx.nd.ones((2, 2), ctx=gpu)
print(array.asnumpy().ravel(), array.as_in_context(mx.cpu()).asnumpy().ravel(), array[0, 0].asscalar())
begin("two GPUs")
(array.as_in_context(mx.gpu(1)) + 1).wait_to_read()
begin("float16")
data, weight = mx.nd.ones((2, 3), ctx=gpu), mx.nd.ones((4, 3), ctx=gpu, dtype="float16")
mx.nd.FullyConnected(data.astype("float16"), weight, no_bias=True, num_hidden=4).wait_to_read()
begin("fused")
fused()
begin("refused")
fails(lambda: mx.rtc.CudaModule("this is no CUDA"))
fails(lambda: mx.nd.ones(1, ctx=mx.gpu(2)).wait_to_read())
begin("profiled")
mx.profiler.set_config(profile_all=True, filename=sys.argv[1])  # which it makes anew
mx.profiler.set_state("run")
mx.nd.dot(mx.nd.ones((2, 3), ctx=gpu), mx.nd.ones((3, 4), ctx=gpu)).wait_to_read()
"""

SECOND = """
begin("not fused")
fused()
begin("freed")
for _ in range(3):
    mx.nd.ones((1000,), ctx=gpu).wait_to_read()
mx.nd.waitall()
begin("no memory left")
fails(lambda: mx.nd.ones((1 << 20,), ctx=gpu).wait_to_read())
"""


def run(folder, program, **settings):
    """Return the output of a program under the recorder, and the sections of its record."""
    build_recorder(find_libmxnet(), folder)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + program, str(folder / "profile.json")],
        env=environment(folder, folder / "record", **settings),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, sections(read(folder / "record"))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run(tmp_path_factory.mktemp("first"), FIRST, gpus=2)


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    settings = {"MXNET_USE_FUSION": 0, "MXNET_GPU_MEM_POOL_TYPE": "Unpooled"}
    return run(tmp_path_factory.mktemp("second"), SECOND, memory=1 << 20, **settings)


def test_environment_has_nvrtc_so_that_fused_sources_are_compiled():
    assert find_nvrtc() is not None


def test_needs_of_the_wheel_are_ten_libraries():
    needs = read_needs(find_libmxnet())
    assert len(needs.libraries) == 10
    assert len(needs.symbols) > 200
    names = ("cudaMalloc", "cudnnCreate", "ncclReduce")
    assert [needs.symbols[name] for name in names] == ["libcudart.so.11.0", "libcudnn.so.8", None]


def test_host_reads_what_is_delivered_by_every_way_to_read(first):
    output, found = first
    assert output.splitlines()[0] == "[0. 3. 1. 1.] [0. 3. 1. 1.] 0.0"
    assert summarize(found["delivered"]).host_reads == 3


def test_two_gpus_copy_to_each_other_and_each_works_for_itself(first):
    calls = first[1]["two GPUs"]
    assert [call.device for call in calls if call.name == "cudaLaunchKernel"] == [1]
    (copy,) = [call for call in calls if call.name == "cudaMemcpyPeerAsync"]
    assert (copy["from"], copy["to"], copy["bytes"]) == (0, 1, 16)


def test_float16_products_tell_their_dtypes_and_casts_their_size(first):
    found = summarize(first[1]["float16"])
    assert found.matrix_products == {MatrixProduct("cublasGemmEx", "float16", "float32", "tensor_op"): 1}
    assert found.casts == {"float32->float16": 1}
    assert found.cast_bytes == 6 * (4 + 2)


def test_fused_operators_are_compiled_and_their_casts_counted(first):
    found = summarize(first[1]["fused"])
    assert (found.compiled_sources, found.failed_sources, found.fused) == (1, 0, 2)
    assert found.fused_casts == {"float32->float16": 2}
    assert found.casts == {}


def test_without_fusion_the_same_casts_are_kernels(second):
    found = summarize(second[1]["not fused"])
    assert (found.compiled_sources, found.fused, found.fused_casts) == (0, 0, {})
    assert found.casts == {"float32->float16": 2}


def test_a_source_that_does_not_compile_fails_as_on_a_gpu(first):
    output, found = first
    assert "error: expected a declaration" in output
    assert summarize(found["refused"]).failed_sources == 1


def test_a_gpu_that_is_not_there_is_refused(first):
    assert "Invalid GPU Id: 2, Valid device id should be less than device_count: 2" in first[0]


def test_profiler_names_operators(first):
    (product,) = [call for call in first[1]["profiled"] if call.name == "cublasSgemm_v2"]
    assert product.operator == "dot"
    assert (product["m"], product["n"], product["k"]) == (4, 2, 3)  # cuBLAS counts columns first


def test_freed_memory_is_counted_without_the_pool(second):
    found = summarize(second[1]["freed"])
    assert found.allocated_bytes == found.freed_bytes == 3 * 4000


def test_memory_runs_out_as_on_a_gpu(second):
    output, found = second
    assert "out of memory (of the recorded GPU: GPU_RECORD_MEMORY)" in output
    refused = [call for call in found["no memory left"] if "refused" in call.fields]
    assert refused and refused[0]["refused"] == 4 << 20
