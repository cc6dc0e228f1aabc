"""What the guards against MXNet's defects on CPU rewrite, and that the gradients are right with them."""

from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import HybridBlock, nn, rnn

from mxmp.gluon import convert
from mxmp.passes.cpu.guards import GuardAmpCasts, GuardGradientSums, GuardLayouts, GuardPRelu
from mxmp.symbol import from_graph, to_graph
from tests.graph.text import from_text, to_text

CONV = "w = null()\nc = Convolution(x, w) {kernel: (3,3); no_bias: True; num_filter: 8}\n"
PRELU = "y = LeakyReLU(x, w) {act_type: prelu}\nreturn y"
GROUPED = (
    "low = amp_cast(x) {dtype: bfloat16}\nw = null()\nv = null()\na = amp_cast(w) {dtype: bfloat16}\n"
    "b = amp_cast(v) {dtype: bfloat16}\nc = Convolution(low, a) {kernel: (3,3); no_bias: True; num_filter: 4}\n"
    "d = Convolution(low, b) {kernel: (3,3); no_bias: True; num_filter: 4; num_group: 2}\nreturn c, d"
)
SHARED = (
    "a = amp_cast(x) {dtype: bfloat16}\nr = relu(a)\ns = amp_cast(r) {dtype: float32}\nt = exp(s)\n"
    "u = amp_cast(t) {dtype: bfloat16}\nv = relu(t)\nreturn u, v"
)
TWICE = "a = relu(x)\n" + "\n".join(f"p{i} = dot(a, a)" for i in range(4)) + "\nreturn p0, p1, p2, p3"
SUMS = GuardGradientSums(frozenset([("a", 0)]))

# A guard, a graph, and lines of the guarded one.
GUARDED = {
    "variables and shared tensors": (GuardAmpCasts(), SHARED, [
        "a_guard = _copy(x)", "a = amp_cast(a_guard) {dtype: bfloat16}", "s = amp_cast(r) {dtype: float32}",
        "u = amp_cast(u_guard) {dtype: bfloat16}"]),
    "not variables whose gradients are written": (GuardAmpCasts(frozenset("x")), SHARED, [
        "a = amp_cast(x) {dtype: bfloat16}", "u_guard = _copy(t)"]),
    "but shared ones": (GuardAmpCasts(frozenset("x")), "a = amp_cast(x) {dtype: bfloat16}\nr = relu(x)\nreturn a, r", [
        "a_guard = _copy(x)"]),
    "weights of grouped convolutions": (GuardAmpCasts(frozenset("xwv")), GROUPED, [
        "low = amp_cast(x) {dtype: bfloat16}", "a = amp_cast(w) {dtype: bfloat16}", "b_guard = _copy(v)"]),
    "both reads of one operator count": (SUMS, TWICE, ["p2 = dot(a_share, a_share)", "p3 = dot(a_share, a_share1)"]),
    "a PReLU that trains": (GuardPRelu(), "w = null()\n" + PRELU, [
        "y_slope = LeakyReLU(y_other, w) {act_type: prelu}", "y = elemwise_sub(y_upper, y_product)", "return y"]),
    "a reshape in front of a convolution": (
        GuardLayouts(), f"r = Reshape(x) {{shape: (0,-1,8,8)}}\n{CONV.replace('(x', '(r')}return c", [
        "r_output_guard = SwapAxis(r) {dim1: 0; dim2: 0}",
        "c = Convolution(r_output_guard, w) {kernel: (3,3); no_bias: True; num_filter: 8}"]),
    "a reshape of volumes": (GuardLayouts(), f"{CONV.replace('(3,3)', '(3,3,3)')}r = Flatten(c)\nreturn r", [
        "r_input_guard = SwapAxis(c) {dim1: 0; dim2: 0}"]),
}  # fmt: skip


@pytest.mark.parametrize("guard, text, lines", GUARDED.values(), ids=GUARDED)
def test_a_guard_is_put_in(guard, text, lines):
    after = to_text(guard(from_text("x = null()\n" + text)).graph).splitlines()
    assert set(lines) <= set(after)


LEFT = {
    "a float16 cast": (GuardAmpCasts(), "a = Cast(x) {dtype: float16}\nreturn a"),
    "sums of float32": (GuardGradientSums(), f"a = null()\ny = add_n({', '.join('a' * 50)}) {{num_args: 50}}\nreturn y"),
    "outputs that are one entry eight times": (SUMS, f"a = relu(x)\nr0 = relu(a)\nreturn {', '.join('a' * 8)}"),
    "another LeakyReLU": (GuardPRelu(), "y = LeakyReLU(x) {act_type: leaky}\nreturn y"),
    "a reshape whose gradient a cast gives": (
        GuardLayouts(), CONV + "r = Reshape(c) {shape: (0,-1)}\na = amp_cast(r) {dtype: float32}\nreturn a"),
    "Flatten behind a classifier": (
        GuardLayouts(), CONV + "f = Flatten(c)\ny = FullyConnected(f, w) {num_hidden: 3; no_bias: True}\nreturn y"),
    "Flatten behind relu": (GuardLayouts(), CONV + "f = Flatten(c)\ny = relu(f)\nreturn y"),
    "layouts without convolutions": (GuardLayouts(), "r = Reshape(x) {shape: (0,-1)}\ny = relu(r)\nreturn y"),
}  # fmt: skip


@pytest.mark.parametrize("guard, text", LEFT.values(), ids=LEFT)
def test_what_needs_no_guard_is_left_alone(guard, text):
    graph = from_text("x = null()\n" + text)
    assert guard(graph).graph is graph


# Gradients that MXNet's amp_cast would lose.


def gradients(symbol, grad_req, steps=3, static=False):
    x = mx.nd.array(np.arange(1, 13).reshape((3, 4)) / 16)
    x.attach_grad(grad_req)
    op = mx.nd.CachedOp(symbol, [("static_alloc", static), ("static_shape", static)])
    for _ in range(steps):
        with autograd.record():
            op(x).backward()
    return x.grad.asnumpy()


def low(x):
    bfloat16 = mx.sym.amp_cast(x, dtype=np.dtype([("bfloat16", np.uint16)]))
    return mx.sym.amp_cast(mx.sym.relu(bfloat16), dtype="float32")


@pytest.mark.parametrize("static", [False, True])
def test_added_gradients_and_those_of_a_shared_tensor_add_up(static):
    guarded = from_graph(GuardAmpCasts()(to_graph(low(mx.sym.var("x")))).graph)
    assert (gradients(guarded, "add", static=static) == 3).all()
    assert (gradients(guarded, "write", static=static) == 1).all()
    value = np.exp(np.arange(1, 13).reshape(3, 4) / 16)
    for readers in (1, 7, 12):  # from 8 on MXNet adds gradients in place
        x = mx.sym.exp(mx.sym.var("x"))
        total = mx.sym.add_n(low(x), *(mx.sym.sin(x * float(i)) for i in range(1, readers + 1)))
        found = gradients(from_graph(GuardAmpCasts()(to_graph(total)).graph), "write", 1, static)
        expected = value * (1 + sum(i * np.cos(i * value) for i in range(1, readers + 1)))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Sums of many bfloat16 gradients, which MXNet would truncate.


@pytest.mark.parametrize("readers, heads, copies", [(7, "y", 0), (8, "y", 2), (7, "y, a", 1), (49, "y", 7), (50, "y", 10)])
def test_each_seven_readers_read_an_identity(readers, heads, copies):
    names = [f"r{i}" for i in range(readers)]
    lines = ["x = null()", "a = relu(x)", *(f"{name} = relu(a)" for name in names)]
    text = "\n".join([*lines, f"y = add_n({', '.join(names)}) {{num_args: {readers}}}", f"return {heads}"])
    after = SUMS(from_text(text)).graph
    assert sum(node.op == "_copy" for node in after.nodes) == copies
    assert max(Counter([*after.heads, *(entry for node in after.nodes for entry in node.inputs)]).values()) <= 7
    assert [after.nodes[head.node].name for head in after.heads] == heads.split(", ")


class Unrolled(HybridBlock):
    """An LSTM, each of whose weights as many FullyConnected read as there are steps."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.cell = rnn.LSTMCell(32, input_size=32)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(24, x, merge_outputs=True)[0]


def net_gradients(net, x):
    """Return the gradients of a second call, by parameter."""
    for _ in range(2):
        with autograd.record():
            net(x).square().mean().backward()
    params = net._collect_params_with_prefix().items()
    return {name: param.grad().asnumpy().copy() for name, param in params if param.grad_req != "null"}


@pytest.mark.bfloat16
@pytest.mark.parametrize("static", [False, True])
def test_gradients_of_an_unrolled_lstm_are_not_truncated(static):
    mx.random.seed(0)
    net, x = Unrolled(), mx.nd.random.normal(shape=(8, 24, 32))
    net.initialize(mx.init.Xavier())
    expected = net_gradients(net, x)
    convert(net, "mixed_bfloat16").hybridize(static_alloc=static, static_shape=static)
    for name, found in net_gradients(net, x).items():
        wanted = expected[name]
        # By how much magnitudes are off on average: rounding errors cancel, truncation does not.
        assert abs((np.sign(wanted) * (found - wanted)).sum() / np.abs(wanted).sum()) < 0.003, name
        assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < 0.01, name


def test_a_guarded_prelu_overflows_no_more_than_the_operator_in_float16():
    """On a GPU the guard runs in float16: x times the gradient of the output may be out of range where x > 0."""
    graph = GuardPRelu()(from_text("x = null()\nw = null()\n" + PRELU)).graph
    data, alpha = mx.nd.array([[1000, -1, 0, -3]], dtype="float16"), mx.nd.array([0.25], dtype="float16")
    for array in (data, alpha):
        array.attach_grad()
    with autograd.record():
        output = mx.nd.CachedOp(from_graph(graph))(data, alpha)
    output.backward(mx.nd.array([[100, 100, 100, 7]], dtype="float16"))
    np.testing.assert_array_equal(output.asnumpy(), [[1000, -0.25, 0, -0.75]])
    np.testing.assert_array_equal(data.grad.asnumpy(), [[100, 25, 25, 1.75]])
    assert alpha.grad.asscalar() == -121


# Tensors whose memory has the layout of another shape.


FUNCTIONS = {
    "channels become rows": lambda F, x: F.Reshape(x, (0, -1, 8, 64)),
    "channels are shuffled": lambda F, x: F.Reshape(  # as ShuffleNet does
        F.transpose(F.Reshape(x, (0, -4, 4, -1, -2)), (0, 2, 1, 3, 4)), (0, -3, -2)
    ),
    "axes come and go": lambda F, x: F.Reshape(F.expand_dims(x, 1), (0, -3, -2)),
    "like another": lambda F, x: F.reshape_like(x, F.Reshape(F.BlockGrad(x), (0, -1, 8, 64))),
    "two readers": lambda F, x: F.Concat(F.Reshape(x, (0, -1, 8, 16)), F.Reshape(x, (0, -1, 8, 16)), dim=1),
    "residual": lambda F, x: F.Reshape(F.Reshape(x, (0, -1, 8, 64)), (0, -1, 16, 16)) + F.relu(x),
}


def middle(function):
    """Return a function of tensors between convolutions with BatchNorm, whose tensors have layouts of their own."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.HybridLambda(function))
    net.add(nn.Conv2D(32, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(16, 1))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier())
    return net


def off_by(case, change):
    """Return by how much a changed net's gradients are off, relative to each one's norm at most."""
    x = mx.nd.array(np.random.RandomState(0).randn(2, 16, 16, 16))
    exact = net_gradients(middle(FUNCTIONS[case]), x)
    net = middle(FUNCTIONS[case])
    change(net)
    found = net_gradients(net, x)
    # Gradients of biases in front of BatchNorm are zero but for noise.
    names = exact.keys() - {"0.bias", "4.bias"}
    return max(np.linalg.norm(found[name] - exact[name]) / np.linalg.norm(exact[name]) for name in names)


@pytest.mark.parametrize(
    "policy, bound",
    [
        ("O0", 1e-3),
        pytest.param("mixed_bfloat16", 0.1, marks=pytest.mark.bfloat16),
        pytest.param("mixed_bfloat16,op:Reshape=float32", 0.1, marks=pytest.mark.bfloat16),
        pytest.param("mixed_bfloat16,op:BatchNorm=float32", 0.1, marks=pytest.mark.bfloat16),
        ("O1", 0.05),
    ],
)
@pytest.mark.parametrize("case", FUNCTIONS)
def test_gradients_are_those_of_the_net_run_by_operators(case, policy, bound):
    assert off_by(case, lambda net: convert(net, policy)) <= bound
