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
from mxmp.errors import LossScaleError, TrainerError
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests.gluon.trainer_tools import TWO, param, value
from tests.train.state_files import freeze_saved, read_states


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


def step(optimizer, weights, x=1.0, bad=None):
    """Take a step, in which a gradient may be other than finite, though the loss is."""
    grads = backward(optimizer, weights, x)
    if bad is not None:
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
        step(optimizer, [w], bad=np.inf)
    with pytest.raises(LossScaleError, match="non-finite for 50 steps .* first bad gradient: 'weight 0' at step 50"):
        step(optimizer, [w], bad=np.inf)
    assert value(w).tolist() == [1.0]


def test_unscaling_keeps_the_given_gradients_and_nones():
    first, second = weight([1.0]), weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), initial_scale=4)
    (grad,) = backward(optimizer, [first], 3.0)
    grads = optimizer.get_unscaled_gradients([None, grad, [grad, grad]])
    assert grads[0] is None and [g.asscalar() for g in (grads[1], *grads[2])] == [3.0] * 3
    assert grad.asscalar() == 12.0
    assert optimizer.apply_gradients([(grads[1], first), (None, second)])
    assert (value(first), value(second)) == ([-2.0], [1.0])


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


def test_masters_of_all_contexts_are_those_of_the_first():
    """An update too small for float16 is in the float32 value of every context."""
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One(), ctx=TWO)
    mxmp.gluon.convert(net, "O2")
    optimizer = LossScaleOptimizer(sgd(lr=2.0**-14), initial_scale=8)
    with autograd.record():
        scaled = optimizer.get_scaled_loss([net.weight.data(ctx).sum() for ctx in TWO])
    autograd.backward(scaled)
    assert optimizer.apply_gradients(
        zip(optimizer.get_unscaled_gradients([net.weight.list_grad()]), [net.weight])
    )
    assert net.weight.data(TWO[0]).asnumpy().tolist() == [[1.0, 1.0]]
    mxmp.gluon.restore(net)
    assert [w.asnumpy().tolist() for w in net.weight.list_data()] == [[[1 - 2.0**-13] * 2]] * 2


@pytest.mark.behaviour("forgotten calls")
def test_forgotten_calls_are_named():
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd())
    with pytest.raises(TrainerError, match="get_unscaled_gradients: no loss was scaled .* call get_scaled_loss"):
        optimizer.get_unscaled_gradients([w.grad])
    with pytest.raises(TrainerError, match="apply_gradients: get_scaled_loss was not called in this step"):
        optimizer.apply_gradients([(w.grad, w)])
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
    """One that moves counts its steps from there."""
    w = weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), dynamic, 8, 2 if dynamic else None)
    step(optimizer, [w])
    optimizer.loss_scale = 32
    step(optimizer, [w])
    assert optimizer.loss_scale == 32
    step(optimizer, [w])
    assert optimizer.loss_scale == (64 if dynamic else 32)
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


@pytest.mark.behaviour("wrong optimizer arguments", "wrapping twice")
@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda: "sgd", "inner is 'sgd'; expected an mx.optimizer.Optimizer"),
        (lambda: LossScaleOptimizer(sgd()), "inner is a LossScaleOptimizer, which has a loss scale already"),
        (lambda: gluon.Trainer([param([1.0])], sgd())._optimizer, "inner is the optimizer of a trainer"),
    ],
)
def test_what_is_no_optimizer_is_named(inner, message):
    with pytest.raises(TrainerError, match=message):
        LossScaleOptimizer(inner())


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
        (lambda w: [(1.0, w)], r"the gradient of weight 0 is a float; expected float32 \(2,\)"),
        (
            lambda w: [(mx.nd.ones(3), w)],
            r"the gradient of weight 0 is float32 \(3,\) on cpu\(0\); expected float32 \(2,\)",
        ),
        (lambda w: [(mx.nd.ones(2, dtype="float64"), w)], "is float64"),
        (lambda w: [(mx.nd.ones(2, ctx=mx.cpu(1)), w)], r"on cpu\(1\); expected float32 \(2,\) on cpu\(0\)"),
        (lambda w: [([w.grad, w.grad], w)], r"is float32 \(2,\) on cpu\(0\), float32 .*; expected float32 \(2,\) on cpu\(0\)\."),
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
        ([None, mx.nd.ones(1, dtype="int32")], r"item 1 holds int32 \(1,\) on cpu\(0\); expected floating"),
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


def in_a_module(optimizer):
    fc = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(fc, name="softmax"))
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    optimizer.rescale_grad = 0.25
    module.init_optimizer(optimizer=optimizer)


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
        in_a_module,
    ],
    ids=["trainer", "updater", "wrapped", "state", "state mp", "update", "update mp", "kvstore", "pickle", "deepcopy", "module"],
)
def test_use_weight_by_weight_is_refused(use):
    inner = sgd()
    optimizer = LossScaleOptimizer(inner)
    with pytest.raises(TrainerError, match="updates all weights at once|wrapped in MultiPrecision already"):
        use(optimizer)
    assert inner.param_dict == {} and inner.idx2name == {}
    assert step(optimizer, [weight([1.0])])


def test_hand_over_gives_what_a_trainer_needs():
    inner = sgd()
    optimizer = LossScaleOptimizer(inner, initial_scale=64, dynamic_growth_steps=7)
    multi, scale = optimizer.peek_optimizer_and_scale()
    assert all(a is b for a, b in zip((multi, scale), optimizer.hand_over("Trainer")))
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


@pytest.mark.parametrize("call", ["peek_optimizer_and_scale", "hand_over"])
def test_a_used_optimizer_is_not_handed_over(call):
    optimizer, w = LossScaleOptimizer(sgd()), weight([1.0])
    grads = backward(optimizer, [w])
    with pytest.raises(TrainerError, match="giving it to a .* came between get_scaled_loss and apply_gradients"):
        getattr(optimizer, call)("Trainer")
    optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), [w]))
    with pytest.raises(TrainerError, match="has weights of its own; make another one for the Trainer"):
        getattr(optimizer, call)("Trainer")


def test_states_are_saved_with_names_and_the_scale(tmp_path, caplog):
    fname, w = str(tmp_path / "optimizer.states"), param([1.0, 1.0])
    optimizer, other = LossScaleOptimizer(sgd(), initial_scale=64), LossScaleOptimizer(sgd())
    for each in (optimizer, other):
        each.build([w])
    optimizer.save_states(fname)
    other.load_states(fname)
    assert other.loss_scale == 64.0 and other.dynamic and caplog.text == ""
    assert read_states(fname)[0]["params"] == [{"name": "w", "shape": [2]}]


@pytest.mark.parametrize("call", ["save_states", "load_states"])
def test_states_need_known_weights(call, tmp_path):
    with pytest.raises(TrainerError, match=f"{call}: the weights are not known yet; call build"):
        getattr(LossScaleOptimizer(sgd()), call)(str(tmp_path / "x"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_parameter_that_was_written_to_past_its_master_is_not_saved(dtype, tmp_path):
    """A file of states would hold another value than one of weights."""
    first, second = param([1.0, 2.0], "float32"), param([3.0], dtype)
    optimizer, grads = LossScaleOptimizer(sgd()), [mx.nd.ones(2), mx.nd.ones(1)]
    optimizer.get_scaled_loss(mx.nd.ones(1))
    assert optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), [first, second]))
    optimizer.save_states(str(tmp_path / "before"))
    second.data()[:] = 5
    with pytest.raises(TrainerError, match="parameter 'w' is stored in low precision and was written to"):
        optimizer.save_states(str(tmp_path / "after"))
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
    optimizer.load_states(str(tmp_path / "before"))  # after which the weights decide, as those of a file
    optimizer.save_states(str(tmp_path / "after"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_array_may_be_written_to_at_any_time(dtype, tmp_path):
    """Here after each step, beyond the ten in which weights are compared, and before a save."""
    w, other = weight([0.0, 0.0], dtype), weight([0.0, 0.0], dtype)
    optimizer, resumed = LossScaleOptimizer(sgd(2.0**-10)), LossScaleOptimizer(sgd())
    for number in range(14):
        assert step(optimizer, [w], -1.0)
        w[:1] = 0.5 + number % 2
    optimizer.save_states(str(tmp_path / "s"))
    master = optimizer._inner_updater.states[0].master
    assert master.asnumpy().tolist() == [1.5, 14 * 2.0**-10]
    w.copyto(other)
    resumed.build([other])
    resumed.load_states(str(tmp_path / "s"))
    assert step(optimizer, [w]) and step(resumed, [other])
    assert resumed._inner_updater.states[0].master.asnumpy().tolist() == master.asnumpy().tolist()


def test_parameters_are_compared_again_after_a_load(tmp_path):
    w, optimizer = param([1.0], "float16"), LossScaleOptimizer(sgd(0.0))
    for number in range(12):
        optimizer.get_scaled_loss(mx.nd.ones(1))
        optimizer.apply_gradients([(optimizer.get_unscaled_gradients([mx.nd.ones(1)])[0], w)])
        if number == 10:
            optimizer.save_states(str(tmp_path / "s"))
            optimizer.load_states(str(tmp_path / "s"))
    w.data()[:] = 5
    optimizer.get_scaled_loss(mx.nd.ones(1))
    with pytest.raises(TrainerError, match="parameter 'w' is stored in low precision"):
        optimizer.apply_gradients([(optimizer.get_unscaled_gradients([mx.nd.ones(1)])[0], w)])
