"""tools.gpu_record.fused: which casts the source of a fused operator holds."""

from __future__ import annotations

import pytest

from tools.gpu_record.fused import fused_casts


def source(arrays, *lines):
    """Return a source as MXNet writes it: dtypes of the arrays, and the lines of the loop."""
    aliases = "".join(
        f"using DType_{name} = {dtype};\nstatic const int ndim_{name} = 2;\n" for name, dtype in arrays.items()
    )
    header = "namespace op {\ntemplate <typename DType>\nauto temp0 = op::cast<half>(temp1);\n}\n"
    body = "\n".join(lines)
    return f"{header}{aliases}__global__ void FusedKernel_x_(size_t N) {{\nfor (int j = 0; j < nvec; j++ ) {{\n{body}\n}}\n}}\n"


LOAD = "const auto temp0 = op::load(vec_input_0.x[j]);"
STORE = "vec_output0.x[j] = op::store({}, output0);"


def test_fused_casts_of_a_cast_at_the_end():
    text = source(
        {"input_0": "float", "output0": "half"},
        LOAD,
        "const auto temp3 = op::cast<float16>(temp0);",
        STORE.format("temp3"),
    )
    assert fused_casts(text) == {"float32->float16": 1}


def test_fused_casts_of_a_cast_between_two_operators():
    text = source(
        {"input_0": "half", "input_1": "float", "output0": "float"},
        LOAD,
        "const auto temp1 = op::load(vec_input_1.x[j]);",
        "const auto temp2 = op::cast<float32>(temp0);",
        "const auto temp3 = op::add(temp1, temp2);",
        STORE.format("temp3"),
    )
    assert fused_casts(text) == {"float16->float32": 1}


def test_fused_casts_there_and_back_are_two():
    text = source(
        {"input_0": "half", "output0": "half"},
        LOAD,
        "const auto temp1 = op::cast<float>(temp0);",
        "const auto temp2 = op::exp(temp1);",
        "const auto temp3 = op::cast<half>(temp2);",
        STORE.format("temp3"),
    )
    assert fused_casts(text) == {"float16->float32": 1, "float32->float16": 1}


def test_fused_casts_sees_an_amp_cast_by_the_dtype_of_the_output():
    text = source(
        {"input_0": "float", "output0": "half"}, LOAD, "const auto temp1 = op::identity(temp0);", STORE.format("temp1")
    )
    assert fused_casts(text) == {"float32->float16": 1}


def test_fused_casts_leaves_a_cast_that_changes_nothing():
    text = source(
        {"input_0": "half", "output0": "half"},
        LOAD,
        "const auto temp1 = op::cast<float16>(temp0);",
        STORE.format("temp1"),
    )
    assert fused_casts(text) == {}


def test_fused_casts_follows_sums_that_add_up_in_one_value():
    text = source(
        {"input_0": "half", "input_1": "float", "output0": "float"},
        LOAD,
        "const auto temp1 = op::load(vec_input_1.x[j]);",
        "auto temp3 = temp1;",
        "temp3 = op::add(temp3, temp1);",
        "const auto temp4 = op::relu(temp0);",
        STORE.format("temp3"),
        "vec_output1.x[j] = op::store(temp4, output1);",
    )
    assert fused_casts(text.replace("__global__", "using DType_output1 = double;\n__global__")) == {
        "float16->float64": 1
    }


@pytest.mark.parametrize("name", ["input_0", "input_0_1", "input_0_12"])
def test_fused_casts_knows_the_array_of_a_slice(name):
    text = source(
        {"input_0": "half", "output0": "float"}, f"const auto temp1 = op::load(vec_{name}.x[j]);", STORE.format("temp1")
    )
    assert fused_casts(text) == {"float16->float32": 1}


def test_fused_casts_of_a_source_that_is_none_of_mxnets_are_none():
    assert fused_casts("extern __global__ void f(float *x) { x[0] = 1; }") == {}
    assert fused_casts("") == {}
