"""LossScaleOptimizer: Keras's behaviours, and calls out of turn."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.dtypes import to_numpy
from mxmp.errors import LossScaleError, StateError, TrainerError
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from mxmp.train import states as state_file
from tests.freeze import freeze
from tests.gluon.trainer_tools import TWO, param, value
from tests.train.state_files import freeze_saved


def sgd(lr=1.0, **kwargs):
    return mx.optimizer.SGD(learning_rate=lr, **kwargs)


def weight(values, dtype="float32", ctx=None):
    wide = mx.nd.array(values, ctx=ctx, dtype="float32")
    low = wide.astype(to_numpy(dtype)) if dtype == "float16" else wide
    if dtype == "bfloat16":
        low = mx.nd.amp_cast(wide, dtype=to_numpy(dtype))
    low.attach_grad()
    return low


def backward(optimizer, weights, x=1.0):
    """Backward of sum(w * x), scaled; return the gradients as they are."""
    with autograd.record():
        loss = sum((mx.nd.Cast(w, dtype="float32") * x).sum() for w in weights)
        scaled = optimizer.get_scaled_loss(loss)
    scaled.backward()
    return [w.grad for w in weights]


def step(optimizer, weights, x=1.0, change=lambda grads: grads):
    grads = optimizer.get_unscaled_gradients(backward(optimizer, weights, x))
    return optimizer.apply_gradients(zip(change(grads), weights))


def spoil(optimizer, weights, bad=np.inf):
    """Take a step in which one gradient is not finite, though the loss is."""
    grads = backward(optimizer, weights)
    grads[0][:1] = bad
    return optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), weights))


def test_defaults_are_those_of_keras():
    optimizer = LossScaleOptimizer(sgd())
    assert optimizer.dynamic is True
    assert optimizer.loss_scale == optimizer.initial_scale == 2.0**15
    assert optimizer.dynamic_growth_steps == 2000
    assert optimizer.iterations == optimizer.skipped_steps == 0


def test_the_scale_grows_beyond_2_to_24_as_in_keras():
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), initial_scale=2.0**24, dynamic_growth_steps=1)
    for exponent in (25, 26):
        step(optimizer, [w], 2.0**-10)
        assert optimizer.loss_scale == 2.0**exponent


def test_gradients_that_never_recover_raise():
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), initial_scale=1)
    for _ in range(49):
        spoil(optimizer, [w])
    assert optimizer.loss_scale == 1.0
    with pytest.raises(
        LossScaleError, match="non-finite for 50 steps in a row .* first bad gradient: 'weight 0' at step 50"
    ):
        spoil(optimizer, [w])
    assert value(w).tolist() == [1.0]


def test_unscaling_keeps_the_given_gradients_and_nones():
    optimizer = LossScaleOptimizer(sgd(), initial_scale=4)
    w = weight([1.0])
    (grad,) = backward(optimizer, [w], 3.0)
    found = optimizer.get_unscaled_gradients([None, grad, [grad, grad]])
    assert found[0] is None and [g.asscalar() for g in (found[1], *found[2])] == [3.0] * 3
    assert grad.asscalar() == 12.0


def test_weights_without_a_gradient_are_left_alone():
    first, second = weight([1.0]), weight([1.0])
    optimizer = LossScaleOptimizer(sgd())
    grads = optimizer.get_unscaled_gradients(backward(optimizer, [first]))
    assert optimizer.apply_gradients(zip([*grads, None], [first, second]))
    assert (value(first), value(second)) == ([0.0], [1.0])


def test_sparse_gradients_are_unscaled_checked_and_applied():
    table = mx.nd.array(np.ones((4, 2)))
    table.attach_grad(stype="row_sparse")
    optimizer = LossScaleOptimizer(sgd(lazy_update=False), initial_scale=4)
    for bad in (False, True):
        with autograd.record():
            rows = mx.nd.Embedding(mx.nd.array([1, 1]), table, input_dim=4, output_dim=2, sparse_grad=True)
            scaled = optimizer.get_scaled_loss(rows.sum())
        scaled.backward()
        grad = mx.nd.sparse.row_sparse_array(([[np.inf, 0.0]], [2]), shape=(4, 2)) if bad else table.grad
        (grad,) = optimizer.get_unscaled_gradients([grad])
        assert grad.stype == "row_sparse"
        assert optimizer.apply_gradients([(grad, table)]) is not bad
        assert table.asnumpy().tolist() == [[1, 1], [-1, -1], [1, 1], [1, 1]]


@pytest.mark.behaviour("clipping in Keras")
@pytest.mark.parametrize("inner", [sgd(clip_gradient=1.0), sgd()], ids=["clipped inside", "clipped by the user"])
def test_an_inf_that_is_clipped_still_skips(inner):
    w = weight([1.0, 2.0])
    optimizer = LossScaleOptimizer(inner)
    grads = backward(optimizer, [w])
    grads[0][0] = np.inf
    (grad,) = optimizer.get_unscaled_gradients(grads)
    assert optimizer.apply_gradients([(mx.nd.clip(grad, -1, 1), w)]) is False
    assert value(w).tolist() == [1.0, 2.0]


def test_numpy_arrays_are_taken_too():
    with mx.util.np_shape(True), mx.util.np_array(True):
        w = mx.np.array([1.0, 2.0])
        w.attach_grad()
        optimizer = LossScaleOptimizer(sgd())
        with autograd.record():
            scaled = optimizer.get_scaled_loss([(w * 2).sum(), w * 0])
        assert [(type(each), each.shape) for each in scaled] == [(mx.np.ndarray, ()), (mx.np.ndarray, (2,))]
        autograd.backward(scaled)
        grads = optimizer.get_unscaled_gradients([w.grad])
        assert isinstance(grads[0], mx.np.ndarray)
        assert optimizer.apply_gradients(zip(grads, [w]))
        assert w.asnumpy().tolist() == [-1.0, 0.0]


def on_two(optimizer, p, values, bad=None):
    losses = []
    with autograd.record():
        for ctx, x in zip(TWO, values):
            losses.append((p.data(ctx) * x).sum())
        scaled = optimizer.get_scaled_loss(losses)
    autograd.backward(scaled)
    if bad is not None:
        p.list_grad()[bad][:] = np.nan
    grads = optimizer.get_unscaled_gradients([p.list_grad()])
    return optimizer.apply_gradients(zip(grads, [p]))


def test_multipliers_of_parameters_count():
    frozen, free = param([1.0], name="a"), param([1.0], name="b")
    frozen.lr_mult = 0.0
    optimizer = LossScaleOptimizer(sgd())
    with autograd.record():
        scaled = optimizer.get_scaled_loss((frozen.data() + free.data()).sum())
    scaled.backward()
    params = [frozen, free]
    assert optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients([p.grad() for p in params]), params))
    assert (frozen.data().asscalar(), free.data().asscalar()) == (1.0, 0.0)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_converted_net_trains_as_with_a_trainer(policy):
    def make():
        mx.random.seed(3)
        net = gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(gluon.nn.Dense(8, in_units=4, activation="relu"), gluon.nn.Dense(1, in_units=8))
        net.initialize(mx.init.Xavier())
        return mxmp.gluon.convert(net, policy)

    rng = np.random.RandomState(1)
    x, y = mx.nd.array(rng.normal(size=(16, 4))), mx.nd.array(rng.normal(size=(16, 1)))
    loss_fn = gluon.loss.L2Loss()
    ours, theirs = make(), make()
    optimizer = LossScaleOptimizer(mx.optimizer.Adam(learning_rate=0.1, rescale_grad=1 / 16), initial_scale=2.0**10)
    trainer = mxmp.gluon.Trainer(theirs.collect_params(), "adam", {"learning_rate": 0.1}, loss_scale=2.0**10)
    params = list(ours.collect_params().values())
    for _ in range(5):
        with autograd.record():
            scaled = optimizer.get_scaled_loss(loss_fn(ours(x), y))
        scaled.backward()
        assert optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients([p.grad() for p in params]), params))
        with autograd.record(), trainer.scale_loss(loss_fn(theirs(x), y)) as scaled:
            scaled.backward()
        assert trainer.step(16)
    for a, b in zip(params, theirs.collect_params().values()):
        np.testing.assert_array_equal(a.data().asnumpy(), b.data().asnumpy())


def test_masters_of_all_contexts_are_those_of_the_first():
    """An update too small for float16 is in the float32 value of every context."""
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One(), ctx=TWO)
    mxmp.gluon.convert(net, "O2")
    optimizer = LossScaleOptimizer(sgd(lr=2.0**-14), initial_scale=8)
    assert on_two(optimizer, net.weight, (1.0, 1.0))
    assert net.weight.data(TWO[0]).asnumpy().tolist() == [[1.0, 1.0]]
    mxmp.gluon.restore(net)
    assert [w.asnumpy().tolist() for w in net.weight.list_data()] == [[[1 - 2.0**-13] * 2]] * 2


@pytest.mark.behaviour("forgotten calls")
def test_forgetting_to_scale_is_named():
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd())
    with pytest.raises(TrainerError, match="get_unscaled_gradients: no loss was scaled .* call get_scaled_loss"):
        optimizer.get_unscaled_gradients([w.grad])
    with pytest.raises(TrainerError, match="apply_gradients: get_scaled_loss was not called in this step"):
        optimizer.apply_gradients([(w.grad, w)])


@pytest.mark.behaviour("forgotten calls")
def test_forgetting_to_unscale_is_named():
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd())
    grads = backward(optimizer, [w])
    with pytest.raises(TrainerError, match="apply_gradients: get_unscaled_gradients was not called in this step"):
        optimizer.apply_gradients(zip(grads, [w]))
    assert value(w) == [1.0]
    assert optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), [w]))  # and it goes on


@pytest.mark.parametrize("initial_scale", [1, 2.0**15])
def test_gradients_that_are_scaled_still_are_named(initial_scale):
    """At a scale of 1 too: what is wrong must not show at a later step alone."""
    w = weight([1.0, 2.0])
    optimizer = LossScaleOptimizer(sgd(), initial_scale=initial_scale)
    grads = backward(optimizer, [w])
    unscaled = optimizer.get_unscaled_gradients(grads)
    with pytest.raises(TrainerError, match="the gradient of weight 0 is an array that backward wrote"):
        optimizer.apply_gradients(zip(grads, [w]))
    assert value(w).tolist() == [1.0, 2.0]
    assert optimizer.apply_gradients(zip(unscaled, [w]))  # and it goes on
    assert value(w).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("ctx", [TWO[:1], TWO], ids=["one context", "two"])
def test_gradients_of_parameters_that_were_not_unscaled_are_named(ctx):
    first, second = param([1.0], ctx=ctx, name="a"), param([1.0], ctx=ctx, name="b")
    optimizer = LossScaleOptimizer(sgd())
    with autograd.record():
        scaled = optimizer.get_scaled_loss([first.data(c) + second.data(c) for c in ctx])
    autograd.backward(scaled)
    (grad,) = optimizer.get_unscaled_gradients([first.list_grad()])
    with pytest.raises(TrainerError, match="the gradient of parameter 'b' is an array that backward wrote"):
        optimizer.apply_gradients([(grad, first), (second.list_grad(), second)])
    assert [p.data(c).asscalar() for p in (first, second) for c in ctx] == [1.0] * 2 * len(ctx)


def test_weights_may_have_no_gradient_of_their_own():
    """What ``autograd.grad`` gives belongs to no weight."""
    w, plain = weight([1.0]), mx.nd.ones(1)
    optimizer = LossScaleOptimizer(sgd())
    with autograd.record():
        scaled = optimizer.get_scaled_loss(w * 3)
    (grad,) = optimizer.get_unscaled_gradients(autograd.grad(scaled, [w]))
    assert optimizer.apply_gradients([(grad, plain)])
    assert value(plain).tolist() == [-2.0]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_scale_that_is_set_is_of_the_kind_that_it_was(dynamic):
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), dynamic, initial_scale=8)
    step(optimizer, [w])
    optimizer.loss_scale = 64
    assert optimizer.loss_scale == 64.0 and optimizer.dynamic is dynamic
    assert backward(optimizer, [w])[0].asscalar() == 64.0
    optimizer.discard_grads()
    with pytest.raises(LossScaleError, match="scale=-1.0 is no loss scale"):
        optimizer.loss_scale = -1
    assert optimizer.loss_scale == 64.0


@pytest.mark.behaviour("wrong optimizer arguments")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dynamic": 1}, "dynamic is 1; expected True or False"),
        ({"dynamic": "dynamic"}, "dynamic is 'dynamic'"),
        ({"dynamic": False}, "initial_scale is missing: with dynamic=False"),
        (
            {"dynamic": False, "initial_scale": 1, "dynamic_growth_steps": 2},
            "dynamic_growth_steps=2 with dynamic=False",
        ),
        ({"initial_scale": -1}, "initial_scale=-1, .*no loss scale"),
        ({"initial_scale": np.nan}, "initial_scale=nan"),
        ({"initial_scale": "8"}, "initial_scale='8', .*expected a number"),
        ({"dynamic": False, "initial_scale": 0}, "initial_scale=0, .*no loss scale"),
        ({"dynamic_growth_steps": 0}, "dynamic_growth_steps=0: .*at least 1"),
        ({"dynamic_growth_steps": 1.5}, "dynamic_growth_steps=1.5: .*whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(LossScaleError, match=message):
        LossScaleOptimizer(sgd(), **arguments)


@pytest.mark.behaviour("wrong optimizer arguments")
def test_what_is_no_optimizer_is_named():
    with pytest.raises(TrainerError, match="inner is 'sgd'; expected an mx.optimizer.Optimizer"):
        LossScaleOptimizer("sgd")


@pytest.mark.behaviour("wrapping twice")
def test_wrapping_twice_is_refused():
    optimizer = LossScaleOptimizer(sgd())
    with pytest.raises(TrainerError, match="inner is a LossScaleOptimizer, which has a loss scale already"):
        LossScaleOptimizer(optimizer)
    with pytest.raises(TrainerError, match="wrapped in MultiPrecision already"):
        MultiPrecision(optimizer)


def test_a_trainers_optimizer_is_refused():
    trainer = gluon.Trainer([param([1.0])], sgd())
    with pytest.raises(TrainerError, match="inner is the optimizer of a trainer"):
        LossScaleOptimizer(trainer._optimizer)


def test_multi_precision_is_taken_as_it_is():
    w = weight([1.0], "float16")
    optimizer = LossScaleOptimizer(MultiPrecision(sgd(lr=2.0**-14), masters=False))
    assert isinstance(optimizer.inner_optimizer, mx.optimizer.SGD)
    for _ in range(10):
        step(optimizer, [w])
    assert value(w) == [1.0]  # without a master each update is lost


def ready(weights):
    """Return an optimizer that waits for apply_gradients on some weights."""
    optimizer = LossScaleOptimizer(sgd())
    optimizer.get_scaled_loss(mx.nd.ones(1))
    optimizer.get_unscaled_gradients([mx.nd.ones(1)])
    return optimizer


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (lambda w: [], "no weight has a gradient"),
        (lambda w: [(None, w)], "no weight has a gradient"),
        (lambda w: [w], r"item 0 is a NDArray; expected pairs \(gradient, weight\)"),
        (lambda w: [(w.grad, 1.0)], "weight 0 is a float; expected an NDArray or a gluon Parameter"),
        (lambda w: [(1.0, w)], "the gradient of weight 0 is a float, no NDArray"),
        (
            lambda w: [(mx.nd.ones(3), w)],
            r"the gradient of weight 0 is float32 \(3,\) on cpu\(0\); expected float32 \(2,\)",
        ),
        (lambda w: [(mx.nd.ones(2, dtype="float64"), w)], "is float64"),
        (lambda w: [(mx.nd.ones(2, ctx=mx.cpu(1)), w)], r"on cpu\(1\); expected float32 \(2,\) on cpu\(0\)"),
        (lambda w: [([w.grad, w.grad], w)], "weight 0 has 2 gradients; expected 1"),
        (lambda w: [(w.grad, w), (w.grad, w)], "a weight comes twice"),
        (lambda w: [(w.grad, gluon.Parameter("p", shape=(2,)))], "parameter 'p' is not initialized yet"),
        (
            lambda w: [(w.grad, w), (w.grad, weight([1], ctx=mx.cpu(1)))],
            r"weight 1 is on \[cpu\(1\)\], the weights before",
        ),
    ],
)
def test_wrong_pairs_are_named_and_change_nothing(pairs, message):
    w = weight([1.0, 2.0])
    optimizer = ready([w])
    with pytest.raises(TrainerError, match=message):
        optimizer.apply_gradients(pairs(w))
    assert optimizer.inner_optimizer.param_dict == {}
    assert optimizer.apply_gradients([(mx.nd.ones(2), w)])
    assert value(w).tolist() == [0.0, 1.0]
    assert len(freeze_saved(optimizer.save_states)[0]["params"]) == 1


def test_weights_must_be_the_same_in_every_step():
    """Or a slice, which is another array each time, would lose its momentum silently."""
    w = weight([1.0, 2.0])
    optimizer = LossScaleOptimizer(sgd(momentum=0.9))
    step(optimizer, [w])
    grads = optimizer.get_unscaled_gradients(backward(optimizer, [w]))
    with pytest.raises(TrainerError, match="weight 0 is none of the 1 weights of this optimizer"):
        optimizer.apply_gradients(zip(grads, [w.reshape(2)]))
    with pytest.raises(TrainerError, match="a weight comes twice"):
        optimizer.apply_gradients([(grads[0], w), (grads[0], w)])
    assert optimizer.apply_gradients(zip(grads, [w]))


def test_build_adds_weights_in_order():
    first, second = weight([1.0]), weight([[2.0]])
    optimizer = LossScaleOptimizer(sgd())
    optimizer.build([first])
    optimizer.build([second, first])
    assert step(optimizer, [second, first])
    assert (value(first), value(second)) == ([0.0], [[1.0]])
    assert [param["shape"] for param in freeze_saved(optimizer.save_states)[0]["params"]] == [[1], [1, 1]]


@pytest.mark.parametrize(
    ("loss", "message"), [(1.0, "loss is a float; expected an NDArray"), (mx.nd.ones(1, dtype="int32"), "dtype int32")]
)
def test_what_is_no_loss_is_named(loss, message):
    optimizer = LossScaleOptimizer(sgd())
    with pytest.raises(TrainerError, match=message):
        optimizer.get_scaled_loss(loss)


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        ([1.0], "item 0 holds a float; expected floating point NDArrays"),
        ([mx.nd.ones(1), [mx.nd.ones(1), 1]], "item 1 holds a int;"),
        ([None, mx.nd.ones(1, dtype="int32")], "item 1 holds an array of int32;"),
        (None, "expected a list of NDArrays, found a NoneType"),
        (5, "expected a list of NDArrays, found a int"),
        ([], "there is no gradient"),
        ([None], "there is no"),
    ],
)
def test_what_is_no_gradient_is_named(grads, message):
    optimizer = LossScaleOptimizer(sgd())
    optimizer.get_scaled_loss(mx.nd.ones(1))
    with pytest.raises(TrainerError, match=f"get_unscaled_gradients: {message}"):
        optimizer.get_unscaled_gradients(grads)
    optimizer.get_unscaled_gradients([mx.nd.ones(1)])


def test_other_attributes_are_the_inner_optimizers():
    inner = mx.optimizer.SGD(learning_rate=0.5, momentum=0.9)
    optimizer = LossScaleOptimizer(inner)
    assert (optimizer.learning_rate, optimizer.momentum) == (0.5, 0.9)
    optimizer.learning_rate = 0.25
    optimizer.wd = 0.1
    assert (inner.lr, inner.wd) == (0.25, 0.1)
    optimizer.set_learning_rate(0.125)
    assert inner.lr == 0.125
    with pytest.raises(AttributeError):
        optimizer.no_such_thing()


@pytest.mark.parametrize(
    "use",
    [
        lambda o: gluon.Trainer([param([1.0])], o),
        mx.optimizer.get_updater,
        MultiPrecision,
        lambda o: o.create_state(0, mx.nd.ones(1)),
        lambda o: o.create_state_multi_precision(0, mx.nd.ones(1)),
        lambda o: o.update(0, mx.nd.ones(1), mx.nd.ones(1), None),
        lambda o: o.update_multi_precision(0, mx.nd.ones(1), mx.nd.ones(1), None),
        lambda o: mx.kv.create("local").set_optimizer(o),
        pickle.dumps,
        copy.deepcopy,
    ],
    ids=["trainer", "updater", "wrapped", "state", "state mp", "update", "update mp", "kvstore", "pickle", "deepcopy"],
)
def test_use_weight_by_weight_is_refused(use):
    inner = sgd()
    optimizer = LossScaleOptimizer(inner)
    with pytest.raises(TrainerError, match="updates all weights at once|wrapped in MultiPrecision already"):
        use(optimizer)
    assert inner.param_dict == {} and inner.idx2name == {}
    w = weight([1.0])
    assert step(optimizer, [w])


def test_a_plain_module_is_refused():
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"))
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    with pytest.raises(TrainerError, match="updates all weights at once"):
        module.init_optimizer(optimizer=LossScaleOptimizer(sgd(rescale_grad=0.25)))


def test_hand_over_gives_what_a_trainer_needs():
    inner = sgd()
    optimizer = LossScaleOptimizer(inner, initial_scale=64, dynamic_growth_steps=7)
    multi, scale = optimizer.hand_over("Trainer")
    assert multi.inner is inner and type(multi) is MultiPrecision
    assert (scale.value, scale.growth_interval) == (64.0, 7)
    assert optimizer.learning_rate == 1.0
    for call in (
        lambda: optimizer.get_scaled_loss(mx.nd.ones(1)),
        lambda: optimizer.hand_over("Module"),
        lambda: optimizer.loss_scale,
    ):
        with pytest.raises(TrainerError, match="this optimizer belongs to a Trainer"):
            call()
    w = param([1.0])
    trainer = mxmp.gluon.Trainer([w], multi, loss_scale=scale)
    with autograd.record(), trainer.scale_loss(w.data().sum()) as scaled:
        scaled.backward()
    assert w.data().grad.asscalar() == 64.0
    assert trainer.step(1) and w.data().asscalar() == 0.0


def test_looking_at_the_parts_hands_nothing_over():
    optimizer, w = LossScaleOptimizer(sgd(), initial_scale=64), weight([1.0])
    multi, scale = optimizer.peek_optimizer_and_scale()
    assert multi.inner is optimizer.inner_optimizer and scale.value == 64.0
    assert step(optimizer, [w])
    again = LossScaleOptimizer(sgd())
    assert all(a is b for a, b in zip(again.peek_optimizer_and_scale(), again.hand_over("Trainer")))


@pytest.mark.parametrize("call", ["peek_optimizer_and_scale", "hand_over"])
def test_a_used_optimizer_is_not_handed_over(call):
    optimizer, w = LossScaleOptimizer(sgd()), weight([1.0])
    grads = backward(optimizer, [w])
    with pytest.raises(TrainerError, match="giving it to a .* came between get_scaled_loss and apply_gradients"):
        getattr(optimizer, call)("Trainer")
    optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), [w]))
    with pytest.raises(TrainerError, match="has weights of its own; make another one for the Trainer"):
        getattr(optimizer, call)("Trainer")


def make_weights():
    return [weight([1.0, 2.0]), weight([3.0], "float16")]


def adam():
    return mx.optimizer.Adam(learning_rate=0.1, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1))


def test_states_of_parameters_are_saved_by_name(tmp_path):
    fname = str(tmp_path / "optimizer.states")
    p = param([1.0, 1.0], ctx=TWO)
    optimizer = LossScaleOptimizer(sgd(momentum=0.9))
    on_two(optimizer, p, (2.0, 3.0))
    optimizer.save_states(fname)
    again, other = param(p.data(TWO[0]).asnumpy(), ctx=TWO), LossScaleOptimizer(sgd(momentum=0.9))
    other.build([again])
    other.load_states(fname)
    on_two(optimizer, p, (2.0, 3.0))
    on_two(other, again, (2.0, 3.0))
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(p.list_data(), again.list_data()))
    assert state_file.StateFile(fname).header["params"][0]["name"] == "w"


@pytest.mark.parametrize("call", ["save_states", "load_states"])
def test_states_need_known_weights(call, tmp_path):
    with pytest.raises(TrainerError, match=f"{call}: the weights are not known yet; call build"):
        getattr(LossScaleOptimizer(sgd()), call)(str(tmp_path / "x"))


def test_states_that_do_not_fit_change_nothing(tmp_path):
    fname = str(tmp_path / "optimizer.states")
    weights, optimizer = make_weights(), LossScaleOptimizer(adam(), initial_scale=4)
    step(optimizer, weights)
    optimizer.save_states(fname)
    other, others = LossScaleOptimizer(adam()), [weight([1.0, 2.0, 3.0]), weight([3.0], "float16")]
    step(other, others)
    before = freeze([freeze_saved(other.save_states), others])
    with pytest.raises(StateError, match="the shape of parameter 'weight 0'"):
        other.load_states(fname)
    assert freeze([freeze_saved(other.save_states), others]) == before and other.loss_scale == 2.0**15
