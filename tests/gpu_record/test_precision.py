"""The dtypes in which steps compute: products on tensor cores with float32 sums; norms, softmax, losses in float32."""

import pytest

from tests.gpu_record.cases import MXMP_STEPS, SOUND_STEPS
from tools.gpu_record.kernel_names import base_name

FLOAT16 = "half_t"
"""float16 in the names of MXNet's kernels."""

PHASES = ("taken forward", "taken backward", "inference forward")
TENSOR_CORES = ("float16", "float32", "tensor_op")
ACCUMULATES_IN_FLOAT16 = ("cublasHgemmStridedBatched",)
"""What MXNet calls for batch_dot and numpy's matmul, of which the rules allow short ones (`mxmp.rules.conditions`)."""

SHORT = 1024
"""The terms that a float16 sum may have: behaviour 6 of docs/behaviours.md."""

WIDE = ("softmax", "norm", "pick", "smoothl1", "softplus", "regression")
"""Parts of the names of MXNet's kernels for what needs float32, in lower case."""


def found_in(record, counter):
    """Return every kind of call that forward, backward and inference make."""
    return {key for phase in PHASES if phase in record.sections for key in getattr(record[phase], counter)}


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_products_run_on_tensor_cores_with_float32_sums(step, record):
    products = found_in(record(step), "convolutions") | found_in(record(step), "matrix_products")
    found = {(p.dtype, p.compute, p.math) for p in products if getattr(p, "call", "") not in ACCUMULATES_IN_FLOAT16}
    assert found == {TENSOR_CORES}


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_parameters_of_batch_norm_and_sums_of_recurrent_networks_are_float32(step, record):
    norms = [norm for norm in found_in(record(step), "norms") if norm.call.startswith("cudnnBatchNorm")]
    assert {norm.parameters for norm in norms} <= {"float32"} and (norms or "resnet" not in step.network)
    rnns = found_in(record(step), "rnns")
    assert bool(rnns) == ("lstm" in step.network) and {rnn.compute for rnn in rnns} <= {"float32"}


@pytest.mark.parametrize("step", SOUND_STEPS, ids=str)
def test_short_products_alone_sum_in_float16_and_softmax_norms_losses_and_recurrent_networks_are_float32(step, record):
    """MXNet gives recurrent networks no tensor cores in float16."""
    found = record(step)
    assert found.longest_float16_sum <= SHORT
    norms = [norm for norm in found_in(found, "norms") if not norm.call.startswith("cudnnBatchNorm")]
    assert norms or "bert" not in step.network
    assert {one.dtype for one in (*norms, *found_in(found, "softmaxes"), *found_in(found, "rnns"))} == {"float32"}
    assert found_in(found, "softmaxes")
    named = [kernel for kernel in found_in(found, "kernels") if any(word in base_name(kernel).lower() for word in WIDE)]
    assert [kernel for kernel in named if FLOAT16 in kernel] == []
