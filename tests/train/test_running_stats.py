"""Running statistics that a forward pass destroyed are put back."""

import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.errors import NonFiniteLossError
from mxmp.gluon import Trainer
from tests.diagnose.nets import Listed
from tests.gluon.trainer_tools import TWO, run_backward

MEAN, VAR = "running_mean", "running_var"
GOOD = 1, 4


@pytest.fixture(params=["cpu", "gpu"], autouse=True)
def device(request, monkeypatch):
    """Keep statistics on the CPU as they are kept on each device."""
    monkeypatch.setattr("mxmp.train.running_stats.on_gpu", lambda _: request.param == "gpu")


class Training:
    """A BatchNorm of two channels on two contexts, and its trainer, which skips losses that are not finite."""

    def __init__(self, mean=(0, 0)):
        self.net = nn.BatchNorm(in_channels=2, prefix="norm_")
        self.net.initialize(ctx=TWO)
        self.net.collect_params().setattr("grad_req", "add")
        self.net.running_mean.set_data(mx.nd.array(mean))
        options = {"learning_rate": 0.0}
        self.trainer = Trainer(self.net, "sgd", options, None, loss_scale=8, nonfinite_loss="skip", max_nonfinite_losses=99)

    def step(self, *values):
        """Take a step of a pass for each pair of values, which the second channel has on the second context."""
        for pair in values or [GOOD]:
            batches = [mx.nd.array([[1, a], [2, b]], ctx=ctx) for ctx, (a, b) in zip(TWO, (GOOD, pair))]
            with autograd.record():
                losses = [self.net(batch).sum() for batch in batches]
            run_backward(self.trainer, losses)
        taken = self.trainer.step(1)
        self.net.collect_params().zero_grad()
        return taken

    def values(self, name):
        return [array.asnumpy().tolist() for array in getattr(self.net, name).list_data()]


def put_back(caplog):
    return [message for message in caplog.messages if "put back" in message]


# The values of a batch, and the statistics that they destroy: a mean, and a variance that float32 has not.
DESTROYING = {"nan": ((np.nan, 1), {MEAN, VAR}), "inf": ((np.inf, 1), {MEAN, VAR}), "large": ((1e30, -1e30), {VAR})}


@pytest.mark.parametrize("later", [[], [GOOD]], ids=["in the last pass", "before another"])
@pytest.mark.parametrize("bad, lost", DESTROYING.values(), ids=DESTROYING)
def test_what_a_forward_pass_destroys_is_put_back_array_by_array(bad, lost, later, caplog):
    training = Training()
    training.step()
    before = {name: training.values(name) for name in (MEAN, VAR)}
    with caplog.at_level(logging.WARNING):
        training.step(bad, *later)
    for name in (MEAN, VAR):
        (first, second), (first_before, second_before) = training.values(name), before[name]
        assert first != first_before
        assert (second[1] == second_before[1]) is (name in lost)
    names = ", ".join(f"'norm_{name}'" for name in sorted(lost))
    text = f"{names} not finite after a forward pass on NaN or inf, and put back; such passes so far: 1"
    assert put_back(caplog) == [text]
    assert training.step() and np.isfinite(training.values(VAR)).all()


def test_one_line_names_all_and_later_ones_are_rare(caplog):
    training = Training()
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            training.step((np.nan, 1))
    found = put_back(caplog)
    assert [message.split(" ", 2)[:2] for message in found] == [[f"'norm_{MEAN}',", f"'norm_{VAR}'"]] * 3
    assert [message.split("; ")[1] for message in found] == [f"such passes so far: {n}" for n in (1, 10, 50)]


def test_an_inf_that_was_always_there_is_left_alone(caplog):
    training = Training(mean=(-np.inf, 0))
    assert training.step() and training.step() and put_back(caplog) == []
    training.step((np.nan, 1))
    assert [mean[0] for mean in training.values(MEAN)] == [-np.inf] * 2
    assert np.isfinite([mean[1] for mean in training.values(MEAN)]).all()


def test_a_nan_from_the_beginning_is_an_error_until_it_is_made_finite():
    training, log = Training(mean=(np.nan, 0)), Listed()
    log.attach(training.trainer)
    for _ in range(2):
        with pytest.raises(NonFiniteLossError, match=f"'norm_{MEAN}' are NaN: a forward pass met NaN or inf before the"):
            training.step()
    assert [record.error.partition(":")[0] for record in log.records] == ["NonFiniteLossError"] * 2
    training.net.running_mean.set_data(mx.nd.array([5, 5]))
    assert training.step()
    before = training.values(MEAN)
    for _ in range(3):  # it is never kept, once destroyed
        training.step((np.inf, 1))
    assert training.values(MEAN)[1] == before[1]


def test_statistics_of_a_trainer_without_a_scale_are_put_back_where_its_loss_is_scaled_with_anothers():
    training, other = Training(), nn.BatchNorm(in_channels=2, prefix="other_")
    other.initialize(ctx=TWO[0])
    unscaled = Trainer(other, "sgd", {"learning_rate": 0.0}, loss_scale=None)

    def backward(value):
        with autograd.record():
            loss = (other(mx.nd.array([[1, 1], [2, value]])) + training.net(mx.nd.array([GOOD, GOOD]))).sum()
        with training.trainer.scale_loss(loss, unscaled) as scaled:
            scaled.backward()

    backward(4)
    assert unscaled.step(1)
    training.trainer.discard_grads()
    training.net.collect_params().zero_grad()
    before = other.running_mean.data().asnumpy().tolist()
    backward(np.nan)
    with pytest.raises(NonFiniteLossError):
        unscaled.step(1)
    assert before[1] != 0 and other.running_mean.data().asnumpy()[1] == before[1]
