"""An Estimator with the handler, on handwritten digits, against loops written by hand."""

from __future__ import annotations

import logging
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import (
    BatchBegin,
    BatchEnd,
    BatchProcessor,
    CheckpointHandler,
    EarlyStoppingHandler,
    EpochEnd,
    Estimator,
    TrainBegin,
)
from sklearn.datasets import load_digits

import mxmp
from mxmp.errors import LossScaleError, PolicyError, TrainerError
from mxmp.estimator import MixedPrecisionHandler, ScalingBatchProcessor
from mxmp.gluon.lookup import conversion_of
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


@pytest.fixture(scope="module")
def digits():
    """Pixels (1797, 64) in [0, 1] and labels, both float32."""
    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target.astype(np.float32)


def loader(digits, start, stop, batch_size=64):
    pixels, labels = digits
    return gluon.data.DataLoader(gluon.data.ArrayDataset(pixels[start:stop], labels[start:stop]), batch_size)


@pytest.fixture
def train_data(digits):
    return loader(digits, 0, 512)


@pytest.fixture
def val_data(digits):
    return loader(digits, 1200, 1797, batch_size=128)


def make_net(in_units=64, ctx=None, seed=7):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(32, activation="relu", in_units=in_units))
        net.add(gluon.nn.BatchNorm(in_channels=32 if in_units else 0))
        net.add(gluon.nn.Dense(10, in_units=32 if in_units else 0))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def make(net=None, trainer=None, quiet=True, **kwargs):
    net = net or make_net()
    trainer = trainer or gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2, "momentum": 0.9})
    kwargs = {"context": mx.cpu(), **kwargs}
    estimator = Estimator(net, LOSS, train_metrics=mx.metric.Accuracy(), trainer=trainer, **kwargs)
    if quiet:
        estimator.logger.handlers.clear()
        estimator.logger.addHandler(logging.NullHandler())
    return estimator


def values(net):
    return {name: param.data().astype("float32").asnumpy() for name, param in net.collect_params().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def accuracy(net, digits):
    pixels, labels = digits
    found = net(mx.nd.array(pixels[1200:])).asnumpy().argmax(axis=1)
    return (found == labels[1200:]).mean()


def by_hand(net, data, epochs, policy, **optimizer_params):
    """Train as the README does, without an Estimator."""
    mxmp.gluon.convert(net, policy)
    wanted = mxmp.Policy.parse(policy).loss_scale
    options = {"learning_rate": 0.2, "momentum": 0.9, **optimizer_params}
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", options, loss_scale=wanted)
    for _ in range(epochs):
        for pixels, labels in data:
            with autograd.record(), trainer.scale_loss(LOSS(net(pixels), labels)) as scaled:
                scaled.backward()
            trainer.step(len(pixels))
    return trainer


class Spy(TrainBegin, BatchBegin, BatchEnd, EpochEnd):
    """Runs a function of the estimator at the end of each batch, after the step; may stop an epoch."""

    priority = -1

    def __init__(self, at_batch_end):
        self.at_batch_end = at_batch_end

    def batch_end(self, estimator, *args, **kwargs):
        return self.at_batch_end(estimator, **kwargs)


@pytest.mark.parametrize("policy", POLICIES)
def test_fit_is_the_loop_written_by_hand_bit_for_bit(policy, train_data):
    net = make_net()
    trainer = by_hand(net, train_data, 2, policy)
    estimator = make()
    estimator.fit(train_data, epochs=2, event_handlers=[MixedPrecisionHandler(policy)])
    assert_same(values(estimator.net), values(net))
    assert estimator.trainer.loss_scale == trainer.loss_scale
    assert estimator.trainer.skipped_steps == trainer.skipped_steps


@pytest.mark.parametrize("policy", POLICIES)
def test_accuracy_is_reached(policy, digits, val_data):
    estimator = make()
    train = loader(digits, 0, 1200)
    estimator.fit(train, val_data, epochs=8, event_handlers=[MixedPrecisionHandler(policy)])
    assert accuracy(estimator.net, digits) > 0.89  # three seeds of float32 reach 0.913 to 0.921
    (validated,) = [m.get()[1] for m in estimator.val_metrics if "accuracy" in m.name]
    assert validated == accuracy(estimator.net, digits)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_it_computes_in_low_precision(policy, train_data):
    """A float32 fit ends elsewhere, so that the tests above prove something; but only by rounding."""
    low, wide = make(), make()
    low.fit(train_data, batches=2, event_handlers=[MixedPrecisionHandler(policy, loss_scale=256)])
    wide.fit(train_data, batches=2)
    MixedPrecisionHandler.restore(low)
    difference = np.abs(values(low.net)["net_dense0_weight"] - values(wide.net)["net_dense0_weight"]).max()
    assert 0 < difference < 4 * 2**-11 * np.abs(values(wide.net)["net_dense0_weight"]).max()


def test_losses_are_reported_unscaled_and_targets_untouched(train_data):
    seen = []
    estimator = make()
    spy = Spy(lambda _, batch, label, pred, loss: seen.append((batch, label, pred, loss)))
    estimator.fit(train_data, batches=1, event_handlers=[MixedPrecisionHandler("O2"), spy])
    ((pixels, target), (label,), (pred,), (loss,)) = seen[0]
    assert label.dtype == np.float32 and np.array_equal(label.asnumpy(), target.asnumpy())
    assert pred.dtype == loss.dtype == np.float32
    np.testing.assert_array_equal(loss.asnumpy(), LOSS(pred, label).asnumpy())
    net = mxmp.gluon.convert(make_net(), "O2")
    with autograd.train_mode():
        np.testing.assert_array_equal(pred.asnumpy(), net(pixels).asnumpy())


def test_several_contexts_share_a_batch_and_stay_alike(digits):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = make_net(ctx=contexts)
    estimator = make(net, context=contexts)
    estimator.fit(loader(digits, 0, 512), epochs=2, event_handlers=[MixedPrecisionHandler("O2", loss_scale=256)])
    for param in net.collect_params(".*weight|.*bias").values():
        first, second = param.list_data()
        assert first.dtype == np.float16 and np.array_equal(first.asnumpy(), second.asnumpy())
    assert accuracy(net, digits) > 0.6


def test_a_deferred_initialization_is_completed_by_the_first_batch(train_data):
    estimator = make(make_net(in_units=0))
    estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O2", loss_scale=256)])
    dtypes = {name: np.dtype(param.dtype) for name, param in estimator.net.collect_params().items()}
    assert dtypes["net_dense0_weight"] == np.float16 and dtypes["net_batchnorm0_gamma"] == np.float32
    assert estimator.trainer.skipped_steps == 0


def test_an_estimator_without_a_trainer_gets_one_with_a_loss_scale(train_data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that it makes a trainer
        estimator = Estimator(make_net(), LOSS, context=mx.cpu())
    estimator.logger.handlers.clear()
    estimator.fit(train_data, batches=1, event_handlers=[MixedPrecisionHandler("O1", loss_scale=64)])
    assert estimator.trainer.loss_scale == StaticLossScale(64)


@pytest.mark.parametrize(
    ("policy", "loss_scale", "expected"),
    [
        ("O1", "policy", DynamicLossScale()),
        ("O1,loss_scale=32", "policy", StaticLossScale(32)),
        ("mixed_bfloat16", "policy", NoOpLossScale()),
        ("O2", 128, StaticLossScale(128)),
        ("O1", None, NoOpLossScale()),
        ("O1", DynamicLossScale(init_scale=4.0), DynamicLossScale(init_scale=4.0)),
    ],
)
def test_the_loss_scale_is_the_policys_or_the_given_one(policy, loss_scale, expected):
    estimator = make()
    estimator.max_epoch, estimator.max_batch = 1, None
    MixedPrecisionHandler(policy, loss_scale).train_begin(estimator)
    assert estimator.trainer.loss_scale == expected


def test_validation_and_prediction_take_float32_during_and_after_a_fit(train_data, val_data):
    outputs = []

    def predict(estimator, batch, **kwargs):
        outputs.append((estimator.val_net(batch[0]), estimator.net(batch[0])))

    estimator = make()
    handler = MixedPrecisionHandler("O2", loss_scale=256)
    estimator.fit(train_data, val_data, epochs=1, event_handlers=[handler, Spy(predict)])
    assert all(a.dtype == np.float32 and np.isfinite(a.asnumpy()).all() for pair in outputs for a in pair)
    pixels = next(iter(val_data))[0]
    assert estimator.net(pixels).dtype == np.float32
    estimator.evaluate(val_data)
    (validated,) = [m.get()[1] for m in estimator.val_metrics if "accuracy" in m.name]
    assert validated > 0.5


def test_a_validation_net_that_shares_parameters_is_converted_too(train_data, val_data):
    net = make_net()
    val_net = gluon.nn.HybridSequential(prefix="net_", params=net.collect_params())
    with val_net.name_scope():
        val_net.add(gluon.nn.Dense(32, activation="relu", in_units=64))
        val_net.add(gluon.nn.BatchNorm(in_channels=32))
        val_net.add(gluon.nn.Dense(10, in_units=32))
    val_loss = gluon.loss.SoftmaxCrossEntropyLoss(weight=2.0)
    estimator = make(net, val_net=val_net, val_loss=val_loss)
    estimator.fit(train_data, val_data, epochs=1, event_handlers=[MixedPrecisionHandler("O2")])
    pixels = next(iter(val_data))[0]
    np.testing.assert_array_equal(val_net(pixels).asnumpy(), net(pixels).asnumpy())
    MixedPrecisionHandler.restore(estimator)
    assert conversion_of(val_net) is None and conversion_of(net) is None
    assert {np.dtype(p.dtype) for p in val_net.collect_params().values()} == {np.dtype("float32")}
    np.testing.assert_array_equal(val_net(pixels).asnumpy(), net(pixels).asnumpy())


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_validation_net_around_the_trained_one_leaves_that_converted(policy, train_data, val_data):
    net = make_net()
    val_net = gluon.nn.HybridSequential()
    val_net.add(net, gluon.nn.HybridLambda(lambda F, x: F.softmax(x)))
    estimator = make(net, val_net=val_net)
    estimator.fit(train_data, val_data, epochs=1, event_handlers=[MixedPrecisionHandler(policy)])
    by_itself = make(make_net())
    by_itself.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler(policy)])
    assert_same(values(net), values(by_itself.net))
    pixels = next(iter(val_data))[0]
    expected = mx.nd.softmax(net(pixels)).asnumpy()
    np.testing.assert_allclose(val_net(pixels).asnumpy(), expected, rtol=4 * 2**-11, atol=1e-6)


class Doubling(BatchProcessor):
    """A processor of the user's with data of its own and MXNet's fit_batch."""

    factor = 2

    def _get_data_and_label(self, batch, ctx, batch_axis=0):
        data, label = super()._get_data_and_label(batch, ctx, batch_axis)
        return [self.factor * x for x in data], label


class Own(BatchProcessor):
    """A processor with a fit_batch of its own."""

    def fit_batch(self, estimator, train_batch, batch_axis=0):
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [2 * estimator.loss(y_hat, y) for y_hat, y in zip(pred, label)]
        self.run_backward(estimator, loss)
        return data, label, pred, loss

    def run_backward(self, estimator, loss):
        with estimator.trainer.scale_loss(loss) as scaled:
            autograd.backward(scaled)


class Forgetful(Own):
    def run_backward(self, estimator, loss):
        autograd.backward(loss)


def test_a_users_processor_still_gives_the_data(train_data, digits):
    estimator = make(batch_processor=Doubling())
    estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1")])
    assert estimator.batch_processor.factor == 2
    pixels, labels = digits
    doubled = make()
    doubled.fit(loader((2 * pixels, labels), 0, 512), epochs=1, event_handlers=[MixedPrecisionHandler("O1")])
    assert_same(values(estimator.net), values(doubled.net))


def test_a_fit_batch_of_the_users_own_is_left_alone(train_data):
    processor = Own()
    estimator = make(batch_processor=processor)
    estimator.fit(train_data, batches=2, event_handlers=[MixedPrecisionHandler("O1", loss_scale=256)])
    assert estimator.batch_processor is processor
    assert estimator.trainer.skipped_steps == 0


def test_a_fit_batch_that_does_not_scale_is_told_so(train_data):
    estimator = make(batch_processor=Forgetful())
    with pytest.raises(TrainerError, match="the loss of this step was not scaled"):
        estimator.fit(train_data, batches=1, event_handlers=[MixedPrecisionHandler("O1")])


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_second_fit_goes_on_where_the_first_ended(policy, train_data):
    handler = MixedPrecisionHandler(policy, DynamicLossScale(init_scale=2.0**8, growth_interval=3))
    twice, once = make(), make()
    for _ in range(2):
        twice.fit(train_data, epochs=1, event_handlers=[handler])
    once.fit(train_data, epochs=2, event_handlers=[handler])
    assert_same(values(twice.net), values(once.net))
    assert twice.trainer.loss_scale == once.trainer.loss_scale
    assert twice.trainer.loss_scale.value > 2.0**8
    assert not isinstance(twice.batch_processor.inner, ScalingBatchProcessor)


def test_a_fit_without_the_handler_stays_in_mixed_precision(train_data):
    twice, once = make(), make()
    twice.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1")])
    twice.fit(train_data, epochs=1)
    once.fit(train_data, epochs=2, event_handlers=[MixedPrecisionHandler("O1")])
    assert_same(values(twice.net), values(once.net))


@pytest.mark.parametrize(("first", "second"), [("O1", "O2"), ("O2", "O1"), ("O1", "O0")])
def test_another_policy_keeps_weights_and_momentum(first, second, train_data):
    estimator = make()
    estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler(first)])
    updates = estimator.trainer.optimizer.num_update
    momentum = [state for updater in estimator.trainer._updaters for state in updater.states.values()]
    assert len(momentum) == 6
    estimator.fit(train_data, batches=1, event_handlers=[MixedPrecisionHandler(second, loss_scale=8)])
    assert estimator.trainer.optimizer.num_update == updates + 1
    assert estimator.trainer.loss_scale == StaticLossScale(8)
    expected = {"O1": "float32", "O2": "float16", "O0": "float32"}[second]
    assert estimator.net.collect_params()["net_dense0_weight"].data().dtype == np.dtype(expected)


def test_the_way_to_low_storage_and_back_loses_nothing(train_data):
    """O1 -> O2 -> O1 without a step between is O1 all along: masters and momentum are exact."""
    there, stayed = make(), make()
    for estimator in (there, stayed):
        estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1")])
    there.max_epoch, there.max_batch = 1, None
    low = MixedPrecisionHandler("O2")
    low.train_begin(there)
    low.batch_end(there)
    assert there.net.collect_params()["net_dense0_weight"].data().dtype == np.float16
    for estimator in (there, stayed):
        estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1")])
    assert_same(values(there.net), values(stayed.net))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_fit_may_begin_in_float32(policy, train_data):
    estimator = make()
    estimator.fit(train_data, batches=2)
    weights = values(estimator.net)
    momentum = [state.copy() for _, state in sorted(estimator.trainer._updaters[0].states.items())]
    estimator.trainer.set_learning_rate(0.0)
    handler = MixedPrecisionHandler(policy, loss_scale=256)
    estimator.fit(train_data, batches=1, event_handlers=[handler])
    assert estimator.trainer.optimizer.num_update == 3 and estimator.trainer.skipped_steps == 0
    handler.restore(estimator)
    found = [state for _, state in sorted(estimator.trainer._updaters[0].states.items())]
    for before, after in zip(momentum, found):  # 0.9 of what it was, as the learning rate is 0
        np.testing.assert_allclose(after.asnumpy(), 0.9 * before.asnumpy(), rtol=1e-6)
    for name, param in estimator.net.collect_params(".*weight|.*bias").items():
        moved = weights[name] + dict(zip(sorted_names(estimator), found))[name].asnumpy()
        np.testing.assert_allclose(param.data().asnumpy(), moved, rtol=1e-6, atol=1e-7)


def sorted_names(estimator):
    """Return the names of the parameters in the order of the optimizer's indices, but for frozen ones."""
    return [param.name for param in estimator.trainer._params if param.grad_req != "null"]


class Boom(Exception):
    pass


def raise_boom(estimator, **kwargs):
    raise Boom


@pytest.mark.parametrize("priority", [-3000, -1], ids=["before the step", "after the step"])
def test_a_fit_goes_on_after_an_exception(priority, train_data, digits):
    estimator = make()
    spy = Spy(raise_boom)
    spy.priority = priority
    handler = MixedPrecisionHandler("O2", loss_scale=256)
    with pytest.raises(Boom):
        estimator.fit(train_data, epochs=1, event_handlers=[handler, spy])
    estimator.fit(train_data, epochs=3, event_handlers=[handler])
    assert accuracy(estimator.net, digits) > 0.8
    assert estimator.trainer.skipped_steps == 0


def test_gradients_of_an_interrupted_fit_are_dropped(train_data):
    interrupted, fresh = make(), make()
    spy = Spy(raise_boom)
    spy.priority = -3000
    with pytest.raises(Boom):
        interrupted.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1", 64), spy])
    for param in interrupted.net.collect_params().values():
        if "running" in param.name:  # BatchNorm saw the batch
            param.set_data(fresh.net.collect_params()[param.name].data())
    for estimator in (interrupted, fresh):
        estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O1", 32)])
    assert_same(values(interrupted.net), values(fresh.net))


def test_early_stopping_stops(train_data, val_data):
    estimator = make()
    (monitor,) = [m for m in estimator.val_metrics if "accuracy" in m.name]
    stopping = EarlyStoppingHandler(monitor, patience=1, mode="max", baseline=1.0)
    estimator.fit(train_data, val_data, epochs=9, event_handlers=[MixedPrecisionHandler("O1"), stopping])
    assert stopping.current_epoch == 1


@pytest.mark.parametrize(("policy", "in_units"), [("O1", 64), ("O1", 0), ("O2", 64), ("O2", 0)])
def test_a_resumed_fit_ends_where_an_unbroken_one_does(policy, in_units, train_data, tmp_path):
    def handlers(resume=False):
        checkpoint = CheckpointHandler(str(tmp_path), epoch_period=1, resume_from_checkpoint=resume)
        scale = DynamicLossScale(init_scale=2.0**8, growth_interval=5)
        return [MixedPrecisionHandler(policy, scale), checkpoint]

    first, resumed, unbroken = make(), make(make_net(in_units, seed=99)), make()
    first.fit(train_data, epochs=1, event_handlers=handlers())
    resumed.fit(train_data, epochs=2, event_handlers=handlers(resume=True))
    unbroken.fit(train_data, epochs=2, event_handlers=handlers()[:1])
    assert_same(values(resumed.net), values(unbroken.net))
    assert resumed.trainer.loss_scale == unbroken.trainer.loss_scale


def test_saved_parameters_are_float32_at_O2(train_data, tmp_path):
    estimator = make()
    checkpoint = CheckpointHandler(str(tmp_path))
    estimator.fit(train_data, epochs=1, event_handlers=[MixedPrecisionHandler("O2"), checkpoint])
    (name,) = tmp_path.glob("*.params")
    assert {array.dtype for array in mx.nd.load(str(name)).values()} == {np.float32}
    plain = make_net(seed=99)
    plain.load_parameters(str(name))
    MixedPrecisionHandler.restore(estimator)
    assert_same(values(plain), values(estimator.net))


def overflow(estimator, **kwargs):
    """Make the next step skip."""
    estimator.net.collect_params()["net_dense0_bias"].grad()[:] = np.inf


def test_skipped_steps_are_logged_per_epoch(train_data):
    lines = []
    estimator = make()
    estimator.logger.addHandler(
        type("Lines", (logging.Handler,), {"emit": lambda _, r: lines.append(r.getMessage())})()
    )
    spy = Spy(lambda estimator, **kw: overflow(estimator) if estimator.trainer.skipped_steps < 2 else None)
    spy.priority = -3000
    scale = DynamicLossScale(init_scale=256.0)
    estimator.fit(train_data, epochs=2, event_handlers=[MixedPrecisionHandler("O1", scale), spy])
    assert estimator.trainer.skipped_steps == 2
    found = [line for line in lines if "MixedPrecisionHandler" in line]
    assert found[0].endswith("losses are scaled by DynamicLossScale, now 256")
    assert found[1:] == [
        "[Epoch 0] MixedPrecisionHandler: 2 steps skipped, their gradients were not finite; loss scale 64"
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_restore_brings_float32_back(policy, train_data, val_data, digits):
    processor = BatchProcessor()
    estimator = make(batch_processor=processor)
    handler = MixedPrecisionHandler(policy)
    estimator.fit(train_data, epochs=1, event_handlers=[handler])
    handler.restore(estimator)
    assert estimator.batch_processor is processor and conversion_of(estimator.net) is None
    assert {p.data().dtype for p in estimator.net.collect_params().values()} == {np.float32}
    plain = make_net(seed=99)
    for name, param in plain.collect_params().items():
        param.set_data(estimator.net.collect_params()[name].data())
    pixels = mx.nd.array(digits[0][1200:])
    np.testing.assert_array_equal(estimator.net(pixels).asnumpy(), plain(pixels).asnumpy())
    estimator.fit(train_data, val_data, epochs=2)  # in float32, with the same trainer
    assert estimator.trainer.loss_scale == NoOpLossScale()
    assert accuracy(estimator.net, digits) > 0.8
    estimator.fit(train_data, epochs=1, event_handlers=[handler])  # and in mixed precision again
    assert conversion_of(estimator.net).policy == handler.policy


def test_restore_keeps_the_momentum(train_data):
    """But for rounding, momentum after two steps at O2 is that of two steps in float32."""
    mixed, wide = make(), make()
    mixed.fit(train_data, batches=2, event_handlers=[MixedPrecisionHandler("O2", 256)])
    MixedPrecisionHandler.restore(mixed)
    wide.fit(train_data, batches=2)
    found, expected = (
        [state.asnumpy() for _, state in sorted(estimator.trainer._updaters[0].states.items())]
        for estimator in (mixed, wide)
    )
    assert [state.dtype for state in found] == [np.float32] * 6
    difference = np.concatenate([(a - b).ravel() for a, b in zip(found, expected)])
    assert 0 < np.linalg.norm(difference) < 8 * 2**-11 * np.linalg.norm(np.concatenate([b.ravel() for b in expected]))


def test_restore_gives_an_mxmp_trainer_its_loss_scale_back(train_data):
    net = make_net()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=16)
    estimator = make(net, trainer)
    handler = MixedPrecisionHandler("O1", loss_scale=64)
    for _ in range(2):
        estimator.fit(train_data, batches=1, event_handlers=[handler])
    assert trainer.loss_scale == StaticLossScale(64)
    handler.restore(estimator)
    assert trainer.loss_scale == StaticLossScale(16)


def test_restore_of_a_plain_estimator_does_nothing():
    estimator = make()
    before = dict(vars(estimator))
    MixedPrecisionHandler.restore(estimator)
    assert vars(estimator) == before


def test_bad_arguments_are_refused_at_once():
    with pytest.raises(PolicyError, match="unknown policy 'O9'"):
        MixedPrecisionHandler("O9")
    with pytest.raises(LossScaleError, match="unknown loss scale 'often'"):
        MixedPrecisionHandler("O1", loss_scale="often")


@pytest.mark.parametrize("call", [MixedPrecisionHandler().train_begin, MixedPrecisionHandler.restore])
def test_what_is_no_estimator_is_named(call):
    with pytest.raises(TrainerError, match=r"expected a mxnet\.gluon\.contrib\.estimator\.Estimator, found a Dense"):
        call(gluon.nn.Dense(3))


def refused(estimator, handler, error, match):
    estimator.max_epoch, estimator.max_batch = 1, None
    before, trainer_class = dict(vars(estimator)), type(estimator.trainer)
    dtypes = [param.dtype for param in estimator.net.collect_params().values()]
    with pytest.raises(error, match=match):
        handler.train_begin(estimator)
    assert vars(estimator) == before
    assert type(estimator.trainer) is trainer_class
    assert [param.dtype for param in estimator.net.collect_params().values()] == dtypes


def test_a_trainer_that_updates_on_the_kvstore_is_refused():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    estimator = make(net, trainer)
    refused(estimator, MixedPrecisionHandler("O1"), TrainerError, "update_on_kvstore=True updates weights inside")
    assert conversion_of(net) is None


def test_a_pattern_that_matches_nothing_leaves_the_estimator_alone():
    estimator = make()
    refused(estimator, MixedPrecisionHandler("O2,name:nothing*=float32"), PolicyError, "matches no node")
    assert conversion_of(estimator.net) is None


def test_nets_are_converted_all_or_none(train_data):
    net = make_net()
    estimator = make(net)
    estimator.fit(train_data, batches=1, event_handlers=[MixedPrecisionHandler("O2")])
    estimator.val_net = gluon.nn.Dense(10, in_units=64)
    with pytest.raises(PolicyError, match="matches no node"):
        MixedPrecisionHandler("O1,name:net_dense0_fwd=float32").train_begin(estimator)
    assert conversion_of(estimator.val_net) is None
    assert conversion_of(net).policy == mxmp.Policy.parse("O2")
    assert net.collect_params()["net_dense0_weight"].data().dtype == np.float16
