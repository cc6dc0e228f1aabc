"""Where inf and NaN come up first: in nets, symbols and modules, forward and backward; and nothing of the user's changes."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp import diagnose, symbol
from mxmp import gluon as mixed
from mxmp.errors import ConvertError, LossScaleError
from tests.diagnose.failures import Applied, data, dense, ended, linear

LOSS = gluon.loss.L2Loss()


def squares(factor=300.0, policy="O1,op:square=float16"):
    """Return a net, its values 1, whose square of 6 * factor overflows in float16."""
    net = Applied(lambda F, x: F.square(x * factor, name="sq"))
    net.initialize(mx.init.One())
    net(mx.nd.ones((2, 6)))
    return mixed.convert(net, policy) if policy else net


def test_a_converted_net_is_looked_at_as_it_is_converted():
    found = diagnose.find_nonfinite(squares(), mx.nd.ones((2, 6)))
    assert (found.where, found.name, found.op, found.precision) == ("forward", "net_sq", "square", "float16")
    assert (found.output.infs, found.output.nans, found.output.size) == (8, 0, 8)
    assert (found.inputs[0].smallest, found.inputs[0].largest) == (1800.0, 1800.0)
    assert found.float32.largest == 1800.0**2


def test_it_is_said_in_one_sentence():
    text = str(diagnose.find_nonfinite(squares(), mx.nd.ones((2, 6))))
    assert text == (
        "forward: 'net_sq' (square, float16) gives inf in 8 of 8 elements; its input reaches 1800, float16 ends at "
        "65504; in float32 it reaches 3.24e+06"
    )


def test_a_net_that_is_not_converted_is_looked_at_in_o1_unless_a_policy_is_given():
    net = squares(policy=None)
    assert diagnose.find_nonfinite(net, mx.nd.full((2, 6), 1e5)).precision == "float16"
    assert diagnose.find_nonfinite(net, mx.nd.ones((2, 6)), "O0") is None
    assert diagnose.find_nonfinite(net, mx.nd.ones((2, 6)), "O1,op:square=float16").name == "net_sq"
    assert diagnose.find_nonfinite(squares(1e20, None), mx.nd.ones((2, 6))).precision == "float32"


def test_with_a_loss_gradients_are_looked_at_in_the_order_of_backward():
    net = dense(4, 2)
    net.initialize(mx.init.One())
    net(mx.nd.ones((2, 6)))
    mixed.convert(net, "O1")
    batch = mx.nd.ones((2, 6)), mx.nd.zeros((2, 2))
    assert diagnose.find_nonfinite(net, batch, loss=LOSS) is None
    found = diagnose.find_nonfinite(net, batch, loss=LOSS, loss_scale=2.0**15)
    assert (found.where, found.name, found.output.name) == ("backward", "net_dense1_fwd", "net_dense1_fwd_output")
    assert found.inputs[0].largest == 12 * 2.0**15


def test_a_gradient_that_ends_in_the_middle_names_the_operator_that_gives_it():
    net = Applied(lambda F, x: F.sqrt(F.relu(x, name="zeros"), name="root"))
    net.initialize(mx.init.Zero())
    net(mx.nd.ones((2, 6)))
    found = diagnose.find_nonfinite(net, (mx.nd.ones((2, 6)), mx.nd.ones((2, 4))), loss=LOSS)
    assert (found.where, found.name, found.op, found.precision) == ("backward", "net_root", "sqrt", "float32")
    assert found.output.name == "net_zeros_output" and found.output.infs == 8


def test_a_float32_net_of_several_blocks_is_looked_at_in_float32():
    """The gradients between its blocks are float32's: weights of 1e6 leave float16's range, but not float32's."""
    net = gluon.nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, activation="tanh", in_units=6), gluon.nn.Dense(2, in_units=4))
    net.initialize(mx.init.One())
    net[1].weight.set_data(net[1].weight.data() * 1e6)
    batch = mx.nd.ones((2, 6)), mx.nd.zeros((2, 2))
    assert diagnose.explain(net, batch, "O0", loss=LOSS).kind == "no fault found"
    assert diagnose.explain(net, batch, "O1", loss=LOSS).node.name == "net_dense1_weight"


def model(policy=None):
    sym = ended(mx.sym.square(linear(mx.sym.var("data"), "fc") * 300, name="sq"))
    shapes = dict(zip(sym.list_arguments(), sym.infer_shape(data=(2, 6))[0]))
    args = {name: mx.nd.ones(shape) for name, shape in shapes.items() if name not in ("data", "out_label")}
    return (sym, args, {}) if policy is None else symbol.convert_model(sym, args, {}, policy)


def test_what_does_harm_is_named_before_what_does_none():
    x = mx.sym.var("data")
    harmless = mx.sym.broadcast_div(mx.sym.ones((1, 1)), 1 + mx.sym.exp(x, name="harmless"), name="sigmoid")
    batch = {"data": mx.nd.full((2, 6), 30.0)}
    args = {name: mx.nd.ones(shape) for name, shape in (("last_weight", (2, 6)), ("last_bias", (2,)))}
    assert diagnose.find_nonfinite((ended(harmless), args, {}), batch, "O3").name == "harmless"
    assert diagnose.explain((ended(harmless), args, {}), batch, "O3").kind == "no fault found"
    both = mx.sym.elemwise_add(harmless, mx.sym.square(x * 10, name="harmful"))
    assert diagnose.find_nonfinite((ended(both), args, {}), batch, "O3").name == "harmful"


def test_data_and_parameters_are_named_as_such():
    net = squares(1.0)
    bad = data((3, 6))
    bad[1] = np.nan
    found = diagnose.find_nonfinite(net, bad)
    assert (found.where, found.name, found.rows) == ("data", "data", (1,))
    assert str(found) == "input 'data' holds NaN in 6 of 18 elements, in row 1"
    next(iter(net.collect_params().values())).set_data(mx.nd.full((4, 6), np.inf))
    found = diagnose.find_nonfinite(net, mx.nd.ones((2, 6)))
    assert str(found) == "parameter 'net_dense0_weight' holds inf in 24 of 24 elements"


@pytest.mark.parametrize("fault", ["data", "fc"])
def test_a_policy_with_what_the_finding_says_is_to_be_kept_overflows_no_more(fault):
    sym = ended(mx.sym.square(linear(mx.sym.var("data"), "fc"), name="sq"))
    _, args, _ = model()
    batch = {"data": mx.nd.ones((2, 6)) * (1e5 if fault == "data" else 2e4)}
    found = diagnose.find_nonfinite((sym, args, {}), batch, "O1")
    assert found.name == fault
    assert diagnose.find_nonfinite((sym, args, {}), batch, f"O1,{found.overrides}") is None


def parallel(names, factor):
    """Return the sum of layers side by side, each times a factor in float32."""
    x = mx.sym.var("data")
    layers = [linear(x, name, hidden=2) * factor for name in names]
    return mx.sym.LinearRegressionOutput(mx.sym.ElementWiseSum(*layers, name="sum"), name="out")


@pytest.mark.parametrize("second, keep", [(1, ("fc0", "fc1")), (0, ("fc0",))])
def test_of_operators_with_several_outputs_those_that_fail_count(second, keep):
    """Two halves each, of which the second fails in the other branch; only one of them is read."""
    halves = [mx.sym.SliceChannel(mx.sym.var(f"data{i}"), num_outputs=2, name=f"split{i}") for i in (0, 1)]
    read = halves[0][0], halves[1][second]
    sym = mx.sym.Group([mx.sym.FullyConnected(x, num_hidden=3, no_bias=True, name=f"fc{i}") for i, x in enumerate(read)])
    args = {f"fc{i}_weight": mx.nd.full((3, 2), 1e-3) for i in (0, 1)}
    small, large = np.ones((4, 2)), np.full((4, 2), 1e5)
    batch = {"data0": np.hstack([large, small]), "data1": np.hstack([small, large])}
    found = diagnose.find_nonfinite((sym, args, {}), batch, "O1")
    assert found.keep == keep
    assert diagnose.find_nonfinite((sym, args, {}), batch, f"O1,{found.overrides}") is None


@pytest.mark.parametrize("factor, size", [(1e6, 1e-3), (1.0, 2e4)], ids=["backward", "forward"])
def test_layers_that_fail_alike_are_named_together(factor, size):
    names = ["fc0", "fc1", "fc2"]
    sym, batch = parallel(names, factor), {"data": mx.nd.full((2, 6), size)}
    policy = "O1,op:_mul_scalar=float32,op:add_n=float32"
    args = {name: mx.nd.ones(shape) for name, shape in zip(sym.list_arguments(), sym.infer_shape(data=(2, 6))[0])}
    batch.update({name: args.pop(name) * 0 for name in ("data", "out_label")}, **batch)
    verdict = diagnose.explain((sym, args, {}), batch, policy)
    assert verdict.kind == "activation out of range" and verdict.node.name in names
    assert sorted(set(verdict.node.keep) & set(names)) == names
    assert diagnose.explain((sym, args, {}), batch, f"{policy},{verdict.overrides}").kind == "no fault found"


@pytest.mark.parametrize(
    "given, batch, options, error, message",
    [
        (3, {}, {}, ConvertError, "net_or_model is a int; expected a Gluon net"),
        (squares, 3, {}, ConvertError, "batch is a int; expected an array, a tuple or list of arrays"),
        (model, 3, {}, ConvertError, "batch is a int; expected an array, .* a dict of arrays by input"),
        (model, {}, {"loss": LOSS}, ConvertError, "loss is for a Gluon net; a symbol or Module has its loss heads"),
        (model, {}, {}, ConvertError, "a batch lacks the input 'data'"),
        (squares, mx.nd.ones((2, 6)), {"loss_scale": 0}, LossScaleError, "loss_scale is 0; expected a positive"),
    ],
)
def test_bad_input_gets_one_clear_message(given, batch, options, error, message):
    with pytest.raises(error, match=message):
        diagnose.find_nonfinite(given() if callable(given) else given, batch, **options)


def test_all_of_it_is_plain_data():
    found = diagnose.find_nonfinite(squares(), mx.nd.ones((2, 6))).to_dict()
    assert found["output"]["infs"] == 8 and found["text"].startswith("forward: 'net_sq'") and found["rows"] == []


@pytest.mark.parametrize("function", [diagnose.explain, diagnose.find_nonfinite])
def test_numpy_arrays_are_taken_by_nets_of_numpy_semantics(function):
    mx.npx.set_np()
    try:
        net = gluon.nn.Dense(3, in_units=4, prefix="net_")
        net.initialize()
        bad = np.ones((3, 4), "float32")
        bad[1] = np.nan
        found = function(net, (bad, np.zeros(3)), "O1", loss=gluon.loss.SoftmaxCrossEntropyLoss())
        node = found.node if function is diagnose.explain else found
        assert (node.where, node.rows) == ("data", (1,))
    finally:
        mx.npx.reset_np()


def test_rows_of_which_many_are_bad_are_counted_in_the_sentence():
    bad = mx.nd.full((9, 6), np.nan)
    text = str(diagnose.explain(squares(1.0), bad))
    assert "input 'data' holds NaN in 54 of 54 elements, in rows 0, 1, 2, 3, 4 and 4 more. No precision" in text


def masked(F, x):
    """Return attention weights, of which a mask forbids all in the rows where the data begins with 0."""
    allowed = F.broadcast_like(F.slice_axis(x, axis=1, begin=0, end=1), x)
    mask = F.where(allowed > 0, F.zeros_like(x), F.ones_like(x) * -np.inf)
    return F.softmax(F.broadcast_add(x, mask), name="weights")


@pytest.mark.parametrize("forbidden", [True, False])
def test_a_row_that_a_mask_forbids_wholly_is_the_softmaxs_fault_and_not_the_masks(forbidden):
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.HybridLambda(masked), gluon.nn.Dense(3, in_units=3))
    net.initialize()
    batch = mx.nd.array([[1, 2, 3], [0, 2, 3]]) if forbidden else mx.nd.array([[1, 2, 3], [1, 2, 3]])
    found = diagnose.explain(net, (batch, mx.nd.zeros((2, 3))), "O1", loss=LOSS)
    assert found.kind == ("float32 model broken" if forbidden else "no fault found")
    if forbidden:
        assert (found.node.op, found.node.output.nans, found.node.inf_from) == (
            "softmax",
            3,
            "net_hybridlambda0__mulscalar0",
        )
        assert "gives NaN in 3 of 6 elements" in str(
            found
        ) and "inf, which comes from 'net_hybridlambda0__mulscalar0'" in str(found)
        assert diagnose.NonFinite.from_json(found.node.to_json()) == found.node


def test_an_infinite_constant_that_reaches_the_output_as_inf_is_named():
    net = gluon.nn.HybridLambda(lambda F, x: x * np.inf + 1, prefix="net_")
    assert diagnose.find_nonfinite(net, mx.nd.ones((2, 3)), "O1").name == "net__mulscalar0"


@pytest.mark.parametrize("value, kind, name", [(0, "float32 model broken", "net_weights"), (1, "parameters", "net_m")])
def test_a_constant_of_0_and_inf_is_a_mask_and_no_bad_parameter(value, kind, name):
    class Masked(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="net_")
            with self.name_scope():
                self.dense = gluon.nn.Dense(2, in_units=2)
                self.m = self.params.get_constant("m", mx.nd.array([[value, -np.inf], [-np.inf, -np.inf]]))

        def hybrid_forward(self, F, x, m):
            return self.dense(F.softmax(F.broadcast_add(x, m), name="weights"))

    net = Masked()
    net.initialize()
    found = diagnose.explain(net, (mx.nd.ones((2, 2)), mx.nd.zeros((2, 2))), "O1", loss=LOSS)
    assert (found.kind, found.node.name) == (kind, name)


def test_a_mask_that_reaches_the_output_as_inf_is_a_bad_parameter():
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(2, in_units=2))
    net.initialize()
    net[0].bias.set_data(mx.nd.array([0, -np.inf]))
    net[0].bias.grad_req = "null"
    found = diagnose.explain(net, (mx.nd.ones((2, 2)), mx.nd.zeros((2, 2))), "O1", loss=LOSS)
    assert (found.kind, found.node.name) == ("parameters", "net_dense0_bias")


class Detector(gluon.HybridBlock):
    """Computes its losses by itself if it is given targets, as GluonCV's YOLO does, and returns lists of them."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.body = gluon.nn.Dense(4, in_units=6)
        self.initialize(mx.init.One())

    def hybrid_forward(self, F, x, first, second):
        out = self.body(x)
        return [F.mean(F.square(out - first), axis=1), [F.mean(F.abs(out - second), axis=1)]]


def detected(x=None, first=None):
    zeros = mx.nd.zeros((4, 4))
    return data() if x is None else x, zeros if first is None else first, zeros


NAN_ROW = data()
NAN_ROW[1] = float("nan")


@pytest.mark.parametrize(
    "options, last",
    [
        ({"loss": "outputs"}, ()),
        ({"loss": lambda losses, label: losses}, (None,)),
        ({"loss": lambda losses, label: losses[0] + losses[1][0]}, (None,)),
    ],
    ids=["outputs", "lists", "sum"],
)
def test_a_net_that_computes_its_losses_is_explained_without_a_label(options, last):
    def explain(*batch, scale=1.0):
        return diagnose.explain(Detector(), (*detected(*batch), *last), "O1", loss_scale=scale, **options)

    assert explain().kind == "no fault found"
    verdict = explain(NAN_ROW)
    assert (verdict.kind, verdict.node.rows) == ("data", (1,))
    assert explain(None, mx.nd.full((4, 4), float("nan"))).kind == "data"
    verdict = explain(scale=2.0**30)
    assert verdict.kind == "scale too high" and verdict.node.where == "backward"
    found = diagnose.find_nonfinite(Detector(), (*detected(), *last), "O1", loss_scale=2.0**30, **options)
    assert found.where == "backward"


def test_a_loss_that_misses_its_label_says_how_to_give_none():
    with pytest.raises(ConvertError, match="batch has no label, .* or None for a loss that reads none"):
        diagnose.explain(Detector(), data(), loss=lambda out, label: out)
