"""Every rule's example call on a GPU, forward and backward, in each dtype that the rule says MXNet has a kernel for."""

import pytest

from mxmp.rules.conditions import short_products
from tests.gpu_record.rule_calls import ENDS_THE_PROCESS, FAILS, NO_GPU_KERNEL, PARTS, chosen, named
from tests.gpu_record.runs import Run, RunError
from tests.rules.op_examples import EXAMPLES
from tools.gpu_record.summary import Summary

PARTS_OF_DTYPES = [
    pytest.param((dtype, part), id=f"{dtype}-{part}", marks=pytest.mark.xdist_group(f"rules {dtype} {part}"))
    for dtype in ("float16", "float32")
    for part in range(PARTS)
]
PARTS_OF_FLOAT16 = PARTS_OF_DTYPES[:PARTS]
LAYERS = ("FullyConnected", "Convolution", "Deconvolution")


@pytest.fixture
def calls(request, recorder):
    """The numbers of a part of the calls, and their record."""
    dtype, part = request.param
    numbers = chosen(dtype)[part::PARTS]
    return numbers, recorder.record(run_of(dtype, *numbers))


def run_of(dtype, *numbers):
    return Run("rules", (dtype, ",".join(map(str, numbers))))


def summary_of(record, number):
    return sum((record.sections.get(f"{number} {phase}", Summary()) for phase in ("forward", "backward")), Summary())


def products_of(record, number):
    found = summary_of(record, number)
    return {*found.matrix_products, *found.convolutions}


@pytest.mark.parametrize("calls", PARTS_OF_DTYPES, indirect=True)
def test_every_call_is_dispatched(calls):
    numbers, record = calls
    errors = {str(EXAMPLES[int(number)]): error for number, error in record.facts.items()}
    assert {call: error for call, error in errors.items() if call not in FAILS} == {}
    assert {call for call in FAILS if named(call) in numbers} == set(errors), "one that failed runs now: strike it"


@pytest.mark.parametrize("calls", PARTS_OF_DTYPES, indirect=True)
def test_every_launch_is_valid(calls):
    numbers, record = calls
    invalid = {str(EXAMPLES[n]): summary_of(record, n).invalid_launches for n in numbers}
    assert {call: count for call, count in invalid.items() if count} == {}


@pytest.mark.parametrize("calls", PARTS_OF_DTYPES, indirect=True)
def test_every_fused_source_compiles(calls):
    numbers, record = calls
    found = sum((summary_of(record, n) for n in numbers), Summary())
    assert (found.failed_sources, found.unchecked_sources) == (0, 0)


@pytest.mark.parametrize("calls", PARTS_OF_FLOAT16, indirect=True)
def test_products_accumulate_as_the_rules_say(calls):
    """In float32, but for those that the rules keep short because they accumulate in float16."""
    numbers, record = calls
    for number in numbers:
        short = EXAMPLES[number].rule.condition is short_products
        found = {(p.dtype, p.compute) for p in products_of(record, number)}
        assert found <= {("float16", "float16" if short else "float32")}, str(EXAMPLES[number])


@pytest.mark.parametrize("calls", PARTS_OF_FLOAT16, indirect=True)
def test_layers_ask_for_tensor_cores(calls):
    """Other products leave it to cuBLAS, whose default takes them where it can since CUDA 11."""
    numbers, record = calls
    layers = [number for number in numbers if EXAMPLES[number].op in LAYERS]
    assert layers
    for number in layers:
        assert {p.math for p in products_of(record, number)} == {"tensor_op"}, str(EXAMPLES[number])


@pytest.mark.parametrize("call", [call for call, why in ENDS_THE_PROCESS.items() if why == NO_GPU_KERNEL])
def test_calls_that_are_left_out_end_the_process_in_float32(call, recorder):
    """By a signal, or as MXNet ends at one."""
    with pytest.raises(RunError, match=r"ended with (255|-\d+)"):
        recorder.record(run_of("float32", named(call)))
