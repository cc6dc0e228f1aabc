from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import StateError
from mxmp.loss_scale import DynamicLossScale, LossScale
from tests.freeze import scale_of
from tests.gluon.trainer_tools import backward, param, sgd


def test_a_default_scale_resumes_its_warm_up(tmp_path):
    fname, w = str(tmp_path / "states"), param([1.0])
    whole, resumed = sgd(w, lr=0.0), sgd(w, lr=0.0)
    seen = []
    for number in range(6):
        resumed.save_states(fname)
        resumed = sgd(w, lr=0.0)
        resumed.load_states(fname)
        for trainer in (whole, resumed):
            backward(trainer, w, 1.0)
            if number == 3:
                w.grad()[:] = np.inf
            trainer.step(1)
        assert scale_of(resumed) == scale_of(whole)
        seen.append(resumed.loss_scale.value)
    assert seen == [512, 1024, 2048, 256, 256, 256]


def test_states_from_before_there_was_a_warm_up_load(tmp_path, monkeypatch):
    fname, w = str(tmp_path / "states"), param([1.0])
    to_dict = LossScale.to_dict
    with monkeypatch.context() as patch:
        patch.setattr(LossScale, "to_dict", lambda self: {k: v for k, v in to_dict(self).items() if k != "warming_up"})
        sgd(w, DynamicLossScale(init_scale=2.0**16, value=2.0**9, growth_tracker=7)).save_states(fname)
    trainer = sgd(w)
    trainer.load_states(fname)
    assert trainer.loss_scale == DynamicLossScale(init_scale=2.0**16, value=2.0**9, growth_tracker=7)


def test_states_of_gluon_are_refused_with_a_hint(tmp_path):
    fname = str(tmp_path / "s")
    mx.gluon.Trainer([param([1.0])], "sgd").save_states(fname)
    with pytest.raises(StateError, match="Files of mxnet.gluon.Trainer cannot be read"):
        sgd(param([1.0])).load_states(fname)
