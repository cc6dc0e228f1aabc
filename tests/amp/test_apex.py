"""initialize, with the levels and properties of Apex, and its company."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from mxmp.dtypes import canonical
from mxmp.errors import MxmpError
from mxmp.gluon.conversion import conversion_of
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.amp.nets import make, trainer_of


def x():
    return mx.nd.array(np.random.RandomState(0).randn(8, 3))


def learn(net, trainer, loss_id=0):
    with autograd.record():
        loss = mx.nd.square(net(x()).astype("float32")).mean()
        with amp.scale_loss(loss, trainer, loss_id=loss_id, delay_unscale=True) as scaled:
            scaled.backward()
    return trainer.step(1)


def dtypes(net):
    return {name.split("_", 1)[1]: canonical(p.dtype) for name, p in net.collect_params().items()}


# The table of the docstring. O0 to O3: weights, the precision of the products, BatchNorm's, loss scale, masters.
LEVELS = {
    "O0": ("float32", None, None, NoOpLossScale(), True),
    "O1": ("float32", "float16", "float16", DynamicLossScale(), True),
    "O2": ("float16", "float16", "float16", DynamicLossScale(), True),
    "O3": ("float16", "float16", "float16", NoOpLossScale(), False),
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level):
    weights, products, norm, loss_scale, masters = LEVELS[level]
    net, trainer = make(), None
    plain = trainer_of(net)
    found, trainer = amp.initialize(net, plain, opt_level=level)
    assert found is net and trainer is plain and isinstance(trainer, mxmp.gluon.Trainer)
    out = net(x())
    assert canonical(out.dtype) == "float32"
    assert dtypes(net)["dense0_weight"] == weights and dtypes(net)["batchnorm0_gamma"] == "float32"
    assert trainer.loss_scale == loss_scale and trainer.optimizer.masters == masters
    if products is None:
        assert conversion_of(net) is None
    else:
        rows = {row.op: row.precision for row in mxmp.gluon.report(net).rows}
        assert (rows["FullyConnected"], rows["BatchNorm"]) == (products, norm)
    assert any(learn(net, trainer) for _ in range(10))  # the first steps may be skipped


@pytest.mark.parametrize("value, norm", [(True, "float32"), ("True", "float32"), (False, "float16"), (None, "float16")])
def test_properties_change_what_a_level_does(value, norm):
    net = make()
    options = {"keep_batchnorm_fp32": value, "cast_model_outputs": np.float16, "master_weights": False}
    net, trainer = amp.initialize(net, trainer_of(net), "O2", loss_scale=128, **options)
    assert net(x()).dtype == np.float16
    assert {row.op: row.precision for row in mxmp.gluon.report(net).rows}["BatchNorm"] == norm
    learn(net, trainer)
    assert not trainer.optimizer.masters
    assert {canonical(array.dtype) for array in amp.master_params(trainer)} == {"float16", "float32"}
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), "O2", num_losses=2)
    amp.initialize(net, trainer, "O1", loss_scale=8)  # which replaces the level
    assert dtypes(net)["dense0_weight"] == "float32" and trainer.loss_scale == StaticLossScale(8)
    assert learn(net, trainer)


@pytest.mark.bfloat16
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_cast_model_type(level):
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), level, cast_model_type="bfloat16")
    assert learn(net, trainer)
    assert dtypes(net)["dense0_weight"] == "bfloat16" and trainer.loss_scale == NoOpLossScale()


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ({"loss_scale": 128}, StaticLossScale(128)),
        ({"loss_scale": "dynamic"}, DynamicLossScale()),
        ({"loss_scale": DynamicLossScale(growth_interval=5)}, DynamicLossScale(growth_interval=5)),
        ({"min_loss_scale": 4}, DynamicLossScale(min_scale=4)),
        ({"max_loss_scale": 2.0**10}, DynamicLossScale(max_scale=2.0**10)),
        ({"min_loss_scale": 2.0**17}, DynamicLossScale(min_scale=2.0**17)),
    ],
)
def test_loss_scales(overrides, expected):
    net = make()
    _, trainer = amp.initialize(net, trainer_of(net), **overrides)
    assert trainer.loss_scale == expected


def test_lists_give_lists():
    """And optimizers become trainers of the nets."""
    nets, optimizer = [make("a_"), make("b_")], mx.optimizer.Adam()
    found, trainers = amp.initialize(nets, [trainer_of(nets[0]), optimizer], "O1", loss_scale=128)
    assert found is nets and trainers[1].optimizer.inner is optimizer and [type(each) for each in trainers] == [mxmp.gluon.Trainer] * 2
    assert trainers[1]._params[0].name.startswith("b_")
    assert all(learn(net, trainer) for net, trainer in zip(nets, trainers))
    assert amp.initialize(make()).name == "net"


def test_disabled_nothing_changes_but_the_calls_work():
    net = make()
    trainer = trainer_of(net)
    net, trainer = amp.initialize(net, trainer, "O2", enabled=False, keep_batchnorm_fp32=True)
    assert conversion_of(net) is None and trainer.loss_scale == NoOpLossScale()
    loss = mx.nd.ones(1)
    with amp.scale_loss(loss, trainer) as same:
        assert same is loss
    assert learn(net, trainer)


def test_several_losses():
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), num_losses=3, loss_scale="dynamic", max_loss_scale=128)
    assert all(learn(net, trainer, loss_id) for loss_id in (0, 2, 2))
    assert [scale["growth_tracker"] for scale in amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]] == [1, 0, 2]


def test_master_params_are_what_the_trainer_updates():
    net = make()
    exact = {name: p.data().asnumpy() for name, p in net.collect_params().items() if p.grad_req != "null"}
    net, trainer = amp.initialize(net, trainer_of(net), "O2", loss_scale=128)
    net(x())
    masters = list(amp.master_params(trainer))  # before the first step
    names = [p.name for p in trainer._params if p.grad_req != "null"]
    for name, master in zip(names, masters):
        assert master.dtype == np.float32 and (master.asnumpy() == exact[name]).all()
    before = [master.asnumpy() for master in masters]
    learn(net, trainer)
    for master, again in zip(masters, amp.master_params([trainer])):
        assert again is master
    weights = {p.name: p.data() for p in trainer._params}
    for name, master in zip(names, masters):
        np.testing.assert_array_equal(master.astype(weights[name].dtype).asnumpy(), weights[name].asnumpy())
    assert any((old != master.asnumpy()).any() for old, master in zip(before, masters))
    net[0].weight.set_data(mx.nd.full((4, 3), 0.5, dtype="float16"))
    assert (dict(zip(names, amp.master_params(trainer)))["net_dense0_weight"].asnumpy() == 0.5).all()


def state_of(num_losses=1, steps=3):
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), num_losses=num_losses)
    for i in range(steps):
        learn(net, trainer, i % num_losses)
    return trainer, amp.state_dict(trainer)


@pytest.mark.parametrize("num_losses", [1, 2])
def test_state_dict_survives_json(num_losses):
    trainer, state = state_of(num_losses)
    other, fresh = state_of(num_losses, steps=0)
    assert state != fresh
    amp.load_state_dict(json.loads(json.dumps(state)), other)
    assert amp.state_dict(other) == state and other.loss_scale == trainer.loss_scale
    assert other.skipped_steps == trainer.skipped_steps


def updates_on_kvstore():
    """Return a trainer that updates inside of its kvstore, before any check, and refuses a loss scale."""
    w = gluon.Parameter("w", shape=(2,))
    w.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    return mxmp.gluon.Trainer([w], "sgd", update_on_kvstore=True, loss_scale=None)


GOOD = state_of(2, steps=5)[1]["loss_scaler0"]


@pytest.mark.parametrize(
    "second, state, message",
    [
        (lambda: state_of(2)[0], {}, r"the state has \[\]; expected \['loss_scaler0', 'loss_scaler1'\]"),
        (lambda: state_of(2)[0], None, "the state has NoneType"),
        (lambda: state_of(2)[0], {"loss_scaler0": GOOD, "loss_scaler1": {}}, "kind None"),
        (lambda: state_of(2)[0], {"loss_scaler0": GOOD, "loss_scaler1": None}, "expected a dict"),
        (lambda: state_of(2)[0], {"loss_scaler0": GOOD, "loss_scaler1": {**GOOD, "loss_scales": 1}}, "expected 2"),
        (updates_on_kvstore, {"loss_scaler0": GOOD, "loss_scaler1": GOOD}, "update_on_kvstore"),
    ],
    ids=["empty", "none", "second empty", "second none", "second damaged", "second refused"],
)
def test_a_bad_state_changes_nothing(second, state, message):
    trainers = [state_of(2)[0], second()]
    before = amp.state_dict(trainers)
    assert before["loss_scaler0"] != GOOD
    with pytest.raises(MxmpError, match=message):
        amp.load_state_dict(state, trainers)
    assert amp.state_dict(trainers) == before


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_gradients_of_master_params_can_be_clipped_as_with_apex(level):
    w = gluon.nn.Dense(1, in_units=1, use_bias=False)
    w.initialize(mx.init.Zero())
    trainer = gluon.Trainer(w.collect_params(), "sgd", {"learning_rate": 1.0})
    w, trainer = amp.initialize(w, trainer, level, loss_scale=None if level == "O0" else 128)
    with autograd.record(), amp.scale_loss(w(mx.nd.ones((1, 1)) * 100).sum(), trainer) as scaled:
        scaled.backward()
    assert gluon.utils.clip_global_norm([p.grad for p in amp.master_params(trainer)], 1.0) == pytest.approx(100)
    assert trainer.step(1)
    assert w.weight._reduce().asscalar() == pytest.approx(-1)
