"""An Estimator with the handler, on handwritten digits, against loops written by hand."""

import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import BatchEnd, BatchProcessor, CheckpointHandler, Estimator
from sklearn.datasets import load_digits

import mxmp
from mxmp.errors import PolicyError, TrainerError
from mxmp.estimator import MixedPrecisionHandler, ScalingBatchProcessor
from mxmp.gluon import exact_value
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.freeze import freeze, scale_of
from tests.perceptron import policy_of

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
WEIGHT, OPTIONS = "net_dense0_weight", {"learning_rate": 0.2, "momentum": 0.9}


def loader(start, stop, factor=1.0):
    """Return batches of 64 pixels in [0, factor] and labels, both float32."""
    pixels, labels = (array[start:stop].astype(np.float32) for array in load_digits(return_X_y=True))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(factor * pixels / 16, labels), 64)


TRAIN, VAL = loader(0, 256), loader(1200, 1328)
PIXELS = next(iter(VAL))[0]


def make_net(in_units=64, ctx=None, seed=7):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(32, activation="relu", in_units=in_units))
        net.add(gluon.nn.BatchNorm(in_channels=32 if in_units else 0), gluon.nn.Dense(10, in_units=32 if in_units else 0))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def make(net=None, trainer=None, **kwargs):
    net = net or make_net()
    trainer = trainer or gluon.Trainer(net.collect_params(), "sgd", OPTIONS)
    estimator = Estimator(net, LOSS, mx.metric.Accuracy(), trainer=trainer, context=mx.cpu(), **kwargs)
    estimator.logger.handlers[:] = [logging.NullHandler()]
    estimator.max_epoch, estimator.max_batch = 1, None
    return estimator


def fit(estimator, policy="O1", loss_scale="policy", *handlers, epochs=1, batches=None, data=TRAIN, **kwargs):
    handlers = [MixedPrecisionHandler(policy, loss_scale), *handlers]
    estimator.fit(data, epochs=None if batches else epochs, batches=batches, event_handlers=handlers, **kwargs)
    return estimator


def begin(estimator, *args):
    """Begin a fit, but train on nothing."""
    MixedPrecisionHandler(*args).train_begin(estimator)


def values(net):
    """Return the bits of the values of all parameters, by name, as float32."""
    return freeze({name: param.data().astype("float32") for name, param in net.collect_params().items()})


def dtypes_of(net):
    return {np.dtype(param.dtype) for param in net.collect_params().values()}


def exact(estimator):
    """Return the float32 values of one parameter and of its momentum."""
    weight = estimator.net.collect_params()[WEIGHT]
    state = estimator.trainer._updaters[0].states[estimator.trainer._param2idx[WEIGHT]]
    return [array.asnumpy() for array in (exact_value(weight), state)]


class Spy(BatchEnd):
    """Runs a function of the estimator at the end of each batch, before or after the step; may stop an epoch."""

    def __init__(self, at_batch_end, priority=-1):
        self.at_batch_end, self.priority = at_batch_end, priority

    def batch_end(self, estimator, *args, **kwargs):
        return self.at_batch_end(estimator, **kwargs)


BEFORE_THE_STEP = -3000


@pytest.mark.parametrize("in_units", [64, 0])
@pytest.mark.parametrize("policy", POLICIES)
def test_fit_is_the_loop_written_by_hand_bit_for_bit(policy, in_units):
    net = mxmp.gluon.convert(make_net(in_units), policy)
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", OPTIONS)
    for _ in range(2):
        for pixels, labels in TRAIN:
            with autograd.record(), trainer.scale_loss(LOSS(net(pixels), labels)) as scaled:
                scaled.backward()
            trainer.step(len(pixels))
    estimator = fit(make(make_net(in_units)), policy, epochs=2)
    assert values(estimator.net) == values(net)
    assert scale_of(estimator.trainer) == scale_of(trainer)


def test_losses_are_reported_unscaled_and_targets_untouched():
    seen = []
    fit(make(), "O2", "policy", Spy(lambda _, **kwargs: seen.append(kwargs)), batches=1)
    (pixels, target), (label,), (pred,), (loss,) = (seen[0][name] for name in ("batch", "label", "pred", "loss"))
    assert label.dtype == pred.dtype == loss.dtype == np.float32
    assert np.array_equal(label.asnumpy(), target.asnumpy())
    np.testing.assert_array_equal(loss.asnumpy(), LOSS(pred, label).asnumpy())
    with autograd.train_mode():
        np.testing.assert_array_equal(pred.asnumpy(), mxmp.gluon.convert(make_net(), "O2")(pixels).asnumpy())


@pytest.mark.parametrize(
    ("policy", "loss_scale", "expected"),
    [
        ("O1", "policy", DynamicLossScale()),
        ("O1,loss_scale=32", "policy", StaticLossScale(32)),
        ("mixed_bfloat16", "policy", NoOpLossScale()),
        ("O2", 128, StaticLossScale(128)),
        ("O1", None, NoOpLossScale()),
    ],
)
def test_the_loss_scale_is_the_policys_or_the_given_one(policy, loss_scale, expected):
    estimator = make()
    begin(estimator, policy, loss_scale)
    assert estimator.trainer.loss_scale == expected


def test_validation_and_prediction_take_float32_during_and_after_a_fit():
    outputs = []
    predict = Spy(lambda estimator, batch, **_: outputs.extend([estimator.val_net(batch[0]), estimator.net(batch[0])]))
    estimator = fit(make(), "O2", 256, predict, val_data=VAL, epochs=2)
    outputs.append(estimator.net(PIXELS))
    assert len(outputs) == 17 and all(a.dtype == np.float32 and np.isfinite(a.asnumpy()).all() for a in outputs)
    (validated,) = [m.get()[1] for m in estimator.val_metrics if "accuracy" in m.name]
    labels = np.concatenate([label.asnumpy() for _, label in VAL])
    guesses = np.concatenate([estimator.net(pixels).asnumpy().argmax(axis=1) for pixels, _ in VAL])
    assert validated == (guesses == labels).mean() > 0.5


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_validation_net_is_converted_too(policy):
    """One that shares parameters, or holds the net that is trained, which stays converted."""
    net = make_net()
    sharing = gluon.nn.HybridSequential(prefix="net_", params=net.collect_params())
    with sharing.name_scope():
        sharing.add(gluon.nn.Dense(32, activation="relu", in_units=64), gluon.nn.BatchNorm(in_channels=32), gluon.nn.Dense(10, in_units=32))
    around = gluon.nn.HybridSequential()
    around.add(make_net(), gluon.nn.HybridLambda(lambda F, x: F.softmax(x)))
    alone = fit(make(), policy).net
    for trained, val_net, expected in ((net, sharing, alone(PIXELS)), (around[0], around, alone(PIXELS).softmax())):
        estimator = fit(make(trained, val_net=val_net, val_loss=LOSS), policy, val_data=VAL)
        assert values(trained) == values(alone)
        np.testing.assert_allclose(val_net(PIXELS).asnumpy(), expected.asnumpy(), rtol=4 * 2**-11, atol=1e-6)
        MixedPrecisionHandler.restore(estimator)
        assert policy_of(val_net) is None and policy_of(trained) is None and dtypes_of(val_net) == {np.dtype("float32")}


class Doubling(BatchProcessor):
    """A processor of the user's with data of its own and MXNet's fit_batch."""

    factor = 2

    def _get_data_and_label(self, batch, ctx, batch_axis=0):
        data, label = super()._get_data_and_label(batch, ctx, batch_axis)
        return [self.factor * x for x in data], label


class Own(BatchProcessor):
    """A processor with a fit_batch of its own, which scales the loss."""

    def fit_batch(self, *args):
        return ScalingBatchProcessor(self).fit_batch(*args)


def test_a_users_processor_still_gives_the_data():
    estimator = fit(make(batch_processor=Doubling()), val_data=VAL)
    assert estimator.batch_processor.factor == 2
    doubled = fit(make(), data=loader(0, 256, 2.0), val_data=loader(1200, 1328, 2.0))
    assert values(estimator.net) == values(doubled.net)
    assert [m.get() for m in estimator.val_metrics] == [m.get() for m in doubled.val_metrics]


def test_a_fit_batch_of_the_users_own_is_left_alone():
    estimator = fit(make(batch_processor=Own()))
    assert type(estimator.batch_processor) is Own
    assert values(estimator.net) == values(fit(make()).net)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_second_fit_goes_on_where_the_first_ended(policy):
    """With the handler or without."""
    scale = DynamicLossScale(init_scale=2.0**8, growth_interval=3)
    again, plain, once = fit(make(), policy, scale), fit(make(), policy, scale), fit(make(), policy, scale, epochs=2)
    fit(again, policy, scale)
    plain.fit(TRAIN, epochs=1)
    for twice in (again, plain):
        assert values(twice.net) == values(once.net)
        assert twice.trainer.loss_scale == once.trainer.loss_scale and once.trainer.loss_scale.value == 2.0**10
        assert not isinstance(twice.batch_processor.inner, ScalingBatchProcessor)


@pytest.mark.parametrize(("first", "second"), [("O1", "O2"), ("O2", "O1"), (None, "O2"), (None, "O1")])
def test_another_policy_keeps_weights_and_momentum(first, second):
    """At a learning rate of 0 the momentum becomes 0.9 of itself, and moves the weights by that."""
    estimator = make()
    fit(estimator, first, 64) if first else estimator.fit(TRAIN, epochs=1)
    weight, momentum = exact(estimator)
    estimator.trainer.set_learning_rate(0.0)
    fit(estimator, second, 8, batches=1)
    assert estimator.trainer.optimizer.num_update == 5 and estimator.trainer.loss_scale == StaticLossScale(8)
    assert estimator.net.collect_params()[WEIGHT].data().dtype == {"O1": np.float32, "O2": np.float16}[second]
    for found, expected in zip(exact(estimator), (weight + 0.9 * momentum, 0.9 * momentum)):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def end_the_fit(estimator, **kwargs):
    raise InterruptedError


def test_a_fit_that_an_exception_ended_leaves_no_gradients():
    interrupted, fresh = make(), make()
    for priority in (BEFORE_THE_STEP, -1):
        with pytest.raises(InterruptedError):
            fit(interrupted, "O1", 64, Spy(end_the_fit, priority))
    assert interrupted.trainer.optimizer.num_update == 1
    fit(fresh, "O1", 64, batches=1)
    for name, param in interrupted.net.collect_params(".*running.*").items():  # which saw two batches
        param.set_data(fresh.net.collect_params()[name].data())
    assert values(fit(interrupted, "O1", 32).net) == values(fit(fresh, "O1", 32).net)


@pytest.mark.parametrize(("policy", "in_units"), [("O1", 64), ("O1", 0), ("O2", 64), ("O2", 0)])
def test_a_resumed_fit_ends_where_an_unbroken_one_does(policy, in_units, tmp_path):
    scale = DynamicLossScale(init_scale=2.0**8, growth_interval=5)
    saving, resuming = (CheckpointHandler(str(tmp_path), resume_from_checkpoint=resume) for resume in (False, True))
    fit(make(), policy, scale, saving)
    resumed = fit(make(make_net(in_units, seed=99)), policy, scale, resuming, epochs=2)
    unbroken = fit(make(), policy, scale, epochs=2)
    assert values(resumed.net) == values(unbroken.net)
    assert resumed.trainer.loss_scale == unbroken.trainer.loss_scale


def test_skipped_steps_are_logged_per_epoch(caplog):
    estimator = make()
    caplog.set_level(logging.INFO, estimator.logger.name)
    estimator.logger.addHandler(caplog.handler)

    def spoil(estimator, **kwargs):
        if estimator.trainer.skipped_steps < 2:
            estimator.net.collect_params()["net_dense0_bias"].grad()[:] = np.inf

    fit(estimator, "O1", DynamicLossScale(init_scale=256.0), Spy(spoil, BEFORE_THE_STEP), epochs=2)
    first, *others = [line for line in caplog.messages if "MixedPrecisionHandler" in line]
    assert first.endswith("losses are scaled by DynamicLossScale, now 256")
    text = "[Epoch 0] MixedPrecisionHandler: 2 steps skipped, their gradients were not finite; loss scale 64"
    assert others == [text] and estimator.trainer.skipped_steps == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fit_differs_by_rounding_and_restore_brings_float32_back(policy):
    processor, wide, plain = BatchProcessor(), make(), make_net(seed=99)
    estimator = fit(make(batch_processor=processor), policy, 256, batches=2)
    wide.fit(TRAIN, batches=2)
    MixedPrecisionHandler.restore(estimator)
    assert estimator.batch_processor is processor and policy_of(estimator.net) is None
    for ours, theirs in zip(exact(estimator), exact(wide)):  # weights and momentum
        # Gradients of the second batch see the roundings of the first step too: 8.04 on a Xeon in bfloat16.
        tolerance = 12 * EPS[mxmp.Policy.parse(policy).compute_dtype]
        assert 0 < np.linalg.norm(ours - theirs) < tolerance * np.linalg.norm(theirs)
    for name, param in plain.collect_params().items():
        param.set_data(estimator.net.collect_params()[name].data())
    np.testing.assert_array_equal(estimator.net(PIXELS).asnumpy(), plain(PIXELS).asnumpy())
    estimator.fit(TRAIN, epochs=1)  # in float32, with the same trainer
    assert estimator.trainer.loss_scale == NoOpLossScale()
    assert policy_of(fit(estimator, policy).net) == mxmp.Policy.parse(policy)  # and again


def test_restore_gives_an_mxmp_trainer_its_loss_scale_back():
    net = make_net()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=16)
    estimator = make(net, trainer)
    for _ in range(2):
        fit(estimator, "O1", 64, batches=1)
    assert trainer.loss_scale == StaticLossScale(64)
    MixedPrecisionHandler.restore(estimator)
    assert trainer.loss_scale == StaticLossScale(16)
    before = dict(vars(estimator))
    MixedPrecisionHandler.restore(estimator)  # which has nothing to do
    assert vars(estimator) == before


@pytest.mark.parametrize(
    ("options", "policy", "error", "match"),
    [
        ({"update_on_kvstore": True}, "O1", TrainerError, "update_on_kvstore=True updates weights inside"),
        ({}, "O2,block:net_dense0_=float32", PolicyError, "matches no block"),  # of the net for validation
    ],
    ids=["kvstore", "pattern"],
)
def test_an_estimator_that_is_refused_is_left_alone(options, policy, error, match):
    net = make_net()
    estimator = make(net, gluon.Trainer(net.collect_params(), "sgd", **options), val_net=gluon.nn.Dense(10, in_units=64))
    before = dict(vars(estimator))
    with pytest.raises(error, match=match):
        begin(estimator, policy)
    assert vars(estimator) == before and type(estimator.trainer) is gluon.Trainer
    assert policy_of(net) is None and dtypes_of(net) == {np.dtype("float32")}
