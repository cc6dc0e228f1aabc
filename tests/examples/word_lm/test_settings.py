"""The schedule of both scripts."""

from __future__ import annotations

import mxnet as mx
import pytest

from examples.word_lm.settings import LengthSchedule


def test_the_rate_is_in_proportion_to_the_length_of_the_batch():
    schedule = LengthSchedule(200, 0.5, 10)
    plain = mx.lr_scheduler.CosineScheduler(200, base_lr=0.5, warmup_steps=10)
    for update, length in ((1, 10), (5, 5), (40, 12), (199, 8)):
        schedule.see(mx.nd.zeros((3, length)))
        assert schedule(update) == pytest.approx(plain(update) * length / 10)
    assert schedule(10) == pytest.approx(0.5 * 8 / 10)
