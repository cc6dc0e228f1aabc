"""Internals: the update of all weights at once, which a GPU gets, run on a CPU."""

from __future__ import annotations

from tests.train.test_step import OPTIMIZERS, gradients, over


@over("calls", "clip", contexts=[1, 2], optimizer=["sgd", "adam"])
def test_all_weights_are_updated_together_as_one_after_the_other(make, contexts, optimizer, monkeypatch):
    """As on a GPU: with a weight that is set between steps, and gradients that are clipped before one."""
    traces = []
    for on_gpu in (lambda array: False, lambda array: True):
        monkeypatch.setattr("mxmp.train.masters.on_gpu", on_gpu)
        training = make(4, optimizer, OPTIMIZERS[optimizer], "float16", contexts)
        for number, x in enumerate(gradients(6, contexts)):
            training.backward(x)
            if number == 2:
                training.set_weight("a", [3, -1])
            if number > 3:
                training.clip(0.5)
            assert training.step()
        traces.append(training.trace())
    assert traces[0] == traces[1]
