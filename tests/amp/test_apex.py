"""initialize, with the levels and properties of Apex, and its company."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.dtypes import canonical
from mxmp.errors import ConvertError, MxmpError, PolicyError, TrainerError
from mxmp.gluon.conversion import conversion_of
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale


def make(prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier(rnd_type="gaussian"))
    return net


def trainer_of(net, **kwargs):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.125}, **kwargs)


def x():
    return mx.nd.array(np.random.RandomState(0).randn(8, 3))


def learn(net, trainer, loss_id=0):
    with autograd.record():
        loss = mx.nd.square(net(x()).astype("float32")).mean()
        with amp.scale_loss(loss, trainer, loss_id=loss_id) as scaled:
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
    assert any(learn(net, trainer) for _ in range(12))  # the first steps may be skipped


def test_a_level_trains_as_convert_and_a_trainer_of_mxmp():
    nets = [make("a_"), make("b_")]
    for mine, theirs in zip(nets[0].collect_params().values(), nets[1].collect_params().values()):
        theirs.set_data(mine.data())
    first, trainer = amp.initialize(nets[0], trainer_of(nets[0]), "O2", loss_scale=128)
    second = mxmp.gluon.convert(nets[1], "O2")
    other = mxmp.gluon.Trainer(second.collect_params(), "sgd", {"learning_rate": 0.125}, loss_scale=128)
    for _ in range(3):
        assert learn(first, trainer) and learn(second, other)
    for mine, theirs in zip(first.collect_params().values(), second.collect_params().values()):
        np.testing.assert_array_equal(mine.data().asnumpy(), theirs.data().asnumpy())


def test_keep_batchnorm_fp32():
    for value, expected in ((True, "float32"), ("True", "float32"), (False, "float16"), (None, "float16")):
        net = amp.initialize(make(), opt_level="O2", keep_batchnorm_fp32=value)
        net(x())
        assert {row.op: row.precision for row in mxmp.gluon.report(net).rows}["BatchNorm"] == expected


@pytest.mark.bfloat16
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_cast_model_type(level):
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), level, cast_model_type="bfloat16")
    assert learn(net, trainer)
    assert dtypes(net)["dense0_weight"] == "bfloat16" and trainer.loss_scale == NoOpLossScale()


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_cast_model_outputs(level):
    net = amp.initialize(make(), opt_level=level, cast_model_outputs=np.float16)
    assert net(x()).dtype == np.float16


def test_master_weights():
    net = make()
    _, trainer = amp.initialize(net, trainer_of(net), "O2", master_weights=False, loss_scale=128)
    learn(net, trainer)
    assert not trainer.optimizer.masters
    assert {canonical(array.dtype) for array in amp.master_params(trainer)} == {"float16", "float32"}


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


def test_an_optimizer_becomes_a_trainer_of_the_net():
    net = make()
    optimizer = mx.optimizer.SGD(learning_rate=0.125)
    net, trainer = amp.initialize(net, optimizer, "O2", loss_scale=128)
    assert trainer.optimizer.inner is optimizer
    before = net[0].weight.data().asnumpy()
    assert learn(net, trainer)
    assert (net[0].weight.data().asnumpy() != before).any()


def test_lists_give_lists():
    nets = [make("a_"), make("b_")]
    found, trainers = amp.initialize(nets, [trainer_of(nets[0]), mx.optimizer.Adam()], "O1", loss_scale=128)
    assert found is nets and [type(each) for each in trainers] == [mxmp.gluon.Trainer] * 2
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


def test_initializing_again_replaces_the_level():
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), "O2", num_losses=2)
    net, trainer = amp.initialize(net, trainer, "O1", loss_scale=8)
    assert dtypes(net)["dense0_weight"] == "float32" and trainer.loss_scale == StaticLossScale(8)
    assert learn(net, trainer)


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


def test_master_params_follow_parameters_that_were_set():
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), "O2", loss_scale=128)
    learn(net, trainer)
    net[0].weight.set_data(mx.nd.full((4, 3), 0.5, dtype="float16"))
    masters = dict(zip([p.name for p in trainer._params if p.grad_req != "null"], amp.master_params(trainer)))
    assert (masters["net_dense0_weight"].asnumpy() == 0.5).all()


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


def test_states_between_backward_and_step_are_refused():
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net))
    state = amp.state_dict(trainer)
    with autograd.record(), amp.scale_loss(net(x()).sum(), trainer) as scaled:
        scaled.backward()
    for call in (lambda: amp.state_dict(trainer), lambda: amp.load_state_dict(state, trainer)):
        with pytest.raises(TrainerError, match="came between backward and step"):
            call()


@pytest.mark.parametrize(
    "level, overrides, message",
    [
        ("01", {}, "opt_level='01': expected one of O0, O1, O2, O3; the letter O, not a zero"),
        ("O4", {}, "opt_level='O4'"),
        ("O1", {"cast_model_type": "float16"}, "cast_model_type=float16 makes no sense at O1, where parameters stay"),
        ("O1", {"keep_batchnorm_fp32": True}, "keep_batchnorm_fp32=True makes no sense at O1"),
        ("O1", {"master_weights": False}, "master_weights=False makes no sense at O1"),
        ("O0", {"master_weights": True}, "master_weights=True makes no sense at O0, where parameters stay"),
        ("O0", {"cast_model_type": np.float16}, "cast_model_type=.*float16.* makes no sense at O0"),
        ("O0", {"loss_scale": 128}, "float32 gradients need no scaling"),
        ("O0", {"cast_model_outputs": "float16"}, "output_dtype='float16' with compute_dtype='float32'"),
        ("O2", {"cast_model_type": "float32"}, "cast_model_type=float32 at O2 leaves nothing in low precision; use O0"),
        ("O2", {"cast_model_type": "fp61"}, "unknown dtype 'fp61'"),
        ("O2", {"keep_batchnorm_fp32": "yes"}, "keep_batchnorm_fp32='yes': expected True or False"),
        ("O2", {"master_weights": 1.5}, "master_weights=1.5: expected True or False"),
        ("O2", {"cast_model_outputs": "bfloat16"}, "output_dtype='bfloat16' with compute_dtype='float16'"),
        ("O1", {"patch_torch_functions": True}, "patch_torch_functions: mxmp patches no functions"),
        ("O1", {"verbosity": 0}, "verbosity: mxmp writes to Python's logging"),
        ("O1", {"loss_scal": 128}, "unknown property 'loss_scal'; the nearest are loss_scale"),
        (
            "O1",
            {"loss_scale": 128, "min_loss_scale": 1},
            "min_loss_scale and max_loss_scale are for loss_scale='dynamic'",
        ),
        ("O3", {"max_loss_scale": 1}, "are for loss_scale='dynamic'; it is None"),
        ("O1", {"min_loss_scale": -1}, "min_scale=-1.0 is no loss scale"),
        ("O1", {"loss_scale": "dinamic"}, "loss_scale='dinamic'"),
        ("O1", {"num_losses": 0}, "num_losses=0: expected a whole number from 1 on"),
    ],
)
def test_properties_that_make_no_sense(level, overrides, message):
    net = make()
    trainer = trainer_of(net)
    with pytest.raises(MxmpError, match=message):
        amp.initialize(net, trainer, level, **overrides)
    assert conversion_of(net) is None and type(trainer) is gluon.Trainer


def test_a_trainer_that_cannot_be_set_up_leaves_all_as_it_was():
    nets = [make("a_"), make("b_")]
    trainers = [trainer_of(nets[0]), trainer_of(nets[1], update_on_kvstore=True)]
    with pytest.raises(TrainerError, match="update_on_kvstore=True updates weights inside"):
        amp.initialize(nets, trainers)
    assert [conversion_of(net) for net in nets] == [None, None] and type(trainers[0]) is gluon.Trainer


def test_a_net_that_cannot_be_converted_leaves_all_as_it_was():
    net = make()
    trainer = trainer_of(net)
    with pytest.raises(ConvertError, match="expected a Gluon block, found int"):
        amp.initialize([net, 1], trainer)
    assert conversion_of(net) is None and type(trainer) is gluon.Trainer


@pytest.mark.parametrize("nets, optimizers", [(1, 2), (3, 2), (2, 1)])
def test_it_must_be_clear_what_an_optimizer_trains(nets, optimizers):
    with pytest.raises(amp.AmpError, match=f"{optimizers} optimizers for {nets} nets: it is not clear"):
        amp.initialize([make() for _ in range(nets)], [mx.optimizer.SGD() for _ in range(optimizers)])


def test_masters_of_a_trainer_of_mxmp_are_its_own():
    net = make()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd")
    with pytest.raises(PolicyError, match="master_weights=False, but the trainer was made with multi_precision=True"):
        amp.initialize(net, trainer, "O2", master_weights=False)
    amp.initialize(net, trainer, "O2")


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


def test_an_optimizer_for_a_net_without_values_changes_nothing():
    ready, empty = make(), gluon.nn.Dense(2, in_units=3)
    with pytest.raises(amp.AmpError, match="parameter 'dense.*' is not initialized.*initialize of block 'dense"):
        amp.initialize([ready, empty], [mx.optimizer.SGD(), mx.optimizer.SGD()], "O2")
    with pytest.raises(ConvertError, match="not converted"):
        mxmp.gluon.report(ready)


def test_states_want_to_know_the_trainers():
    for call in (lambda: amp.state_dict(), lambda: amp.load_state_dict({})):
        with pytest.raises(amp.AmpError, match="give the trainers"):
            call()


def test_delay_unscale_is_taken():
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net), loss_scale=8)
    with autograd.record():
        loss = net(x()).sum()
    with amp.scale_loss(loss, trainer, delay_unscale=True) as scaled:
        scaled.backward()
        assert (scaled == loss * 8).min() == 1
    assert trainer.step(1)
