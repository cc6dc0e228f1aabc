"""tools.gpu_record.summary: what calls amount to."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.tools.test_gpu_record_fused import LOAD, STORE, source
from tests.tools.test_gpu_record_read import FLOAT, HALF, SOFTMAX, generic, typecast
from tools.gpu_record.read import Call
from tools.gpu_record.summary import (
    Convolution,
    MatrixProduct,
    Norm,
    OtherCall,
    Rnn,
    Softmax,
    Summary,
    peak_bytes,
    summarize,
)


def launch(kernel, **fields):
    return Call("cudaLaunchKernel", kernel=kernel, fields=fields)


def tensor(dtype):
    return {"dtype": dtype, "shape": [1]}


FUSED = Call(
    "cuLaunchKernel", kernel="f", source=source({"input_0": "float", "output0": "half"}, LOAD, STORE.format("temp0"))
)


def test_launches_are_kernels_and_fused_kernels_and_no_library_calls():
    calls = [
        launch("f(int)"),
        launch("f(int)"),
        FUSED,
        Call("cudnnCreate"),
        Call("cublasSdot_v2"),
        Call("cudaMalloc", fields={"bytes": 1}),
    ]
    found = summarize(calls)
    assert (found.launches, found.fused) == (3, 1)
    assert found.kernels == {"f(int)": 2, "f": 1}


def test_casts_are_counted_by_dtypes_with_the_bytes_that_they_move():
    calls = [
        launch(typecast(HALF, FLOAT), elements=10),
        launch(typecast(HALF, FLOAT), elements=1),
        launch(generic("mxnet::op::mshadow_op::identity_with_cast", "double*", "float*"), elements=5),
        launch(generic("mxnet::op::mshadow_op::identity_with_cast", "float*", "float*"), elements=5),
    ]
    found = summarize(calls)
    assert found.casts == {"float32->float16": 2, "float32->float64": 1}
    assert found.cast_bytes == 11 * (4 + 2) + 5 * (4 + 8)
    assert found.launches == 4


def test_casts_in_fused_kernels_are_apart():
    found = summarize([FUSED, FUSED, dataclasses.replace(FUSED, source=None)])
    assert found.fused_casts == {"float32->float16": 2}
    assert found.casts == {}
    assert found.unread_fused == 1


def test_invalid_launches_are_counted():
    found = summarize([launch("f", invalid=1), launch("f")])
    assert (found.launches, found.invalid_launches) == (2, 1)


def test_waits_copies_and_fillings_are_counted():
    copies = [("device to host", 8), ("device to host", 4), ("host to device", 100), ("peer to peer", 2)]
    calls = [Call("cudaMemcpy2DAsync", fields={"kind": kind, "bytes": count}) for kind, count in copies]
    calls += [Call("cudaStreamSynchronize")] * 3 + [
        Call("cudaDeviceSynchronize"),
        Call("cudaMemsetAsync", fields={"bytes": 5}),
    ]
    found = summarize(calls)
    assert found.synchronizations == 3
    assert (found.host_reads, found.host_read_bytes) == (2, 12)
    assert found.copies == {"device to host": 2, "host to device": 1, "peer to peer": 1}
    assert found.copy_bytes == {"device to host": 12, "host to device": 100, "peer to peer": 2}
    assert found.memsets == 1


def test_memory_is_what_was_allocated_freed_and_in_use_at_most():
    steps = [("cudaMalloc", 5), ("cudaMalloc", 7), ("cudaFree", 5), ("cudaMalloc", 4), ("cudaFree", 4), ("cudaFree", 7)]
    calls = [Call(name, fields={"bytes": count}) for name, count in steps]
    found = summarize(calls)
    assert (found.allocated_bytes, found.freed_bytes) == (16, 16)
    assert peak_bytes(calls) == 12
    assert peak_bytes([]) == 0


def test_matrix_products_tell_dtype_compute_type_and_math():
    half = {"a": "float16", "b": "float16", "c": "float16", "compute": "float32", "math": "tensor_op"}
    calls = [Call("cublasGemmEx", fields=half)] * 2 + [Call("cublasGemmEx", fields={**half, "c": "float32"})]
    assert summarize(calls).matrix_products == {
        MatrixProduct("cublasGemmEx", "float16", "float32", "tensor_op"): 2,
        MatrixProduct("cublasGemmEx", "float16xfloat16->float32", "float32", "tensor_op"): 1,
    }


def test_convolutions_tell_direction_and_leave_bias_gradients_apart():
    fields = {
        "x": tensor("float16"),
        "w": tensor("float16"),
        "y": tensor("float16"),
        "compute": "float32",
        "math": "tensor_op",
    }
    names = ("Forward", "BackwardData", "BackwardFilter")
    calls = [Call(f"cudnnConvolution{name}", fields=fields) for name in names]
    calls.append(Call("cudnnConvolutionBackwardBias", fields={"y": tensor("float16"), "b": tensor("float16")}))
    found = summarize(calls)
    directions = ("forward", "backward_data", "backward_filter")
    assert found.convolutions == {Convolution(one, "float16", "float32", "tensor_op"): 1 for one in directions}
    assert found.other_calls == {OtherCall("cudnnConvolutionBackwardBias", "float16"): 1}
    assert found.library_calls == 4


@pytest.mark.parametrize(
    "name", ["cudnnFindConvolutionForwardAlgorithm", "cudnnGetConvolutionBackwardDataAlgorithm_v7"]
)
def test_choosing_an_algorithm_is_no_library_call(name):
    found = summarize([Call(name)])
    assert found.library_calls == 0
    assert found.calls == {name: 1}


def test_norms_of_cudnn_and_of_kernels_tell_the_dtype_of_data():
    cudnn = Call("cudnnBatchNormalizationBackward", fields={"x": tensor("float16"), "parameters": tensor("float32")})
    layer = (
        "void mxnet::op::LayerNormFusedForwardKernelContig<float, float, int>(int, int, float, float const*, float*)"
    )
    data, per_channel = f"mxnet::op::batchnorm::BNTensor3<{HALF}>", "mxnet::op::batchnorm::cuda::DeviceTensor<float, 1>"
    batch = f"BatchNormalizationBackwardKernel<{HALF}, float, {per_channel}, {data} >({data}, {data}, {per_channel})"
    kernels = [layer, f"void mxnet::op::batchnorm::cuda::{batch}"]
    assert summarize([cudnn, *map(launch, kernels)]).norms == {
        Norm("cudnnBatchNormalizationBackward", "float16", "float32"): 1,
        Norm("LayerNormFusedForwardKernelContig", "float32", None): 1,
        Norm("BatchNormalizationBackwardKernel", "float16", "float32"): 1,
    }


def test_softmaxes_of_cudnn_and_of_kernels_tell_the_dtype_of_data():
    assert summarize([Call("cudnnSoftmaxForward", fields={"x": tensor("float32")}), launch(SOFTMAX)]).softmaxes == {
        Softmax("cudnnSoftmaxForward", "float32"): 1,
        Softmax("softmax_stride1_compute_kernel", "float16"): 1,
    }


def test_recurrent_networks_tell_cell_dtype_compute_type_and_math():
    fields = {"x": tensor("float16"), "mode": "lstm", "compute": "float16", "math": "default"}
    call = Call("cudnnRNNForwardTrainingEx", fields=fields)
    assert summarize([call]).rnns == {Rnn("cudnnRNNForwardTrainingEx", "lstm", "float16", "float16", "default"): 1}


def test_other_library_calls_are_counted_by_name():
    calls = [
        Call("cublasSdot_v2"),
        Call("curandGenerate"),
        Call("ncclReduce", fields={"dtype": "float16", "elements": 3}),
    ]
    assert summarize(calls).other_calls == {
        OtherCall("cublasSdot_v2", None): 1,
        OtherCall("curandGenerate", None): 1,
        OtherCall("ncclReduce", "float16"): 1,
    }


def test_sources_are_compiled_refused_or_unseen():
    kinds = [(1, 0), (1, 0), (1, 6), (0, 0), (0, 0), (0, 0)]
    calls = [Call("nvrtcCompileProgram", fields={"compiled": compiled, "status": status}) for compiled, status in kinds]
    found = summarize(calls)
    assert (found.compiled_sources, found.failed_sources, found.unchecked_sources) == (2, 1, 3)


def test_nothing_amounts_to_an_empty_summary():
    assert summarize([]) == Summary()


def test_summaries_add_up_to_that_of_all_calls():
    parts = [
        [launch(typecast(HALF, FLOAT), elements=2), FUSED],
        [launch(typecast(HALF, FLOAT), elements=3), Call("cudaStreamSynchronize"), launch(SOFTMAX)],
        [Call("cublasSdot_v2"), Call("cudaMemcpyAsync", fields={"kind": "device to host", "bytes": 4})],
    ]
    together = summarize([call for part in parts for call in part])
    assert sum(map(summarize, parts), Summary()) == together
    assert summarize(parts[0]) != together
    with pytest.raises(TypeError):
        Summary() + 1


def test_as_dict_is_json_and_holds_every_field():
    found = summarize([launch(SOFTMAX), launch(typecast(HALF, FLOAT), elements=1), Call("cudaStreamSynchronize")])
    plain = json.loads(json.dumps(found.as_dict()))
    assert set(plain) == {field.name for field in dataclasses.fields(Summary)}
    assert plain["launches"] == 2
    assert plain["casts"] == {"float32->float16": 1}
    assert plain["softmaxes"] == [{"call": "softmax_stride1_compute_kernel", "dtype": "float16", "count": 1}]
