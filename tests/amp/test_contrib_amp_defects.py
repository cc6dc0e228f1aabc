"""Defects of ``mxnet.contrib.amp`` in MXNet 1.9.1 in training: each test shows it there, and that mxmp has it not.

The user's code is the same but for its import (``scenarios.py``). That of contrib.amp runs in another
process, because ``init`` changes its process for good. Numbers are those of the list in the project's
notes; those of conversion, from 19 on, stand in tests/symbol. Number 12 has a second half, that the
finite check waits for the device at every step: so does mxmp's, once a step, because a decision to
skip has to be known; with ``loss_scale=None`` there is neither check nor wait.
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
from tests.amp.scenarios import X, dense

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def theirs():
    """Return what contrib.amp makes of each scenario."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.amp.scenarios"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def initialized():
    amp.init()
    yield
    amp.disable()


pytestmark = pytest.mark.usefixtures("initialized")


# Number and scenario, its outcome with contrib.amp, and that with mxmp.
BEHAVIOUR = pytest.mark.behaviour("a scale that changes while accumulating")
TABLE = {
    "1 an overflow on several devices leaves weights alone": (
        scenarios.overflow_on_two_devices,
        [-math.inf, -math.inf],
        [1.0, 1.0],
    ),
    "2 the scale backs off at once": (
        scenarios.scales_while_backing_off,
        [16, 16, 15, 14, 13, 12, 11, 10, 9],
        [8, 9, 10, 11, 8, 8, 8, 8, 8],
    ),
    "4 gradients of every device are checked": (
        scenarios.overflow_on_the_second_device_alone,
        [0.0, -math.inf],
        [1.0, 1.0],
    ),
    "5 a trainer whose loss was not scaled refuses to step": (
        scenarios.two_trainers_of_one_loss,
        [None, [1 - 65536]],
        ("UnscaledLossError", [1.0]),
    ),
    "6 a step without scale_loss is refused": (
        scenarios.step_without_scale_loss,
        [None, pytest.approx(0.1 / 65536, rel=0.1)],
        ("UnscaledLossError", 0.0),
    ),
    "7 gradients of two scales are never added": (
        scenarios.unscale_after_each_micro_batch,
        [None, 1 + 1 / 65536],
        ("TrainerError", 1.0),
    ),
    "8 clipping does not hide an overflow": (scenarios.clip_elements_after_unscale, [0.0], [1.0]),
    "9 a resumed run has its loss scale": (scenarios.scale_after_resuming, [16384, 65536], [8, 8]),
    "11 a float16 loss is scaled in float32": (scenarios.float16_loss, math.inf, 384 * 256),
    "12 gradients may be of two dtypes": (
        scenarios.gradients_of_two_dtypes,
        ["MXNetError", [1, 1]],
        (None, [0, 0]),
    ),
    "13 small float16 gradients survive unscaling": (scenarios.unscale_small_float16_gradients, 0, 2.0**-26),
    "16 eager operators on CPU still run": (scenarios.eager_dense_on_cpu, "MXNetError", None),
    "17 output arguments are written": (scenarios.output_argument, 0, -1),
}
ROWS = [pytest.param(*row, id=name, marks=[BEHAVIOUR] if name[0] == "7" else []) for name, row in TABLE.items()]


@pytest.mark.parametrize("scenario, defect, expected", ROWS)
def test_a_defect_of_contrib_amp_is_none_of_mxmp(theirs, scenario, defect, expected):
    assert theirs[scenario.__name__] == defect
    assert scenario(amp) == expected


# 3
def test_gradients_that_stay_infinite_are_an_error_that_says_so(theirs):
    steps, error = theirs["gradients_that_stay_infinite"]
    assert steps > 1000 and error == "MXNetError"
    assert scenarios.gradients_that_stay_infinite(amp) == (6 + 50, "LossScaleError")  # down to 1, then the floor


# 10
class _WithHead(gluon.nn.Dense):
    def hybrid_forward(self, F, x, weight, bias):
        return F.SoftmaxOutput(super().hybrid_forward(F, x, weight, bias), F.zeros((1,)))


# 10
def test_loss_heads_in_hybridized_nets_are_scaled(theirs):
    assert theirs["error of a module"] == "TypeError"  # tests/module/test_loss_heads.py has mxmp's
    assert theirs["warning"] == [
        "SoftmaxOutput does not support dynamic loss scaling in symbolic and hybridized execution."
    ]
    net = _WithHead(2, in_units=3, prefix="net_")
    net.initialize()
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer)
    with autograd.record(), amp.scale_loss(net(mx.nd.array(X)), trainer) as scaled:
        scaled.backward()
    written = net.bias.data().grad.asnumpy()
    np.testing.assert_allclose(written, 256 * net.bias.grad().asnumpy(), rtol=2e-3)
    assert written.any() and trainer.step(1)


# 14, whose undoing is in test_hook
def test_a_failed_init_changes_nothing(theirs):
    assert theirs["error of init"] == "AttributeError" and theirs["patched by the failed init"]
    assert not theirs["patched by the second init"]
    amp.disable()
    convolution = mx.sym.Convolution
    with pytest.raises(amp.AmpError):
        amp.init("float16", ["Convolution", "no_such_operator"])
    assert mx.sym.Convolution is convolution


# 15
def test_nets_hybridized_before_symbol_blocks_and_numpy_operators_are_converted(theirs):
    assert theirs["casts"] == [0, 0, 0]
    amp.disable()
    nets = scenarios.build_before_init()
    amp.init()
    assert all(count > 0 for count in scenarios.casts_in(nets))


# 16
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, of threads; MXNet stops its own
def test_forked_processes_are_untouched():
    """As the workers of a DataLoader."""
    net, casts = dense("net"), 99
    net.hybridize()
    child = os.fork()
    if not child:
        try:
            casts = scenarios.run_and_count_casts(net, mx.nd.array(X))
        finally:
            os._exit(casts)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0
    assert scenarios.run_and_count_casts(net, mx.nd.array(X)) > 0


class _Softrelu(gluon.nn.Dense):
    def hybrid_forward(self, F, x, weight, bias):
        return F.Activation(super().hybrid_forward(F, x, weight, bias), "softrelu", name="positional")


# 18
def test_conditions_see_positional_arguments(theirs):
    assert theirs["softrelu casts"] == [0, 1]
    net = _Softrelu(2, in_units=3, prefix="net_")
    net.initialize()
    net.hybridize()
    net(mx.nd.array(X))
    precisions = {row.name: row.precision for row in mxmp.gluon.report(net).rows}
    assert precisions == {"net_fwd": "float16", "net_positional": "float32"}
