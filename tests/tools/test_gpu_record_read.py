"""tools.gpu_record.read and kernel_names: lines become calls, symbols become names, names tell dtypes."""

from __future__ import annotations

import json

import pytest

from tools.gpu_record.kernel_names import all_dtypes, base_name, cast_of, demangle, dtypes_of, short_name
from tools.gpu_record.read import Call, RecordError, read, sections

HALF, FLOAT = "mshadow::half::half_t", "float"


def typecast(target, source, kernel="MapPlanKernel<mshadow::sv::saveto, 8, "):
    """Return the kernel by which MXNet copies an array of a dtype to one of another."""
    to, cast = f"mshadow::Tensor<mshadow::gpu, 1, {target}>", f"mshadow::Tensor<mshadow::gpu, 1, {source}>"
    cast = f"mshadow::expr::Plan<mshadow::expr::TypecastExp<{target}, {source}, {cast}, 1>, {target}>"
    plan = f"mshadow::expr::Plan<{to}, {target}>"
    return f"void mshadow::cuda::{kernel}{plan}, {cast} >({plan}, int, mshadow::Shape<2>, {cast})"


def generic(operation, *arguments):
    """Return a kernel of mxnet_op::Kernel<operation>::Launch."""
    listed = ", ".join(arguments)
    return f"void mxnet::op::mxnet_op::mxnet_generic_kernel<{operation}, {listed}>(int, {listed})"


SOFTMAX = (
    "void mxnet::op::mxnet_op::softmax_stride1_compute_kernel<mxnet::op::mxnet_op::log_softmax_fwd, false, float, double, "
    "mshadow::half::half_t, float, int>(mshadow::half::half_t const*, float*, int*, int, double, int, int)"
)


@pytest.fixture
def write(tmp_path):
    """Write lines of a record; a dict is a line of thread 1 on GPU 0."""

    def write(*lines):
        path = tmp_path / "record"
        texts = [line if isinstance(line, str) else json.dumps({"thread": 1, "device": 0, **line}) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return path

    return write


def test_read_returns_the_calls_in_order_with_their_fields(write):
    path = write(
        {"call": "cudaMalloc", "bytes": 8},
        {
            "call": "cudaMemcpyAsync",
            "thread": 7,
            "device": 1,
            "operator": "Convolution",
            "kind": "peer to peer",
            "bytes": 4,
        },
    )
    first, second = read(path)
    assert first == Call("cudaMalloc", 1, 0, fields={"bytes": 8})
    assert (second.thread, second.device, second.operator) == (7, 1, "Convolution")
    assert second["kind"] == "peer to peer"


def test_read_demangles_kernels(write):
    (call,) = read(write({"call": "cudaLaunchKernel", "kernel": "_ZN5mxnet2op4fastIfEEvPKT_i", "elements": 3}))
    assert call.kernel == "void mxnet::op::fast<float>(float const*, int)"
    assert call.fields == {"elements": 3}


def test_read_finds_the_source_of_a_fused_kernel(write):
    compile_ = {"call": "nvrtcCompileProgram", "status": 0, "compiled": 1}
    launch = {"call": "cuLaunchKernel", "kernel": "f"}
    lines = [
        {**compile_, "program": 0, "source": "zero"},
        {**compile_, "program": 1, "source": "one"},
        {**launch, "program": 1},
        {**launch, "program": 0},
        {**launch, "program": 5},
    ]
    assert [call.source for call in read(write(*lines))] == ["zero", "one", "one", "zero", None]


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '"text"', '{"thread": 1, "device": 0}', '{"call": "cudaFree", "thread": 1}']
)
def test_read_names_the_line_that_is_none_of_a_record(write, line):
    path = write({"call": "cudaFree"}, line)
    with pytest.raises(RecordError, match=rf"{path}, line 2: not a line of a record"):
        read(path)


def test_read_of_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")


def test_sections_leave_out_what_precedes_the_first_mark_and_join_marks_of_a_name():
    calls = [Call(name) for name in "abcd"]
    marks = [Call("mark", fields={"name": name}) for name in ("one", "two", "one")]
    found = sections([calls[0], marks[0], calls[1], marks[1], marks[2], calls[2], calls[3]])
    assert found == {"one": calls[1:], "two": []}


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("_ZN7mshadow4half6half_tE", "mshadow::half::half_t"), ("cudaMalloc", "cudaMalloc"), ("", ""), ("_Z", "_Z")],
)
def test_demangle_returns_what_is_no_symbol_as_it_is(symbol, name):
    assert demangle(symbol) == name


@pytest.mark.parametrize(
    ("kernel", "pair"),
    [
        (typecast(HALF, FLOAT), ("float32", "float16")),
        (typecast(FLOAT, HALF), ("float16", "float32")),
        (typecast(FLOAT, HALF, "MapPlanLargeKernel<mshadow::sv::plusto, 8, 1024, "), ("float16", "float32")),
        (typecast("mshadow::bfloat::bf16_t", FLOAT), ("float32", "bfloat16")),
        (typecast("int", FLOAT), ("float32", "int32")),
        (generic("mxnet::op::mshadow_op::identity_with_cast", "double*", f"{HALF}*"), ("float16", "float64")),
        (generic("mxnet::op::mshadow_op::identity_with_cast", "unsigned long*", "bool const*"), ("bool", "uint64")),
        (generic("mxnet::op::mshadow_op::identity_with_cast", f"{HALF}*", f"{HALF}*"), None),
        (typecast(FLOAT, FLOAT), None),
        (generic("mxnet::op::tcast_clip", "int*", "float*", "int"), None),
        (generic("mxnet::op::mxnet_op::op_with_req<mxnet::op::mshadow_op::identity, 1>", "float*", "float*"), None),
        (SOFTMAX, None),
    ],
)
def test_cast_of_tells_the_dtypes_of_a_kernel_that_casts_and_does_nothing_else(kernel, pair):
    assert cast_of(kernel) == pair


def test_cast_of_leaves_a_conversion_inside_a_longer_expression():
    tensor = "mshadow::Tensor<mshadow::gpu, 2, unsigned char>"
    cast = f"mshadow::expr::TypecastExp<float, unsigned char, {tensor}, 1>"
    plan = f"mshadow::expr::Plan<mshadow::expr::BinaryMapExp<mshadow::op::mul, {cast}, {cast}, float, 1>, float>"
    assert cast_of(f"void mshadow::cuda::MapPlanKernel<mshadow::sv::saveto, 8, {plan} >(int, {plan})") is None
    inner = f"mshadow::expr::BinaryMapExp<mshadow::op::mod, {tensor}, {tensor}, unsigned char, 1>"
    plan = f"mshadow::expr::Plan<mshadow::expr::TypecastExp<float, unsigned char, {inner}, 1>, float>"
    assert cast_of(f"void mshadow::cuda::MapPlanKernel<mshadow::sv::saveto, 8, {plan} >(int, {plan})") is None


def test_names_of_a_kernel():
    assert base_name(SOFTMAX) == "softmax_stride1_compute_kernel"
    assert dtypes_of(SOFTMAX) == ("float16", "float32", "int32")
    assert all_dtypes(SOFTMAX) == {"float16", "float32", "float64", "int32"}
    assert all_dtypes("void printf_internal<mxnet::op::floats, interval>()") == frozenset()
    assert (
        short_name(SOFTMAX)
        == "softmax_stride1_compute_kernel<log_softmax_fwd, false, float, double, half_t, float, int>"
    )


def test_dtypes_of_a_mapping_kernel_are_those_of_its_tensors():
    assert dtypes_of(typecast(HALF, FLOAT)) == ("float16", "float32")


def test_names_of_a_kernel_without_templates_or_arguments():
    assert base_name("FusedKernel_add_") == "FusedKernel_add_"
    assert dtypes_of("FusedKernel_add_") == ()
