from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import round_into, to_float32
from mxmp.dtypes import to_numpy
from mxmp.errors import TrainerError
from mxmp.optimizer import MultiPrecision
from mxmp.train.masters import keep_masters

LOW = ["float16", "bfloat16"]
OPTIMIZERS = sorted(mx.optimizer.Optimizer.opt_registry)

# What an optimizer needs to make more than the plainest of updates. Not dcasgd: with momentum
# MXNet 1.9.1 itself fails on any weight of more than one element (`if mom:`, optimizer.py).
OPTIONS = {
    "sgd": {"momentum": 0.9},
    "ccsgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "lars": {"momentum": 0.9},
    "lbsgd": {"momentum": 0.9, "warmup_strategy": "lars"},
    "rmsprop": {"centered": True},
}
SHAPES = [(3, 4), (5, 2), (2, 2), (6, 3), (4, 4)]


def low(values, dtype):
    source = mx.nd.array(values, dtype="float32")
    out = mx.nd.empty(source.shape, dtype=to_numpy(dtype))
    round_into(source, out)
    return out


def make(name, **options):
    if name != "groupadagrad":  # it asserts wd == 0
        options.setdefault("wd", 0.01)
    return mx.optimizer.create(name, **{**OPTIONS.get(name, {}), **options})


def draw_arrays(seed, scale=1.0):
    draw = np.random.RandomState(seed)
    return [(draw.randn(*shape) * scale).astype(np.float32) for shape in SHAPES]


def wide(arrays):
    return [to_float32(array).asnumpy() for array in arrays]


def run(optimizer, weights, grads_per_step):
    """Run an updater over all weights at once and return it."""
    mx.random.seed(11)  # SGLD draws noise
    updater = mx.optimizer.get_updater(optimizer)
    for grads in grads_per_step:
        updater(list(range(len(weights))), list(grads), list(weights))
    return updater


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_get_the_float32_updates_of_every_optimizer(name, dtype):
    weights = [low(array, dtype) for array in draw_arrays(0)]
    grads = [[low(array, dtype) for array in draw_arrays(seed, 0.1)] for seed in (1, 2, 3)]
    expected = [mx.nd.array(array) for array in wide(weights)]
    run(make(name), expected, [[mx.nd.array(a) for a in wide(step)] for step in grads])

    updater = run(MultiPrecision(make(name)), weights, grads)

    masters = [updater.states[i].master for i in range(len(weights))]
    for master, weight, target in zip(masters, weights, expected):
        np.testing.assert_array_equal(master.asnumpy(), target.asnumpy())
        np.testing.assert_array_equal(wide([weight])[0], wide([low(target.asnumpy(), dtype)])[0])
    assert any((to_float32(w) != m).sum().asscalar() for w, m in zip(weights, masters))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_weights_pass_straight_through(name):
    grads = [[mx.nd.array(a) for a in draw_arrays(seed, 0.1)] for seed in (1, 2, 3)]
    expected, found = ([mx.nd.array(a) for a in draw_arrays(0)] for _ in range(2))
    run(make(name), expected, grads)
    run(MultiPrecision(make(name)), found, grads)
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "lars"])
def test_one_updater_takes_mixed_dtypes(name):
    dtypes = ["float16", "float32", "bfloat16", "float32", "float16"]

    def arrays(seed, scale=1.0):
        values = draw_arrays(seed, scale)
        return [mx.nd.array(a) if d == "float32" else low(a, d) for a, d in zip(values, dtypes)]

    weights = arrays(0)
    expected = [mx.nd.array(a) for a in wide(weights)]
    grads = [arrays(seed, 0.1) for seed in (1, 2)]
    run(make(name), expected, [[mx.nd.array(a) for a in wide(step)] for step in grads])
    updater = run(MultiPrecision(make(name)), weights, grads)
    for i, dtype in enumerate(dtypes):
        found = weights[i] if dtype == "float32" else updater.states[i].master
        # LAMB and LARS compute norms of whole groups, whose make-up differs.
        np.testing.assert_allclose(found.asnumpy(), expected[i].asnumpy(), rtol=4 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", LOW)
def test_small_updates_are_lost_without_masters(dtype):
    weight, grad = low([1.0], dtype), low([1.0], dtype)
    optimizer = MultiPrecision(mx.optimizer.SGD(learning_rate=1e-5), masters=False)
    updater = mx.optimizer.get_updater(optimizer)
    for _ in range(1000):
        updater(0, grad, weight)
    assert wide([weight])[0][0] == 1.0
    assert updater.states[0].master is None


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_without_masters_each_update_starts_from_the_weight(name):
    weight, grads = low([[1.0, 2.0]], "float16"), [low([[0.1, -0.3]], "float16") for _ in range(3)]
    optimizer = MultiPrecision(make(name), masters=False)
    updater = mx.optimizer.get_updater(optimizer)
    expected = mx.nd.array([[1.0, 2.0]])
    plain = mx.optimizer.get_updater(make(name))
    for grad in grads:
        updater(0, grad, weight)
        plain(0, to_float32(grad), expected)
        expected = to_float32(low(expected.asnumpy(), "float16"))
    np.testing.assert_array_equal(wide([weight])[0], expected.asnumpy())


def test_float32_gradients_of_low_precision_weights_are_taken_as_they_are():
    weight = low([1.0], "float16")
    updater = mx.optimizer.get_updater(MultiPrecision(mx.optimizer.SGD(learning_rate=1.0)))
    updater(0, mx.nd.array([2.0**-30]), weight)  # float16 would flush it to 0
    assert updater.states[0].master.asscalar() == np.float32(1 - 2.0**-30)


def test_rescale_grad_acts_in_float32():
    weight = low([0.0], "float16")
    optimizer = MultiPrecision(mx.optimizer.SGD(learning_rate=1.0, rescale_grad=2.0**-30))
    updater = mx.optimizer.get_updater(optimizer)
    updater(0, low([1.0], "float16"), weight)
    assert updater.states[0].master.asscalar() == -(2.0**-30)


class TestMastersFollowTheWeight:
    """What sets or loads a weight between two updates is what the next one starts from."""

    def make(self, dtype="float16", ctx=None):
        self.param = mx.gluon.Parameter("w", shape=(3,), dtype="float32")
        self.param.initialize(init=mx.init.Zero(), ctx=ctx)
        self.param.cast(to_numpy(dtype))
        self.optimizer = MultiPrecision(mx.optimizer.SGD(learning_rate=1.0, param_dict={0: self.param}))
        self.updater = mx.optimizer.get_updater(self.optimizer)

    def update(self, grad):
        self.updater(0, mx.nd.array(grad), self.param.data())
        return self.updater.states[0].master.asnumpy()

    @pytest.mark.parametrize("dtype", LOW)
    def test_set_data(self, dtype):
        self.make(dtype)
        self.update([1e-4, 1e-4, 1e-4])
        self.param.set_data(low([1.0, 2.0, 3.0], dtype))
        assert self.update([0, 0, 0.5]).tolist() == [1, 2, 2.5]

    def test_load(self, tmp_path):
        self.make()
        mx.nd.save(str(tmp_path / "w"), {"w": mx.nd.array([4, 5, 6], dtype="float16")})
        self.update([1e-4, 1e-4, 1e-4])
        self.param._load_init(mx.nd.load(str(tmp_path / "w"))["w"], None)
        assert self.update([0, 0, 0]).tolist() == [4, 5, 6]

    @pytest.mark.parametrize("dtype", LOW)
    def test_first_master_is_the_kept_value(self, dtype):
        self.make(dtype)
        values = np.array([0.1, 0.2, 0.3], np.float32)
        round_into(mx.nd.array(values), self.param.data())
        keep_masters(self.param, [mx.nd.array(values)])
        np.testing.assert_array_equal(self.update([0, 0, 0]), values)

    def test_stash_is_dropped_after_set_data(self):
        self.make()
        keep_masters(self.param, [mx.nd.array([0.1, 0.2, 0.3])])
        self.param.set_data(mx.nd.array([1, 2, 3], dtype="float16"))
        assert self.update([0, 0, 0]).tolist() == [1, 2, 3]


def test_attributes_are_the_inner_optimizers():
    inner = mx.optimizer.SGD(momentum=0.9, learning_rate=0.5, wd=0.1)
    outer = MultiPrecision(inner)
    assert (outer.momentum, outer.lr, outer.wd, outer.learning_rate) == (0.9, 0.5, 0.1, 0.5)
    outer.rescale_grad, outer.wd, outer.num_update = 0.25, 0.2, 7
    outer.set_learning_rate(0.75)
    outer.set_lr_mult({"a": 2.0})
    outer.set_wd_mult({"a": 3.0})
    outer._set_current_context(3)
    outer._update_count(5)
    assert (inner.rescale_grad, inner.wd, inner.lr, inner.num_update) == (0.25, 0.2, 0.75, 7)
    assert (inner.lr_mult, inner.wd_mult) == ({"a": 2.0}, {"a": 3.0})
    assert inner._all_index_update_counts == {0: {}, 3: {5: 1}}
    assert outer._index_update_count is inner._index_update_count
    assert outer.aggregate_num == inner.aggregate_num > 0
    assert "rescale_grad" not in vars(outer)


def test_learning_rate_comes_from_the_scheduler():
    scheduler = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    outer = MultiPrecision(mx.optimizer.SGD(lr_scheduler=scheduler, learning_rate=1.0))
    outer.num_update = 3
    assert outer.learning_rate == 0.25
    with pytest.raises(UserWarning):
        outer.set_learning_rate(1.0)


def test_overridden_methods_of_the_inner_optimizer_count():
    outer = MultiPrecision(mx.optimizer.LARS(learning_rate=0.5))
    assert outer._get_lrs([0, 1]) == [0.5, 0.5]
    assert outer.inner.cur_lr == 0.5  # only LARS._get_lrs sets it
    assert outer._get_wds([0]) == [0.0]
    assert outer.create_state(0, mx.nd.ones((2,))) is None


def test_update_runs_the_inner_optimizer():
    weight = mx.nd.ones((2,))
    MultiPrecision(mx.optimizer.SGD(learning_rate=1.0)).update(0, weight, mx.nd.ones((2,)), None)
    assert weight.asnumpy().tolist() == [0, 0]


def test_it_is_not_registered():
    assert MultiPrecision not in mx.optimizer.Optimizer.opt_registry.values()
    assert "multiprecision" not in mx.optimizer.Optimizer.opt_registry


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_it_survives_copying(clone):
    outer = MultiPrecision(mx.optimizer.Adam(beta1=0.5), masters=False)
    other = clone(outer)
    other.beta1 = 0.25
    assert (other.masters, other.inner.beta1, outer.beta1) == (False, 0.25, 0.5)


def test_pickled_updater_states_go_on():
    weight, grad = low([1.0, 2.0], "float16"), low([1e-3, 1e-3], "float16")
    updater = mx.optimizer.get_updater(MultiPrecision(make("adam")))
    updater(0, grad, weight)
    other = mx.optimizer.get_updater(MultiPrecision(make("adam")))
    other.set_states(updater.get_states(dump_optimizer=True))
    copied = weight.copy()
    updater(0, grad, weight)
    other(0, grad, copied)
    np.testing.assert_array_equal(wide([copied])[0], wide([weight])[0])
    np.testing.assert_array_equal(other.states[0].master.asnumpy(), updater.states[0].master.asnumpy())


@pytest.mark.behaviour("wrapping twice")
def test_wrapping_twice_is_refused():
    with pytest.raises(TrainerError, match="the optimizer SGD is wrapped in MultiPrecision already; wrap it"):
        MultiPrecision(MultiPrecision(mx.optimizer.SGD()))


@pytest.mark.behaviour("wrong optimizer arguments")
def test_wrapping_something_else_is_refused():
    with pytest.raises(TrainerError, match="got 'sgd'; expected an mx.optimizer.Optimizer"):
        MultiPrecision("sgd")


@pytest.mark.parametrize("many", [False, True], ids=["one", "list"])
@pytest.mark.parametrize("first", ["float16", "float32"])
def test_a_cast_after_the_first_update_is_an_error(first, many):
    second = "float32" if first == "float16" else "float16"
    updater = mx.optimizer.get_updater(MultiPrecision(make("sgd" if many else "adam")))
    arrays = {d: mx.nd.ones((2,)).astype(d) for d in (first, second)}
    updater(0, arrays[first], arrays[first])
    with pytest.raises(TrainerError, match="parameter 0 changed its dtype after its optimizer state"):
        updater(0, arrays[second], arrays[second])


def test_only_lbsgd_needs_unscaled_gradients():
    needing = [n for n in OPTIMIZERS if MultiPrecision(make(n)).needs_unscaled_gradients]
    assert needing == ["lbsgd"]
