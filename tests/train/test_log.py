"""What is logged of steps that are skipped, and what a closed block of scale_loss leaves behind."""

from __future__ import annotations

import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import backward, param, sgd


def levels(caplog, loss_scale, outcomes):
    """Take steps, '+' taken or '-' skipped; return (level, number of the step) of each line of the log."""
    w, found = param([1.0]), []
    trainer = sgd(w, loss_scale, lr=0.0)
    for number, outcome in enumerate(outcomes, 1):
        caplog.clear()
        backward(trainer, w, 1)
        if outcome == "-":
            w.grad()[:] = np.nan
        with caplog.at_level(logging.INFO, logger="mxmp"):
            assert trainer.step(1) is (outcome == "+")
        found += [(record.levelname, number) for record in caplog.records]
    return found


HELD = {"init_scale": 1, "max_floor_skips": 1}
LOGS = {
    "ever more rarely": (8, "-" * 120, [("WARNING", 1), ("WARNING", 10), ("WARNING", 50), ("WARNING", 100)]),
    "a new row anew": (8, "--+-+", [("WARNING", 1), ("INFO", 3), ("WARNING", 4)]),
    "a scale that falls in vain": (DynamicLossScale(init_scale=2.0**24), "-" * 12, [("INFO", 1), ("WARNING", 10)]),
    "the end of the warm-up": ("dynamic", "++-++", [("INFO", 3)]),
    "no skip": ("dynamic", "+" * 10, []),
    "a floor that warns": (DynamicLossScale(**HELD, at_floor="warn"), "-" * 3, [("WARNING", 1), ("INFO", 1), ("WARNING", 2), ("WARNING", 3)]),
}


@pytest.mark.parametrize(("loss_scale", "outcomes", "expected"), LOGS.values(), ids=LOGS)
def test_skips_are_logged(loss_scale, outcomes, expected, caplog):
    assert levels(caplog, loss_scale, outcomes) == expected


def test_a_line_tells_the_scale_and_the_counts(caplog):
    levels(caplog, 8, "-" * 100)
    assert caplog.messages[-1].endswith("StaticLossScale 8 -> 8; 100 skipped in a row, 100 in all")
    levels(caplog, "dynamic", "++-")
    assert caplog.messages[-1].startswith("step 3 skipped, its gradients are not finite: DynamicLossScale 1024 -> 128;")


def test_a_trainer_given_twice_counts_once():
    trainer = sgd(param([1.0]), 8)
    with trainer.scale_loss(mx.nd.ones((1,)), trainer) as scaled:
        assert scaled.asscalar() == 8


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_closed_block_leaves_no_mark_on_its_losses(error):
    first, second = sgd(param([1.0]), 8), sgd(param([1.0]), 4)
    try:
        with first.scale_loss(mx.nd.ones((1,))) as scaled:
            if error:
                raise error
    except KeyError:
        pass
    with second.scale_loss(scaled) as again:
        assert again.asscalar() == 32
