"""Where inf and NaN come up first: in nets, symbols and modules, forward and backward; and what the verdict says of them."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp import diagnose
from mxmp import gluon as mixed
from mxmp.diagnose import Explanation, compare, explain
from tests.diagnose.nets import INF, L2, NAN, SOFTMAX, Applied, chain, data, dense, ended, linear, made, where

X, LABELS = mx.nd.array(np.linspace(-1, 1, 48).reshape(8, 6)), mx.nd.arange(8) % 4
ONES = mx.nd.ones((2, 6))
BATCH = ONES, mx.nd.zeros((2, 2))


def with_values(net, init=None, policy=None, x=ONES):
    net.initialize(init or mx.init.One())
    net(x)
    return mixed.convert(net, policy) if policy else net


def squares(factor=300.0, policy="O1,op:square=float16"):
    return with_values(Applied(lambda F, x: F.square(x * factor, name="sq")), policy=policy)


def test_a_converted_net_is_looked_at_as_it_is_converted_and_the_finding_is_plain_data():
    found = where(squares(), ONES)
    assert (found.where, found.name, found.op, found.precision) == ("forward", "net_sq", "square", "float16")
    assert (found.output.infs, found.output.nans, found.output.size) == (8, 0, 8)
    assert (found.inputs[0].smallest, found.inputs[0].largest, found.float32.largest) == (1800.0, 1800.0, 1800.0**2)
    values = found.to_dict()
    assert values["output"]["infs"] == 8 and values["text"] == str(found) and values["rows"] == []
    assert str(found) == (
        "forward: 'net_sq' (square, float16) gives inf in 8 of 8 elements; its input reaches 1800, float16 ends at "
        "65504; in float32 it reaches 3.24e+06"
    )


def test_a_net_that_is_not_converted_is_looked_at_in_o1_unless_a_policy_is_given():
    net = squares(policy=None)
    assert where(net, ONES * 1e5).precision == "float16" and where(net, ONES, "O0") is None
    assert where(net, ONES, "O1,op:square=float16").name == "net_sq"
    assert where(squares(1e20, None), ONES).precision == "float32"


def test_with_a_loss_gradients_are_looked_at_in_the_order_of_backward():
    net = with_values(dense(4, 2), policy="O1")
    assert where(net, BATCH, loss=L2) is None
    found = where(net, BATCH, loss=L2, loss_scale=2.0**15)
    assert (found.where, found.name, found.output.name) == ("backward", "net_dense1_fwd", "net_dense1_fwd_output")
    assert found.inputs[0].largest == 12 * 2.0**15


def test_a_gradient_that_is_infinite_in_float32_too_is_not_named_for_that_of_low_precision():
    """The first is that of sqrt at 0. Backward comes to it first, and it reaches no parameter."""

    def beside(F, x, zeros):
        return F.broadcast_add(x, F.sqrt(F.sum(zeros, axis=1, keepdims=True), name="root"))

    net, batch = Applied(beside, 2), (ONES, ONES * 0, mx.nd.zeros((2, 2)))
    net.initialize(mx.init.One())
    net(*batch[:2])
    mixed.convert(net, "O1")
    assert where(net, batch, loss=L2) is None
    assert where(net, batch, loss=L2, loss_scale=2.0**15).name == "net_dense0_fwd"


def test_a_gradient_in_float32_is_said_at_the_loss_scale_of_the_one_beside_it():
    scale, net = 2.0**18, with_values(gluon.nn.Dense(4), mx.init.Constant(0.1))
    found = where(net, (X, LABELS), "O1", loss=SOFTMAX, loss_scale=scale)
    # Softmax of equal logits: the gradient of a right class is 1/4 - 1
    assert found.where == "backward" and found.float32.magnitude == pytest.approx(0.75 * scale, rel=1e-3)
    assert found.inputs[0].magnitude == pytest.approx(found.float32.magnitude, rel=1e-3)


def model_of(sym, **params):
    shapes = dict(zip(sym.list_arguments(), sym.infer_shape(data=(2, 6))[0]))
    args = {name: mx.nd.ones(shape) for name, shape in shapes.items() if name not in ("data", "out_label")}
    return sym, {**args, **params}, {}


def test_what_does_harm_is_named_before_what_does_none():
    x, batch = mx.sym.var("data"), {"data": ONES * 30}
    harmless = mx.sym.broadcast_div(mx.sym.ones((1, 1)), 1 + mx.sym.exp(x, name="harmless"), name="sigmoid")
    both = mx.sym.elemwise_add(harmless, mx.sym.square(x * 10, name="harmful"))
    assert where(model_of(ended(harmless)), batch, "O3").name == "harmless"
    assert explain(model_of(ended(harmless)), batch, "O3").kind == "no fault found"
    assert where(model_of(ended(both)), batch, "O3").name == "harmful"


def test_data_and_parameters_are_named_as_such_with_the_rows_that_are_bad():
    net, bad = squares(1.0), data((3, 6))
    bad[1] = np.nan
    found = where(net, bad)
    assert (found.where, found.name, found.rows) == ("data", "data", (1,))
    assert str(found) == "input 'data' holds NaN in 6 of 18 elements, in row 1"
    text = "input 'data' holds NaN in 54 of 54 elements, in rows 0, 1, 2, 3, 4 and 4 more. No precision"
    assert text in str(explain(net, mx.nd.full((9, 6), np.nan)))
    net.dense.weight.set_data(mx.nd.full((4, 6), np.inf))
    assert str(where(net, ONES)) == "parameter 'net_dense0_weight' holds inf in 24 of 24 elements"


@pytest.mark.parametrize(
    "rows, kind", [([[-1, 1], [NAN, 3]], "float32 model broken"), ([[2, 1], [NAN, 3]], "data"), ([[NAN, 2]], "data")]
)
def test_a_network_that_fails_on_other_rows_than_those_with_nan_is_broken(rows, kind):
    found = explain((mx.sym.log(mx.sym.var("data"), name="log"), {}, {}), mx.nd.array(rows))
    assert found.kind == kind and "input 'data' holds NaN in 1 of" in str(found)
    assert found.node.name == ("log" if kind == "float32 model broken" else "data")


@pytest.mark.parametrize("bad, kind", [(1.0, "no fault found"), (NAN, "data")])
def test_sparse_batches_are_looked_at(bad, kind):
    rows = mx.nd.array([[1, 0, 0], [0, bad, 0]]).tostype("csr")
    product = mx.sym.sparse.dot(mx.sym.var("data", stype="csr"), mx.sym.var("weight"), name="product")
    symbol = mx.sym.LinearRegressionOutput(product, name="out")
    found = [explain((symbol, {"weight": mx.nd.ones((3, 2))}, {}), {"data": rows})]
    net = Applied(lambda F, x, sparse: F.sparse.dot(sparse, x), inputs=2)
    net.initialize()
    found.append(explain(net, (mx.nd.ones((3, 2)), rows, mx.nd.ones((2, 4))), loss=L2))
    assert [each.kind for each in found] == [kind] * 2 and all(each.node is None or each.node.rows == (1,) for each in found)


class Masked(gluon.HybridBlock):
    def __init__(self, first):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.dense = gluon.nn.Dense(2, in_units=2)
            self.m = self.params.get_constant("m", mx.nd.array([[first, -INF], [-INF, -INF]]))

    def hybrid_forward(self, F, x, m):
        return self.dense(F.softmax(F.broadcast_add(x, m), name="weights"))


def with_mask_and_bad_weight():
    net = with_values(Masked(0), x=ONES[:, :2])
    net.dense.weight.set_data(mx.nd.full((2, 2), NAN))
    return net


def of_blocks():
    """Return a net of several blocks whose weights of 1e6 leave float16's range, but not float32's."""
    net = with_values(chain(gluon.nn.Dense(4, activation="tanh", prefix="first_"), gluon.nn.Dense(2, prefix="second_")))
    net[1].weight.set_data(net[1].weight.data() * 1e6)
    return net


def with_infinite_bias():
    net = with_values(gluon.nn.Dense(2, prefix="net_"))
    net.bias.set_data(mx.nd.array([0, -INF]))
    net.bias.grad_req = "null"
    return net


RANGE, BROKEN, FAR = "activation out of range", "float32 model broken", "a run that diverges"
PARTS = ONES[:, :2], BATCH[1]
VERDICTS = {  # a net, a batch, a loss and a policy; the kind of the verdict, the node that it names, and what is in its text
    "a label that the loss clips": (
        lambda: with_values(gluon.nn.Dense(4), mx.init.Constant(0.1)), (X, mx.nd.array([0, 1, NAN, 2, 3, 0, 1, 2])), SOFTMAX, "O1",
        "data", "label", "input 'label' holds NaN in 1 of 8 elements, in row 2",
    ),
    "a parameter out of float16's range": (
        lambda: with_values(gluon.nn.Dense(4, prefix="net_"), mx.init.Constant(1e30)), (X, LABELS), SOFTMAX, "O1",
        "parameters", "net_weight", "parameter 'net_weight' is inf in float16 in 24 of 24 elements: it reaches 1e+30",
    ),
    "several blocks in float32": (of_blocks, BATCH, L2, "O0", "no fault found", None, "finite, under 'O0', which is float32."),
    "several blocks in O1": (of_blocks, BATCH, L2, "O1", "parameters", "second_weight", ""),
    "a constant mask that forbids all": (lambda: with_values(Masked(0), x=PARTS[0]), PARTS, L2, "O1", BROKEN, "net_weights", ""),
    "a weight beside such a mask": (with_mask_and_bad_weight, PARTS, L2, "O1", "parameters", "net_dense0_weight", ""),
    "a constant of inf that is no mask": (lambda: with_values(Masked(1), x=PARTS[0]), PARTS, L2, "O1", "parameters", "net_m", ""),
    "a mask that reaches the output": (with_infinite_bias, BATCH, L2, "O1", "parameters", "net_bias", ""),
    "data far out of range": (lambda: with_values(dense(4)), (X * 1e30, LABELS), SOFTMAX, "O1", RANGE, "data", "the cast of 'data' (float16) gives inf"),
    "values that are large": (
        lambda: with_values(dense(4), mx.init.Constant(3e3)), (X * 30, LABELS), SOFTMAX, "O1", RANGE, "net_dense0_fwd", ""
    ),
    "float32 that diverges": (
        lambda: with_values(dense(32, 1), mx.init.Constant(1e25)), (X + 2, LABELS), L2, "O0", BROKEN, "net_dense1_fwd", FAR
    ),
    "gradients beyond 64 times float16's range": (
        lambda: with_values(dense(32, 1), mx.init.Constant(200.0)), (X + 2, LABELS), L2, "O1", RANGE, "", FAR
    ),
    "outputs that diverge": (
        lambda: with_values(dense(32, 1), mx.init.Constant(6e4)), (X + 2, LABELS), lambda out, y: SOFTMAX(out, y * 0), "O1",
        RANGE, "", FAR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, batch, loss, policy, kind, name, text", VERDICTS.values(), ids=VERDICTS.keys())
def test_a_verdict_names_what_is_at_fault_and_says_where_a_run_diverges(make, batch, loss, policy, kind, name, text):
    verdict = explain(make(), batch, policy, loss=loss)
    assert verdict.kind == kind and (verdict.node is None if name is None else verdict.node.name.startswith(name)), verdict
    assert text in verdict.text and (FAR in verdict.text) == (text == FAR) and Explanation.from_dict(verdict.to_dict()) == verdict


# ---------------------------------------------------------------------- the nodes to keep in float32


@pytest.mark.parametrize("second, keep", [(1, ("fc0", "fc1")), (0, ("fc0",))])
def test_of_operators_with_several_outputs_those_that_fail_count(second, keep):
    """Two halves each, of which the second fails in the other branch; only one of them is read."""
    halves = [mx.sym.SliceChannel(mx.sym.var(f"data{i}"), num_outputs=2, name=f"split{i}") for i in (0, 1)]
    read = enumerate([halves[0][0], halves[1][second]])
    sym = mx.sym.Group([mx.sym.FullyConnected(x, num_hidden=3, no_bias=True, name=f"fc{i}") for i, x in read])
    args = {f"fc{i}_weight": mx.nd.full((3, 2), 1e-3) for i in (0, 1)}
    small, large = np.ones((4, 2)), np.full((4, 2), 1e5)
    batch = {"data0": np.hstack([large, small]), "data1": np.hstack([small, large])}
    found = where((sym, args, {}), batch, "O1")
    assert found.keep == keep and where((sym, args, {}), batch, f"O1,{found.overrides}") is None


@pytest.mark.parametrize(
    "factor, size, kind",
    [(1e6, 1e-3, "gradient out of range"), (1.0, 2e4, "activation out of range")],
    ids=["backward", "forward"],
)
def test_layers_that_fail_alike_are_named_together(factor, size, kind):
    """Side by side, each times a factor in float32."""
    names, x, policy = ["fc0", "fc1", "fc2"], mx.sym.var("data"), "O1,op:_mul_scalar=float32,op:add_n=float32"
    layers = [linear(x, name, hidden=2) * factor for name in names]
    given = model_of(mx.sym.LinearRegressionOutput(mx.sym.ElementWiseSum(*layers, name="sum"), name="out"))
    batch = {"data": ONES * size, "out_label": mx.nd.zeros((2, 2))}
    verdict = explain(given, batch, policy)
    assert verdict.kind == kind and verdict.node.name in names
    assert sorted(set(verdict.node.keep) & set(names)) == names
    assert explain(given, batch, f"{policy},{verdict.overrides}").kind == "no fault found"


def chained():
    """Return a network whose values stay beyond float16's range through several operators."""
    x = mx.sym._internal._mul_scalar(mx.sym.square(mx.sym.var("data"), name="square"), scalar=3.0, name="times")
    x = mx.sym._internal._mul_scalar(linear(mx.sym.relu(x, name="relu"), "fc"), scalar=1e-7, name="down")
    return model_of(linear(mx.sym.tanh(x, name="tanh"), "last", hidden=2))


@pytest.mark.parametrize("policy", ["O3", "O2", "O1,op:square=float16"])
def test_the_overrides_of_a_chain_mend_it_at_once(policy):
    batch = {"data": ONES * 300}
    for ask in (explain, compare):
        found = ask(chained(), batch, policy)
        assert "name:fc=float32" in found.overrides and f"'{found.overrides}'" in str(found).replace("\n", " ")
        assert ask(chained(), batch, f"{policy},{found.overrides}").overrides == ""


# ---------------------------------------------------------------------- outputs, losses, overrides


@pytest.mark.parametrize("value", [3.4e38, NAN, INF])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_rows_for_which_a_loss_has_no_gradient_are_data_and_leave_the_scale_alone(value, scale):
    """As CTC has none where a label is longer than its sequence."""
    factors = mx.nd.array([[1.0], [value], [1.0]])
    found = explain(made(dense(2, in_units=6)), (data((3, 6)), factors * 0 + factors), "O1", loss=lambda out, y: mx.nd.broadcast_mul(out, y), loss_scale=scale)
    where = found.node
    assert found.kind == "data" and where.rows == (1,) and found.finite_scale is None
    if np.isfinite(value):
        assert where.where == "loss" and "leave the scale as it is" in str(found) and "reaches 3.4e+38, in row 1" in str(found)


def test_no_fault_says_what_was_not_run():
    net = made(dense(2, in_units=6))
    assert "the outputs are finite, in float32 and under 'O1'. Backward did not run, because no loss" in str(explain(net, BATCH, "O1"))
    assert "its loss scale was larger than 8 (" in str(explain(net, BATCH, "O1", loss=L2, loss_scale=8))


def test_an_output_that_a_cast_makes_infinite_is_mended_by_the_dtype_of_the_outputs():
    net, batch = gluon.nn.HybridLambda(lambda F, x: F.softmax(x) * 1e6, prefix="net_"), (mx.nd.ones((2, 3)),)
    found = explain(net, batch, "O1,output=float16")
    assert found.kind == RANGE and found.overrides == "output=float32" and "'output=float32'" in str(found)
    assert explain(net, batch, f"O1,output=float16,{found.overrides}").kind == "no fault found"


# ---------------------------------------------------------------------- masks


def masked(F, x):
    """Return attention weights, of which a mask forbids all in the rows where the data begins with 0."""
    allowed = F.broadcast_like(F.slice_axis(x, axis=1, begin=0, end=1), x)
    mask = F.where(allowed > 0, F.zeros_like(x), F.ones_like(x) * -np.inf)
    return F.softmax(F.broadcast_add(x, mask), name="weights")


@pytest.mark.parametrize("forbidden", [True, False])
def test_a_row_that_a_mask_forbids_wholly_is_the_softmaxs_fault_and_not_the_masks(forbidden):
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(gluon.nn.HybridLambda(masked, prefix="net_masked_"), gluon.nn.Dense(3, in_units=3))
    net.initialize()
    found = explain(net, (mx.nd.array([[1, 2, 3], [1 - forbidden, 2, 3]]), mx.nd.zeros((2, 3))), "O1", loss=L2)
    assert found.kind == ("float32 model broken" if forbidden else "no fault found")
    if forbidden:
        source = "net_masked__mulscalar0"
        assert (found.node.op, found.node.output.nans, found.node.inf_from) == ("softmax", 3, source)
        assert all(text in str(found) for text in ("gives NaN in 3 of 6 elements", f"inf, which comes from '{source}'"))
        assert diagnose.NonFinite.from_json(found.node.to_json()) == found.node


def test_an_infinite_constant_that_reaches_the_output_as_inf_is_named():
    net = gluon.nn.HybridLambda(lambda F, x: x * np.inf + 1, prefix="net_")
    assert where(net, mx.nd.ones((2, 3)), "O1").name == "net__mulscalar0"


# ---------------------------------------------------------------------- nets that compute their losses


def detector(F, out, first, second):
    """Return lists of losses, which the net computes by itself if it is given targets, as GluonCV's YOLO does."""
    return [F.mean(F.square(out - first), axis=1), [F.mean(F.abs(out - second), axis=1)]]


NAN_ROW, ZEROS = data(), mx.nd.zeros((4, 4))
NAN_ROW[1] = NAN


@pytest.mark.parametrize(
    "loss, last",
    [("outputs", ()), (lambda losses, label: losses, (None,)), (lambda losses, label: losses[0] + losses[1][0], (None,))],
    ids=["outputs", "lists", "sum"],
)
def test_a_net_that_computes_its_losses_is_explained_without_a_label(loss, last):
    def ask(x=None, first=ZEROS, scale=1.0, function=explain):
        batch = data() if x is None else x, first, ZEROS, *last
        return function(made(Applied(detector, inputs=6), mx.init.One()), batch, "O1", loss_scale=scale, loss=loss)

    bad, high = ask(NAN_ROW), ask(scale=2.0**30)
    assert (ask().kind, ask(first=ZEROS * NAN).kind) == ("no fault found", "data")
    assert (bad.kind, bad.node.rows) == ("data", (1,))
    assert (high.kind, high.node.where) == ("scale too high", "backward")
    assert ask(scale=2.0**30, function=where).where == "backward"
