"""Float32 inputs of a network (data, labels, states) are not narrowed to save bytes."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.symbol import convert_model, convert_symbol, on_cpu


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


def precisions(report):
    return {row.op: row.precision for row in report.rows}


ONES, LABELS = mx.nd.ones((2, 2)), np.array([[70000.0], [3.0]], np.float32)


@pytest.mark.parametrize("pair", [(250000.0, 250010.0), (3000.4, 3000.0)], ids=["beyond the range", "below one step"])
def test_a_hybridized_loss_under_amp_init_keeps_float32_values(pair):
    loss = gluon.loss.L1Loss()
    loss.hybridize()
    first, second = (np.full((2, 64), value, np.float32) for value in pair)
    amp.init()
    try:
        found = loss(mx.nd.array(first), mx.nd.array(second)).asnumpy()
    finally:
        amp.disable()
    np.testing.assert_allclose(found, np.abs(first - second)[:, 0], rtol=1e-6)


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
    found = precisions(mxmp.gluon.report(net))
    assert found["_mul_scalar"] == "float32" and found["FullyConnected"] == "float16"


def test_a_layer_added_to_the_input_is_float32_and_what_follows_is_not():
    data = mx.sym.var("data")
    for number in range(2):
        body = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=3, name=f"conv{number}")
        data = mx.sym.BatchNorm(mx.sym.elemwise_add(data, body, name=f"add{number}"), name=f"norm{number}")
    model = mx.sym.Convolution(data, kernel=(1, 1), num_filter=3, name="last")
    shapes, _, states = model.infer_shape(data=(2, 3, 16, 16))
    args = {n: mx.nd.ones(s) for n, s in zip(model.list_arguments(), shapes) if n != "data"}
    aux = {n: mx.nd.ones(s) for n, s in zip(model.list_auxiliary_states(), states)}
    rows = convert_model(model, args, aux, "O1", shapes={"data": (2, 3, 16, 16)}).report.rows
    found = {row.name: row.precision for row in rows}
    assert found["add0"] == "float32"
    assert {found[name] for name in ("norm0", "conv1", "add1", "norm1", "last")} == {"float16"}


def test_learned_scales_are_not_wide():
    class Scaled(nn.HybridSequential):
        def __init__(self):
            super().__init__()
            self.add(nn.Dense(3, in_units=2))
            self.scale = self.params.get("scale", shape=(1, 3), init="ones")

        def hybrid_forward(self, F, x, scale):
            hidden = F.broadcast_mul(self[0](x), scale)
            return F.FullyConnected(hidden, F.ones((3, 3)), num_hidden=3, no_bias=True)

    net = Scaled()
    net.initialize()
    mxmp.gluon.convert(net, "O1")
    net(ONES)
    assert precisions(mxmp.gluon.report(net))["broadcast_mul"] == "float16"


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_graph_without_a_layer_runs_nothing_in_low_precision(policy):
    model = mx.sym.var("b_weight") * 2
    for _ in range(6):
        model = mx.sym.relu(model * 2)
    found = convert_model(model, {"b_weight": mx.nd.ones(2)}, {}, policy, output_dtype="float16")
    assert {row.precision for row in found.report.rows} == {"float32"}


def test_a_graph_without_a_layer_follows_overrides():
    model = mx.sym.relu(mx.sym.var("a") * 2, name="out")
    found = convert_model(model, {}, {}, "O1,op:relu=float16", shapes={"a": (2,)})
    assert precisions(found.report) == {"_mul_scalar": "float32", "relu": "float16"}


def test_a_graph_without_a_layer_gives_the_output_dtype():
    found = convert_symbol(mx.sym.var("a") * 2, "O1,output=float16", shapes={"a": (2,)})
    (output,) = on_cpu(found).eval(a=mx.nd.array([3000.4, 1.0]))
    np.testing.assert_array_equal(output.asnumpy(), np.float16([6000.8, 2.0]))


def test_pure_policies_run_inputs_in_low_precision():
    found = convert_model(mx.sym.relu(mx.sym.var("a") * 2), {}, {}, "O3", shapes={"a": (2,)})
    assert set(precisions(found.report).values()) == {"float16"}


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
