"""Values that low precision would lose or spoil on their way through a network: the same as in float32, or close."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn, rnn

from mxmp import Policy
from mxmp.gluon import convert, report
from mxmp.module import Module
from mxmp.symbol import convert_symbol, on_cpu
from tests.gluon.nets import Function, initialized, operator_precisions, sequence


def unit_layer(weight=1.0, **options):
    """Return a layer that multiplies by its weight."""
    return nn.Conv2D(1, 1, in_channels=1, use_bias=False, weight_initializer=mx.init.Constant(weight), **options)


def behind(function, **constants):
    """Return a net of a function behind a layer that changes no value."""
    return initialized(Function(lambda net, F, x, **c: function(F, net.conv(x), **c), constants, conv=unit_layer()))


def step(policy, function, data, **constants):
    """Return the output of a call, and the gradient of its input."""
    net, x = convert(behind(function, **constants), policy), mx.nd.array(data)
    x.attach_grad()
    with autograd.record():
        output = net(x)
    output.backward()
    return output.asnumpy(), x.grad.asnumpy()


def total(F, x):
    return F.sum(F.sum(F.sum(x, axis=3), axis=2), axis=1)


IMAGE = np.full((1, 1, 512, 512), 0.5)
ANCHORS = mx.nd.array([[[[1001.3, 2003.7, 3001.1, 4005.2]]]])
LARGE = mx.nd.array([[[[70000.0]]]])

ONE = np.ones((1, 1, 1, 1))
PROBABLE = np.full((1, 1, 4, 4), 10)


def positions(product):
    """Return a function that adds its input to the sine of what a product makes of the positions up to 4096."""
    return lambda F, x: F.broadcast_add(
        F.reshape(x, (1, 1)), F.sin(F.reshape(product(F, F.arange(0, 4096)), (4096, 1)))
    )


def column(F, counted):
    return F.dot(F.reshape(counted, (4096, 1)), F.ones((1, 1)))


CASES = {
    "Dice loss, axis by axis": (lambda F, x: 1 - 2 * total(F, x * x) / (total(F, x + x) + 1), IMAGE, {}),
    "Dice loss, finite over inf": (lambda F, x: 1 - 2 * total(F, x * x) / (total(F, x + x) + 1), 0.5 * IMAGE, {}),
    "pooling by two sums": (lambda F, x: F.sum(F.sum(x, axis=3), axis=2) / 512**2, 2 * IMAGE, {}),
    "anchors": (
        lambda F, x, anchors: F.broadcast_add(x, anchors).reshape((0, -1)), np.full((1, 1, 1, 4), 0.25), {"anchors": ANCHORS}),
    "positions through a product": (
        lambda F, x: F.broadcast_add(F.reshape(x, (1, 1)), F.sin(F.FullyConnected(
            F.arange(0, 4096).reshape((4096, 1)), F.ones((1, 1)), no_bias=True, num_hidden=1))),
        np.ones((1, 1, 1, 1)), {}),
    "positions through dot": (positions(column), ONE, {}),
    "positions through batch_dot": (
        positions(lambda F, p: F.batch_dot(p.reshape((1, 4096, 1)), F.ones((1, 1, 1)))), ONE, {}),
    "positions through linalg_gemm2": (
        positions(lambda F, p: F.linalg_gemm2(p.reshape((4096, 1)), F.ones((1, 1)))), ONE, {}),
    "positions of cumsum": (positions(lambda F, p: column(F, F.cumsum(F.ones(4096)))), ONE, {}),
    "positions of arange_like": (positions(lambda F, p: column(F, F.contrib.arange_like(p))), ONE, {}),
    "the logarithm of a tanh": (lambda F, x: -F.log(1 - F.tanh(x)), 4 * ONE, {}),
    "the logarithm of an Activation": (lambda F, x: -F.log(1 - F.Activation(x, act_type="tanh")), 4 * ONE, {}),
    "log1p of a sigmoid": (lambda F, x: -F.log1p(-F.sigmoid(x)), 10 * ONE, {}),
    "the logarithm of a sigmoid": (
        lambda F, x: -F.log(F.clip(1 - F.sigmoid(x), 1e-12, 1)), np.full((1, 1, 1, 1), 10), {}),
    "a large constant, one image": (
        lambda F, x, large: F.broadcast_mul(x, large) * 1e-3, np.full((1, 1, 1, 1), 2), {"large": LARGE}),
    "a large constant, two images": (
        lambda F, x, large: F.broadcast_mul(x, large) * 1e-3, np.full((2, 1, 1, 1), 2), {"large": LARGE}),
}  # fmt: skip


def layer(F, x):
    return F.Convolution(x, F.ones((1, 1, 1, 1)), kernel=(1, 1), num_filter=1, no_bias=True)


def row_sum(F, x):
    """Return the sums of the rows behind a layer, so that they are cheapest in low precision."""
    return F.sum(layer(F, x), axis=3, keepdims=True)


def mean_of_rows(F, rows):
    """Return the mean of 512 sums, in front of a layer."""
    return layer(F, F.sum(F.reshape(rows, (1, 1, 512, 1)), axis=2, keepdims=True) / 512**2).reshape((0, -1))


def mapped(F, function, x):
    """Return what a foreach without a state makes of each element."""
    return F.contrib.foreach(lambda element, state: (function(element), state), x, [F.zeros((1, 1))])[0]


def state_of(F, x):
    """Return the output of the last of 512 rounds that add a row to a state."""

    def add(row, state):
        return layer(F, state * 1e-4), state + row_sum(F, row)

    outputs, _ = F.contrib.foreach(add, x.reshape((512, 1, 1, 1, 512)), F.zeros((1, 1, 1, 1)))
    return F.slice_axis(outputs, axis=0, begin=511, end=512).reshape((-1,)) * 0.1


def numpy_product(product):
    """Return a function that multiplies the row of all pixels by itself, with an operator of numpy."""
    return lambda F, x: product(F.np, F.reshape(x, (1, -1)).as_np_ndarray()).as_nd_ndarray().reshape((-1,)) / 512**2


def before_layer(F, total):
    """Return a layer of a number, so that operators before it are cheapest in low precision."""
    return layer(F, total.reshape((1, 1, 1, 1))).reshape((1,))


def numpy_sums(F, x):
    """Return the product of two sums that numpy gives in float32."""
    total = F.np.sum(x.as_np_ndarray(), axis=3, dtype="float32").as_nd_ndarray()
    return before_layer(F, total * total * 2**-14)


def alike(F, x, unit):
    """Return the cosines of the angles between two rows of a picture and two others, which are small."""
    rows = F.split(unit(F, x.reshape((4, 2))), num_outputs=2, axis=0)
    return F.FullyConnected(rows[0], rows[1], num_hidden=2, no_bias=True)


def unit(F, rows):
    return F.L2Normalization(rows)


def divided(F, rows):
    """Return rows divided by their lengths, by hand."""
    return F.broadcast_div(rows, F.norm(rows, axis=1, keepdims=True))


ROWS = np.array([[[[64, 60], [64, 59], [64, 63], [64, 62]]]])

RELATIVES = {
    "angles": (lambda F, x: F.arccos(alike(F, x, unit)), ROWS, {}),
    "angles of rows divided by hand": (lambda F, x: F.arccos(F.clip(alike(F, x, divided), -1, 1)), ROWS, {}),
    "sines of angles": (lambda F, x: F.sqrt(1 - alike(F, x, unit) * alike(F, x, unit)), ROWS, {}),
    "sines of angles of rows divided by hand": (
        lambda F, x: F.sqrt(1 - alike(F, x, divided) * alike(F, x, divided)), ROWS, {}),
    "the logarithm of a distance of rows": (lambda F, x: -F.log(1 - alike(F, x, unit)) * 0.1, ROWS, {}),
    "a distance of rows": (lambda F, x: 10 * (1 - alike(F, x, unit)), ROWS, {}),
    "rapidities": (lambda F, x: 0.1 * F.arctanh(0.999 * alike(F, x, divided)), ROWS, {}),
    "a layer of large sums": (
        lambda F, x: layer(F, F.sum(x, axis=(2, 3), keepdims=True)).reshape((1,)) * 1e-5, 2 * IMAGE, {}),
    "a layer of large factors": (lambda F, x: layer(F, x * 300 * 300).reshape((1,)) * 1e-5, ONE, {}),
    "a layer of small factors": (lambda F, x: layer(F, x * 1e-3 * 1e-3).reshape((1,)) * 1e6, ONE, {}),
    "a sum of sums through a foreach": (
        lambda F, x: mean_of_rows(F, mapped(F, lambda rows: row_sum(F, rows), x.reshape((8, 1, 1, 64, 512)))), 4 * IMAGE, {}),
    "relu of slices in a foreach": (
        lambda F, x: mapped(F, lambda row: layer(F, F.relu(row)), x.reshape((4, 1, 1, 1, 4))).reshape((-1,)), PROBABLE, {}),
    "slices with two readers in a foreach": (
        lambda F, x: mapped(F, lambda row: layer(F, row + layer(F, row)), x.reshape((4, 1, 1, 1, 4))).reshape((-1,)),
        PROBABLE, {}),
    "a sum over the rounds of a foreach": (state_of, 2 * IMAGE, {}),
    "a product with a captured value in a foreach": (
        lambda F, x: mapped(F, lambda row: F.dot(row, F.reshape(x, (-1, 1))), F.reshape(x, (1, 1, -1))).reshape((-1,)) / 512**2,
        IMAGE, {}),
    "a product of slices in a foreach": (
        lambda F, x: mapped(F, lambda row: F.dot(row, F.reshape(row, (-1, 1))), F.reshape(x, (1, 1, -1))).reshape((-1,)) / 512**2,
        IMAGE, {}),
    "a sum of a product of sums": (lambda F, x: F.sum(F.sum(x, axis=3) * F.sum(x, axis=3)) * 1e-6, IMAGE, {}),
    "a sum of many sums": (
        lambda F, x: F.add_n(*[F.sum(x, axis=3) for _ in range(8)]).reshape((0, -1)) * 1e-3, 32 * IMAGE, {}),
    "a pooling of sums": (
        lambda F, x: F.Pooling(F.sum(x, axis=3, keepdims=True), kernel=(8, 1), stride=(8, 1), pool_type="sum") * 1e-3,
        64 * IMAGE, {}),
    "a global pooling that sums": (
        lambda F, x: F.Pooling(x, kernel=(1, 1), global_pool=True, pool_type="sum").reshape((0, -1)) / 512**2, IMAGE, {}),
    "a mean of sums": (lambda F, x: F.sum(F.mean(F.sum(x, axis=3), axis=1), axis=1) / 512**2, IMAGE, {}),
    "Dice loss by dot": (
        lambda F, x: 1 - 2 * F.dot(F.reshape(x, (-1,)), F.reshape(x, (-1,))).reshape((1,)) / (total(F, x + x) + 1), IMAGE, {}),
    "a product of features": (
        lambda F, x: F.batch_dot(x.reshape((1, 64, -1)), x.reshape((1, 64, -1)), transpose_b=True).reshape((0, -1)) / 512**2 * 64,
        8 * IMAGE, {}),
    "a pooling by dot": (lambda F, x: F.dot(F.reshape(x, (1, -1)), F.ones((512 * 512, 1))) / 512**2, IMAGE, {}),
    "a pooling by a layer": (
        lambda F, x: F.FullyConnected(x, F.ones((1, 512 * 512)), num_hidden=1, no_bias=True) / 512**2, IMAGE, {}),
    "small factors": (lambda F, x: x * 1e-3 * 1e-3 * 1e3 * 1e3, ONE, {}),
    "large factors": (lambda F, x: x * 300 * 300 * 1e-5, ONE, {}),
    "a quotient of small factors": (lambda F, x: x / 1000 / 1000 * 1e3 * 1e3, ONE, {}),
    "a factor and a sum": (lambda F, x: F.sum(250 * x, axis=3).reshape((0, -1)) * 1e-5, np.ones((1, 1, 1, 512)), {}),
    "a sum of products of a factor": (
        lambda F, x: F.batch_dot(*[x.reshape((1, 1, -1)) * 20] * 2, transpose_b=True).reshape((0, -1)) * 1e-5,
        np.ones((1, 1, 1, 512)), {}),
    "a product of sums with a dtype": (numpy_sums, 32 * np.ones((1, 1, 1, 512)), {}),
    "a product by syrk": (
        lambda F, x: before_layer(F, F.linalg_syrk(x.reshape((1, 1, -1))) * 2**-8), np.full((1, 1, 1, 8192), 4), {}),
    "a direction of distances": (
        lambda F, x: F.L2Normalization((1 - F.sigmoid(x)).reshape((1, -1))), PROBABLE, {}),
    "focal loss": (lambda F, x: -1e13 * (1 - F.sigmoid(x)) ** 2 * F.log(F.sigmoid(x)), 10 * ONE, {}),
    "label smoothing": (
        lambda F, x: -(0.9 * F.log(F.sigmoid(x) + 1e-12) + 0.1 * F.log(1 - F.sigmoid(x) + 1e-12)), 11 * ONE, {}),
    "cross entropy in one logarithm": (
        lambda F, x: -F.log(F.zeros_like(x) * F.sigmoid(x) + F.ones_like(x) * (1 - F.sigmoid(x))), 10 * ONE, {}),
    "cross entropy of a softmax": (
        lambda F, x: -F.log(F.clip(1 - F.softmax(F.concat(x, F.zeros_like(x), dim=1), axis=1), 1e-12, 1)), 10 * ONE, {}),
    "a reciprocal of a distance": (lambda F, x: 1e-4 / (1 - F.sigmoid(x)), 10 * ONE, {}),
    "a product by einsum": (numpy_product(lambda np, row: np.einsum("ij,ij->i", row, row)), IMAGE, {}),
    "a product by tensordot": (numpy_product(lambda np, row: np.tensordot(row, row, axes=([1], [1]))), IMAGE, {}),
    "a product by tensordot over one axis": (
        numpy_product(lambda np, row: np.tensordot(row, np.transpose(row), axes=1)), IMAGE, {}),
    "a product by inner": (numpy_product(lambda np, row: np.inner(row, row)), IMAGE, {}),
    "the logarithm of a mean": (lambda F, x: -F.log(1 - F.mean(F.sigmoid(x), axis=(2, 3))), PROBABLE, {}),
    "the logarithm of a sum": (lambda F, x: -F.log(16 - F.sum(F.sigmoid(x), axis=(2, 3))), PROBABLE, {}),
    "the logarithm of a pooling": (
        lambda F, x: -F.log(1 - F.Pooling(F.sigmoid(x), kernel=(2, 2), pool_type="avg")), PROBABLE, {}),
    "the logarithm of a global pooling": (
        lambda F, x: -F.log(1 - F.Pooling(F.sigmoid(x), kernel=(1, 1), global_pool=True, pool_type="avg")), PROBABLE, {}),
    "the logarithm of an adaptive pooling": (
        lambda F, x: -F.log(1 - F.contrib.AdaptiveAvgPooling2D(F.sigmoid(x), output_size=2)), PROBABLE, {}),
    "the logarithm of a resized image": (
        lambda F, x: -F.log(1 - F.contrib.BilinearResize2D(F.sigmoid(x), height=8, width=8)), PROBABLE, {}),
    "the logarithm of odds": (lambda F, x: F.log(F.sigmoid(x) / (1 - F.sigmoid(x))), 10 * ONE, {}),
    "the logarithm of a product": (lambda F, x: -F.log(1 - F.sigmoid(x) * F.sigmoid(x)), 10 * ONE, {}),
    "the logarithm of a matrix product": (
        lambda F, x: -F.log(1 - F.batch_dot(F.sigmoid(x).reshape((1, 4, 4)), F.ones((1, 4, 4)) / 4)), PROBABLE, {}),
    "the logarithm of a root": (lambda F, x: F.log(F.sqrt(1 - F.sigmoid(x))), 10 * ONE, {}),
    "a quotient by a distance": (lambda F, x: x / (1 - F.sigmoid(x)), 4 * ONE, {}),
    "shares of distances": (
        lambda F, x: F.broadcast_div(1 - F.sigmoid(x), F.sum(1 - F.sigmoid(x), axis=(2, 3), keepdims=True)), PROBABLE, {}),
    "a mean that saturates": (lambda F, x: 1e4 * (1 - F.mean(F.sigmoid(x), axis=(2, 3))), PROBABLE, {}),
    "an inverse function": (lambda F, x: F.arctanh(F.tanh(x)), 4 * ONE, {}),
    "rotary positions": (
        lambda F, x: F.broadcast_mul(
            x.reshape((1, 1)), F.cos(F.broadcast_mul(F.arange(0, 4096).reshape((-1, 1)), F.exp(-F.arange(0, 8))))
        ), ONE, {}),
    "Fourier features": (
        lambda F, x, waves: F.broadcast_add(
            x.reshape((1, 1)), F.sin(F.dot(F.arange(0, 4096).reshape((-1, 2)), waves))
        ), ONE, {"waves": mx.nd.array([[0.37, 1.21], [0.73, 0.11]])}),
    "rounded positions": (
        lambda F, x: F.broadcast_add(x.reshape((1, 1)), F.floor(column(F, F.arange(0, 4096)) / 3)) * 1e-3, ONE, {}),
}  # fmt: skip
CASES.update(RELATIVES)


def bound(policy, function, data, **constants):
    """Return the same of a symbol."""
    weight = mx.sym.var("weight", shape=(1, 1, 1, 1))
    layer = mx.sym.Convolution(mx.sym.var("data"), weight, kernel=(1, 1), num_filter=1, no_bias=True)
    symbol = function(mx.sym, layer, **{name: mx.sym.var(name) for name in constants})
    given = {"data": mx.nd.array(data), **constants}
    shapes = {name: array.shape for name, array in given.items()}
    symbol = convert_symbol(symbol, policy, shapes, data_names=[*given])
    symbol = on_cpu(symbol) if policy != "float32" else symbol
    grad_req = {name: "write" if name == "data" else "null" for name in [*given, "weight"]}
    executor = symbol.simple_bind(mx.cpu(), grad_req, dict.fromkeys(given, "float32"), **shapes)
    executor.copy_params_from({**given, "weight": mx.nd.ones((1, 1, 1, 1))}, allow_extra_params=True)
    outputs = executor.forward(is_train=True)
    executor.backward([mx.nd.ones_like(each) for each in outputs])
    return outputs[0].asnumpy(), executor.grad_dict["data"].asnumpy()


@pytest.mark.bfloat16
@pytest.mark.parametrize("run", [step, bound], ids=["Gluon", "Symbol"])
@pytest.mark.parametrize("policy, tolerance", [("O1", 1), ("O2", 1), ("mixed_bfloat16", 50)])
@pytest.mark.parametrize("function, data, constants", CASES.values(), ids=CASES)
def test_values_are_those_of_float32(function, data, constants, policy, tolerance, run):
    (output, gradient), (found, gradient_found) = (
        run(each, function, data, **constants) for each in ("float32", policy)
    )
    np.testing.assert_allclose(found, output, rtol=1e-4 * tolerance, atol=1e-3 * tolerance)
    np.testing.assert_allclose(gradient_found, gradient, rtol=1e-3 * tolerance, atol=1e-3 * tolerance)


@pytest.mark.parametrize("policy", ["O1", "O2", "mixed_bfloat16"])
@pytest.mark.bfloat16
def test_a_sum_of_sums_through_a_cond_is_that_of_float32(policy):
    """Without a gradient: MXNet leaves that of the branch which it does not take unwritten (control_flow.cc)."""

    def function(F, x):
        branches = (lambda: row_sum(F, x)), (lambda: 2 * row_sum(F, x))
        return mean_of_rows(F, F.contrib.cond(F.ones((1,)) > 0, *branches))

    net = convert(behind(function), policy)
    np.testing.assert_allclose(net(mx.nd.array(4 * IMAGE)).asnumpy(), 2, rtol=0.01)


SATURATING = {
    "sigmoid": (lambda F, x: F.sigmoid(x), 9.75),
    "tanh": (lambda F, x: F.tanh(x), 4),
    "softmax": (lambda F, x: F.softmax(F.concat(x, F.zeros_like(x), dim=1), axis=1), 9.75),
}


@pytest.mark.parametrize("function, value", SATURATING.values(), ids=SATURATING)
def test_an_output_that_saturates_keeps_its_distance_from_one(function, value):
    expected, found = (step(policy, function, value * ONE)[0] for policy in ("float32", "O1"))
    np.testing.assert_allclose(1 - found, 1 - expected, rtol=0.01)


def with_table(function, table):
    """Return a net of a function of a layer's output and of a parameter that has no gradient."""
    options = dict(shape=table.shape, grad_req="null", differentiable=False)
    net = Function(lambda net, F, x, table: function(F, net.conv(x), table), {"table": options}, conv=unit_layer())
    initialized(net).table.set_data(table)
    return net


FREQUENCIES = mx.nd.array([[[[1000.3, 2000.7, 3000.1, 5000.1]]]])
TABLES = {
    "anchors": (lambda F, x, table: F.broadcast_add(x, table).reshape((0, -1)), ANCHORS),
    "frequencies": (lambda F, x, table: F.sin(F.broadcast_mul(x, table)), FREQUENCIES),
    "a large number": (lambda F, x, table: F.broadcast_mul(x, table), LARGE),
}


@pytest.mark.parametrize("function, table", TABLES.values(), ids=TABLES)
def test_a_parameter_that_is_not_differentiable_is_data(function, table):
    data = mx.nd.full((1, 1, 1, 4), 0.25)
    expected, found = (convert(with_table(function, table), policy)(data).asnumpy() for policy in ("float32", "O1"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_fixed_argument_of_a_module_is_data():
    def output(policy):
        layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="fc")
        waves = mx.sym.sin(mx.sym.broadcast_mul(layer, mx.sym.var("table", shape=(1, 4))))
        symbol = mx.sym.LinearRegressionOutput(waves, mx.sym.var("label"))
        module = Module(symbol, ("data",), ("label",), fixed_param_names=["table"], policy=policy)
        module.bind([("data", (1, 4))], [("label", (1, 4))])
        table = FREQUENCIES.reshape((1, 4))
        module.init_params(arg_params={"table": table, "fc_weight": mx.nd.array(np.eye(4) / 4)})
        module.init_optimizer()
        module.forward(mx.io.DataBatch([mx.nd.ones((1, 4))], [mx.nd.zeros((1, 4))]), is_train=False)
        return module.get_outputs()[0].asnumpy()

    np.testing.assert_allclose(output("O1"), output("float32"), rtol=1e-4, atol=1e-3)


READERS = {
    "a product": (lambda F, wide, other: wide * other * 1e-3, 70000),
    "a sine": (lambda F, wide, other: F.sin(wide + other), 2001.3),
    "a concat": (lambda F, wide, other: F.concat(wide, other, dim=1).reshape((0, -1)), 70000),
    "a sum of two": (lambda F, wide, other: F.relu(wide) + F.relu(other), 70000),
    "a mean": (lambda F, wide, other: F.mean(F.relu(wide) * other), 70000),
    "a pooling": (lambda F, wide, other: F.Pooling(wide, kernel=(1, 1), pool_type="max") * 0.5 + other, 70000),
    "a scale before the next layer": (
        lambda F, wide, other: F.Convolution(
            F.relu(wide) * 2**-10, F.ones_like(other), kernel=(1, 1), num_filter=1, no_bias=True), 2**17),
}  # fmt: skip
OVERRIDES = {"a block": {"blocks": {"net_wide_": "float32"}}, "a name": {"names": {"net_wide_fwd": "float32"}}}


@pytest.mark.parametrize("override", OVERRIDES.values(), ids=OVERRIDES)
@pytest.mark.parametrize("function, weight", READERS.values(), ids=READERS)
def test_an_override_to_float32_reaches_its_readers_up_to_the_next_layer(function, weight, override):
    policies = "float32", Policy.parse("O1", **override)
    layers = {"wide": unit_layer(weight, prefix="net_wide_"), "other": unit_layer(prefix="net_other_")}
    net = initialized(Function(lambda net, F, x: function(F, net.wide(x), net.other(x)), **layers))
    expected, found = (convert(net, policy)(mx.nd.ones((1, 1, 1, 1))).asnumpy() for policy in policies)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_the_gates_of_a_gru_stay_low():
    """They multiply: no logarithm reads them, and they are no outputs."""
    cell = rnn.GRUCell(8, input_size=4)
    cell.initialize()
    convert(cell, "O1")
    cell(mx.nd.ones((2, 4)), cell.begin_state(2))
    precisions = {row.name.rpartition("t0_")[2]: row.precision for row in report(cell).rows}
    assert {precisions[name] for name in ("z_act", "r_act", "h_act", "minus0", "mul0", "mul1")} == {"float16"}


def test_a_longer_batch_is_float32_whatever_ran_first():
    """An input is no weight: the product with it is a sum, as long as the batch says."""
    dense = nn.Dense(8, flatten=False, in_units=8, weight_initializer="ones")
    net = Function(lambda net, F, x, mask: F.dot(net.dense(x).transpose((0, 2, 1)), mask), dense=dense)
    convert(initialized(net), "O1")
    for length in (10, 30000):
        found = net(mx.nd.ones((2, length, 8)), mx.nd.ones((length, 2)))
        np.testing.assert_array_equal(found.asnumpy(), 8 * length)


def test_a_layer_behind_attention_over_many_positions_is_low():
    """Softmax weighs values, so that their sum is as large as one."""

    def attention(F, x):
        values = x.reshape((1, 2048, 1))
        return layer(F, F.batch_dot(F.softmax(F.batch_dot(values, values, transpose_b=True)), values).reshape((1, 1, -1, 1)))

    net = convert(behind(attention), "O1")
    net(mx.nd.ones((1, 1, 1, 2048)))
    assert [row.precision for row in report(net).rows if row.op == "Convolution"] == ["float16"] * 2


@pytest.mark.parametrize("norm", ["L2Normalization", "LayerNorm"])
def test_a_product_of_normalized_sums_is_low(norm):
    """Behind a norm values are about 1, however many terms there were before."""

    def similarity(F, x):
        rows = F.sum(x.reshape((1, 64, 16, 16)), axis=3)
        scale = {"gamma": F.ones(16), "beta": F.zeros(16)} if norm == "LayerNorm" else {"mode": "spatial"}
        return F.batch_dot(*[getattr(F, norm)(rows, **scale)] * 2, transpose_b=True)

    net = convert(behind(similarity), "O1")
    net(mx.nd.ones((1, 1, 128, 128)))
    assert {row.op: row.precision for row in report(net).rows}["batch_dot"] == "float16"


def test_sums_with_a_dtype_are_as_long_as_the_batch_says():
    net = convert(behind(numpy_sums), "O1")
    for length in (4, 512):
        assert net(mx.nd.full((1, 1, 1, length), 32)).asscalar() == (32 * length) ** 2 / 2**14


WEIGHTS = {
    "normalized": lambda F, weight: F.broadcast_div(weight, F.norm(weight, axis=1, keepdims=True)),
    "masked": lambda F, weight: weight * F.ones((4, 2048)),
    "a sum of two": lambda F, weight: weight + F.dot(weight, F.transpose(weight)).slice_axis(axis=1, begin=0, end=1).broadcast_like(weight),
}  # fmt: skip


@pytest.mark.parametrize("function", WEIGHTS.values(), ids=WEIGHTS)
def test_a_layer_whose_weight_is_computed_from_weights_is_low(function):
    """However long its sums are: products without a weight are sums of computed values, these are not."""
    weight = mx.sym.var("weight", shape=(4, 2048))
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), function(mx.sym, weight), num_hidden=4, no_bias=True, name="layer")
    found = convert_symbol(symbol, "O1", {"data": (2, 2048)})
    assert "layer_float16" in found.get_internals().list_outputs()[-2]


# ---------------------------------------------------------------------- constants near 1 and beyond the range, sums over many rows, bfloat16


X = np.float32([-20, -3, -1, -0.5, 0, 0.5, 0.75, 1, 3, 20]).reshape(-1, 1)

STEEP = {
    "arccos": lambda F, z: F.arccos(F.clip(z, -1 + 1e-4, 1 - 1e-4)),
    "arctanh": lambda F, z: F.arctanh(F.minimum(F.maximum(z, -0.5), 1 - 1e-6)),
    "erfinv": lambda F, z: F.erfinv(F.clip(z, -1 + 1e-5, 1 - 1e-5)),
    "log": lambda F, z: F.log(1 - F.clip(F.sigmoid(z), 1e-4, 1 - 1e-4)),
    "log behind a product": lambda F, z: F.log(1 - F.sigmoid(z) * 0.9999),
    "log behind a reshaped bound": lambda F, z: F.log(1 - F.reshape(F.clip(F.sigmoid(z), 1e-4, 0.9999), (-1,))),
}


def made(function, policy=None):
    """Return a function behind a dense layer that is the identity, converted under a policy."""
    dense = nn.Dense(1, in_units=1, use_bias=False, weight_initializer="ones")
    net = initialized(Function(lambda net, F, x: function(F, net.dense(x)), dense=dense))
    return net if policy is None else convert(net, policy)


def results(net):
    """Return the output of a net, and the gradient of its weight for each row of the input."""
    output, gradients = net(mx.nd.array(X)).asnumpy(), []
    for row in X:
        with autograd.record():
            y = net(mx.nd.array(row.reshape(1, 1)))
        y.backward()
        gradients.append(net.dense.weight.grad().asscalar())
    return output.astype("float32"), np.float32(gradients)


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("name", STEEP)
def test_a_steep_function_behind_a_bound_near_1_is_finite_and_so_is_its_gradient(name, policy):
    (exact, exact_gradients), (output, gradients) = (results(made(STEEP[name], p)) for p in (None, policy))
    assert np.isfinite(exact).all() and np.isfinite(exact_gradients).all()
    # the sigmoid is rounded to float16, 2 ** -12 off near 1, where the logarithm's slope is up to 1e4 in a few rows
    np.testing.assert_allclose(output, exact, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(gradients, exact_gradients, rtol=4e-3, atol=4e-3)


MASKS = {
    "plus": lambda F, z: z + (F.ones_like(z) * -1e18),
    "minus": lambda F, z: z - 1e18,
    "where": lambda F, z: F.where(F.zeros_like(z), z, F.ones_like(z) * -1e18),
    "maximum": lambda F, z: F.maximum(F.minimum(z, -1e18), -1e30),
    "float16's rounding": lambda F, z: z * 0 + -65520.0,
}


@pytest.mark.parametrize("policy", ["O3", "float16"])
@pytest.mark.parametrize("name", MASKS)
def test_a_fully_masked_row_is_no_nan_under_a_pure_policy(name, policy):
    net = made(lambda F, z: F.softmax(F.reshape(MASKS[name](F, z), (1, -1))), policy)
    x = mx.nd.ones((4, 1))
    with autograd.record():
        y = net(x)
    y.backward()
    np.testing.assert_array_equal(y.asnumpy().astype("float32"), [[0.25] * 4])
    assert np.isfinite(net.dense.weight.grad().asnumpy()).all()


def test_the_report_lists_what_was_clamped():
    net = made(lambda F, z: F.softmax(z - 1e18), "O3")
    net(mx.nd.array(X))
    reasons = {row.op: row.reason for row in report(net).rows}
    assert reasons["_minus_scalar"] == "pure policy, scalar=1e+18 clamped to 65504"
    assert f"computes with another constant ({reasons['_minus_scalar']})" in str(report(net))


def biased(net, F, x, bias):
    """A layer whose bias is added by broadcasting."""
    return net.last(F.broadcast_add(net.dense(x), bias))


@pytest.mark.parametrize("rows, precision", [(256, "float16"), (32768, "float32")])
def test_a_bias_over_many_rows_has_its_gradient(rows, precision):
    dense, last = (nn.Dense(4, in_units=4, use_bias=False) for _ in range(2))
    net = convert(initialized(Function(biased, {"bias": (1, 4)}, dense=dense, last=last), mx.init.One()), "O1")
    with autograd.record():
        loss = net(mx.nd.ones((rows, 4))) * 8
    loss.backward()
    assert operator_precisions(net) == {"broadcast_add": precision, "FullyConnected": "float16"}
    assert net.bias.grad().asnumpy().tolist() == [[rows * 32] * 4]  # 2**20 of the most rows, beyond float16


# ---------------------------------------------------------------------- bfloat16


def hardswish():
    """As in GluonCV's MobileNetV3."""
    return nn.HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6, prefix="hardswish_")


@pytest.mark.bfloat16
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twelve_hardswish_blocks_are_off_by_a_percent(seed):
    """Errors of bfloat16 do not add up over layers: what would truncate stays in float32."""
    layers = [(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), hardswish()) for _ in range(12)]
    net = initialized(sequence(*sum(layers, ())), mx.init.Xavier(), seed=seed)
    x = mx.nd.random.normal(shape=(4, 8, 16, 16))
    expected = net(x).asnumpy()
    error = convert(net, "mixed_bfloat16")(x).asnumpy() - expected
    assert 0 < np.sqrt((error**2).mean() / (expected**2).mean()) <= 0.012


def residual():
    """A convolution with a way around it."""
    conv = nn.Conv2D(16, 3, padding=1, in_channels=16)
    return Function(lambda net, F, x: x + F.Activation(net.conv(x), act_type="relu"), conv=conv)


@pytest.mark.bfloat16
def test_residual_sums_stay_in_bfloat16():
    first, last = nn.Conv2D(16, 3, padding=1, in_channels=3), nn.Conv2D(3, 3, in_channels=16)
    net = initialized(sequence(first, *(residual() for _ in range(4)), last))
    convert(net, "mixed_bfloat16")(mx.nd.ones((1, 3, 8, 8)))
    found = report(net)
    assert found.count == {"bfloat16": 14}
    assert found.activation_casts == 2  # the input and the output


@pytest.mark.bfloat16
def test_only_narrow_data_needs_float32():
    """OneDNN's bfloat16 kernel leaves weight gradients of convolutions on data of a pixel's width unwritten."""
    net = convert(initialized(nn.Conv2D(8, 3, strides=2, padding=1, in_channels=8)), "mixed_bfloat16")
    for size, expected in ((1, "float32"), (8, "bfloat16"), (1, "float32")):
        net(mx.nd.ones((1, 8, size, size)))
        assert report(net).count == {expected: 1}
