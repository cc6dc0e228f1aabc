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


SHAPE_ONLY = [e for e in EXAMPLES if e.runs and not all(map(e.rule.reads, e.data_ports))]


@pytest.mark.parametrize("example", SHAPE_ONLY, ids=str)
def test_only_the_shape_is_read_where_the_rule_says_so(example):
    """Other values of the same shape give the same outputs."""
    call, results = mx.nd.CachedOp(build(example, "float32")), []
    for value in (None, 0, 0.5):
        mx.random.seed(0)
        arrays = example.arrays()
        for port in () if value is None else example.data_ports:
            arrays[port] = arrays[port] if example.rule.reads(port) else np.full_like(arrays[port], value)
        outputs = call(*(mx.nd.array(array, dtype=array.dtype) for array in arrays))
        results.append([each.asnumpy() for each in (outputs if isinstance(outputs, list) else [outputs])])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


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
