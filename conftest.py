"""Which tests run: the fast ones by default, the slow ones on demand, GPU ones where there is a GPU,
bfloat16 ones where MXNet runs bfloat16, AMX ones where it is on, those that compile C where there is a compiler.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import shutil
from typing import Any

import pytest

import mxmp  # before the tests import MXNet, which needs it on a new numpy or Python

with contextlib.suppress(OSError):  # MXNet for CUDA, which the GPU record has other processes run, does not load here
    mxmp.enable_amx()  # before any operator runs

collect_ignore = ["tests/gpu_record"]  # needs mxnet-cu112: `make test-gpu-record` names it

pytest.register_assert_rewrite("tests")  # helper modules too: a comparison that fails in one says what differs


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--native-rounding", action="store_true", help="round emulated float16 by the operators of mxmp")


def pytest_collection_modifyitems(config, items):
    chosen_by_marker = bool(config.option.markexpr)
    run_slow = config.getoption("--slow") or chosen_by_marker
    for item in items:
        if item.get_closest_marker("slow") and not run_slow:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no GPU that this MXNet can use"))
        if item.get_closest_marker("bfloat16") and not runs_bfloat16():
            item.add_marker(pytest.mark.skip(reason="MXNet runs no bfloat16 on this processor (no AVX-512)"))
        if item.get_closest_marker("amx") and not amx_status().on:
            item.add_marker(pytest.mark.skip(reason=f"AMX is off: {amx_status().reason}"))
        if item.get_closest_marker("compiler") and not has_compiler():
            item.add_marker(pytest.mark.skip(reason="no C compiler (cc or gcc)"))


def pytest_collection_finish(session):
    """Keep the thousands of tests out of each collection of garbage that one of them asks for."""
    gc.collect()
    gc.freeze()


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

    return runs_bfloat16()


def amx_status() -> Any:
    from mxmp.devices import amx

    return amx.amx_status()


def has_compiler() -> bool:
    return bool(shutil.which("cc") or shutil.which("gcc"))


@functools.lru_cache(maxsize=None)
def has_gpu() -> bool:
    import mxnet as mx

    return mx.context.num_gpus() > 0
