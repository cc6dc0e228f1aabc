"""A record as calls, the dtypes that kernels and fused sources name, and what a section amounts to."""

import dataclasses
import json

import pytest

from tools.gpu_record import summary as kinds
from tools.gpu_record.fused import fused_casts
from tools.gpu_record.kernel_names import base_name, cast_of, demangle, dtypes_of
from tools.gpu_record.read import Call, RecordError, read, sections
from tools.gpu_record.summary import Summary, peak_bytes, summarize

HALF, FLOAT = "mshadow::half::half_t", "float"


def typecast(target, source, kernel="MapPlanKernel<mshadow::sv::saveto, 8, ", inner=""):
    """Return the kernel by which MXNet copies an array of a dtype, or an expression, to one of another."""
    to, value = f"mshadow::Tensor<mshadow::gpu, 1, {target}>", inner or f"mshadow::Tensor<mshadow::gpu, 1, {source}>"
    cast = f"mshadow::expr::Plan<mshadow::expr::TypecastExp<{target}, {source}, {value}, 1>, {target}>"
    plan = f"mshadow::expr::Plan<{to}, {target}>"
    return f"void mshadow::cuda::{kernel}{plan}, {cast} >({plan}, int, mshadow::Shape<2>, {cast})"


def generic(operation, *arguments):
    """Return a kernel of mxnet_op::Kernel<operation>::Launch."""
    listed = ", ".join(arguments)
    return f"void mxnet::op::mxnet_op::mxnet_generic_kernel<mxnet::op::{operation}, {listed}>(int, {listed})"


CAST = "mshadow_op::identity_with_cast"
SOFTMAX = (
    "void mxnet::op::mxnet_op::softmax_stride1_compute_kernel<mxnet::op::mxnet_op::log_softmax_fwd, false, float, double, "
    "mshadow::half::half_t, float, int>(mshadow::half::half_t const*, float*, int*, int, double, int, int)"
)
MOD = "mshadow::expr::BinaryMapExp<mshadow::op::mod, mshadow::Tensor<mshadow::gpu, 2, float>, float, 1>"


@pytest.fixture
def write(tmp_path):
    """Write lines of a record; a dict is a line of thread 1 on GPU 0."""

    def write(*lines):
        texts = [line if isinstance(line, str) else json.dumps({"thread": 1, "device": 0, **line}) for line in lines]
        (tmp_path / "record").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return tmp_path / "record"

    return write


def test_a_record_is_read_as_calls_in_order_with_their_kernels_and_sources(write):
    compiled = {"call": "nvrtcCompileProgram", "status": 0, "compiled": 1}
    launch = {"call": "cuLaunchKernel", "kernel": "f"}
    copy = {"call": "cudaMemcpyAsync", "thread": 7, "device": 1, "operator": "Convolution", "bytes": 4}
    kernel = {"call": "cudaLaunchKernel", "kernel": "_ZN5mxnet2op4fastIfEEvPKT_i", "elements": 3}
    sources = [{**compiled, "program": number, "source": f"source {number}"} for number in range(2)]
    launches = [{**launch, "program": number} for number in (1, 0, 5)]
    first, second, *rest = read(write(copy, kernel, *sources, *launches))
    assert first == Call("cudaMemcpyAsync", 7, 1, "Convolution", fields={"bytes": 4}) and first["bytes"] == 4
    name = "void mxnet::op::fast<float>(float const*, int)"
    assert second == Call("cudaLaunchKernel", 1, 0, kernel=name, fields={"elements": 3})
    assert [call.source for call in rest] == ["source 0", "source 1", "source 1", "source 0", None]


@pytest.mark.parametrize("line", ["", "{", "[]", '"text"', '{"thread": 1, "device": 0}', '{"call": "f", "thread": 1}'])
def test_a_line_that_is_none_of_a_record_is_named(line, write):
    with pytest.raises(RecordError, match=r"record, line 2: not a line of a record"):
        read(write({"call": "cudaFree"}, line))


def test_sections_leave_out_what_precedes_the_first_mark_and_join_marks_of_a_name():
    calls = [Call(name) for name in "abcd"]
    marks = [Call("mark", fields={"name": name}) for name in ("one", "two", "one")]
    found = sections([calls[0], marks[0], calls[1], marks[1], marks[2], calls[2], calls[3]])
    assert found == {"one": calls[1:], "two": []}


@pytest.mark.parametrize(
    "kernel, pair",
    [
        (typecast(HALF, FLOAT), ("float32", "float16")),
        (typecast(FLOAT, HALF, "MapPlanLargeKernel<mshadow::sv::plusto, 8, 1024, "), ("float16", "float32")),
        (typecast("mshadow::bfloat::bf16_t", FLOAT), ("float32", "bfloat16")),
        (typecast("int", FLOAT), ("float32", "int32")),
        (generic(CAST, "double*", f"{HALF}*"), ("float16", "float64")),
        (generic(CAST, "unsigned long*", "bool const*"), ("bool", "uint64")),
        (generic(CAST, f"{HALF}*", f"{HALF}*"), None),
        (typecast(FLOAT, FLOAT), None),
        (typecast(HALF, FLOAT, inner=MOD), None),
        (generic("tcast_clip", "int*", "float*", "int"), None),
        (generic("mxnet_op::op_with_req<mxnet::op::mshadow_op::identity, 1>", "float*", "float*"), None),
        (SOFTMAX, None),
    ],
)
def test_a_cast_is_a_kernel_that_casts_and_does_nothing_else(kernel, pair):
    assert cast_of(kernel) == pair


def test_names_tell_the_function_and_the_dtypes_of_its_arrays():
    assert (base_name(SOFTMAX), dtypes_of(SOFTMAX)) == ("softmax_stride1_compute_kernel", ("float16", "float32", "int32"))
    assert dtypes_of(typecast(HALF, FLOAT)) == ("float16", "float32")
    assert (base_name("FusedKernel_add_"), dtypes_of("FusedKernel_add_")) == ("FusedKernel_add_", ())
    assert [demangle(name) for name in ("_ZN7mshadow4half6half_tE", "_Z", "")] == [HALF, "_Z", ""]


def source(arrays, *lines):
    """Return a source as MXNet writes it: dtypes of the arrays, and the lines of the loop, the first array loaded."""
    aliases = "".join(f"using DType_{name} = {dtype};\nstatic const int ndim_{name} = 2;\n" for name, dtype in arrays.items())
    header = "namespace op {\ntemplate <typename DType>\nauto temp0 = op::cast<half>(temp1);\n}\n"
    body = "\n".join([f"const auto temp0 = op::load(vec_{next(iter(arrays))}.x[j]);", *lines])
    return f"{header}{aliases}__global__ void FusedKernel_x_(size_t N) {{\nfor (int j = 0; j < nvec; j++ ) {{\n{body}\n}}\n}}\n"


SECOND = "const auto temp1 = op::load(vec_input_1.x[j]);"
STORE = "vec_output0.x[j] = op::store({}, output0);"
TO_HALF, TO_FLOAT, THERE_AND_BACK = {"input_0": "float", "output0": "half"}, {"input_0": "half", "output0": "float"}, {"input_0": "half", "output0": "half"}
TWO = {"input_0": "half", "input_1": "float", "output0": "float"}
FUSED = {
    "at the end": (source(TO_HALF, "const auto temp3 = op::cast<float16>(temp0);", STORE.format("temp3")), {"float32->float16": 1}),
    "an amp_cast": (source(TO_HALF, "const auto temp1 = op::identity(temp0);", STORE.format("temp1")), {"float32->float16": 1}),
    "between operators": (source(TWO, SECOND, "const auto temp2 = op::cast<float32>(temp0);", "const auto temp3 = op::add(temp1, temp2);", STORE.format("temp3")), {"float16->float32": 1}),
    "there and back": (source(THERE_AND_BACK, "const auto temp1 = op::cast<float>(temp0);", "const auto temp3 = op::cast<half>(temp1);", STORE.format("temp3")), {"float16->float32": 1, "float32->float16": 1}),
    "to the same": (source(THERE_AND_BACK, "const auto temp1 = op::cast<float16>(temp0);", STORE.format("temp1")), {}),
    "a sum in one value": (source({**TWO, "output1": "double"}, SECOND, "auto temp3 = temp1;", "temp3 = op::add(temp3, temp1);", STORE.format("temp3"), "vec_output1.x[j] = op::store(temp0, output1);"), {"float16->float64": 1}),
    "a slice": (source(TO_FLOAT, STORE.format("temp0")).replace("vec_input_0.", "vec_input_0_12."), {"float16->float32": 1}),
    "no source of MXNet's": ("extern __global__ void f(float *x) { x[0] = 1; }", {}),
}  # fmt: skip


@pytest.mark.parametrize("text, casts", FUSED.values(), ids=FUSED.keys())
def test_casts_inside_a_fused_kernel_are_counted(text, casts):
    assert fused_casts(text) == casts


def launch(kernel, **fields):
    return Call("cudaLaunchKernel", kernel=kernel, fields=fields)


def tensor(dtype):
    return {"dtype": dtype, "shape": [1]}


LOW = {"x": tensor("float16"), "compute": "float32", "math": "tensor_op"}
GEMM = {"a": "float16", "b": "float16", "c": "float16", "compute": "float32", "math": "tensor_op"}
LAYER_NORM = "void mxnet::op::LayerNormFusedForwardKernelContig<float, float, int>(int, int, float, float const*, float*)"
DATA, PER_CHANNEL = f"mxnet::op::batchnorm::BNTensor3<{HALF}>", "mxnet::op::batchnorm::cuda::DeviceTensor<float, 1>"
BATCH_NORM = f"void mxnet::op::batchnorm::cuda::BatchNormalizationBackwardKernel<{HALF}, float, {PER_CHANNEL}, {DATA} >({DATA}, {DATA}, {PER_CHANNEL})"
FUSED_LAUNCH = Call("cuLaunchKernel", kernel="f", source=FUSED["at the end"][0])
MEMORY = [("cudaMalloc", 5), ("cudaMalloc", 7), ("cudaFree", 5), ("cudaMalloc", 4), ("cudaFree", 4), ("cudaFree", 7)]
COPIES = [("device to host", 8), ("device to host", 4), ("host to device", 100), ("peer to peer", 2)]

AMOUNTS = {
    "launches": ([launch("f(int)"), launch("f(int)", invalid=1), FUSED_LAUNCH, Call("cudnnCreate")], {"launches": 3, "fused": 1, "invalid_launches": 1, "kernels": {"f(int)": 2, "f": 1}}),
    "casts": ([launch(typecast(HALF, FLOAT), elements=10), launch(typecast(HALF, FLOAT), elements=1), launch(generic(CAST, "double*", "float*"), elements=5), launch(generic(CAST, "float*", "float*"), elements=5)], {"launches": 4, "casts": {"float32->float16": 2, "float32->float64": 1}, "cast_bytes": 11 * (4 + 2) + 5 * (4 + 8)}),
    "fused casts": ([FUSED_LAUNCH, FUSED_LAUNCH, dataclasses.replace(FUSED_LAUNCH, source=None)], {"fused_casts": {"float32->float16": 2}, "casts": {}, "unread_fused": 1}),
    "waits": ([*[Call("cudaStreamSynchronize")] * 3, Call("cudaDeviceSynchronize")], {"synchronizations": 3}),
    "copies": ([Call("cudaMemcpy2DAsync", fields={"kind": kind, "bytes": count}) for kind, count in COPIES], {"host_reads": 2, "host_read_bytes": 12}),
    "memory": ([Call(name, fields={"bytes": count}) for name, count in MEMORY], {"allocated_bytes": 16, "freed_bytes": 16}),
    "matrix products": ([Call("cublasGemmEx", fields=GEMM), Call("cublasGemmEx", fields={**GEMM, "c": "float32"})], {"matrix_products": {kinds.MatrixProduct("cublasGemmEx", "float16", "float32", "tensor_op"): 1, kinds.MatrixProduct("cublasGemmEx", "float16xfloat16->float32", "float32", "tensor_op"): 1}}),
    "convolutions": ([Call(f"cudnnConvolution{name}", fields={**LOW, "w": tensor("float16")}) for name in ("Forward", "BackwardData", "BackwardFilter")], {"library_calls": 3, "convolutions": {kinds.Convolution(name, "float16", "float32", "tensor_op"): 1 for name in ("forward", "backward_data", "backward_filter")}}),
    "norms": ([Call("cudnnBatchNormalizationBackward", fields={"x": tensor("float16"), "parameters": tensor("float32")}), launch(LAYER_NORM), launch(BATCH_NORM)], {"norms": {kinds.Norm("cudnnBatchNormalizationBackward", "float16", "float32"): 1, kinds.Norm("LayerNormFusedForwardKernelContig", "float32", None): 1, kinds.Norm("BatchNormalizationBackwardKernel", "float16", "float32"): 1}}),
    "softmaxes": ([Call("cudnnSoftmaxForward", fields={"x": tensor("float32")}), launch(SOFTMAX)], {"softmaxes": {kinds.Softmax("cudnnSoftmaxForward", "float32"): 1, kinds.Softmax("softmax_stride1_compute_kernel", "float16"): 1}}),
    "recurrent networks": ([Call("cudnnRNNForwardTrainingEx", fields={**LOW, "mode": "lstm"})], {"rnns": {kinds.Rnn("cudnnRNNForwardTrainingEx", "lstm", "float16", "float32", "tensor_op"): 1}}),
    "other calls": ([Call("cublasSdot_v2"), Call("ncclReduce", fields={"dtype": "float16"}), Call("cudnnConvolutionBackwardBias", fields={"y": tensor("float16")})], {"library_calls": 3}),
    "choices of algorithms": ([Call("cudnnFindConvolutionForwardAlgorithm"), Call("cudnnGetConvolutionBackwardDataAlgorithm_v7")], {"library_calls": 0}),
    "sources": ([Call("nvrtcCompileProgram", fields={"compiled": compiled, "status": status}) for compiled, status in [(1, 0), (1, 0), (1, 6), (0, 0), (0, 0), (0, 0)]], {"compiled_sources": 2, "failed_sources": 1, "unchecked_sources": 3}),
}  # fmt: skip


@pytest.mark.parametrize("calls, expected", AMOUNTS.values(), ids=AMOUNTS.keys())
def test_calls_amount_to(calls, expected):
    found = summarize(calls)
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_peak_is_the_most_memory_at_a_time():
    assert (peak_bytes(AMOUNTS["memory"][0]), peak_bytes([])) == (12, 0)


def test_summaries_add_up_to_that_of_all_calls():
    parts = [calls for calls, _ in AMOUNTS.values()]
    together = summarize([call for part in parts for call in part])
    assert sum(map(summarize, parts), Summary()) == together != summarize(parts[0])
