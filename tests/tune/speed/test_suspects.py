"""oneDNN's account of a step: by groups, from a real step in another process, and nothing whenever that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import mxnet as mx
import pytest

from mxmp.graph import Graph, Node
from mxmp.passes import Facts
from mxmp.policy import Policy
from mxmp.symbol.inference import infer_facts, to_graph
from mxmp.tune.speed import suspects
from mxmp.tune.speed.choices import Group
from mxmp.tune.speed.suspects import account_for, run_steps, time_allowed
from mxmp.tune.speed.verbose import Primitive

SHAPE = (4, 16, 16, 16)


def group(op, shape=SHAPE, count=1, depthwise=False):
    return Group(op, shape, depthwise, op == "Convolution", tuple(f"{op}{shape}{i}" for i in range(count)))


def test_times_go_to_the_groups_of_that_operator_and_shape():
    groups = [group("BatchNorm"), group("BatchNorm", (4, 32, 8, 8)), group("Activation"), group("Convolution")]
    times = {
        Primitive("batch_normalization", True, SHAPE): 3.0,
        Primitive("batch_normalization", False, SHAPE): 1.0,
        Primitive("eltwise", False, SHAPE): 0.5,
        Primitive("eltwise", False, (9, 9)): 7.0,
        Primitive("shuffle", False, SHAPE): 7.0,
    }
    found = account_for(times, groups)
    assert found.seconds == {0: 4.0, 2: 0.5}
    assert found.reference == {0: 3.0}


def test_depthwise_convolutions_are_told_apart():
    groups = [group("Convolution"), group("Convolution", depthwise=True)]
    times = {
        Primitive("convolution", False, SHAPE, depthwise=True): 2.0,
        Primitive("convolution", False, SHAPE): 1.0,
    }
    assert account_for(times, groups).seconds == {0: 1.0, 1: 2.0}


def test_groups_that_fit_alike_share_by_their_nodes():
    groups = [group("Activation", count=3), group("LeakyReLU")]
    assert account_for({Primitive("eltwise", False, SHAPE): 4.0}, groups).seconds == {0: 3.0, 1: 1.0}


def test_copies_into_other_layouts_count_for_what_has_their_shape():
    groups = [group("BatchNorm"), group("Activation"), group("Concat")]
    times = {
        Primitive("reorder", False, SHAPE): 2.0,
        Primitive("batch_normalization", False, SHAPE): 1.0,
        Primitive("eltwise", False, SHAPE): 1.0,
    }
    assert account_for(times, groups).seconds == {0: 2.0, 1: 2.0}


def test_a_layer_over_several_axes_is_known_by_its_rows():
    groups = [group("FullyConnected", (4, 8, 32))]
    assert account_for({Primitive("inner_product", False, (32, 32)): 1.0}, groups).seconds == {0: 1.0}


@pytest.mark.parametrize(
    ("seconds", "step", "allowed"), [(60, 0.5, 9.0), (60, 2.5, 9.0), (60, 2.6, None), (20, 0.0, None), (60, None, None)]
)
def test_an_account_is_had_only_if_there_is_time_for_it(seconds, step, allowed):
    assert time_allowed(seconds, step) == allowed


def network():
    """Return a small network with its facts, and the groups of it that oneDNN computes."""
    data = mx.sym.var("data")
    out = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv")
    out = mx.sym.Activation(mx.sym.BatchNorm(out, name="norm"), act_type="relu", name="relu")
    out = mx.sym.Convolution(out, num_filter=16, num_group=16, kernel=(3, 3), pad=(1, 1), name="deep")
    out = mx.sym.Pooling(out, global_pool=True, pool_type="avg", kernel=(1, 1), name="pool")
    out = mx.sym.FullyConnected(out, num_hidden=10, name="dense")
    graph = to_graph(out)
    params = frozenset(out.list_arguments() + out.list_auxiliary_states()) - {"data"}
    types = dict.fromkeys(out.list_arguments(), "float32")
    facts = infer_facts(out, graph, {"data": (4, 3, 16, 16)}, types, params)
    groups = [group("Convolution"), group("BatchNorm"), group("Activation"), group("Convolution", depthwise=True)]
    return (graph, facts), [*groups, group("Pooling", (4, 16, 1, 1)), group("FullyConnected", (4, 10))]


@pytest.fixture(scope="module")
def steps():
    """The primitives of a training step in float32 and in emulated float16, run for real."""
    part, _ = network()
    return run_steps([part], [Policy(), Policy.parse("mixed_float16")], True, limit=240)


@pytest.mark.parametrize("number", [0, 1], ids=["float32", "float16"])
def test_a_real_step_gives_times_of_all_groups(steps, number):
    _, groups = network()
    account = account_for(steps[number], groups)
    assert set(account.seconds) == set(range(len(groups)))
    assert all(0 < seconds < 60 for seconds in account.seconds.values())
    assert set(account.reference) <= set(account.seconds)


def test_a_real_step_in_training_runs_backward(steps):
    part, _ = network()
    forward = run_steps([part], [Policy()], False, limit=240)[0]
    assert Primitive("convolution", False, SHAPE) in forward
    assert 0 < sum(forward.values()) < sum(steps[0].values())


def started(monkeypatch):
    """Return the list of the processes that are started from here on."""
    found, start = [], subprocess.Popen

    def popen(*args, **kwargs):
        found.append(start(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def test_a_step_that_takes_too_long_is_ended(monkeypatch):
    processes = started(monkeypatch)
    part, _ = network()
    start = time.monotonic()
    assert run_steps([part], [Policy()], True, limit=0.2) == [{}]
    assert time.monotonic() - start < 30
    (process,) = processes
    assert process.returncode not in (None, 0)


def test_an_interrupt_ends_the_process_too(monkeypatch):
    wait = subprocess.Popen.wait
    processes = started(monkeypatch)

    def interrupted(process, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(process)

    start = subprocess.Popen

    def popen(*args, **kwargs):
        process = start(*args, **kwargs)
        process.wait = interrupted.__get__(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    part, _ = network()
    with pytest.raises(KeyboardInterrupt):
        run_steps([part], [Policy()], True, limit=100)
    assert processes[0].returncode is not None


def test_without_an_interpreter_to_run_there_is_no_account(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    part, _ = network()
    assert run_steps([part], [Policy(), Policy()], True, limit=5) == [{}, {}]


def test_a_network_that_cannot_run_has_no_account():
    graph = Graph((Node("null", "data"), Node("no such operator", "op")), ())
    assert run_steps([(graph, Facts({}))], [Policy()], True, limit=120) == [{}]


def test_without_oneDNN_there_is_no_account(monkeypatch):
    monkeypatch.setenv("MXNET_MKLDNN_ENABLED", "0")
    part, groups = network()
    (times,) = run_steps([part], [Policy()], False, limit=240)
    assert account_for(times, groups).seconds == {}


def test_the_process_has_amx_as_this_one_has(monkeypatch):
    for on in (False, True):
        monkeypatch.setattr(suspects.amx, "amx_status", lambda on=on: suspects.amx.AmxStatus(on, ""))
        assert suspects._environment()["MXMP_AMX"] == ("1" if on else "0")


def test_the_environment_stays_as_it_is():
    before = dict(os.environ)
    suspects._environment()
    assert dict(os.environ) == before


@pytest.mark.parametrize("lines", [[], ["begin"], ["end"]], ids=["nothing", "no end", "no beginning"])
def test_a_step_that_did_not_end_is_not_taken(lines):
    marks = {"begin": f"{suspects.BEGIN} 0", "end": f"{suspects.END} 0"}
    assert suspects._lines_of_step([marks.get(line, line) for line in lines], 0) == []


def test_the_last_step_that_ended_counts():
    begin, end = f"{suspects.BEGIN} 1", f"{suspects.END} 1"
    lines = ["0", begin, "1", end, begin, "2", end, begin, "3"]
    assert suspects._lines_of_step(lines, 1) == ["2"]
