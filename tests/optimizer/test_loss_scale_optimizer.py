"""LossScaleOptimizer: Keras's behaviours, and calls out of turn."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.errors import LossScaleError, TrainerError
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests.gluon.nets import initialized
from tests.gluon.trainer_tools import TWO, param, value
from tests.train.state_files import read_states
from tests.values import DTYPES, in_dtype


def sgd(lr=1.0, **kwargs):
    return mx.optimizer.SGD(learning_rate=lr, **kwargs)


def weight(values, dtype="float32", ctx=None):
    low = in_dtype(mx.nd.array(values, ctx=ctx, dtype="float32"), DTYPES[dtype])
    low.attach_grad()
    return low


def backward(optimizer, weights, x=1.0):
    """Backward of sum(w * x) of arrays and parameters, scaled; return the gradients as they are."""
    arrays = [w.list_data() if isinstance(w, gluon.Parameter) else [w] for w in weights]
    with autograd.record():
        losses = [(mx.nd.Cast(array, dtype="float32") * x).sum() for each in arrays for array in each]
        scaled = optimizer.get_scaled_loss(losses)
    autograd.backward(scaled)
    return [w.list_grad() if isinstance(w, gluon.Parameter) else [w.grad] for w in weights]


def step(optimizer, weights, x=1.0, bad=None):
    """Take a step, in which a gradient may be other than finite, though the loss is."""
    grads = backward(optimizer, weights, x)
    if bad is not None:
        grads[0][0][:1] = bad
    return optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(grads), weights))


def test_defaults_are_those_of_keras():
    optimizer = LossScaleOptimizer(sgd())
    assert optimizer.dynamic is True
    assert optimizer.loss_scale == optimizer.initial_scale == 2.0**15
    assert optimizer.dynamic_growth_steps == 2000
    assert optimizer.iterations == optimizer.skipped_steps == 0


@pytest.mark.behaviour(55)
def test_a_nan_halves_the_scale_and_is_no_iteration():
    w, optimizer = weight([1.0]), LossScaleOptimizer(sgd(), initial_scale=16)
    for bad, scale, iterations in ((np.nan, 8, 0), (None, 8, 1), (np.nan, 4, 1)):
        assert step(optimizer, [w], bad=bad) is (bad is None)
        assert (optimizer.loss_scale, optimizer.iterations) == (scale, iterations)
        assert optimizer.inner_optimizer.num_update == iterations
    assert value(w).tolist() == [0.0]


def test_the_scale_grows_beyond_2_to_24_as_in_keras_and_gradients_that_never_recover_raise():
    w, optimizer = weight([1.0]), LossScaleOptimizer(sgd(), initial_scale=2.0**24, dynamic_growth_steps=1)
    assert step(optimizer, [w], 0.0) and optimizer.loss_scale == 2.0**25
    optimizer.loss_scale = 1
    for _ in range(49):
        step(optimizer, [w], bad=np.inf)
    with pytest.raises(LossScaleError, match="non-finite for 50 steps .* first bad gradient: 'weight 0' at step 51"):
        step(optimizer, [w], bad=np.inf)
    assert value(w).tolist() == [1.0]


def test_unscaling_keeps_the_given_gradients_and_nones():
    first, second = weight([1.0]), weight([1.0])
    optimizer = LossScaleOptimizer(sgd(), initial_scale=4)
    ((grad,),) = backward(optimizer, [first], 3.0)
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
    assert step(LossScaleOptimizer(sgd()), [frozen, free])
    assert (frozen.data().asscalar(), free.data().asscalar()) == (1.0, 0.0)


def test_masters_of_all_contexts_are_those_of_the_first():
    """An update too small for float16 is in the float32 value of every context."""
    net = initialized(gluon.nn.Dense(1, in_units=2, use_bias=False), mx.init.One(), ctx=TWO)
    mxmp.gluon.convert(net, "O2")(mx.nd.ones((1, 2)))
    assert step(LossScaleOptimizer(sgd(lr=2.0**-14), initial_scale=8), [net.weight])
    assert net.weight.data(TWO[0]).asnumpy().tolist() == [[1.0, 1.0]]
    mxmp.gluon.restore(net)
    assert [w.asnumpy().tolist() for w in net.weight.list_data()] == [[[1 - 2.0**-13] * 2]] * 2


@pytest.mark.behaviour("forgotten calls")
@pytest.mark.parametrize("initial_scale", [1, 2.0**15])
@pytest.mark.parametrize("ctx", [None, TWO[:1], TWO], ids=["arrays", "one context", "two"])
def test_gradients_that_are_scaled_still_are_named(ctx, initial_scale):
    """At a scale of 1 too: what is wrong must not show at a later step alone."""
    weights = [param([1.0], ctx=ctx, name=name) if ctx else weight([1.0]) for name in "ab"]
    optimizer = LossScaleOptimizer(sgd(), initial_scale=initial_scale)
    scaled = backward(optimizer, weights)
    with pytest.raises(TrainerError, match="apply_gradients: get_unscaled_gradients was not called in this step"):
        optimizer.apply_gradients(zip(scaled, weights))
    grad, *_ = optimizer.get_unscaled_gradients(scaled[:1] if ctx else scaled)
    with pytest.raises(TrainerError, match="the gradient of (parameter 'b'|weight 1) is an array that backward wrote"):
        optimizer.apply_gradients([(grad, weights[0]), (scaled[1], weights[1])])
    values = [array for w in weights for array in (w.list_data() if ctx else [w])]
    assert [array.asscalar() for array in values] == [1.0] * len(values)
    assert optimizer.apply_gradients([(grad, weights[0])])  # and it goes on
    assert value(values[0]) == 1 - len(values) / 2 and value(values[-1]) == 1


def test_weights_may_have_no_gradient_of_their_own():
    """What ``autograd.grad`` gives belongs to no weight."""
    w, plain = weight([1.0]), mx.nd.ones(1)
    optimizer = LossScaleOptimizer(sgd())
    with autograd.record():
        scaled = optimizer.get_scaled_loss(w * 3)
    (grad,) = optimizer.get_unscaled_gradients(autograd.grad(scaled, [w]))
    assert optimizer.apply_gradients([(grad, plain)])
    assert value(plain).tolist() == [-2.0]


@pytest.mark.parametrize("dynamic, expected", [(True, 64), (False, 32)])
def test_a_scale_that_is_set_is_of_the_kind_that_it_was(dynamic, expected):
    """One that moves counts its steps from there."""
    w, optimizer = weight([1.0]), LossScaleOptimizer(sgd(), dynamic, 8, 2 if dynamic else None)
    step(optimizer, [w])
    optimizer.loss_scale = 32
    for scale in (32, expected):
        step(optimizer, [w])
        assert optimizer.loss_scale == scale and optimizer.dynamic is dynamic
    assert backward(optimizer, [w])[0][0].asscalar() == expected


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (lambda w: [], "no weight has a gradient"),
        (lambda w: [(None, w)], "no weight has a gradient"),
        (lambda w: [w], r"item 0 is an NDArray; expected pairs \(gradient, weight\)"),
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
def test_wrong_pairs_are_named_and_change_nothing(pairs, message, tmp_path):
    w, optimizer = weight([1.0, 2.0]), LossScaleOptimizer(sgd())
    optimizer.get_scaled_loss(mx.nd.ones(1))
    optimizer.get_unscaled_gradients([mx.nd.ones(1)])
    with pytest.raises(TrainerError, match=message):
        optimizer.apply_gradients(pairs(w))
    assert optimizer.inner_optimizer.param_dict == {}
    assert optimizer.apply_gradients([(mx.nd.ones(2), w)])
    assert value(w).tolist() == [0.0, 1.0]
    optimizer.save_states(str(tmp_path / "states"))
    assert len(read_states(str(tmp_path / "states"))[0]["params"]) == 1


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


def test_build_adds_weights_in_order_and_states_are_saved_with_their_names_and_the_scale(tmp_path):
    first, second = weight([1.0]), param([[2.0]])
    optimizer, other = LossScaleOptimizer(sgd(), initial_scale=64), LossScaleOptimizer(sgd())
    for each in (optimizer, other):
        each.build([first])
        each.build([second, first])
    assert step(optimizer, [second, first])
    assert (value(first), value(second.data())) == ([0.0], [[1.0]])
    optimizer.save_states(str(tmp_path / "states"))
    names = [{"name": "weight 0", "shape": [1]}, {"name": "w", "shape": [1, 1]}]
    assert read_states(str(tmp_path / "states"))[0]["params"] == names
    other.load_states(str(tmp_path / "states"))
    assert other.loss_scale == 64.0 and other.dynamic


def test_the_inner_optimizer_is_the_users():
    inner = mx.optimizer.SGD(learning_rate=0.5, momentum=0.9)
    optimizer = LossScaleOptimizer(MultiPrecision(inner, masters=False))
    assert optimizer.inner_optimizer is inner and optimizer.peek_optimizer_and_scale()[0].masters is False
    assert optimizer.learning_rate == 0.5
    optimizer.learning_rate = 0.25
    assert inner.lr == 0.25 and not isinstance(optimizer, mx.optimizer.Optimizer)


def test_hand_over_gives_what_a_trainer_needs_of_an_optimizer_without_weights():
    optimizer, used, w = LossScaleOptimizer(sgd(), True, 64, 7), LossScaleOptimizer(sgd()), weight([1.0])
    multi, scale = optimizer.peek_optimizer_and_scale()
    given, given_scale = optimizer.hand_over("Trainer")
    assert given.inner is multi.inner and given_scale is scale
    assert multi.inner is optimizer.inner_optimizer and type(multi) is MultiPrecision
    assert (scale.value, scale.growth_interval, optimizer.learning_rate) == (64.0, 7, 1.0)
    for use in (lambda: backward(optimizer, [w]), lambda: optimizer.hand_over("Module")):
        with pytest.raises(TrainerError, match="this optimizer belongs to a Trainer"):
            use()
    grads = backward(used, [w])
    with pytest.raises(TrainerError, match="giving it to a .* came between get_scaled_loss and apply_gradients"):
        used.hand_over("Trainer")
    used.apply_gradients(zip(used.get_unscaled_gradients(grads), [w]))
    with pytest.raises(TrainerError, match="has weights of its own; make another one for the Trainer"):
        used.hand_over("Trainer")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_parameter_that_was_written_to_past_its_master_is_not_saved_and_not_updated_after_a_load(dtype, tmp_path):
    """A file of states would hold another value than one of weights."""
    params = [param([1.0, 2.0], "float32"), param([3.0], dtype)]
    optimizer, message = LossScaleOptimizer(sgd()), "parameter 'w' is stored in low precision and was written to"
    for _ in range(11):  # beyond the steps in which weights are compared
        assert step(optimizer, params)
    optimizer.save_states(str(tmp_path / "before"))
    params[1].data()[:] = 5
    with pytest.raises(TrainerError, match=message):
        optimizer.save_states(str(tmp_path / "after"))
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
    optimizer.load_states(str(tmp_path / "before"))  # after which the weights decide, as those of a file
    optimizer.save_states(str(tmp_path / "after"))
    assert step(optimizer, params)
    params[1].data()[:] = 5
    with pytest.raises(TrainerError, match=message):
        step(optimizer, params)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_array_may_be_written_to_at_any_time(dtype, tmp_path):
    """Here after each step, beyond the ten in which weights are compared, and before a save."""
    w, other = weight([0.0, 0.0], dtype), weight([0.0, 0.0], dtype)
    optimizer, resumed = LossScaleOptimizer(sgd(2.0**-10)), LossScaleOptimizer(sgd())
    for number in range(14):
        assert step(optimizer, [w], -1.0)
        w[:1] = 0.5 + number % 2
    optimizer.save_states(str(tmp_path / "s"))
    master = optimizer._masters.arrays[0]
    assert master.asnumpy().tolist() == [1.5, 14 * 2.0**-10]
    w.copyto(other)
    resumed.build([other])
    resumed.load_states(str(tmp_path / "s"))
    assert step(optimizer, [w]) and step(resumed, [other])
    assert resumed._masters.arrays[0].asnumpy().tolist() == master.asnumpy().tolist()
