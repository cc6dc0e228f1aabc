"""Gradients of losses that were not scaled, beside those that were, and of what another trainer has scaled."""


import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import TrainerError, UnscaledLossError
from tests.gluon.trainer_tools import backward, loss_of, param, sgd, value

REQUESTS = pytest.mark.parametrize("grad_req", ["write", "add"])


@REQUESTS
@pytest.mark.parametrize("reads_all", [True, False], ids=["the loss itself", "a penalty on one weight"])
@pytest.mark.parametrize("within", [True, False], ids=["in the block", "after the block"])
def test_a_backward_of_a_loss_that_is_not_scaled_is_refused_by_the_step_at_the_latest(within, reads_all, grad_req):
    params = [param([1.0, 2.0], name=name, grad_req=grad_req) for name in "ab"]
    trainer = sgd(params, 64)
    with autograd.record():
        loss = loss_of(params, 0.5)
        unscaled = loss * 1 if reads_all else loss_of(params[1], 0.25)
    with pytest.raises(TrainerError):
        with trainer.scale_loss(loss) as scaled:
            scaled.backward(retain_graph=True)
            if within:
                unscaled.backward()
        if not within:
            unscaled.backward()
        trainer.step(1)
    np.testing.assert_array_equal(value(params[0].data()), [1, 2])


@pytest.mark.parametrize("adds", [False, True])
def test_a_trainer_without_a_scale_neither_takes_nor_adds_to_gradients_that_a_former_one_scaled(adds):
    """A cell of a notebook that was run up to its backward, and again with another trainer."""
    w = param([1.0, 2.0], grad_req="add" if adds else "write")
    backward(sgd(w, 64), w, 0.5)
    trainer = sgd(w, None)
    with pytest.raises(TrainerError):
        if adds:
            backward(trainer, w, 0.25)
        trainer.step(1)
    assert value(w.data()).tolist() == [1, 2]


@pytest.mark.parametrize("steps_first", [False, True])
def test_a_trainer_without_a_scale_that_is_forgotten_in_scale_loss_takes_no_scaled_gradients(steps_first):
    a, b = (param([1.0], name=name) for name in "ab")
    first, second = sgd(a, 1024), sgd(b, None)
    with autograd.record():
        loss = loss_of([a, b], 0.5)
    with first.scale_loss(loss) as scaled:
        scaled.backward()
    if steps_first:
        first.step(1)
    try:
        second.step(1)
    except TrainerError:
        np.testing.assert_array_equal(value(b.data()), [1])
    else:
        np.testing.assert_array_equal(value(b.data()), [0.5])


def joint(trainers, *params):
    """Run a backward in one block of several trainers, which gives each parameter the gradient 0.5."""
    with autograd.record():
        loss = loss_of(list(params), 0.5)
    with trainers[0].scale_loss(loss, *trainers[1:]) as scaled:
        scaled.backward()


def test_discarded_gradients_stay_discarded_when_their_trainers_meet_again():
    a, b, c = (param([1.0], name=name, grad_req="add" if name == "a" else "write") for name in "abc")
    first, second = sgd(a, 64), sgd([b, c], 64)
    joint([first, second], a, b)
    second.discard_grads()
    joint([first, second], a, c)
    assert second.step(1, ignore_stale_grad=True) and first.step(1)
    assert [value(each.data()).item() for each in (a, b, c)] == [0, 1, 0.5]


def test_a_gradient_that_was_discarded_is_no_overwritten_one():
    a, b = (param([1.0], name=name) for name in "ab")
    first, second = sgd(a, 64), sgd(b, 64)
    joint([first, second], a, b)
    second.discard_grads()
    with pytest.raises(TrainerError, match="parameter 'a' from an earlier"):
        joint([first, second], a, b)


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_block_without_a_scale_does_not_hide_that_a_later_one_of_another_trainer_wrote_its_gradient(grad_req):
    a, b = (param([1.0], name=name, grad_req=grad_req) for name in "ab")
    plain, scaled = sgd(a, None), sgd(b, 1024)
    backward(plain, a, 0.25)
    backward(scaled, [a, b], 0.5)
    assert scaled.step(1)
    with pytest.raises(TrainerError, match="no parameter has a gradient"):
        plain.step(1)


def test_a_gradient_that_waits_unscaled_is_not_dropped_by_a_scaled_block():
    a, b = (param([1.0], name=name) for name in "ab")
    plain, scaled = sgd(a, None), sgd(b, 1024)
    backward(plain, a, 0.25)
    with pytest.raises(TrainerError, match="'a' waits for a step, and is not scaled"):
        joint([scaled, plain], b)
    assert plain.step(1) and value(a.data()) == [0.75]


def test_a_gradient_that_a_block_added_before_it_raised_is_told_of_by_the_next():
    w = param([1.0], grad_req="add")
    trainer = sgd(w, 64)
    with autograd.record():
        loss = loss_of(w, 0.25)
    with pytest.raises(KeyError), trainer.scale_loss(loss) as scaled:
        scaled.backward()
        raise KeyError
    with pytest.raises(TrainerError, match="in a block that raised, has written"):
        backward(trainer, w, 0.25)
    w.zero_grad()
    trainer.discard_grads()
    backward(trainer, w, 0.25)
    assert trainer.step(1) and value(w.data()) == [0.75]


def test_the_remedy_for_a_step_without_a_scaled_loss_holds_after_states_that_bring_a_scale(tmp_path):
    w, file = param([1.0, 2.0]), str(tmp_path / "states")
    sgd(w, 64).save_states(file)
    trainer = sgd(w, None)
    trainer.load_states(file)
    with autograd.record():
        loss = loss_of(w, 0.5)
    loss.backward()
    with pytest.raises(UnscaledLossError, match=r"set trainer\.loss_scale = None, after states are loaded"):
        trainer.step(1)
    trainer.loss_scale = None
    assert trainer.step(1)
    np.testing.assert_array_equal(value(w.data()), [0.5, 1.5])
