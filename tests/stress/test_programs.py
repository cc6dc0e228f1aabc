"""Random programs of a trainer's calls: whatever comes in whatever order, nothing is ever half done."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import DTYPES, KVSTORES, TWO, backward, param, snapshot, value

CALLS = 40
STEPPING = {"step", "update"}


class Program:
    """A trainer of two parameters with random settings, and what may be called on it."""

    def __init__(self, draw, tmp_path):
        self.draw = draw
        self.clipped = False
        self.file = str(tmp_path / "states")
        choice = self.draw.choice
        self.contexts = TWO[: choice([1, 2])]
        options = {"ctx": self.contexts, "grad_req": choice(["write", "add"])}
        self.params = [param([0.0], choice(DTYPES), name="w", **options), param([0.0], name="v", **options)]
        scale = choice([8, DynamicLossScale(init_scale=16, growth_interval=2, at_floor="hold")])
        sgd = {"learning_rate": 0.5, "momentum": 0.5}
        self.trainer = Trainer(self.params, "sgd", sgd, kvstore=choice(KVSTORES), loss_scale=scale)
        self.calls = {
            "backward": lambda: self.backward(self.params),
            "backward of one": lambda: self.backward(self.params[:1]),
            "inf": self.spoil,
            "step": lambda: self.trainer.step(1),
            "update": lambda: self.trainer.update(1),
            "unscale": self.trainer.unscale,
            "clip": self.clip,
            "reduce": self.trainer.allreduce_grads,
            "discard": self.trainer.discard_grads,
            "zero": self.zero,
            "set": lambda: setattr(self.trainer, "loss_scale", 4),
            "save": lambda: self.trainer.save_states(self.file),
        }

    def backward(self, params):
        for ctx in self.contexts:
            backward(self.trainer, params, 0.5, ctx)

    def spoil(self):
        if not self.clipped:  # what comes after clipping is not checked, as documented
            grad = self.params[0].grad(self.draw.choice(self.contexts))
            grad[:] = mx.nd.amp_cast(mx.nd.full((1,), np.inf, ctx=grad.ctx), dtype=grad.dtype)

    def clip(self):
        self.trainer.clip_global_norm(1.0)
        self.clipped = True

    def zero(self):
        for p in self.params:
            p.zero_grad()

    def values(self):
        return [[float(value(p.data(ctx))[0]) for p in self.params] for ctx in self.contexts]


@pytest.mark.parametrize("number", range(40))
def test_calls_in_any_order_change_all_or_nothing(number, draw, tmp_path):
    program = Program(draw, tmp_path)
    trainer, taken = program.trainer, 0
    for name in program.draw.choices([*program.calls, *["backward", "step"] * 2], k=CALLS):
        before, scale = snapshot(trainer), trainer.loss_scale
        try:
            result = program.calls[name]()
        except TrainerError:
            assert (snapshot(trainer), trainer.loss_scale) == (before, scale), name
        else:
            assert (snapshot(trainer) != before) == (name in STEPPING and result), name
            taken += name in STEPPING and result
            program.clipped &= name not in (*STEPPING, "discard")
        first, *others = program.values()
        assert np.isfinite(first).all() and (trainer._kvstore is None or all(other == first for other in others))
    assert taken == trainer.optimizer.num_update

    trainer.discard_grads()  # and there is always a way on
    program.zero()
    program.backward(program.params)
    assert trainer.step(1)
