"""Moving averages of parameters, their exact values, and weights that are taken over as they are."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import mxmp
from mxmp.errors import TrainerError
from mxmp.gluon import adopt_weights, averaged, convert, exact_value

X = mx.nd.array(np.random.RandomState(0).randn(8, 6))


def make(policy="O2", lr=0.01):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    net(X)
    return net, mxmp.gluon.Trainer(net, "sgd", {"learning_rate": lr, "momentum": 0.9})


def step(net, trainer):
    with mx.autograd.record():
        loss = net(X).square().mean()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    return trainer.step(1)


def exact(net):
    return {name: exact_value(param).asnumpy() for name, param in net.collect_params().items()}


@pytest.mark.parametrize("policy", ["O1", "O2", "float32"])
def test_averages_are_those_of_the_float32_values(policy):
    net, trainer = make(policy)
    expected = {name: value.astype(np.float64) for name, value in exact(net).items()}
    average = averaged(net, decay=0.75)
    for _ in range(5):
        step(net, trainer)
        average.update()
        for name, value in exact(net).items():
            expected[name] = 0.75 * expected[name] + 0.25 * value
    for name, value in average.values.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value.asnumpy(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["O1", "O2", "float32"])
def test_averages_are_swapped_in_and_out_without_loss(policy):
    net, trainer = make(policy)
    average = averaged(net, decay=0.5)
    for _ in range(3):
        step(net, trainer)
        average.update()
    before, output = exact(net), net(X).asnumpy()
    with average.swapped_in():
        for name, value in exact(net).items():
            assert value.tobytes() == average.values[name].asnumpy().tobytes()
        assert np.any(net(X).asnumpy() != output)
    assert {n: v.tobytes() for n, v in exact(net).items()} == {n: v.tobytes() for n, v in before.items()}
    assert net(X).asnumpy().tolist() == output.tolist()
    other, untouched = make(policy)
    for _ in range(3):
        step(other, untouched)
    for each in ((net, trainer), (other, untouched)):
        assert step(*each)
    pairs = zip(exact(net).values(), exact(other).values())
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_an_error_while_averages_are_in_gives_the_values_back():
    net, trainer = make()
    average = averaged(net)
    step(net, trainer)
    before = exact(net)
    with pytest.raises(ZeroDivisionError), average.swapped_in():
        1 / 0  # noqa: B018
    assert all(np.array_equal(value, before[name]) for name, value in exact(net).items())


@pytest.mark.parametrize("decay", [1, 1.5, -0.1, True, "0.9", np.nan])
def test_a_decay_is_a_number_from_0_to_below_1(decay):
    with pytest.raises(TrainerError, match="averaged: decay=.*; expected a number from 0 to below 1"):
        averaged(make()[0], decay)


def test_a_parameter_without_a_value_is_named():
    with pytest.raises(TrainerError, match="exact_value: parameter '.*weight' is not initialized"):
        averaged(nn.Dense(2))


def test_the_exact_value_of_a_parameter_is_a_copy_of_its_master():
    net, trainer = make()
    step(net, trainer)
    weight = net[0].weight
    value = exact_value(weight)
    assert weight.dtype == np.float16 and value.dtype == np.float32
    assert np.any(value.asnumpy() != weight.data().asnumpy())
    value[:] = 7
    assert np.all(exact_value(weight).asnumpy() != 7)


WAYS = {
    "set_data": lambda param, value: param.set_data(value),
    "in place": lambda param, value: param.data().__setitem__(slice(None), value.astype("float16")),
}


@pytest.mark.parametrize("steps", [0, 1, 9, 12])
def test_a_write_past_a_master_raises_in_the_first_ten_steps_and_is_undone_later(steps):
    net, trainer = make(lr=0.0)
    for _ in range(steps):
        step(net, trainer)
    before = net[0].weight.data().asnumpy()
    net[0].weight.data()[:] = 0.25
    if steps == 0:  # there is no master of the trainer's yet
        assert step(net, trainer) and np.all(net[0].weight.data().asnumpy() == 0.25)
    elif steps < 10:
        with pytest.raises(TrainerError, match=r"parameter '.*dense.*weight' .*mxmp.gluon.adopt_weights\(net\)"):
            step(net, trainer)
        assert step.__name__ and net[0].weight.data().asnumpy()[0, 0] == 0.25  # nothing was updated
    else:
        assert step(net, trainer) and net[0].weight.data().asnumpy().tolist() == before.tolist()


@pytest.mark.parametrize("call", ["save_parameters", "export", "restore", "averaged"])
def test_what_reads_exact_values_raises_after_a_write_past_a_master(call, tmp_path):
    net, trainer = make()
    for _ in range(12):
        step(net, trainer)
    net[0].weight.data()[:] = 0.25
    calls = {
        "save_parameters": lambda: net.save_parameters(str(tmp_path / "net")),
        "export": lambda: mxmp.gluon.export(net, str(tmp_path / "net")),
        "restore": lambda: mxmp.gluon.restore(net),
        "averaged": lambda: averaged(net),
    }
    with pytest.raises(TrainerError, match=r"written to past its float32 master.*adopt_weights\(net\)"):
        calls[call]()
    adopt_weights(net)
    calls[call]()


def test_adopted_weights_are_what_the_next_step_starts_from():
    net, trainer = make(lr=0.0)
    step(net, trainer)
    before = exact(net)
    net[0].weight.data()[0] = 0.25
    adopt_weights(net)
    assert step(net, trainer)
    after = exact(net)
    name = net[0].weight.name
    assert np.all(after[name][0] == 0.25) and np.array_equal(after[name][1:], before[name][1:])


def test_adopt_weights_wants_a_net():
    with pytest.raises(TrainerError, match="adopt_weights: expected a Gluon net, found a Trainer"):
        adopt_weights(make()[1])


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "mixed_bfloat16", "O1,loss_scale=128"])
def test_a_trainer_of_a_net_has_its_policys_loss_scale(policy):
    net = nn.Dense(2, in_units=3)
    net.initialize()
    convert(net, policy)
    expected = mxmp.loss_scale.parse(mxmp.Policy.parse(policy).loss_scale)
    assert mxmp.gluon.Trainer(net, "sgd").loss_scale == expected
    assert mxmp.gluon.Trainer(net.collect_params(), "sgd").loss_scale == expected
    assert mxmp.gluon.Trainer.adopt(mx.gluon.Trainer(net.collect_params(), "sgd")).loss_scale == expected
    assert mxmp.gluon.Trainer(net, "sgd", loss_scale=64).loss_scale.value == 64


def test_a_trainer_of_a_net_that_is_not_converted_has_a_dynamic_loss_scale():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    assert mxmp.gluon.Trainer(net, "sgd").loss_scale == mxmp.loss_scale.DynamicLossScale()
    convert(net, "O1,loss_scale=128")
    mxmp.gluon.restore(net)
    assert mxmp.gluon.Trainer(net, "sgd").loss_scale == mxmp.loss_scale.DynamicLossScale()


def test_a_trainer_of_nets_with_different_loss_scales_asks_for_one():
    params = []
    for policy in ("O1", "O1,loss_scale=128"):
        net = nn.Dense(2, in_units=3)
        net.initialize()
        convert(net, policy)
        params += net.collect_params().values()
    with pytest.raises(TrainerError, match="policies that say different loss scales.*give loss_scale"):
        mxmp.gluon.Trainer(params, "sgd")
    assert mxmp.gluon.Trainer(params, "sgd", loss_scale=8).loss_scale.value == 8


def test_backward_on_the_block_itself_says_with():
    net, trainer = make()
    with mx.autograd.record():
        loss = net(X).mean()
    with pytest.raises(TrainerError, match=r"write `with trainer.scale_loss\(loss\) as scaled: scaled.backward\(\)`"):
        trainer.scale_loss(loss).backward()
    assert step(net, trainer)
