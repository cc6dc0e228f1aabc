"""Float32 inputs of a network (data, labels, states) are not narrowed to save bytes."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp.symbol import convert_model, convert_symbol, on_cpu
from tests.symbol import small
from tests.symbol.small import X, dense, params_of


class Function(gluon.HybridBlock):
    """A dense layer of two inputs, and a function of its output and further inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.dense = nn.Dense(1, in_units=2)

    def hybrid_forward(self, F, x, *others):
        return self.function(F, self.dense(x), *others)


def converted(function, policy="O1"):
    net = Function(function)
    net.initialize(mx.init.One())
    return mxmp.gluon.convert(net, policy)


ONES, LABELS = mx.nd.ones((2, 2)), np.array([[70000.0], [3.0]], np.float32)


CHAINS = {
    "one reader": lambda F, y, label: F.abs(y - label),
    "many pointwise readers": lambda F, y, label: ((((y - label) * 0.5 + 1) * 2 - 2) * 0.25) * 4,
    "computed from the label first": lambda F, y, label: y - ((label * 2 + 1) - 1) / 2,
    "moved before": lambda F, y, label: y - F.flip(F.concat(label, label, dim=1), axis=1).slice_axis(axis=1, begin=0, end=1),
    "moved together": lambda F, y, label: F.abs(F.concat(y - 2, label, dim=1) * 0.5 + 1 - 1).sum(axis=1, keepdims=True) * 2,
    "within a body": lambda F, y, label: F.contrib.foreach(lambda row, s: (((row - s) * 2 + 1) * 0.5 - 0.5, s), label, F.sum(y, axis=0) * 0 + 2)[0],
}  # fmt: skip


@pytest.mark.parametrize("function", CHAINS.values(), ids=CHAINS)
def test_what_reads_a_label_computes_in_float32(function):
    net = Function(function)
    net.initialize(mx.init.One())
    wanted = net(ONES, mx.nd.array(LABELS)).asnumpy()
    mxmp.gluon.convert(net, "O1")
    found = net(ONES, mx.nd.array(LABELS)).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_label_that_its_own_mask_is_applied_to_is_as_wide_as_before_though_a_layer_reads_it_too():
    def function(F, y, label):
        masked = label * (label > 0)
        return F.abs(y - masked), F.FullyConnected(masked * 1e-4, F.ones((1, 1)), num_hidden=1, no_bias=True)

    found, _ = converted(function)(ONES, mx.nd.array(LABELS))
    np.testing.assert_allclose(found.asnumpy(), np.abs(2 - LABELS), rtol=1e-6)


def test_labels_that_the_network_casts_from_integers_are_wide():
    net = converted(lambda F, y, label: y - F.cast(label, "float32"))
    found = net(ONES, mx.nd.array(LABELS, dtype="int32")).asnumpy()
    np.testing.assert_array_equal(found, 2 - LABELS)


def test_data_is_narrowed_for_a_layer_alone():
    net = converted(lambda F, y, x: y + F.FullyConnected(x * 0.5, F.ones((1, 2)), num_hidden=1, no_bias=True))
    net(ONES, ONES)
    found = {row.op: row.precision for row in mxmp.gluon.report(net).rows}
    assert found["_mul_scalar"] == "float32" and found["FullyConnected"] == "float16"


def precisions_of(symbol, policy="O1"):
    return small.precisions(convert_model(symbol, *params_of(symbol, X), policy, X))


def test_a_layer_added_to_the_input_is_float32_and_what_follows_is_not():
    data = mx.sym.var("x")
    for number in range(2):
        data = mx.sym.elemwise_add(data, dense(data, f"fc{number}"), name=f"add{number}")
        data = mx.sym.relu(data, name=f"act{number}")
    found = precisions_of(dense(data, "last"))
    assert found.pop("add0") == "float32"
    assert {found[name] for name in ("act0", "fc1", "add1", "act1", "last")} == {"float16"}


ELSEWHERE = mx.sym.relu(mx.sym.var("x") * 2, name="out")  # without a layer
SCALED = mx.sym.broadcast_mul(dense(mx.sym.var("x")), mx.sym.var("scale", shape=(1, 6)), name="out")
PRECISIONS = {
    "a learned scale is not wide": (dense(SCALED, "last"), "O1", "float16"),
    "without a layer nothing is low": (ELSEWHERE, "O1", "float32"),
    "nor is what gives an output of low precision": (ELSEWHERE, "O2,output=float16", "float32"),
    "but by an override": (ELSEWHERE, "O1,op:relu=float16", "float16"),
    "or by a pure policy": (ELSEWHERE, "O3", "float16"),
}


@pytest.mark.parametrize("symbol, policy, expected", PRECISIONS.values(), ids=PRECISIONS)
def test_only_what_reads_an_input_is_wide(symbol, policy, expected):
    assert precisions_of(symbol, policy)["out"] == expected


def test_a_graph_without_a_layer_gives_the_output_dtype():
    found = convert_symbol(mx.sym.var("a") * 2, "O1,output=float16", shapes={"a": (2,)})
    (output,) = on_cpu(found).eval(a=mx.nd.array([3000.4, 1.0]))
    np.testing.assert_array_equal(output.asnumpy(), np.float16([6000.8, 2.0]))


def sums():
    """Three dense layers, with a variable added between each two."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4)
    hidden = mx.sym.FullyConnected(mx.sym.elemwise_add(hidden, mx.sym.var("shift")), num_hidden=4)
    return mx.sym.FullyConnected(mx.sym.elemwise_add(hidden, mx.sym.var("my_label")), num_hidden=4)


@pytest.mark.parametrize(
    "data_names, narrowed", [(None, {"shift"}), (["data", "shift"], set())], ids=["unnamed", "named"]
)
def test_without_shapes_labels_and_named_inputs_alone_are_wide(data_names, narrowed):
    outputs = convert_symbol(sums(), "O1", data_names=data_names).get_internals().list_outputs()
    assert {name for name in ("shift", "my_label") if f"{name}_cast_float16_output" in outputs} == narrowed


def test_the_label_of_a_network_without_parameters_is_wide():
    first, second, label = map(mx.sym.var, ("a", "b", "my_label"))
    net = mx.sym.abs(mx.sym.batch_dot(first, second) - label)
    outputs = convert_symbol(net, "O1", shapes={"a": (1, 2, 2), "b": (1, 2, 2)}).get_internals().list_outputs()
    assert "a_cast_float16_output" in outputs and "my_label_cast_float16_output" not in outputs


def test_a_module_keeps_labels_in_float32():
    fc = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    loss = mx.sym.MakeLoss(mx.sym.abs(fc - mx.sym.var("target_label")), name="loss")
    module = mxmp.module.Module(loss, data_names=["data"], label_names=["target_label"], policy="O1")
    module.bind([("data", (2, 2))], [("target_label", (2, 1))])
    module.init_params(mx.init.One())
    module.forward(mx.io.DataBatch([ONES], [mx.nd.array(LABELS)]), is_train=True)
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), np.abs(2 - LABELS), rtol=1e-6)


def test_states_of_an_unrolled_cell_are_not_narrowed():
    """c1 = f * c0 + i * g: a state of 70000 stays finite."""
    cell = gluon.rnn.LSTMCell(2, input_size=2)
    cell.initialize(mx.init.Zero())
    mxmp.gluon.convert(cell, "O1")
    _, (_, memory) = cell(ONES, [mx.nd.zeros((2, 2)), mx.nd.ones((2, 2)) * 140000])
    np.testing.assert_array_equal(memory.asnumpy(), np.full((2, 2), 70000, np.float32))
