"""Gradients of losses that were not scaled, beside those that were, and of what another trainer has scaled."""

import contextlib

import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import TrainerError
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


def test_a_trainer_without_a_scale_does_not_take_gradients_that_a_former_one_scaled():
    """A cell of a notebook that was run up to its backward, and again with another trainer."""
    w = param([1.0, 2.0])
    backward(sgd(w, 64), w, 0.5)
    with contextlib.suppress(TrainerError):
        sgd(w, None).step(1)
        np.testing.assert_array_equal(value(w.data()), [0.5, 1.5])


def test_a_trainer_without_a_scale_does_not_add_to_gradients_that_a_former_one_scaled():
    w = param([1.0, 2.0], grad_req="add")
    backward(sgd(w, 64), w, 0.5)
    trainer = sgd(w, None)
    with contextlib.suppress(TrainerError):
        backward(trainer, w, 0.25)
        trainer.step(1)
        np.testing.assert_array_equal(value(w.data()), [0.25, 1.25])


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
