"""initialize, with the levels and properties of Apex, and its company."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from mxmp.errors import MxmpError
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.amp.nets import make, trainer_of
from tests.perceptron import policy_of
from tests.values import name_of


def x():
    return mx.nd.array(np.random.RandomState(0).randn(8, 3))


def initialized(level="O1", **properties):
    """Return a net and its trainer, initialized."""
    net = make()
    return amp.initialize(net, trainer_of(net), level, **properties)


def learn(net, trainer, loss_id=0):
    with autograd.record():
        loss = mx.nd.square(net(x()).astype("float32")).mean()
        with amp.scale_loss(loss, trainer, loss_id=loss_id, delay_unscale=True) as scaled:
            scaled.backward()
    return trainer.step(1)


def dtype_of(net, name):
    return name_of(net.collect_params()[f"net_{name}"].dtype)


# The table of the docstring. O0 to O3: weights, the precision of the products and of BatchNorm, loss scale, masters.
LEVELS = {
    "O0": ("float32", None, NoOpLossScale(), True),
    "O1": ("float32", "float16", DynamicLossScale(), True),
    "O2": ("float16", "float16", DynamicLossScale(), True),
    "O3": ("float16", "float16", NoOpLossScale(), False),
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level):
    weights, precision, loss_scale, masters = LEVELS[level]
    net = make()
    plain = trainer_of(net)
    found, trainer = amp.initialize(net, plain, opt_level=level)
    assert found is net and trainer is plain and isinstance(trainer, mxmp.gluon.Trainer)
    assert name_of(net(x()).dtype) == "float32"
    assert dtype_of(net, "dense0_weight") == weights and dtype_of(net, "batchnorm0_gamma") == "float32"
    assert trainer.loss_scale == loss_scale and trainer.multi_precision == masters
    rows = {row.op: row.precision for row in mxmp.gluon.report(net).rows} if policy_of(net) else {}
    assert (rows.get("FullyConnected"), rows.get("BatchNorm")) == (precision, precision)
    assert any(learn(net, trainer) for _ in range(10))  # the first steps may be skipped
    amp.initialize(net, trainer, "O1", loss_scale=8)  # which replaces the level
    assert dtype_of(net, "dense0_weight") == "float32" and trainer.loss_scale == StaticLossScale(8)


@pytest.mark.parametrize("value, norm", [("True", "float32"), (False, "float16"), (None, "float16")])
def test_properties_change_what_a_level_does(value, norm):
    options = {"keep_batchnorm_fp32": value, "cast_model_outputs": np.float16, "master_weights": False}
    net, trainer = initialized("O2", loss_scale=128, **options)
    assert net(x()).dtype == np.float16
    assert {row.op: row.precision for row in mxmp.gluon.report(net).rows}["BatchNorm"] == norm
    learn(net, trainer)
    assert not trainer.multi_precision
    assert {name_of(array.dtype) for array in amp.master_params(trainer)} == {"float16", "float32"}


@pytest.mark.bfloat16
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_cast_model_type(level):
    net, trainer = initialized(level, cast_model_type="bfloat16")
    assert learn(net, trainer)
    assert dtype_of(net, "dense0_weight") == "bfloat16" and trainer.loss_scale == NoOpLossScale()


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ({"loss_scale": 128}, StaticLossScale(128)),
        ({"loss_scale": "dynamic", "max_loss_scale": 2.0**10}, DynamicLossScale(max_scale=2.0**10)),
        ({"loss_scale": DynamicLossScale(growth_interval=5)}, DynamicLossScale(growth_interval=5)),
        ({"min_loss_scale": 2.0**17}, DynamicLossScale(min_scale=2.0**17)),
    ],
)
def test_loss_scales(overrides, expected):
    assert initialized(**overrides)[1].loss_scale == expected


def test_lists_give_lists():
    """And optimizers become trainers of the nets."""
    nets, optimizer = [make("a_"), make("b_")], mx.optimizer.Adam()
    found, trainers = amp.initialize(nets, [trainer_of(nets[0]), optimizer], "O1", loss_scale=128)
    assert found is nets and trainers[1].optimizer is optimizer
    assert trainers[1]._params[0].name.startswith("b_")
    assert all(learn(net, trainer) for net, trainer in zip(nets, trainers))
    assert amp.initialize(make()).name == "net"


def test_disabled_nothing_changes_but_the_calls_work():
    net, trainer = initialized("O2", enabled=False, keep_batchnorm_fp32=True)
    assert policy_of(net) is None and trainer.loss_scale == NoOpLossScale()
    assert learn(net, trainer)


def test_master_params_are_what_the_trainer_updates():
    net, trainer = initialized("O2", loss_scale=128)
    net(x())
    masters = list(amp.master_params(trainer))  # before the first step
    weights = [p for p in trainer._params if p.grad_req != "null"]
    exact = {name: p.data().asnumpy() for name, p in make().collect_params().items()}
    for weight, master in zip(weights, masters):
        assert master.dtype == np.float32 and (master.asnumpy() == exact[weight.name]).all()
    learn(net, trainer)
    assert all(master is again for master, again in zip(masters, amp.master_params([trainer])))
    for weight, master in zip(weights, masters):
        np.testing.assert_array_equal(master.astype(weight.dtype).asnumpy(), weight.data().asnumpy())
    assert any((exact[weight.name] != master.asnumpy()).any() for weight, master in zip(weights, masters))
    net[0].weight.set_data(mx.nd.full((4, 3), 0.5, dtype="float16"))
    assert any((master.asnumpy() == 0.5).all() for master in amp.master_params(trainer))


@pytest.mark.behaviour(54)
def test_each_loss_has_a_scale_of_its_own():
    net, trainer = initialized(num_losses=2, loss_scale=DynamicLossScale(init_scale=64))
    with autograd.record(), amp.scale_loss(net(x()).sum(), trainer, loss_id=1) as scaled:
        scaled.backward()
    net[0].weight.grad()[:] = np.inf
    assert not trainer.step(1) and learn(net, trainer, loss_id=0)
    scales = amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]
    assert [scale["value"] for scale in scales] == [64, 32]


def state_of(steps=3):
    net, trainer = initialized(num_losses=2)
    for i in range(steps):
        learn(net, trainer, i % 2)
    return trainer, amp.state_dict(trainer)


def test_state_dict_survives_json():
    trainer, state = state_of()
    other, fresh = state_of(steps=0)
    assert state != fresh
    amp.load_state_dict(json.loads(json.dumps(state)), other)
    assert amp.state_dict(other) == state and other.loss_scale == trainer.loss_scale
    assert other.skipped_steps == trainer.skipped_steps


GOOD = {**state_of(0)[1]["loss_scaler0"], "skipped_steps": 7}


@pytest.mark.parametrize(
    "state, message",
    [
        (None, "the state has NoneType"),
        ({"loss_scaler0": GOOD}, r"the state has \['loss_scaler0'\]; expected \['loss_scaler0', 'loss_scaler1'\]"),
        ({"loss_scaler0": GOOD, "loss_scaler1": {}}, "kind None"),
        ({"loss_scaler0": GOOD, "loss_scaler1": None}, "expected a dict"),
        ({"loss_scaler0": GOOD, "loss_scaler1": {**GOOD, "loss_scales": 1}}, "expected 2"),
        ({"loss_scaler0": GOOD, "loss_scaler1": GOOD}, "compression_params"),
    ],
    ids=["none", "one", "second empty", "second none", "second damaged", "second refused"],
)
def test_a_bad_state_changes_nothing(state, message):
    w = gluon.Parameter("w", shape=(2,))
    w.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    # The second compresses gradients, and refuses a loss scale.
    second = mxmp.gluon.Trainer([w], "sgd", compression_params={"type": "2bit", "threshold": 0.5}, loss_scale=None)
    trainers = [state_of()[0], second if message == "compression_params" else state_of()[0]]
    before = amp.state_dict(trainers)
    assert before["loss_scaler0"] != GOOD
    with pytest.raises(MxmpError, match=message):
        amp.load_state_dict(state, trainers)
    assert amp.state_dict(trainers) == before


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_gradients_of_master_params_can_be_clipped_as_with_apex(level):
    net = gluon.nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.Zero())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    net, trainer = amp.initialize(net, trainer, level, loss_scale=None if level == "O0" else 128)
    with autograd.record(), amp.scale_loss(net(mx.nd.ones((1, 1)) * 100).sum(), trainer) as scaled:
        scaled.backward()
    assert gluon.utils.clip_global_norm([p.grad for p in amp.master_params(trainer)], 1.0) == pytest.approx(100)
    assert trainer.step(1)
    assert net.weight._reduce().asscalar() == pytest.approx(-1)
