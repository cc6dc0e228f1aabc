from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.gluon import convert
from mxmp.gluon.trainer import Trainer
from mxmp.optimizer import MultiPrecision
from mxmp.train.masters import keep_masters
from tests.gluon.trainer_tools import LOW, TWO, backward, param, sgd, value

# The optimizer.


@pytest.mark.parametrize("dtype", LOW)
def test_masters_can_be_turned_off(dtype):
    w = param([1.0], dtype)
    trainer = Trainer([w], "sgd", {"learning_rate": 1e-4, "multi_precision": False}, loss_scale=1)
    for _ in range(100):
        backward(trainer, w, 1)
        trainer.step(1)
    assert value(w.data()) == [1.0]
    assert trainer.optimizer.multi_precision is False


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("multi_precision", [True, False])
def test_small_gradients_reach_the_update_at_a_large_scale(dtype, multi_precision):
    w = param([0.0], dtype)
    options = {"learning_rate": 1.0, "multi_precision": multi_precision}
    trainer = Trainer([w], "sgd", options, loss_scale=2.0**16)
    backward(trainer, w, 2.0**-20)
    trainer.step(1)
    assert value(w.data()) == [-(2.0**-20)]


def test_the_first_master_is_the_value_before_the_cast():
    w = param([0.1], "float16")
    keep_masters(w, [mx.nd.array([0.1])])
    trainer = sgd(w)
    backward(trainer, w, 0)
    trainer.step(1)
    assert trainer._updaters[0].states[0].master.asscalar() == np.float32(0.1)


def test_an_optimizer_instance_is_wrapped():
    inner = mx.optimizer.SGD(learning_rate=1.0)
    trainer = Trainer([param([1.0])], inner)
    assert isinstance(trainer.optimizer, MultiPrecision)
    assert trainer.optimizer.inner is inner


def test_a_wrapped_optimizer_is_taken_as_it_is():
    wrapped = MultiPrecision(mx.optimizer.SGD(), masters=False)
    assert Trainer([param([1.0])], wrapped).optimizer is wrapped


def test_options_beside_an_instance_are_refused():
    inner = mx.optimizer.SGD()
    with pytest.raises(TrainerError, match=r"optimizer_params has \['wd'\], but the optimizer is an instance"):
        Trainer([param([1.0])], inner, {"wd": 0.1})
    assert Trainer([param([1.0])], inner, {"multi_precision": False}).optimizer.masters is False


def test_an_error_of_the_optimizer_ends_the_window(monkeypatch):
    w = param([0.0], "float16")
    trainer = sgd(w)
    original = w.list_grad()
    backward(trainer, w, 0.5)
    trainer.unscale()
    with monkeypatch.context() as patch:
        patch.setattr(trainer.optimizer.inner, "update_multi_precision", None)
        with pytest.raises(TypeError):
            trainer.step(1)
    assert w._grad is original
    backward(trainer, w, 0.5)
    assert trainer.step(1)


@pytest.mark.parametrize("params", [3, [3], "w"])
def test_what_are_no_parameters_is_refused_by_mxnet(params):
    with pytest.raises(ValueError, match="must be a list or dict of Parameters"):
        Trainer(params, "sgd")


def test_environment_cannot_move_updates_to_the_kvstore(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")
    w = param([1.0], ctx=TWO)
    trainer = sgd(w)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    w.grad(TWO[0])[:] = np.inf
    assert not trainer.step(1)
    assert w.data(TWO[0]).asscalar() == 1.0


def test_a_net_cast_after_training_began_changes_nothing_in_the_step():
    """The check of states comes before any update: the parameters that could go on do not."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=4), mx.gluon.nn.BatchNorm(in_channels=4), mx.gluon.nn.Dense(1, in_units=4))
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"momentum": 0.9, "learning_rate": 0.1}, loss_scale=8)

    def step():
        with mx.autograd.record(), trainer.scale_loss(net(mx.nd.arange(8).reshape((2, 4))).sum()) as scaled:
            scaled.backward()
        return trainer.step(2)

    assert step()
    convert(net, "O2")
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items() if "running" not in name}
    with pytest.raises(TrainerError, match="changed its dtype after its optimizer state was made"):
        step()
    assert trainer.optimizer.num_update == 1
    assert all(np.array_equal(net.collect_params()[name].data().asnumpy(), value) for name, value in before.items())
