"""docs/architecture.md names what there is and what runs; a step crosses few modules."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
import sys

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import mxmp
from tests.imports import FILES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = re.findall(r"`([a-z_]\w*(?:\.\w+)+)`", PAGE)
LISTS = {
    title: [re.findall(r"`([\w.]+\.\w+)`", step) for step in re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]]
    for title, text in re.findall(r"^### (.+)\n((?:(?!^#).*\n)+)", PAGE, re.MULTILINE)
}

MOST_CROSSED = 8
LEAVES = ("arrays", "compat", "dtypes", "loss_scale", "mxnet_private")  # compat: import statements of MXNet's own
"""Arithmetic, values and names: a step calls them and comes back, it does not go on from them."""


def find(name):
    """Return what the page calls by a name: a module of mxmp, or what is found in one."""
    names = name.split(".")
    for count in range(len(names), 0, -1):
        module = ".".join(["mxmp", *names[:count]])
        if module in FILES:
            return functools.reduce(getattr_static, names[count:], importlib.import_module(module))
    raise AttributeError(name)


def exists(name):
    try:
        find(name)
    except AttributeError:
        return False
    return True


def getattr_static(value, name):
    """Return an attribute; of a class as it is written, a property not asked for its value."""
    return inspect.getattr_static(value, name) if inspect.isclass(value) else getattr(value, name)


def code_of(name):
    """Return the code of a function, a method, a property or a command; None of what has no code of its own."""
    value = find(name) if exists(name) else None
    for attribute in ("callback", "fget", "func", "__func__"):
        value = getattr(value, attribute, value)
    return getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)


@contextlib.contextmanager
def calls(by_callers=False):
    """Yield a list of code that gets every call of Python's within the block; or of pairs (caller's file, file)."""
    found = []

    def see(frame, event, _):
        if event == "call" and by_callers:
            found.append((frame.f_back.f_code.co_filename, frame.f_code.co_filename))
        elif event == "call":
            found.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield found
    finally:
        sys.setprofile(before)


def dense():
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    return net


def head():
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(fc, name="softmax")


def convert_and_call():
    net = dense()
    with calls() as found:
        mxmp.gluon.convert(net, "O2")(mx.nd.ones((2, 4)))
    return found


def convert_and_step():
    net = mxmp.gluon.convert(dense(), "O2")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd")
    with calls() as found:
        _scaled_backward(net, trainer)
        trainer.step(2)
    return found


def _scaled_backward(net, trainer):
    with autograd.record(), trainer.scale_loss(net(mx.nd.ones((2, 4))).sum()) as scaled:
        scaled.backward()


def fit():
    module = mxmp.module.Module(head(), policy="O2")
    batches = mx.io.NDArrayIter(mx.nd.ones((4, 4)), mx.nd.ones(4), batch_size=2)
    with calls() as found:
        module.fit(batches, num_epoch=1)
    return found


RUNS = {
    "Every conversion": convert_and_call,
    "Gluon: `convert` and the first call": convert_and_call,
    "`Trainer.step`": convert_and_step,
    "`Module.fit`": fit,
}


def test_the_names_on_the_page_exist():
    missing = [name for name in NAMES if not exists(name)]
    assert NAMES and not missing, ", ".join(missing)


def test_each_step_of_a_list_names_a_function():
    assert list(LISTS) == list(RUNS) and all(len(steps) >= 5 for steps in LISTS.values())
    without = [step for steps in LISTS.values() for step in steps if not any(code_of(name) for name in step)]
    assert not without, without


@pytest.mark.parametrize("title", RUNS)
def test_what_a_list_names_runs_in_its_order(title):
    found = RUNS[title]()
    position = 0
    for name in (name for step in LISTS[title] for name in step if code_of(name)):
        assert found.count(code_of(name)), f"{name} does not run"
        assert found[position:].count(code_of(name)), f"{name} runs only before what the list has before it"
        position = found.index(code_of(name), position)


def crossed(found):
    """Return the modules that control goes through: entered, and left for another that is no leaf."""
    folder = str(ROOT / "mxmp") + os.sep
    pairs = {(a[len(folder) :], b[len(folder) :]) for a, b in found if a.startswith(folder) and b.startswith(folder)}
    return sorted({caller for caller, callee in pairs if caller != callee and not callee.startswith(LEAVES)})


def trainer_step():
    net = mxmp.gluon.convert(dense(), "O2")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, loss_scale="dynamic")
    _scaled_backward(net, trainer)
    trainer.step(2)  # the first makes states and masters
    _scaled_backward(net, trainer)
    with calls(by_callers=True) as found:
        assert trainer.step(2)
    return found


def module_update():
    module = mxmp.module.Module(head(), policy="O2", loss_scale="dynamic")
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params()
    module.init_optimizer(optimizer="sgd")
    batch = mx.io.DataBatch([mx.nd.ones((2, 4))], [mx.nd.ones(2)])
    module.forward_backward(batch)
    module.update()
    module.forward_backward(batch)
    with calls(by_callers=True) as found:
        module.update()
    assert module.skipped_steps == 0
    return found


@pytest.mark.parametrize("front, step", [("trainer", trainer_step), ("module", module_update)])
def test_a_step_crosses_few_modules(front, step):
    """Of float16 weights with masters, on a CPU, under a dynamic loss scale."""
    files = crossed(step())
    assert 0 < len(files) <= MOST_CROSSED, ", ".join(files)
