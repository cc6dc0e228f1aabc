"""All weights of a context updated together; the oracles are the update of one after the other, and MXNet's own."""

import copy

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays
from mxmp.errors import TrainerError
from mxmp.optimizer import MultiPrecision
from mxmp.train import kernels as module
from mxmp.train.kernels import Update, update
from mxmp.train.masters import Masters, masters_flag
from mxmp.train.multi_precision import pair_of
from tests.freeze import freeze
from tests.optimizer.test_multi_precision import OPTIMIZERS, low, make, updater_of

SHAPES = [(3, 4), (70, 60), (2, 2), (4, 4), (4097, 1)]  # small ones, and large ones, which a CPU updates by themselves
MIXED = ["float16", "float32", "bfloat16", "float16", "float16"]
SPARSE = {"sparse": (0, 1)}
# More weights than a launch takes.
MANY = {"dtypes": ["float32", "float16"] * 65, "shapes": [(k % 7 + 1,) for k in range(130)], "steps": 1}


def values(seed, dtypes=MIXED, shapes=SHAPES, moved=()):
    draw = np.random.RandomState(seed)
    made = [low(draw.randn(*shape), dtype) for shape, dtype in zip(shapes, dtypes)]
    return [array.as_in_context(mx.cpu(int(k in moved))) for k, array in enumerate(made)]


def together(updater, grads, weights, masters=None):
    masters = masters or Masters(updater.optimizer)
    update(updater, masters, [Update(k, grad, weight) for k, (grad, weight) in enumerate(zip(grads, weights))])
    return masters


def one_by_one(updater, grads, weights):
    for k, (grad, weight) in enumerate(zip(grads, weights)):
        updater([k], [grad], [weight])


def at_once(updater, grads, weights):
    """As MXNet's trainer calls its updater."""
    updater(list(range(len(weights))), grads, weights)


def train(way, optimizer, masters=True, dtypes=MIXED, grads=None, sparse=(), steps=3, rescale=1.0, **layout):
    """Return the weights, their masters and states after some updates, and the optimizer's counts.

    Updaters get a `MultiPrecision`, unless ``masters`` is None, which leaves it to MXNet's own ``multi_precision``.
    """
    mx.random.seed(11)  # SGLD draws noise
    weights, own = values(0, dtypes, **layout), Masters(optimizer, bool(masters))
    is_plain = way is together or masters is None
    updater = mx.optimizer.get_updater(optimizer if is_plain else MultiPrecision(optimizer, masters))
    for step in range(steps):
        optimizer.rescale_grad = rescale / (3 + step)
        drawn = values(step + 1, grads or dtypes, **layout)
        given = [grad.tostype("row_sparse") if k in sparse else grad for k, grad in enumerate(drawn)]
        way(updater, given, weights, *([own] if way is together else []))
    states = [updater.states[k] for k in range(len(weights))]
    states = [pair_of(optimizer, own.arrays[k], each) if k in own.arrays else each for k, each in enumerate(states)]
    return freeze([weights, states, optimizer.num_update, sorted(optimizer._index_update_count.items())])


@pytest.fixture
def gpu(monkeypatch):
    """Update by the kernels for a GPU."""
    monkeypatch.setattr("mxmp.train.kernels.on_gpu", lambda array: True)


@pytest.fixture(params=["cpu", "gpu"])
def device(request):
    """Update on a CPU as on a CPU, and by the kernels for a GPU."""
    if request.param == "gpu":
        request.getfixturevalue("gpu")


CASES = {
    **{name: (name, {}, True, {}) for name in OPTIMIZERS},
    **{f"{name}, no masters": (name, {}, False, {}) for name in ("sgd", "adam", "lamb", "sgld")},
    "sgd, no momentum": ("sgd", {"momentum": 0.0}, True, {}),
    "sgd, float32 gradients": ("sgd", {}, True, {"grads": ["float32"] * 5}),
    "sgd, clipped": ("sgd", {"clip_gradient": 1e-3}, True, {}),
    "sgd, many": ("sgd", {"learning_rate": 0.1}, True, MANY),
    **{f"{name}, sparse": (name, {}, True, SPARSE) for name in ("sgd", "adam", "ftrl")},
}


@pytest.mark.parametrize(("name", "options", "masters", "run"), CASES.values(), ids=CASES)
@pytest.mark.slow
def test_together_is_one_after_the_other_bit_for_bit(name, options, masters, run, device):
    made = [train(way, make(name, **options), masters, **run) for way in (one_by_one, together, at_once)]
    assert made[0] == made[1] == made[2]


OPTIONS = {
    "plain": {},
    "clipped": {"clip_gradient": 1e-3},
    "small rate": {"learning_rate": 5.6048103717530566e-08, "momentum": 0.99},  # MXNet reads it with an error
    "large rate": {"learning_rate": 62.80538370118765, "wd": 1e-7},
    "schedule": {"lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.3)},
}


@pytest.mark.parametrize("dtypes", [["float32"] * 5, ["float16"] * 5, ["float16", "float32"] * 2 + ["float16"]])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_sgd_is_mxnets_own_with_its_multi_precision_bit_for_bit(dtypes, options):
    def sgd():
        chosen = {"momentum": 0.9, "learning_rate": 0.3, "multi_precision": True, **copy.deepcopy(options)}
        inner = mx.optimizer.SGD(**chosen)
        inner.set_lr_mult({0: 0.5, 4: 2.0})
        inner.set_wd_mult({1: 3.0})
        return inner

    made = train(together, sgd(), dtypes=dtypes, rescale=2.0**-16)
    assert made == train(at_once, sgd(), None, dtypes, rescale=2.0**-16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mxnets_operator_for_many_is_not_called_for_large_weights(dtype, monkeypatch):
    """It is slow for them on a CPU."""
    sizes, call = [], mx.optimizer.optimizer.multi_sgd_mom_update

    def spy(*inputs, **options):
        sizes.extend(array.size for array in inputs)
        return call(*inputs, **options)

    monkeypatch.setattr(mx.optimizer.optimizer, "multi_sgd_mom_update", spy)
    train(together, make("sgd"), dtypes=[dtype] * 5)
    assert sizes and max(sizes) <= module._SMALL < max(np.prod(shape) for shape in SHAPES)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_each_context_has_its_own_weights_updated(name, gpu):
    """As with the group2ctxs of a Module: an updater's weights need not lie on one context."""
    whole, master_and_state = (train(together, make(name), moved=moved) for moved in ((), (1, 3)))
    assert whole[:2] == master_and_state[:2]  # the counts are of one context


def test_weights_of_a_gpu_go_in_parts_of_bounded_size(gpu, monkeypatch):
    """The float32 copies of gradients are transient; a step has few at a time."""
    sizes, widen = [], arrays.widen
    monkeypatch.setattr("mxmp.train.kernels.MOST_ELEMENTS", 20)
    monkeypatch.setattr("mxmp.train.kernels.widen", lambda a: sizes.append(sum(x.size for x in a)) or widen(a))
    train(together, make("adam"), dtypes=["float16"] * 5, steps=1)
    assert [size for size in sizes if size] == [12, 4200, 20, 4097]


@pytest.mark.parametrize("size_waited_for", [1, 2**16])
def test_the_flag_tells_whether_weights_are_their_masters_rounded(size_waited_for, monkeypatch):
    monkeypatch.setattr("mxmp.train.masters._LARGE", size_waited_for)
    for kept in (False, True):
        updater, weights = mx.optimizer.get_updater(make("sgd")), values(0)
        masters = Masters(updater.optimizer, kept)
        weights[0][0, 1] = np.nan
        pairs = [(masters, [Update(k, weight, weight) for k, weight in enumerate(weights)])]
        assert masters_flag(pairs) is None  # before the first update
        together(updater, values(1), weights, masters)
        assert (masters_flag(pairs) is not None) is kept
    assert masters_flag(pairs).asscalar() == 1
    for index in ((0, 0), (-1, -1)):
        before = weights[3].copy()
        weights[3][index] = 7
        assert masters_flag(pairs).asscalar() == 0
        weights[3][:] = before
    assert masters_flag(pairs).asscalar() == 1


@pytest.mark.parametrize("steps", [1, 9, 10])
def test_an_updater_of_mxnet_sees_a_write_to_a_parameter_within_ten_updates_and_undoes_it_later(steps):
    param = mx.gluon.Parameter("w", shape=(3,), dtype="float16")
    param.initialize(mx.init.One())
    updater = updater_of(mx.optimizer.SGD(learning_rate=0, param_dict={0: param}))
    for _ in range(steps):
        updater(0, mx.nd.ones(3), param.data())
    param.data()[:] = 3
    if steps < 10:
        with pytest.raises(TrainerError, match="parameter 'w' .* written to past its float32 master"):
            updater(0, mx.nd.ones(3), param.data())
    else:
        updater(0, mx.nd.ones(3), param.data())
        assert param.data().asnumpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("steps", [1, 11])
def test_an_updater_of_mxnet_takes_over_what_is_written_to_an_array(steps):
    """Which has no set_data to say so; elements that were not written to keep their exact values."""
    weights, updater = values(0), updater_of(mx.optimizer.SGD(learning_rate=1e-4))
    for step in range(steps):
        one_by_one(updater, values(step), weights)
    exact = updater.states[0][1].asnumpy()
    weights[0][0] = exact[0] = 3
    with mx.autograd.record():
        one_by_one(updater, [weight * 0 for weight in weights], weights)
    np.testing.assert_array_equal(updater.states[0][1].asnumpy(), exact)
