"""Which inputs may be cast: MXNet's own type inference is asked about every rule."""

from __future__ import annotations

from itertools import chain, combinations

import mxnet as mx
import numpy as np
import pytest

from mxmp import dtypes
from mxmp.rules import RULES
from tests.rules.examples import EXAMPLES, Example
from tests.rules.run_examples import output_dtypes, run

# Of these no call can be written down without a graph or a sparse array of its own.
WITHOUT_EXAMPLE = {
    "holds a graph": {"_foreach", "_while_loop", "_cond", "_sg_mkldnn_conv", "_sg_mkldnn_fully_connected",
                      "_sg_mkldnn_selfatt_qk", "_sg_mkldnn_selfatt_valatt"},
    "wants a csr array": {"_contrib_dgl_adjacency", "_contrib_dgl_subgraph", "_contrib_dgl_graph_compact",
                          "_contrib_dgl_csr_neighbor_uniform_sample", "_contrib_dgl_csr_neighbor_non_uniform_sample"},
    "its types are not inferred (optimizer_op-inl.h: MP_MultiSGD_InferType works on copies)":
        {"multi_mp_sgd_update", "multi_mp_sgd_mom_update", "preloaded_multi_sgd_update",
         "preloaded_multi_sgd_mom_update", "preloaded_multi_mp_sgd_update", "preloaded_multi_mp_sgd_mom_update",
         "_multi_mp_adamw_update", "_multi_mp_lamb_update"},
}  # fmt: skip

LOW_CALLS = [(example, dtype) for example in EXAMPLES for dtype in sorted(example.rule.dtypes) if example.data_ports]


def ids(value):
    return str(value) if isinstance(value, (Example, str)) else None


def test_every_rule_has_an_example():
    shown = {id(example.rule) for example in EXAMPLES}
    missing = {rule.op for rule in RULES if id(rule) not in shown}
    assert missing == set().union(*WITHOUT_EXAMPLE.values())


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_mxnet_takes_the_example_in_float32(example):
    assert len(output_dtypes(example, dtypes.FLOAT32)) == example.outputs


@pytest.mark.parametrize("example, dtype", LOW_CALLS, ids=ids)
def test_mxnet_accepts_the_ports_and_gives_the_outputs_that_the_rule_says(example, dtype):
    rule = example.rule
    before = output_dtypes(example, dtypes.FLOAT32)
    expected = [was if index in rule.keep_outputs else dtype for index, was in enumerate(before)]
    indifferent = [port for port in rule.any if port < len(example.shapes)]
    for some in chain.from_iterable(combinations(indifferent, n) for n in range(len(indifferent) + 1)):
        assert output_dtypes(example, dtype, [*example.data_ports, *some]) == expected


# Type inference lets these inputs have a dtype of their own, but more is at stake.
AGREE = {
    "amp_multicast": "casts them all to the widest",
    "_contrib_BilinearResize2D": "its backward pass fails with 'data type do not match specified type'",
    **dict.fromkeys(
        "_npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_mod _npi_power".split(),
        "gives the wider dtype, where mxmp places a cast itself",
    ),
    **dict.fromkeys(
        "_contrib_index_copy _npi_insert_scalar _npi_insert_slice _npi_insert_tensor".split(),
        "does not look at the second dtype",
    ),
}


@pytest.mark.parametrize(
    "example",
    [e for e in EXAMPLES if len(e.data_ports) > 1 and "float16" in e.rule.dtypes and e.op not in AGREE],
    ids=str,
)
def test_inputs_that_are_cast_must_agree(example):
    for port in example.data_ports:
        with pytest.raises((mx.MXNetError, UserWarning)):  # UserWarning: 'Cannot decide type'
            output_dtypes(example, "float16", set(example.data_ports) - {port})


# In the example nothing depends on these values, in general much does.
READS_SOMETIMES = {
    ("_contrib_MultiBoxTarget", 2): "to mine negatives, which is off by default",
    ("_contrib_Proposal", 0): "to sort more boxes than the example has",
    ("_contrib_MultiProposal", 0): "to sort more boxes than the example has",
    ("_contrib_box_encode", 1): "to choose a box, 0 for all samples that the example takes",
    ("_logical_or_scalar", 0): "if the scalar is 0",
    ("where", 2): "where the condition is 0",
}


def outputs_of(example, arrays):
    mx.random.seed(0)
    return run(example, "float32", arrays, backward=False)[0]


def starts(example):
    """Yield inputs: those of the example, and halves or zeros in the place of all data."""
    arrays = example.arrays()
    yield arrays
    for value in (0.5, 0):
        yield [np.full_like(a, value) if port in example.data_ports else a for port, a in enumerate(arrays)]


def ports_read(example):
    """Return the data ports on whose values an output depends."""
    found = set()
    for arrays in starts(example):
        if found == set(example.data_ports):
            break
        before = outputs_of(example, arrays)
        found |= {port for port in example.data_ports if port not in found and reads(example, port, arrays, before)}
    return found


def reads(example, port, arrays, before):
    """Return whether an output changes if an input has other values: zeros, halves, or the same shuffled."""
    kept = arrays[port]
    shuffled = np.random.RandomState(0).permutation(kept.ravel()).reshape(kept.shape)
    for other in (np.zeros_like(kept), np.full_like(kept, 0.5), shuffled):
        after = outputs_of(example, [*arrays[:port], other, *arrays[port + 1 :]])
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(after, before)):
            return True
    return False


@pytest.mark.slow
def test_only_the_shape_is_read_where_the_rule_says_so():
    """Every operator is run on other values of the same shape."""
    examples = [example for example in EXAMPLES if example.runs]
    unread = {(e.op, port) for e in examples for port in set(e.data_ports) - ports_read(e)}
    shape_only = {(e.op, port) for e in examples for port in e.data_ports if not e.rule.reads(port)}
    assert unread == shape_only | READS_SOMETIMES.keys()
    assert len(shape_only) >= 8


REFUSED = """InstanceNorm SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
softmax_cross_entropy _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiBoxDetection _contrib_Proposal
_contrib_MultiProposal _contrib_ROIAlign ROIPooling""".split()


@pytest.mark.behaviour("refused by name")
@pytest.mark.parametrize("op", REFUSED)
def test_mxnet_refuses_low_precision_where_the_rule_has_none(op):
    example = next(example for example in EXAMPLES if example.op == op)
    assert example.rule.dtypes == frozenset()
    for dtype in dtypes.LOW_PRECISION:
        with pytest.raises(mx.MXNetError):
            output_dtypes(example, dtype)
