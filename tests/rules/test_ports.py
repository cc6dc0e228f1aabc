"""Which inputs may be cast: MXNet's own type inference is asked about every rule."""

from itertools import chain, combinations

import mxnet as mx
import numpy as np
import pytest

from mxmp import dtypes
from mxmp.rules import RULES
from tests.rules.op_examples import EXAMPLES
from tests.rules.run_examples import build, output_dtypes

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


def test_every_rule_has_an_example():
    shown = {id(example.rule) for example in EXAMPLES}
    missing = {rule.op for rule in RULES if id(rule) not in shown}
    assert missing == set().union(*WITHOUT_EXAMPLE.values())


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


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_mxnet_accepts_the_ports_and_gives_the_outputs_that_the_rule_says(example):
    rule, ports = example.rule, set(example.data_ports)
    before = output_dtypes(example, dtypes.FLOAT32)
    assert len(before) == example.outputs
    indifferent = [port for port in rule.any_dtype if port < len(example.shapes)]
    for dtype in rule.dtypes if ports else ():
        expected = [was if index in rule.keep_outputs else dtype for index, was in enumerate(before)]
        for some in chain.from_iterable(combinations(indifferent, n) for n in range(len(indifferent) + 1)):
            assert output_dtypes(example, dtype, [*ports, *some]) == expected
    if len(ports) > 1 and "float16" in rule.dtypes and example.op not in AGREE:  # inputs that are cast must agree
        for port in ports:
            with pytest.raises((mx.MXNetError, UserWarning)):  # UserWarning: 'Cannot decide type'
                output_dtypes(example, "float16", ports - {port})


# In the example nothing depends on these values, in general much does.
READS_SOMETIMES = {
    ("_contrib_MultiBoxTarget", 2): "to mine negatives, which is off by default",
    ("_contrib_Proposal", 0): "to sort more boxes than the example has",
    ("_contrib_MultiProposal", 0): "to sort more boxes than the example has",
    ("_contrib_box_encode", 1): "to choose a box, 0 for all samples that the example takes",
    ("_logical_or_scalar", 0): "if the scalar is 0",
    ("where", 2): "where the condition is 0",
}


def ports_read(example):
    """Return the data ports on whose values an output depends: where others of the same shape give another result.

    From the example's inputs, and from halves or zeros in the place of all data, each in turn is zeros, halves, or
    the same shuffled.
    """
    symbol, found = mx.sym.Group([mx.sym.BlockGrad(output) for output in build(example, "float32")]), set()
    call = mx.nd.CachedOp(symbol)  # of a gradient, which not all operators have, no trace

    def outputs_of(arrays):
        mx.random.seed(0)
        given = {f"in{port}": mx.nd.array(array, dtype=array.dtype) for port, array in enumerate(arrays)}
        with mx.autograd.train_mode():
            results = call(*(given[name] for name in symbol.list_inputs()))
        return [result.asnumpy() for result in (results if isinstance(results, list) else [results])]

    own = example.arrays()
    for value in (None, 0.5, 0):
        changed = () if value is None else example.data_ports
        arrays = [np.full_like(a, value) if port in changed else a for port, a in enumerate(own)]
        if found == set(example.data_ports):
            break
        before = outputs_of(arrays)
        for port in set(example.data_ports) - found:
            kept = arrays[port]
            shuffled = np.random.RandomState(0).permutation(kept.ravel()).reshape(kept.shape)
            others = (np.zeros_like(kept), np.full_like(kept, 0.5), shuffled)
            results = (outputs_of([*arrays[:port], other, *arrays[port + 1 :]]) for other in others)
            if any(not np.array_equal(a, b, equal_nan=True) for after in results for a, b in zip(after, before)):
                found.add(port)
    return found


@pytest.mark.slow
def test_only_the_shape_is_read_where_the_rule_says_so():
    """Every operator is run on other values of the same shape."""
    examples = [example for example in EXAMPLES if example.runs and example.data_ports]
    unread = {(e.op, port) for e in examples for port in set(e.data_ports) - ports_read(e)}
    shape_only = {(e.op, port) for e in examples for port in e.data_ports if not e.rule.reads(port)}
    assert unread == shape_only | READS_SOMETIMES.keys()
    assert len(shape_only) >= 8


REFUSED = """InstanceNorm SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
softmax_cross_entropy _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiBoxDetection _contrib_Proposal
_contrib_MultiProposal _contrib_ROIAlign ROIPooling""".split()


@pytest.mark.behaviour("refused by name")
@pytest.mark.parametrize("dtype", dtypes.LOW_PRECISION)
@pytest.mark.parametrize("op", REFUSED)
def test_mxnet_refuses_low_precision_where_the_rule_has_none(op, dtype):
    example = next(example for example in EXAMPLES if example.op == op)
    assert example.rule.dtypes == frozenset()
    with pytest.raises(mx.MXNetError):
        output_dtypes(example, dtype)
