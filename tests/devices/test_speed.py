"""How fast bfloat16 is: what is measured, when, what is kept, and the warning."""

from __future__ import annotations

import logging
import math
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.devices import speed, speed_file
from mxmp.devices.processor import Processor
from mxmp.devices.speed import Gain, Speed, bfloat16_speed, measure  # before conftest replaces one of them
from mxmp.errors import SlowPrecisionWarning

FLAGS = frozenset(["avx512bw", "avx512_bf16"])


def speed_of(ratio):
    return Speed(Gain(ratio, ratio), Gain(ratio, ratio))


SLOW, FAST = speed_of(0.71), speed_of(1.64)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that runs bfloat16, with a cache folder and a clock that are made up; returns what was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(speed, "read_processor", lambda: Processor("Xeon", FLAGS))
    monkeypatch.setattr(speed, "runs_bfloat16", lambda: True)
    measured = []
    monkeypatch.setattr(speed, "measure", lambda *args: measured.append(args) or SLOW)
    return measured


@pytest.fixture
def slow(monkeypatch):
    """A process that has not been told yet, on a machine where bfloat16 is slower."""
    monkeypatch.setattr(speed, "_checked", False)
    monkeypatch.setattr(speed, "bfloat16_speed", lambda: SLOW)
    monkeypatch.setattr(speed, "read_processor", lambda: Processor("Xeon", FLAGS))


def dense():
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    return net


# ------------------------------------------------------------------ the value


@pytest.mark.parametrize(
    ("found", "slower", "advice"),
    [
        (FAST, False, ""),
        (SLOW, True, "For speed take float32."),
        (speed_of(0.95), False, ""),
        (Speed(Gain(0.6, 0.6), Gain(2.5, 2.5)), False, ""),
        (Speed(Gain(1.2, 0.7), Gain(1.0, 0.8)), False, "For speed take bfloat16 for inference, and float32 for training."),
        (Speed(Gain(0.7, 1.2), Gain(0.8, 1.0)), False, "For speed take bfloat16 for training, and float32 for inference."),
    ],
)  # fmt: skip
def test_what_to_take_follows_from_the_ratios(found, slower, advice):
    assert (found.slower, found.advice) == (slower, advice)


def test_the_ratios_are_geometric_means_over_layers():
    found = Speed(Gain(2.0, 4.0), Gain(0.5, 1.0))
    assert (found.inference, found.training) == (1.0, 2.0)
    assert str(found) == (
        "1.00 times as fast as float32 in inference, 2.00 in training "
        "(convolutions 2.00 and 4.00, matrix products 0.50 and 1.00)"
    )


# ------------------------------------------------------------------ the clock


def test_the_shortest_times_count_and_both_come_first_in_turn():
    order = []

    def layers(name, times):
        rest = iter([*times, *times[-1:] * 100])
        return lambda: order.append(name) or next(rest)

    # The first run of each, which generates code, does not count.
    base = layers("base", [(0.0, 0.0), (4.0, 9.0), (2.0, 7.0), (3.0, 6.0)])
    other = layers("other", [(0.0, 0.0), (1.0, 3.0), (5.0, 2.0), (8.0, 8.0)])
    assert speed._gain(base, other, seconds=0.0) == Gain(2.0, 8.0 / 3.0)
    assert order[:6] == ["base", "other"] * 2 + ["other", "base"] and len(order) >= 2 + 2 * 4


def test_measuring_leaves_random_numbers_and_recording_alone():
    mx.random.seed(3)
    expected = mx.nd.random.uniform(shape=3).asnumpy()
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    mx.random.seed(3)
    with mx.autograd.pause():
        found = measure("float32", "float32", 0.0)
        assert not mx.autograd.is_recording()
    assert all(math.isfinite(ratio) and ratio > 0 for gain in found for ratio in gain)
    assert (mx.nd.random.uniform(shape=3).asnumpy() == expected).all()
    assert (np.random.get_state()[1] == state).all()


def test_what_is_measured_is_two_layers_of_a_network():
    """The arithmetic of the probe, against numpy's: the time would tell nothing of a graph that computes less."""
    run = speed._layers("float32", (5, 8), (8, 8), lambda x, w: mx.nd.FullyConnected(x, w, num_hidden=8, no_bias=True))
    data, *weights = [cell.cell_contents for cell in run.__closure__ if isinstance(cell.cell_contents, tuple)][0]
    run()
    x, (v, w) = data.asnumpy(), [each.asnumpy() for each in weights]
    hidden = np.maximum(x @ v.T, 0)
    back = (hidden @ w.T > 0).astype("float32")
    np.testing.assert_allclose(weights[1].grad.asnumpy(), back.T @ hidden, rtol=1e-5)
    np.testing.assert_allclose(data.grad.asnumpy(), (back @ w * (hidden > 0)) @ v, rtol=1e-4, atol=1e-6)


@pytest.mark.bfloat16
def test_bfloat16_is_measured_where_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = bfloat16_speed(0.1)
    assert all(0.01 < ratio < 100 for gain in found for ratio in gain)
    assert bfloat16_speed() == found


# ------------------------------------------------------------------ when it is measured


def test_it_is_measured_once_and_kept(machine):
    assert bfloat16_speed() == bfloat16_speed() == SLOW
    assert machine == [("float32", "bfloat16", speed.SHORT)]


def test_it_is_measured_anew_when_asked(machine, monkeypatch):
    assert bfloat16_speed() == SLOW
    monkeypatch.setattr(speed, "measure", lambda *args: FAST)
    assert bfloat16_speed() == SLOW
    assert bfloat16_speed(speed.LONG, anew=True) == FAST == bfloat16_speed()


def test_nothing_is_measured_where_bfloat16_does_not_run(machine, monkeypatch):
    assert bfloat16_speed() == SLOW
    speed_file.store(speed_file.describe_machine(), [])
    monkeypatch.setattr(speed, "runs_bfloat16", lambda: False)
    assert bfloat16_speed() is None


def test_a_probe_that_fails_is_no_error(machine, monkeypatch, caplog):
    def fail(*args):
        raise mx.MXNetError("MXNetError: could not create a primitive")

    monkeypatch.setattr(speed, "measure", fail)
    with caplog.at_level(logging.WARNING, logger=speed.__name__):
        assert bfloat16_speed() is None
    assert "cannot be measured: could not create a primitive" in caplog.text


# ------------------------------------------------------------------ the warning


def module_of(policy):
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax")
    mxmp.module.Module(symbol, policy=policy).bind([("data", (2, 4))], [("softmax_label", (2,))])


def hybrid_block():
    net = dense()
    net.hybridize()
    net(mx.nd.ones((2, 4)))
    mxmp.amp.convert_hybrid_block(net, "bfloat16")


@pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")  # MXNet's, of contrib.amp's way
@pytest.mark.parametrize(
    "convert",
    [
        lambda: mxmp.gluon.convert(dense(), "mixed_bfloat16"),
        lambda: mxmp.gluon.cast(dense(), "bfloat16"),
        hybrid_block,
    ],
    ids=["convert", "cast", "amp.convert_hybrid_block"],
)
def test_a_conversion_warns_where_bfloat16_is_slower(slow, convert):
    with pytest.warns(SlowPrecisionWarning) as found:
        convert()
        convert()
    (warning,) = [each for each in found if each.category is SlowPrecisionWarning]
    text = str(warning.message)
    assert text.startswith("bfloat16 is 0.71 times as fast as float32 in inference, 0.71 in training")
    assert "on this processor (Xeon). For speed take float32." in text and "mxmp doctor" in text
    assert warning.filename == __file__


@pytest.mark.bfloat16
def test_a_module_warns_too(slow):
    with pytest.warns(SlowPrecisionWarning):
        module_of("mixed_bfloat16")


def test_a_module_warns_before_anything_is_bound(slow):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SlowPrecisionWarning):
            module_of("mixed_bfloat16")


@pytest.mark.parametrize("policy", ["O1", "O2", "O0"])
def test_other_precisions_are_not_measured(slow, policy, monkeypatch):
    monkeypatch.delattr(speed, "bfloat16_speed")
    mxmp.gluon.convert(dense(), policy)


@pytest.mark.parametrize("found", [FAST, speed_of(0.95), None], ids=["faster", "the same", "does not run"])
def test_nothing_is_said_where_bfloat16_is_not_slower(slow, found, monkeypatch):
    monkeypatch.setattr(speed, "bfloat16_speed", lambda: found)
    mxmp.gluon.convert(dense(), "mixed_bfloat16")  # warnings are errors here


def test_what_is_for_another_machine_is_not_measured(slow, monkeypatch):
    """A symbol is converted here and runs who knows where."""
    monkeypatch.delattr(speed, "bfloat16_speed")
    mxmp.symbol.convert_symbol(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), "mixed_bfloat16")


def test_a_warning_that_is_an_error_leaves_the_net_as_it_was(slow):
    net = dense()
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(SlowPrecisionWarning):
                mxmp.gluon.convert(net, "mixed_bfloat16")
        assert type(net) is gluon.nn.Dense and net(mx.nd.ones((2, 4))).dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPrecisionWarning)
        mxmp.gluon.convert(net, "mixed_bfloat16")
    assert mxmp.gluon.report(net).rows
