"""Parameters that are added in mid-training."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.gluon import Trainer
from tests.gluon.trainer_tools import DTYPES, KVSTORES, TWO, backward, param, sgd, value


def adam(params, **options):
    return Trainer(params, "adam", {"learning_rate": 0.1}, loss_scale=8, **options)


def train(trainer, params, steps, contexts):
    for number in steps:
        for ctx in contexts:
            backward(trainer, params, np.sin(np.arange(3) + number), ctx)
        assert trainer.step(1)


@pytest.mark.behaviour("added parameters")
@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_added_parameter_trains_like_one_of_a_new_trainer(dtype, kvstore):
    old, new, alone = (param([1.0, 2.0, 3.0], dtype, ctx=TWO, name=name) for name in ("old", "new", "alone"))
    trainer, other = adam([old], kvstore=kvstore), adam([alone], kvstore=kvstore)
    train(trainer, [old], range(3), TWO)
    trainer.add_params([new])
    train(trainer, [old, new], range(3, 6), TWO)
    train(other, [alone], range(3, 6), TWO)
    for ctx in TWO:
        np.testing.assert_array_equal(value(new.data(ctx)), value(alone.data(ctx)))
    assert trainer.optimizer.num_update == 6


def test_a_parameter_added_before_the_first_step():
    old, new = param([1.0], name="old"), param([2.0], name="new")
    trainer = sgd(old, 8)
    trainer.add_params({"new": new})
    backward(trainer, [old, new], 0.5)
    assert trainer.step(1)
    assert (value(old.data()), value(new.data())) == (0.5, 1.5)


def test_learning_rate_multipliers_count():
    old, new = param([1.0], name="old"), param([2.0], name="new")
    new.lr_mult = 0.5
    trainer = sgd(old, 8)
    trainer.add_params([new])
    backward(trainer, [old, new], 1)
    trainer.step(1)
    assert value(new.data()) == 1.5


def test_states_of_added_parameters_are_saved(tmp_path):
    def run(steps, values, load=None):
        old, new = (param(v, name=n) for v, n in zip(values, ("old", "new")))
        trainer = adam([old])
        trainer.add_params([new])
        if load:
            trainer.load_states(load)
        train(trainer, [old, new], steps, [mx.cpu(0)])
        return trainer, [value(p.data()) for p in (old, new)]

    start = [np.ones(3), np.zeros(3)]
    _, whole = run(range(4), start)
    trainer, half = run(range(2), start)
    trainer.save_states(str(tmp_path / "s"))
    _, resumed = run(range(2, 4), half, str(tmp_path / "s"))
    np.testing.assert_array_equal(resumed, whole)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: 3.0, "expected gluon Parameters, found a float"),
        (lambda: param([1.0], name="old"), "has a parameter 'old' already"),
        (lambda: param([1.0], name="fine"), "has a parameter 'fine' already"),
        (lambda: param([1.0], ctx=TWO, name="far"), r"parameter 'far' is on \[cpu\(0\), cpu\(1\)\]"),
        (lambda: param(np.ones((2, 2)), name="rows", grad_stype="row_sparse"), "'rows' or its gradient is row_sparse"),
    ],
)
def test_bad_input_adds_nothing(make, message):
    trainer = sgd(param([1.0], name="old"), 8)
    with pytest.raises(TrainerError, match=f"add_params: .*{message}"):
        trainer.add_params([param([1.0], name="fine"), make()])
    assert [p.name for p in trainer._params] == ["old"] and list(trainer._param2idx) == ["old"]


def test_parameters_are_not_added_between_backward_and_step():
    w = param([1.0])
    trainer = sgd(w, 8)
    backward(trainer, w, 1)
    with pytest.raises(TrainerError, match="add_params came between backward and step"):
        trainer.add_params([param([1.0], name="new")])
