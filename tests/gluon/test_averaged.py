"""Moving averages of parameters, their exact values, and weights that are taken over as they are."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import mxmp
from mxmp.errors import TrainerError
from mxmp.gluon import adopt_weights, averaged, convert, exact_value
from tests.gluon.trainer_tools import DTYPES, TWO, backward, backward_everywhere, param, sgd, trained

X = mx.nd.array(np.random.RandomState(0).randn(8, 6))


def make(policy="O2", lr=0.01):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    net(X)
    return net, mxmp.gluon.Trainer(net, "sgd", {"learning_rate": lr, "momentum": 0.9})


def step(net, trainer, clip=False):
    with mx.autograd.record():
        loss = net(X).square().mean()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    if clip:
        trainer.clip_global_norm(1e9)
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


@pytest.mark.parametrize("kvstore", ["device", None])
@pytest.mark.parametrize("policy", ["O1", "O2", "float32"])
def test_each_context_has_its_own_values_again(policy, kvstore):
    """Statistics, and without a kvstore weights, are those of each context; it is their mean that is averaged."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=TWO)
    trainer = mxmp.gluon.Trainer(convert(net, policy), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)

    def step():
        with mx.autograd.record():
            losses = [net(X.as_in_context(ctx) * (3 * i + 1) + i).square().mean() for i, ctx in enumerate(TWO)]
        with trainer.scale_loss(losses) as scaled:
            mx.autograd.backward(scaled)
        assert trainer.step(1)

    def everything():
        params = net.collect_params().values()
        return [array.asnumpy() for p in params for ctx in TWO for array in (exact_value(p, ctx), p.data(ctx))]

    for _ in range(2):  # with a kvstore the first gives all contexts the statistics of one
        step()
    average, before, first = averaged(net, decay=0.5), everything(), {}
    for name, p in net.collect_params().items():
        values = [exact_value(p, ctx).asnumpy() for ctx in TWO]
        first[name] = sum(values) / 2
        np.testing.assert_allclose(average.values[name].asnumpy(), first[name], rtol=1e-6, atol=1e-9)
        assert np.any(values[0] != values[1]) == (kvstore is None or "running" in name)
    with average.swapped_in():
        assert all(np.array_equal(p.data(TWO[0]).asnumpy(), p.data(TWO[1]).asnumpy()) for p in average._params.values())
    assert [a.tobytes() for a in everything()] == [a.tobytes() for a in before]
    step()
    average.update()
    for name, p in net.collect_params().items():
        now = sum(exact_value(p, ctx).asnumpy() for ctx in TWO) / 2
        np.testing.assert_allclose(average.values[name].asnumpy(), (first[name] + now) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call", ["step", "unscale", "clip"])
def test_a_step_while_averages_are_in_is_an_error(call):
    net, trainer = make()
    average = averaged(net)
    step(net, trainer)
    calls = {"step": lambda: trainer.step(1), "unscale": trainer.unscale, "clip": lambda: trainer.clip_global_norm(1.0)}
    before, count = exact(net), trainer.optimizer.num_update
    with average.swapped_in():
        with average.swapped_in():
            pass
        with mx.autograd.record():
            loss = net(X).square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        with pytest.raises(TrainerError, match=r"was called within `averaged.swapped_in\(\)`"):
            calls[call]()
    assert trainer.optimizer.num_update == count
    assert all(np.array_equal(value, before[name]) for name, value in exact(net).items())
    trainer.discard_grads()
    assert step(net, trainer)


def test_averages_are_saved_within_and_go_on_from_their_values(tmp_path):
    net, trainer = make()
    average = averaged(net, decay=0.5)
    step(net, trainer)
    average.update()
    mx.nd.save(str(tmp_path / "averages"), average.values)
    with average.swapped_in():
        net.save_parameters(str(tmp_path / "net"))
    other, _ = make()
    other.load_parameters(str(tmp_path / "net"))
    assert all(np.array_equal(a, b.asnumpy()) for a, b in zip(exact(other).values(), average.values.values()))
    again = averaged(net, decay=0.5)
    for name, value in mx.nd.load(str(tmp_path / "averages")).items():
        value.copyto(again.values[name])
    for each in (average, again):
        each.update()
    assert all(np.array_equal(average.values[n].asnumpy(), again.values[n].asnumpy()) for n in average.values)


def net_of(*params):
    """Return a net of parameters that no conversion stores."""
    net = mx.gluon.Block()
    net.params.update({p.name: p for p in params})
    return net


@pytest.mark.parametrize("dtype", DTYPES)
def test_averages_of_weights_that_were_cast_by_hand(dtype):
    w = param([1.0, 0.3], dtype)
    trainer, net = sgd(w, 8, lr=2.0**-13), net_of(w)
    average, expected = averaged(net, decay=0.75), exact_value(w).asnumpy()
    for x in (1.0, 3.0, 2.0):
        backward(trainer, w, x)
        trainer.step(1)
        average.update()
        expected = 0.75 * expected + 0.25 * exact_value(w).asnumpy()
    own = exact_value(w).asnumpy()
    np.testing.assert_allclose(average.values["w"].asnumpy(), expected, rtol=1e-6)
    with average.swapped_in():
        assert exact_value(w).asnumpy().tolist() == average.values["w"].asnumpy().tolist() != own.tolist()
    assert exact_value(w).asnumpy().tolist() == own.tolist()
    backward(trainer, w, 1.0)
    assert trainer.step(1)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integers_are_left_out_of_an_average(dtype):
    count = mx.gluon.Parameter("count", shape=(2,), dtype=dtype, grad_req="null", init=mx.init.One())
    count.initialize()
    w = param([1.0])
    average = averaged(net_of(w, count), decay=0.5)
    w.set_data(mx.nd.array([3.0]))
    count.set_data(mx.nd.array([9, 8], dtype=dtype))
    average.update()
    assert list(average.values) == ["w"] and average.values["w"].asscalar() == 2
    with average.swapped_in():
        assert w.data().asscalar() == 2 and count.data().asnumpy().tolist() == [9, 8]
        count.set_data(mx.nd.array([7, 7], dtype=dtype))
    assert w.data().asscalar() == 3 and count.data().asnumpy().tolist() == [7, 7]
    assert count.data().dtype == np.dtype(dtype)


def test_an_update_of_averages_reads_nothing_on_the_host(monkeypatch):
    net, trainer = make()
    average = averaged(net)
    step(net, trainer)
    with monkeypatch.context() as patch:
        for name in ("asnumpy", "wait_to_read"):
            patch.setattr(mx.nd.NDArray, name, None)
        average.update()


@pytest.mark.filterwarnings("ignore")
def test_weights_that_a_trainer_of_mxnet_updates_are_averaged_as_they_are():
    """Nobody has masters of them: those of the conversion are of before the first step."""
    net, _ = make()
    average = averaged(net, 0)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "multi_precision": True})
    with mx.autograd.record():
        loss = net(X).sum()
    loss.backward()
    trainer.step(1)
    average.update()
    for name, each in net.collect_params().items():
        expected = each.list_data()[0].asnumpy().astype(np.float32)
        np.testing.assert_allclose(average.values[name].asnumpy(), expected, rtol=2**-10)
    assert np.abs(average.values[net[2].bias.name].asnumpy()).max() == 8


def test_an_error_while_averages_are_in_gives_the_values_back():
    net, trainer = make()
    average = averaged(net)
    step(net, trainer)
    before = exact(net)
    with pytest.raises(ZeroDivisionError), average.swapped_in():
        1 / 0  # noqa: B018
    assert all(np.array_equal(value, before[name]) for name, value in exact(net).items())


def test_the_exact_value_of_a_parameter_is_a_copy_of_its_master():
    net, trainer = make()
    step(net, trainer)
    weight = net[0].weight
    value = exact_value(weight)
    assert weight.dtype == np.float16 and value.dtype == np.float32
    assert np.any(value.asnumpy() != weight.data().asnumpy())
    value[:] = 7
    assert np.all(exact_value(weight).asnumpy() != 7)


def test_the_exact_value_is_the_same_on_every_context():
    w, trainer = trained(param([1.0, 0.3], "float16", TWO), 8, lr=2.0**-15)
    for _ in range(2):
        backward_everywhere(trainer, w, (1, 1))
        trainer.step(1)
    first, second = (exact_value(w, ctx).asnumpy().tolist() for ctx in TWO)
    assert first == second != w.data(TWO[0]).asnumpy().tolist()


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("steps", [0, 1, 9, 12])
def test_a_write_past_a_master_raises_in_the_first_ten_steps_and_is_undone_later(steps, clip):
    net, trainer = make(lr=0.0)
    for _ in range(steps):
        step(net, trainer, clip)
    before = net[0].weight.data().asnumpy()
    net[0].weight.data()[:] = 0.25
    if steps == 0:  # there is no master of the trainer's yet
        assert step(net, trainer, clip) and np.all(net[0].weight.data().asnumpy() == 0.25)
    elif steps < 10:
        with pytest.raises(TrainerError, match=r"parameter '.*dense.*weight' .*mxmp.gluon.adopt_weights\(net\)"):
            step(net, trainer, clip)
        assert net[0].weight.data().asnumpy()[0, 0] == 0.25  # nothing was updated
        adopt_weights(net)
        assert step(net, trainer, clip)
        net[0].weight.data()[:] = 0.5  # compared ten times more
        with pytest.raises(TrainerError, match="written to past"):
            step(net, trainer, clip)
    else:
        assert step(net, trainer, clip) and net[0].weight.data().asnumpy().tolist() == before.tolist()


CALLS = {
    "save_parameters": lambda net, trainer, folder: net.save_parameters(str(folder / "net")),
    "save_states": lambda net, trainer, folder: trainer.save_states(str(folder / "states")),
    "export": lambda net, trainer, folder: mxmp.gluon.export(net, str(folder / "net")),
    "convert": lambda net, trainer, folder: convert(net, "O1"),
    "restore": lambda net, trainer, folder: mxmp.gluon.restore(net),
    "averaged": lambda net, trainer, folder: averaged(net),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_reads_exact_values_raises_after_a_write_past_a_master_and_changes_nothing(call, tmp_path):
    net, trainer = make()
    for _ in range(12):
        step(net, trainer)
    net[2].weight.data()[:] = 0.25  # not the first
    params = net.collect_params().values()
    dtypes, output = [p.dtype for p in params], net(X).asnumpy()
    with pytest.raises(TrainerError, match=r"written to past its float32 master.*adopt_weights\(net\)"):
        call(net, trainer, tmp_path)
    assert [p.dtype for p in params] == dtypes and net(X).asnumpy().tolist() == output.tolist()
    assert not list(tmp_path.iterdir())
    adopt_weights(net)
    call(net, trainer, tmp_path)


def test_a_write_after_the_trainer_is_gone_is_taken_over(tmp_path):
    net, trainer = make()
    step(net, trainer)
    trainer = mxmp.gluon.Trainer(net, "sgd")  # a parameter knows its last one, and keeps it
    net[0].weight.data()[:] = 0.25
    net.save_parameters(str(tmp_path / "net"))
    mxmp.gluon.restore(net)
    assert np.all(net[0].weight.data().asnumpy() == 0.25) and trainer.skipped_steps == 0


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_a_copied_net_has_the_exact_values_and_no_owner(clone):
    net, trainer = make()
    step(net, trainer)
    for p in net.collect_params().values():
        p._trainer = None  # which holds a kvstore, that MXNet cannot copy
    other = clone(net)
    assert all(np.array_equal(a, b) for a, b in zip(exact(net).values(), exact(other).values()))
    other[0].weight.data()[:] = 0.25
    assert np.all(exact_value(other[0].weight).asnumpy() == 0.25)
    assert np.all(exact_value(net[0].weight).asnumpy() != 0.25)


def test_states_that_are_loaded_in_mid_training_leave_masters_that_fit(tmp_path):
    net, trainer = make()
    step(net, trainer)
    trainer.save_states(str(tmp_path / "states"))
    for _ in range(11):
        step(net, trainer)
    trainer.load_states(str(tmp_path / "states"))
    exact(net)
    trainer.save_states(str(tmp_path / "states"))
    assert step(net, trainer)
    net[0].weight.data()[:] = 0.25  # compared again
    with pytest.raises(TrainerError, match="written to past its float32 master"):
        step(net, trainer)


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


@pytest.mark.parametrize("policy", ["O0", "float32", "O1", "O2", "O3", "mixed_bfloat16", "O1,loss_scale=128"])
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
    part = nn.HybridSequential()
    part.add(net)
    convert(part, "O1,loss_scale=64")
    mxmp.gluon.restore(part)
    assert mxmp.gluon.Trainer(net, "sgd").loss_scale == mxmp.loss_scale.DynamicLossScale()


@pytest.mark.parametrize("policy", ["O0", "float32", "O1"])
def test_a_net_that_was_restored_has_no_policy(policy):
    one, other = nn.Dense(2, in_units=3), nn.Dense(2, in_units=3)
    for net in (one, other):
        net.initialize()
    mxmp.gluon.restore(convert(one, policy))
    convert(other, "O1,loss_scale=128")
    for params, expected in ((one, "dynamic"), ([*one.collect_params().values(), other.weight], 128)):
        assert mxmp.gluon.Trainer(params, "sgd").loss_scale == mxmp.loss_scale.parse(expected)


def test_restoring_a_net_leaves_the_policy_of_another_with_the_same_parameters():
    one, other = nn.Dense(2, in_units=3), None
    one.initialize()
    other = nn.Dense(2, in_units=3, params=one.params)
    convert(one, "O1,loss_scale=128")
    convert(other, "O1,loss_scale=64")
    mxmp.gluon.restore(one)
    assert mxmp.gluon.Trainer(other, "sgd").loss_scale.value == 64


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
