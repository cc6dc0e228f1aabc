"""The update of many weights in one step; the oracle is a trainer of MXNet with its own ``multi_precision``."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.errors import TrainerError
from mxmp.gluon import Trainer
from tests.freeze import freeze
from tests.gluon.trainer_tools import loss_of, param, run, run_backward
from tests.optimizer.test_multi_precision import OPTIMIZERS, make

SHAPES = [(3, 4), (70, 60), (2, 2), (4, 4), (4097, 1)]  # small ones, and large ones, which a CPU updates by themselves
MIXED = ["float16", "float32"] * 2 + ["float16"]
OPTIONS = {
    "plain": {},
    "no momentum": {"momentum": 0.0},
    "clipped": {"clip_gradient": 1e-3},
    "small rate": {"learning_rate": 5.6048103717530566e-08, "momentum": 0.99},  # MXNet reads it with an error
    "large rate": {"learning_rate": 62.80538370118765, "wd": 1e-7},
    "schedule": {"lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.3)},
}
NORMED = {"lars", "lamb"}  # MXNet takes norms of float16 weights otherwise; tests/gluon/test_every_optimizer.py has them


def trained(kind, optimizer, dtypes, shapes=SHAPES, steps=3):
    """Return the weights that a kind of trainer makes in some steps."""
    draw = np.random.RandomState(0)
    params = [param(draw.randn(*shape), dtype, name=f"p{k}") for k, (shape, dtype) in enumerate(zip(shapes, dtypes))]
    params[0].lr_mult, params[-1].wd_mult = 0.5, 3.0
    options = {"loss_scale": 8} if kind is Trainer else {}
    mx.random.seed(11)  # SGLD draws noise
    trainer = kind(params, optimizer, kvstore=None, **options)
    for step in range(steps):
        with autograd.record():
            losses = [loss_of(each, draw.randint(-64, 65, each.shape) * 2.0**-6) for each in params]
        run_backward(trainer, losses)
        trainer.step(3 + step)
    return freeze([each.data() for each in params])


@pytest.fixture(params=["cpu", "gpu"])
def device(request, monkeypatch):
    """Update as on a CPU, or by the kernels that a GPU has for many weights, which a CPU has too."""
    for module in ("mxmp.arrays", "mxmp.train.kernels"):
        monkeypatch.setattr(f"{module}.on_gpu", lambda array: request.param == "gpu")


CASES = {
    **{name: (options, MIXED) for name, options in OPTIONS.items()},
    "float32": ({}, ["float32"] * 5),
    "float16": ({}, ["float16"] * 5),
}


@pytest.mark.parametrize("options, dtypes", CASES.values(), ids=CASES)
def test_a_step_of_sgd_is_mxnets_own_bit_for_bit(options, dtypes, device):
    ours, theirs = (
        trained(kind, make("sgd", multi_precision=True, **copy.deepcopy(options)), dtypes)
        for kind in (Trainer, gluon.Trainer)
    )
    assert ours == theirs


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - NORMED))
@pytest.mark.slow
def test_a_step_is_mxnets_own_bit_for_bit(name, device):
    assert trained(Trainer, make(name), MIXED) == trained(gluon.Trainer, make(name, multi_precision=True), MIXED)


def test_more_weights_than_a_launch_takes_are_all_updated(device):
    layout = ["float32", "float16"] * 65, [(k % 7 + 1,) for k in range(130)], 1
    ours, theirs = (trained(kind, make("sgd", multi_precision=True), *layout) for kind in (Trainer, gluon.Trainer))
    assert ours == theirs


@pytest.mark.parametrize("size", [4, 2**16], ids=["small", "large"])
def test_one_number_written_to_a_weight_is_found(size):
    w = param(np.full(size, 0.1), "float16")
    w.set_data(mx.nd.array([np.nan, *[0.1] * (size - 1)]))  # it equals its master
    trainer = Trainer([w], "sgd", {"learning_rate": 0.0}, loss_scale=None)
    assert run(trainer, w) and run(trainer, w)
    w.data()[size - 1] = 7
    with pytest.raises(TrainerError, match="parameter 'w' .* written to past its float32 master"):
        run(trainer, w)
