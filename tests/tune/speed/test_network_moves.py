"""What is tried next for networks of MXNet: their times and oneDNN's account of them reach the moves."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import gluon

from mxmp.devices.speed import Speed
from mxmp.policy import Policy
from mxmp.tune.speed import problem as problems
from mxmp.tune.speed.gluon_net import GluonWorkload
from mxmp.tune.speed.plan_search import Trial
from mxmp.tune.speed.problem import NetworkProblem
from mxmp.tune.speed.roofline import GPU, Speeds
from mxmp.tune.speed.verbose import Primitive


def network():
    net = gluon.nn.HybridSequential()
    for channels in (16, 32):
        net.add(gluon.nn.Conv2D(channels, 3, padding=1, use_bias=False), gluon.nn.BatchNorm())
        net.add(gluon.nn.Activation("relu"))
    net.add(gluon.nn.Dense(10))
    net.initialize()
    net.hybridize()
    return GluonWorkload(net, mx.nd.ones((4, 3, 16, 16)), training=True)


def problem_of(seconds=60.0):
    return NetworkProblem(network(), Policy.parse("mixed_float16"), seconds=seconds)


@pytest.fixture()
def asked(monkeypatch):
    """Have no process started; return what was asked for. BatchNorm of float16 is in reference code."""
    found = []

    def run_steps(parts, policies, training, limit):
        found.append((parts, policies, training, limit))
        slow = {Primitive("batch_normalization", True, (4, size, 16, 16)): 1.0 for size in (16, 32)}
        fast = {Primitive("batch_normalization", False, (4, size, 16, 16)): 0.01 for size in (16, 32)}
        return [slow if policy.is_mixed else fast for policy in policies]

    monkeypatch.setattr(problems, "run_steps", run_steps)
    return found


def measured(problem, seconds=0.1):
    choices = problem.choices
    return [Trial("untuned", choices.untuned, choices.float32, seconds, 1.0, False)]


def test_steps_in_float32_and_as_the_policy_has_them_are_accounted_for(asked):
    problem = problem_of()
    next(problem.moves(problem.choices.untuned, measured(problem)))
    ((parts, policies, training, limit),) = asked
    assert [graph.heads for graph, _ in parts]
    assert policies == [Policy(), Policy.parse("mixed_float16")]
    assert training
    assert 0 < limit < 10


def test_the_first_move_takes_what_ran_in_reference_code_out_of_low_precision(asked):
    problem = problem_of()
    cut = next(problem.moves(problem.choices.untuned, measured(problem)))
    labels = {str(group): label for group, label in zip(problem.choices.groups, cut.choice)}
    assert [label for name, label in labels.items() if "BatchNorm" in name] == ["float32", "float32"]


@pytest.mark.parametrize(("limit", "step"), [(10.0, 0.1), (60.0, 3.0)], ids=["little time", "long steps"])
def test_without_time_nothing_is_started(asked, limit, step):
    problem = problem_of(limit)
    assert list(problem.moves(problem.choices.untuned, measured(problem, step)))
    assert asked == []


def test_on_a_gpu_nothing_is_started_and_other_speeds_hold(asked):
    problem = problem_of()
    problem._workload.on_cpu = False
    assert list(problem.moves(problem.choices.untuned, measured(problem)))
    assert asked == []
    assert problem._speeds() == GPU


def test_speeds_of_bfloat16_are_the_measured_ones(monkeypatch):
    speed = Speed(inference=2.0, training=3.0)
    monkeypatch.setattr(problems, "bfloat16_speed", lambda: speed)
    problem = NetworkProblem(network(), Policy.parse("mixed_bfloat16"))
    assert problem._speeds() == Speeds()._replace(convolution_gain=3.0, product_gain=3.0)
    monkeypatch.setattr(problems, "bfloat16_speed", lambda: None)
    assert problem._speeds() == Speeds()
