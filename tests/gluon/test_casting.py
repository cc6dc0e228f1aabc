"""Behaviours of casting that the test suites of torch and Apex assert and no other test here holds.

The oracle is MXNet on operands that were cast by hand, bit for bit: in bfloat16 MXNet's own kernels
run; float16, which has few on a CPU, is rounded by hand around float32 ones.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, report
from mxmp.symbol import convert_symbol
from tests.values import BFLOAT16, name_of

SHAPES = {"x": (4, 6), "w": (6, 6), "image": (2, 3, 5, 5), "kernel": (4, 3, 3, 3)}
LOW = {"O1": "float16", "mixed_bfloat16": "bfloat16"}


def bfloat16(array):
    return mx.nd.amp_cast(array, dtype=BFLOAT16)


def float32(array):
    return mx.nd.amp_cast(array, dtype="float32")


def product(F, x, w, **name):
    return F.FullyConnected(x, w, num_hidden=6, no_bias=True, **name)


def convolve(F, x, w, **name):
    return F.Convolution(x, w, kernel=(3, 3), num_filter=4, no_bias=True, **name)


def pairs():
    """Return, per case, a float32 network and what MXNet computes on operands cast by hand.

    The third value says whether the network's operator 'last' belongs in low precision.
    """
    x, w, image, kernel = (mx.sym.var(name) for name in SHAPES)
    fc = product(mx.sym, x, w, name="first")

    def by_hand(v):
        return product(mx.nd, bfloat16(v["x"]), bfloat16(v["w"]))

    return {
        "allow: a product": (product(mx.sym, x, w, name="last"), by_hand, True),
        "allow: a convolution": (
            convolve(mx.sym, image, kernel, name="last"),
            lambda v: convolve(mx.nd, bfloat16(v["image"]), bfloat16(v["kernel"])),
            True,
        ),
        "clear: relu between products": (
            product(mx.sym, mx.sym.relu(fc, name="last"), w),
            lambda v: product(mx.nd, mx.nd.relu(by_hand(v)), bfloat16(v["w"])),
            True,
        ),
        "deny: softmax": (mx.sym.softmax(fc, name="last"), lambda v: mx.nd.softmax(float32(by_hand(v))), False),
        "deny: exp": (mx.sym.exp(fc, name="last"), lambda v: mx.nd.exp(float32(by_hand(v))), False),
        "deny: norm": (mx.sym.norm(fc, axis=1, name="last"), lambda v: mx.nd.norm(float32(by_hand(v)), axis=1), False),
        "infer: the widest operand decides": (
            mx.sym.elemwise_add(fc, mx.sym.exp(x), name="last"),
            lambda v: float32(by_hand(v)) + mx.nd.exp(v["x"]),
            False,
        ),
    }


@pytest.mark.behaviour("bits of casts by hand", "the widest dtype")
@pytest.mark.bfloat16
@pytest.mark.parametrize("case", pairs())
def test_an_operator_gives_the_bits_of_operands_cast_by_hand(case):
    network, by_hand, _ = pairs()[case]
    draw = np.random.RandomState(0)
    values = {name: mx.nd.array(draw.randn(*shape)) for name, shape in SHAPES.items()}
    args = {name: values[name] for name in network.list_arguments()}
    shapes = {name: SHAPES[name] for name in args}
    (found,) = convert_symbol(network, "mixed_bfloat16", shapes).bind(mx.cpu(), args).forward()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.asnumpy(), float32(by_hand(values)).asnumpy())
    (plain,) = network.bind(mx.cpu(), args).forward()
    assert not np.array_equal(found.asnumpy(), plain.asnumpy())


@pytest.mark.behaviour("dtype by class")
@pytest.mark.parametrize("policy", LOW)
@pytest.mark.parametrize("case", pairs())
def test_the_class_of_an_operator_decides_the_dtype_of_its_output(case, policy):
    network, _, is_low = pairs()[case]
    shapes = {name: SHAPES[name] for name in network.list_arguments()}
    converted = convert_symbol(network, policy, shapes)
    assert converted.list_outputs() == network.list_outputs()
    assert [name_of(dtype) for dtype in converted.infer_type()[1]] == ["float32"]
    inner = converted.get_internals()
    # Where the operator gives an output of the network in low precision, a cast behind it has its name.
    dtypes = [
        name_of(dtype)
        for dtype, output in zip(inner.infer_type()[1], inner.list_outputs())
        if output.startswith("last")
    ]
    assert dtypes[0] == (LOW[policy] if is_low else "float32")


@pytest.mark.behaviour("dtype by class")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("policy", ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_gradient_has_the_dtype_of_what_it_is_the_gradient_of(policy, dtype):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Dense(5, in_units=48))
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    x = mx.nd.array(np.random.RandomState(0).rand(4, 2, 6, 6), dtype=dtype)
    x.attach_grad()
    with autograd.record():
        net(x).sum().backward()
    assert x.grad.dtype == x.dtype and np.abs(x.grad.asnumpy()).max() > 0
    for param in net.collect_params().values():
        if param.grad_req != "null":
            assert param.grad().dtype == param.data().dtype, param.name


@pytest.mark.behaviour("recurrent layers")
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_of_every_layout_run_on_float16_operands(kind, layout, bidirectional):
    def make():
        mx.random.seed(0)
        net = getattr(gluon.rnn, kind)(4, num_layers=2, layout=layout, bidirectional=bidirectional, input_size=3)
        net.initialize(mx.init.Uniform(0.5))
        return net

    x = mx.nd.array(np.random.RandomState(1).randn(5, 2, 3))
    net, by_hand = convert(make(), "O1,op:RNN=float16"), make()
    states, rounded = net.begin_state(2), by_hand.begin_state(2)
    for param in by_hand.collect_params().values():
        param.set_data(param.data().astype("float16").astype("float32"))
    batch = x if layout == "TNC" else x.swapaxes(0, 1)
    found, found_states = net(batch, states)
    expected, expected_states = by_hand(batch.astype("float16").astype("float32"), rounded)
    for a, b in zip([found, *found_states], [expected, *expected_states]):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a.asnumpy(), b.astype("float16").astype("float32").asnumpy())


@pytest.mark.behaviour("recurrent layers")
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_stay_in_float32_until_they_are_asked_for(kind, policy):
    """MXNet runs them in float16 without tensor cores, and in float32 perhaps with them."""
    net = getattr(gluon.rnn, kind)(4, num_layers=2, input_size=3)
    net.initialize(mx.init.Uniform(0.5))
    x = mx.nd.array(np.random.RandomState(1).randn(5, 2, 3))
    expected = net(x).asnumpy()
    np.testing.assert_array_equal(convert(net, policy)(x).asnumpy(), expected)
    (row,) = [row for row in report(net).rows if row.op == "RNN"]
    assert row.precision == "float32"
    assert row.reason == "MXNet runs it without tensor cores in float16, which float32 may have"


def trained(policy, interrupt, hybridize):
    """Return the gradients of three training steps, with something else before and between them."""
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Dropout(0.0), nn.Dense(5, in_units=48))
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    if hybridize:
        net.hybridize(static_alloc=True)
    x, found = mx.nd.array(np.random.RandomState(0).rand(4, 2, 6, 6)), []
    for _ in range(3):
        interrupt(net, x)
        with autograd.record():
            loss = mx.nd.square(net(x) - 1).mean()
            with autograd.pause():
                interrupt(net, x)
        loss.backward()
        for param in net.collect_params().values():
            if param.grad_req != "null":
                found.append(float32(param.grad()).asnumpy())
                param.set_data(float32(param.data()) - 0.1 * float32(param.grad()))
    return found


@pytest.mark.behaviour("inference and training apart", "train, eval, train")
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_inference_before_and_between_training_steps_changes_no_gradient(policy, hybridize):
    """A cast that an inference made must not serve training: it would have no gradient, or an old weight."""

    def inference(net, x):
        net(x).wait_to_read()

    found = trained(policy, inference, hybridize)
    for a, b in zip(found, trained(policy, lambda net, x: None, hybridize)):
        assert np.abs(a).max() > 0
        np.testing.assert_array_equal(a, b)


@pytest.mark.behaviour("inference and training apart")
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_inference_sees_a_weight_that_changed(policy, hybridize):
    net = nn.Dense(3, in_units=4, use_bias=False)
    net.initialize(mx.init.One())
    convert(net, policy)
    net.hybridize(hybridize, static_alloc=hybridize)
    x = mx.nd.ones((2, 4))
    assert (net(x).asnumpy() == 4).all()
    net.weight.set_data(mx.nd.full((3, 4), 0.5))
    assert (net(x).asnumpy() == 2).all()
