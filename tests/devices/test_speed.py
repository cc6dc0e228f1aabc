"""The clock: what runs, what is made of the times, and what they hold for."""

import math
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp.devices import speed
from mxmp.devices.speed import Speed, bfloat16_speed, measure, read_machine, runs_bfloat16  # as they are: see conftest
from tests.processors import AMX, INTEL, NO_BFLOAT16, UNKNOWN, pin, processor_of

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_runs_bfloat16_is_false_below_avx512_and_leaves_mxnet_usable():
    code = """
import mxmp, mxnet as mx
from mxmp.devices.speed import runs_bfloat16
print(runs_bfloat16(), mx.nd.ones(3).sum().asscalar())
mx.nd.waitall()
"""
    environ = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "3.0"]


@pytest.mark.parametrize("flags", ["avx2", "avx512f"])
def test_a_processor_without_avx512bw_is_not_asked(flags, monkeypatch, on_processor):
    """oneDNN would print that it has no kernel."""
    on_processor(processor_of(NO_BFLOAT16, flags=frozenset([flags])))
    monkeypatch.delattr(mx.nd, "amp_cast")
    assert not runs_bfloat16() and bfloat16_speed() is None


def test_the_shortest_times_count_and_both_come_first_in_turn():
    order = []

    def layers(name, times):
        rest = iter([*times, *times[-1:] * 100])
        return lambda: order.append(name) or next(rest)

    # The first run of each, which generates code, does not count.
    base = layers("base", [(0.0, 0.0), (4.0, 9.0), (2.0, 7.0), (3.0, 6.0)])
    other = layers("other", [(0.0, 0.0), (1.0, 3.0), (5.0, 2.0), (8.0, 8.0)])
    assert measure(base, other, seconds=0.0) == Speed(2.0, 8.0 / 3.0)
    assert order[:6] == ["base", "other"] * 2 + ["other", "base"] and len(order) >= 2 + 2 * 4


def test_measuring_leaves_random_numbers_and_recording_alone():
    mx.random.seed(3)
    expected = mx.nd.random.uniform(shape=3).asnumpy()
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    mx.random.seed(3)
    with mx.autograd.pause():
        assert all(seconds > 0 for seconds in speed._layers("float32")())
        assert not mx.autograd.is_recording()
    assert (mx.nd.random.uniform(shape=3).asnumpy() == expected).all()
    assert (np.random.get_state()[1] == state).all()


@pytest.mark.bfloat16
def test_bfloat16_is_measured_where_it_runs():
    assert all(0.01 < ratio < 100 and math.isfinite(ratio) for ratio in bfloat16_speed(0.1))


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: pin(patch, processor_of(UNKNOWN)),
        lambda patch: pin(patch, processor_of(INTEL, name=processor_of(AMX).name, flags=processor_of(AMX).flags)),
        lambda patch: patch.setenv("OMP_NUM_THREADS", "97"),
        lambda patch: patch.setenv("DNNL_MAX_CPU_ISA", "SSE41"),
        lambda patch: patch.setattr(os, "sched_getaffinity", lambda pid: set(range(97))),
        lambda patch: patch.setattr(mx.libinfo, "find_lib_path", lambda: [__file__]),
    ],
    ids=["processor", "AMX", "threads", "instructions", "cores", "build"],
)
def test_times_hold_for_a_machine_and_a_build(change, monkeypatch, on_processor):
    on_processor(AMX)
    before = read_machine()
    assert read_machine() == before
    change(monkeypatch)
    assert read_machine() != before and str(read_machine()) != str(before)
