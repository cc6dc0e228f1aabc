"""Defects of ``mxnet.contrib.amp`` in MXNet 1.9.1 in training: each test shows it there, and that mxmp has it not.

The user's code is the same but for its import (``scenarios.py``). That of contrib.amp runs in another process, because
``init`` changes its process for good. The list is that of docs/guides/coming_from/contrib_amp.md; defects of conversion
stand in tests/symbol.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from tests.amp import scenarios
from tests.amp.nets import two_layers
from tests.amp.scenarios import X, dense

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def theirs():
    """Return what contrib.amp makes of each scenario."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.amp.scenarios"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


@pytest.fixture
def initialized():
    amp.init()
    yield
    amp.disable()


pytestmark = pytest.mark.usefixtures("initialized")


# Scenario, its outcome with contrib.amp, and that with mxmp.
TABLE = {
    "an overflow on several devices leaves weights alone": (
        scenarios.overflow_on_two_devices,
        [-math.inf, -math.inf],
        [1.0, 1.0],
    ),
    "the scale backs off at once": (
        scenarios.scales_while_backing_off,
        [16, 16, 15, 14, 13, 12, 11, 10, 9],
        [8, 9, 10, 11, 8, 8, 8, 8, 8],
    ),
    # Down to 1, then the floor.
    "infinite gradients end": (scenarios.gradients_that_stay_infinite, [1041, "MXNetError"], (6 + 50, "LossScaleError")),
    "a resumed run has its loss scale": (scenarios.scale_after_resuming, [16384, 65536], [8, 8]),
    "eager operators on CPU still run": (scenarios.eager_dense_on_cpu, "MXNetError", None),
}


@pytest.mark.parametrize("scenario, defect, expected", TABLE.values(), ids=TABLE.keys())
def test_a_defect_of_contrib_amp_is_none_of_mxmp(theirs, scenario, defect, expected):
    assert theirs[scenario.__name__] == defect
    assert scenario(amp) == expected


def bias_gradient(module):
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params(mx.init.Constant(0.125))
    module.init_optimizer()
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((2, 4))], [mx.nd.array([0, 1])]))
    return module._exec_group.grad_arrays[-1][0].asnumpy()


def test_loss_heads_of_modules_are_scaled(theirs):
    assert theirs["error of a module"] == "TypeError"
    scaled, plain = mxmp.module.Module(two_layers(), policy="O1"), mx.mod.Module(two_layers())
    np.testing.assert_allclose(bias_gradient(scaled), 256 * bias_gradient(plain), rtol=2e-3)
    assert scaled.update()


class _WithHead(gluon.nn.Dense):
    def hybrid_forward(self, F, x, weight, bias):
        return F.SoftmaxOutput(super().hybrid_forward(F, x, weight, bias), F.zeros((1,)))


@pytest.mark.parametrize("train_mode", [True, False])
def test_loss_heads_in_hybridized_nets_are_scaled(theirs, train_mode):
    assert "SoftmaxOutput does not support dynamic loss scaling in symbolic and hybridized" in theirs["stderr"]
    net = _WithHead(2, in_units=3, prefix="net_")
    net.initialize()
    net.hybridize()
    net(mx.nd.array(X))  # infers
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer)
    with autograd.record(train_mode):
        loss = net(mx.nd.array(X))
    loss.backward()
    plain = net.bias.grad().asnumpy()
    trainer.discard_grads()
    with autograd.record(train_mode), amp.scale_loss(net(mx.nd.array(X)), trainer) as scaled:
        scaled.backward()
    np.testing.assert_allclose(net.bias.data().grad.asnumpy(), 256 * plain, rtol=2e-3)
    np.testing.assert_allclose(net.bias.grad().asnumpy(), plain, rtol=2e-3)
    assert plain.any()


def test_init_can_be_undone_and_a_failed_one_changes_nothing(theirs):
    assert theirs["error of init"] == "AttributeError" and theirs["patched by the failed init"]
    assert not theirs["patched by the second init"]
    net = dense("net")
    net.hybridize()
    assert scenarios.run_and_count_casts(net, mx.nd.array(X)) > 0
    amp.disable()
    assert scenarios.run_and_count_casts(net, mx.nd.array(X)) == 0
    assert vars(gluon.HybridBlock)["_call_cached_op"].__module__ == "mxnet.gluon.block"


def test_nets_hybridized_before_symbol_blocks_and_numpy_operators_are_converted(theirs):
    assert theirs["casts"] == [0, 0, 0]
    amp.disable()
    nets = scenarios.build_before_init()
    amp.init()
    assert all(count > 0 for count in scenarios.casts_in(nets))


def test_forked_processes_are_untouched(monkeypatch):
    """A worker of a DataLoader is a fork of its parent, with another process id."""
    net = dense("net")
    net.hybridize()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        assert scenarios.run_and_count_casts(net, mx.nd.array(X)) == 0
    assert scenarios.run_and_count_casts(net, mx.nd.array(X)) > 0
