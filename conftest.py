"""Which tests run: the fast ones by default, the slow and the stress ones on demand, GPU ones where there is a GPU,
bfloat16 ones where MXNet runs bfloat16, AMX ones where it is on, those that compile C where there is a compiler.
"""

from __future__ import annotations

import functools
import gc
import random
import shutil
from typing import Any

import pytest

import mxmp  # before the tests import MXNet, which needs it on a new numpy or Python  # noqa: F401
from mxmp.processors import AMX, EMULATED, KINDS, read_cpuinfo

collect_ignore = ["tests/gpu_record"]  # needs mxnet-cu112: `make test-gpu-record` names it

pytest.register_assert_rewrite("tests")  # helper modules too: a comparison that fails in one says what differs

from tests.processors import pin, processor_of  # noqa: E402 - rewritten too


def pytest_addoption(parser):
    kinds = [kind.name for kind in KINDS]
    text = "the kind of processor that tests are pinned to which name none"
    parser.addoption("--processor", choices=kinds, default=EMULATED.name, metavar="KIND", help=f"{text}: {kinds}")
    parser.addoption("--shuffle", action="store_true", help="run in a random order, drawn from the seed")
    parser.addoption("--seed", type=int, help="of --shuffle and of the stress tests; else drawn, and printed")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--native-rounding", action="store_true", help="round emulated float16 by the operators of mxmp")


def pytest_configure(config):
    """Pin the processor, so that all that is decided by it is the same on any machine."""
    patch, name = pytest.MonkeyPatch(), config.getoption("--processor")
    pin(patch, processor_of(next(kind for kind in KINDS if kind.name == name)))
    config.add_cleanup(patch.undo)
    if config.option.seed is None:
        config.option.seed = getattr(config, "workerinput", {}).get("seed", random.randrange(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Give a process of xdist the seed that was drawn."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_terminal_summary(terminalreporter, config):
    """Print the seed, with -q too, by which a failure can be repeated."""
    terminalreporter.write_line(f"--seed {config.option.seed}")


def shuffle(items, seed):
    """Put modules in another order, and the tests of each."""
    draw = random.Random(seed)
    places = {name: draw.random() for name in sorted({item.location[0] for item in items})}
    order = {item: (places[item.location[0]], draw.random()) for item in items}
    items.sort(key=order.__getitem__)


def pytest_collection_modifyitems(config, items):
    if config.option.shuffle:
        shuffle(items, config.option.seed)
    chosen_by_marker = bool(config.option.markexpr)
    run_slow = config.getoption("--slow") or chosen_by_marker
    for item in items:
        if item.get_closest_marker("slow") and not run_slow:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))
        if item.get_closest_marker("stress") and not chosen_by_marker:
            item.add_marker(pytest.mark.skip(reason="stress; run with -m stress"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no GPU that this MXNet can use"))
        if item.get_closest_marker("bfloat16") and not runs_bfloat16():
            item.add_marker(pytest.mark.skip(reason="MXNet runs no bfloat16 on this processor (no AVX-512)"))
        if item.get_closest_marker("amx") and own_processor().kind != AMX:
            item.add_marker(pytest.mark.skip(reason=f"AMX is off: {own_processor().amx.reason}"))
        if item.get_closest_marker("compiler") and not has_compiler():
            item.add_marker(pytest.mark.skip(reason="no C compiler (cc or gcc)"))


def pytest_collection_finish(session):
    """Keep the thousands of tests out of each collection of garbage that one of them asks for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_processor(request):
    """Run tests that are for a processor on the one of this machine."""
    if not any(map(request.node.get_closest_marker, ("bfloat16", "amx"))):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        pin(patch, own_processor())
        yield


@pytest.fixture
def draw(request):
    """Return random numbers of a test, by the seed of the run."""
    return random.Random(f"{request.config.option.seed} {request.node.nodeid}")


@pytest.fixture
def on_processor(monkeypatch):
    """Pin a test to a kind of processor, or to a processor."""
    return functools.partial(pin_to, monkeypatch)


def pin_to(monkeypatch, found):
    found = processor_of(found) if found in KINDS else found
    pin(monkeypatch, found)
    return found


@pytest.fixture(scope="session", autouse=True)
def _same_speed_everywhere():
    """Keep how fast bfloat16 is on this machine out of all tests but those of it."""
    from mxmp.devices import speed

    same = speed.Speed(2.0, 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "bfloat16_speed", lambda *args: same if runs_bfloat16() else None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_rounding_everywhere(request):
    """Round emulated float16 by casts in all tests but those of the operators, or by these, built if need be."""
    from mxmp import rounding
    from mxmp.rounding import build

    native = request.config.getoption("--native-rounding")
    if native:
        assert rounding.load(rounding.kept() or build.build())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "available", lambda: native)
        yield


@functools.lru_cache(maxsize=None)
def runs_bfloat16() -> bool:
    from mxmp.devices.speed import runs_bfloat16

    with pytest.MonkeyPatch.context() as patch:
        pin(patch, own_processor())
        return runs_bfloat16()


@functools.lru_cache(maxsize=None)
def own_processor() -> Any:
    from mxmp.devices.amx import amx_status

    return read_cpuinfo()._replace(amx=amx_status())


def has_compiler() -> bool:
    return bool(shutil.which("cc") or shutil.which("gcc"))


@functools.lru_cache(maxsize=None)
def has_gpu() -> bool:
    import mxnet as mx

    return mx.context.num_gpus() > 0
