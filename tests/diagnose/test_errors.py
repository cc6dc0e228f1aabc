"""The numbers of a comparison: own and carried errors, contributions and gradients, against numpy and single nodes."""

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.diagnose import compare
from mxmp.symbol import convert_model, on_cpu, to_graph
from tests.diagnose.nets import block_of, half, ratio, split, values_of

SCALE = 256.0
X = mx.sym.var("data")


def fc(x, units, name, **options):
    return mx.sym.FullyConnected(x, num_hidden=units, name=name, **{"no_bias": True, **options})


def near(value, rel=0.02):
    return pytest.approx(value, rel=rel)


def arrays(values, *names):
    return (values[name].asnumpy() for name in names)


def measure(sym, policy, values, data=("data",)):
    args, aux, batch = split(sym, values, data)
    return {row.name: row for row in compare((sym, args, aux), batch, policy).rows}


def gradients_of(sym, values, policy="O2", scale=SCALE, loss=lambda outputs: [(outputs**2).sum()]):
    """Return the rows of a comparison whose gradients are those of a loss of the outputs."""
    args, aux, batch = split(sym, values, ("data",))
    rows = compare(block_of(sym, {**args, **aux}), (batch["data"], None), policy, loss=lambda out, _: loss(out), loss_scale=scale).rows
    return {row.name: row for row in rows}


# ---------------------------------------------------------------------- own and carried


def dense_square_sum():
    dense = fc(X, 3, "dense")
    return fc(mx.sym.elemwise_mul(dense, dense, name="square"), 2, "sum")


@pytest.mark.parametrize("policy", ["O1", "O2", "O3"])
def test_own_and_carried_errors_are_those_of_numpy(policy):
    """Products of float16 are exact in float32, and so few terms add up alike in any order but for the last bit."""
    sym = dense_square_sum()
    values = values_of(sym, data=(5, 4))
    x, w, v = arrays(values, "data", "dense_weight", "sum_weight")
    dense, low = x @ w.T, half(half(x) @ half(w).T)
    square, low_square = dense * dense, half(low * low)
    carried = ratio(low_square, square), ratio(half(low_square @ half(v).T), square @ v.T)
    expected = {  # own and carried
        "dense": (ratio(low, dense), ratio(low, dense)),
        "square": (ratio(half(half(dense) * half(dense)), square), carried[0]),
        "sum": (ratio(half(half(square) @ half(v).T), square @ v.T), carried[1]),
    }
    found = {name: (row.local_error, row.accumulated_error) for name, row in measure(sym, policy, values).items()}
    assert found == {name: near(errors) for name, errors in expected.items()} and found["dense"][0] > 1e-5


@pytest.mark.parametrize("factor", [1e26, 1e-26])
def test_values_whose_squares_float32_cannot_hold_have_their_error(factor):
    """Softplus or masks give such values in float32 behind a node in low precision."""
    sym = mx.sym.identity(fc(X, 3, "dense") * factor, name="end")
    values = values_of(sym, data=(5, 4))
    x, w = arrays(values, "data", "dense_weight")
    row = measure(sym, "O1,op:_mul_scalar=float32", values)["end"]
    assert row.local_error == 0 and row.accumulated_error == near(ratio(half(half(x) @ half(w).T), x @ w.T))


def test_a_finite_difference_from_huge_values_is_not_lost():
    """A mask of -1e30 beside values that are off; float16 has -inf there."""
    values, batch = {"data": mx.nd.full((1, 3), 2.0), "mask": mx.nd.array([[-1e30, 0.0, 0.0]])}, ("data", "mask")
    sym = mx.sym.broadcast_add(X, mx.sym.var("mask"), name="masked")
    assert measure(sym, "O3", values, batch)["masked"].local_error == math.inf
    sym = mx.sym.broadcast_mul(mx.sym.sqrt(X, name="root"), mx.sym.var("mask"), name="product")
    found, root = measure(sym, "O1,op:sqrt=float16,op:broadcast_mul=float32", values, batch), np.sqrt(np.float32(2))
    assert found["product"].accumulated_error == near(abs(float(np.float16(root)) / float(root) - 1), 1e-3)


def test_where_float32_is_infinite_itself_nothing_is_compared():
    """An attention mask of -inf is as good in float16."""
    sym = mx.sym.relu(mx.sym.broadcast_add(X, mx.sym.log(X, name="log")), name="positive")
    found = measure(sym, "O3", {"data": mx.nd.array([[0.0, 1.0, 2.0]])})
    assert 0 <= found["log"].local_error < 1e-3 and found["positive"].accumulated_error < 1e-2


@pytest.mark.parametrize("scale, error", [(0.0, 0.0), (5e-3, 1.0)], ids=["zeros that stay so", "values that vanish"])
def test_an_output_of_zeros_has_no_error_if_it_stays_so_and_values_that_vanish_are_one_of_1(scale, error):
    sym = dense_square_sum()
    assert measure(sym, "O2", values_of(sym, scale, data=(5, 4)))["square"].local_error == pytest.approx(error, abs=0.01 * scale)


def test_of_several_outputs_the_worst_counts():
    parts = mx.sym.split(fc(X, 4, "dense"), num_outputs=2, name="s")
    sym = fc(parts[0] + parts[1] * 2, 2, "end")
    values = values_of(sym, data=(5, 4))
    x, w = arrays(values, "data", "dense_weight")
    dense, low = np.hsplit(x @ w.T, 2), np.hsplit(half(half(x) @ half(w).T), 2)
    assert measure(sym, "O2", values)["s"].accumulated_error == near(max(map(ratio, low, dense)))


def loop():
    def step(x, state):
        new = fc(x, 4, "inner", weight=mx.sym.var("weight")) + state
        return new, new

    return fc(mx.sym.contrib.foreach(step, X, mx.sym.zeros((2, 4)), name="loop")[0], 2, "end")


def test_a_loop_is_compared_as_a_whole():
    found = gradients_of(loop(), values_of(loop(), data=(3, 2, 4)), scale=16.0)
    (whole,) = (row for row in found.values() if row.op == "_foreach")
    errors = whole.local_error, whole.gradient_local_error, whole.gradient_accumulated_error
    assert all(1e-5 < error < 1e-2 for error in errors) and "inner" not in found


# ---------------------------------------------------------------------- contributions


def outputs(sym, values, policy, data):
    args, aux, batch = split(sym, values, data)
    model = convert_model(sym, args, aux, policy, {name: array.shape for name, array in batch.items()})
    given, run = {**values, **model.arg_params, **model.aux_params}, on_cpu(model.symbol)
    inputs, states = ({name: given[name] for name in each} for each in (run.list_arguments(), run.list_auxiliary_states()))
    return [each.asnumpy() for each in run.bind(mx.cpu(), inputs, None, "null", states).forward(is_train=False)]


def one_alone(sym, values, policy, name, data=("data",)):
    """Return the error of the outputs if one node alone is in low precision, as a share of each output."""
    names = dict.fromkeys((node.name for node in to_graph(sym).operators()), "float32")
    policy = Policy.parse(policy).replace(names={**names, name: "float16"}, param_dtype="float32")
    exact, low = (outputs(sym, values, each, data) for each in (Policy(), policy))
    return np.sqrt(sum(ratio(*pair) ** 2 for pair in zip(low, exact)))


def two_layers(function=mx.sym.tanh):
    return fc(function(fc(X, 6, "first"), name="function"), 2, "second")


def convolutions():
    x = mx.sym.Convolution(X, kernel=(3, 3), num_filter=4, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    x = mx.sym.relu(x, name="relu") + mx.sym.Convolution(x, kernel=(1, 1), num_filter=4, name="side")
    return fc(mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1), name="pool"), 3, "end")


def two_outputs():
    parts = mx.sym.split(fc(X, 4, "first"), num_outputs=2, name="parts")
    return mx.sym.Group([fc(parts[0], 1, "large") * 1000, fc(parts[1] + parts[0], 1, "small")])


SMALL = {two_layers: (3, 4), convolutions: (2, 3, 8, 8), two_outputs: (3, 4), loop: (1, 2, 4)}


@pytest.mark.parametrize("make", SMALL)
def test_contributions_are_those_of_one_node_rounded_alone(make):
    sym = make()
    values = values_of(sym, data=SMALL[make])
    for name, row in measure(sym, "O3", values).items():
        if row.op != "_foreach" and row.local_error:
            assert row.output_error == pytest.approx(one_alone(sym, values, "O3", name), rel=0.1, abs=1e-7), name


HEADS = {  # of loss, which have no derivative: their attributes, and the shapes of data and label
    "SoftmaxOutput": ({}, (2, 4), (2,)),
    "LogisticRegressionOutput": ({}, (2, 4), (2, 3)),
    "LinearRegressionOutput": ({}, (2, 4), (2, 3)),
    "SoftmaxOutput of a sequence": ({}, (1, 2, 4), (1, 2)),
    "SoftmaxOutput of several outputs": ({"multi_output": True}, (1, 2, 4), (1, 3)),
    "SoftmaxOutput of a kept shape": ({"preserve_shape": True}, (1, 2, 4), (1, 2)),
}


@pytest.mark.parametrize("name", HEADS)
def test_contributions_pass_loss_heads_of_every_layout(name):
    attributes, data, label = HEADS[name]
    scores = fc(X, 3, "scores", flatten=False)
    sym = getattr(mx.sym, name.split()[0])(scores, mx.sym.var("label"), name="head", **attributes)
    values, inputs = values_of(sym, data=data, label=label), ("data", "label")
    expected = one_alone(sym, values, "O2", "scores", inputs)
    assert measure(sym, "O2", values, inputs)["scores"].output_error == near(expected, 0.05) and expected > 1e-5


def test_contributions_pass_what_blocks_gradients_and_need_outputs_in_floating_point():
    values = values_of(two_layers(), data=(3, 4))
    ends = (lambda x: x, mx.sym.BlockGrad, lambda x: mx.sym.Cast(x, dtype="int32"))
    plain, blocked, cast = (measure(end(two_layers()), "O2", values)["first"].output_error for end in ends)
    assert blocked == near(plain, 1e-3) and plain > 1e-5 and cast is None


def test_many_outputs_are_projected_at_random_without_touching_random_states():
    """Each contribution is right on the average only: of eight directions a quarter off."""
    sym, ratios = fc(X, 300, "only"), []
    before = np.random.get_state()[1].tolist()
    for scale in np.linspace(1, 2, 12):
        values = values_of(sym, scale, data=(4, 20))
        ratios.append(measure(sym, "O2", values)["only"].output_error / one_alone(sym, values, "O2", "only"))
    assert np.random.get_state()[1].tolist() == before
    assert np.mean(ratios) == near(1, 0.25) and np.std(ratios) > 1e-3


# ---------------------------------------------------------------------- gradients


def low(array):
    return half(array * SCALE) / SCALE


def worst(*pairs):
    return near(max(ratio(*pair) for pair in pairs))


def test_gradients_of_two_layers_are_those_of_numpy():
    sym = two_layers(mx.sym.relu)
    values = values_of(sym, data=(3, 4))
    x, w, v = arrays(values, "data", "first_weight", "second_weight")
    hidden = np.maximum(x @ w.T, 0)
    seed = 2 * hidden @ v.T
    given, below = (seed @ v) * (hidden > 0), half(np.maximum(half(half(x) @ half(w).T), 0))
    given_low = low(low(2 * half(below @ half(v).T)) @ half(v)) * (below > 0)
    first, second = map(gradients_of(sym, values).get, ("first", "second"))
    assert second.gradient_local_error == worst((low(low(seed) @ half(v)), seed @ v), (low(low(seed).T @ half(hidden)), seed.T @ hidden))
    assert first.gradient_local_error == worst((low(low(given) @ half(w)), given @ w), (low(low(given).T @ half(x)), given.T @ x))
    assert first.gradient_accumulated_error == worst((low(given_low @ half(w)), given @ w), (low(given_low.T @ half(x)), given.T @ x))


@pytest.mark.parametrize(
    "size, factor, scale, error",
    [(8.0, 1.0, 2.0**15, math.inf), (8.0, 1.0, 2.0**-8, 0.0), (1.0, 1e-9, 1.0, 1.0), (1.0, 1e-9, 2.0**30, 0.0)],
)
def test_gradients_are_infinite_or_vanish_at_scales_that_do_not_keep_them(size, factor, scale, error):
    values = values_of(two_layers(mx.sym.relu), size, data=(3, 4))
    found = gradients_of(two_layers(mx.sym.relu), values, scale=scale, loss=lambda outputs: [(outputs**2).sum() * factor])
    assert found["second"].gradient_local_error == pytest.approx(error, abs=0.01)


def test_a_residual_sum_gets_the_gradients_of_all_of_its_readers():
    both = mx.sym.elemwise_add(X, fc(X, 4, "side"), name="both")
    sym = mx.sym.Group([both, mx.sym.relu(both, name="relu")])
    values = values_of(sym, data=(3, 4))
    x, w = arrays(values, "data", "side_weight")
    seed = 2 * (x + x @ w.T) + 2 * np.maximum(x + x @ w.T, 0)
    row = gradients_of(sym, values, "O3", loss=lambda outputs: [(output**2).sum() for output in outputs])["both"]
    assert row.gradient_local_error == worst((low(seed), seed))


def test_indices_and_labels_have_no_gradient():
    sym = mx.sym.SoftmaxOutput(fc(mx.sym.Embedding(X, input_dim=5, output_dim=4, name="embed"), 3, "scores"), name="softmax")
    values = {**values_of(sym, data=(2, 3), softmax_label=(2,)), "data": mx.nd.array([[0, 1, 2], [3, 4, 0]])}
    found = measure(sym, "O2", {**values, "softmax_label": mx.nd.array([0, 2])}, ("data", "softmax_label"))
    assert all(row.gradient_accumulated_error < 1e-2 for row in found.values()) and "embed" in found


@pytest.mark.parametrize("op", ["Convolution", "broadcast_add"])
def test_a_gradient_that_is_0_but_for_rounding_is_measured_against_its_terms(op):
    """BatchNorm takes away the mean of each channel, and so what a bias before it adds."""
    x = mx.sym.Convolution(X, kernel=(3, 3), num_filter=4, name="Convolution", no_bias=op == "broadcast_add")
    x = mx.sym.broadcast_add(x, mx.sym.var("bias", shape=(1, 4, 1, 1)), name=op) if op == "broadcast_add" else x
    sym = mx.sym.relu(mx.sym.BatchNorm(x, fix_gamma=False, name="norm"))
    row = gradients_of(sym, values_of(sym, data=(8, 3, 10, 10)))[op]
    assert 1e-5 < row.gradient_local_error < 2e-3 and row.gradient_accumulated_error < 0.1


def test_a_small_gradient_of_a_bias_that_is_no_rounding_has_its_own_error():
    sym = fc(X, 1, "fc", no_bias=False)
    signs = mx.nd.array(np.where(np.arange(400) % 2, 1.0, -0.99).reshape(-1, 1) * (1 + 2.0**-12))
    terms = signs.asnumpy().astype(np.float64)
    expected = abs(half(terms.astype("float32")).sum() - terms.sum()) / abs(terms.sum())
    found = gradients_of(sym, values_of(sym, data=(400, 3)), loss=lambda outputs: [(outputs * signs).sum()])
    assert found["fc"].gradient_local_error == near(expected, 0.1)
