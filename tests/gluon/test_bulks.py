"""A converted net is launched on a GPU in as many bulks as the float32 net."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxmp.gluon import conversion, convert

VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"


@pytest.fixture
def clean(monkeypatch):
    for name in (VARIABLE, f"{VARIABLE}_FWD", f"{VARIABLE}_BWD"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def sizes(flags):
    return dict(flags).get("forward_bulk_size"), dict(flags).get("backward_bulk_size")


@pytest.fixture
def built(clean):
    """The flags of each cached operator that MXNet is asked for."""
    found, original = [], mx.nd.CachedOp

    def cached_op(symbol, flags=()):
        found.append(flags)
        return original(symbol, flags)

    clean.setattr(mx.nd, "CachedOp", cached_op)
    return found


def net_of(**flags):
    net = nn.Dense(4, in_units=3)
    net.initialize()
    convert(net, "O1").hybridize(static_alloc=True, **flags)
    return net


class Stopped(Exception):
    """Nothing can run in float16 on a CPU."""


def flags_on_a_gpu(built, monkeypatch, **given):
    """Of one operator and its four casts."""
    note = mx.nd.CachedOp

    def stop(symbol, flags):
        note(symbol, flags)
        raise Stopped

    monkeypatch.setattr(mx.nd, "CachedOp", stop)
    monkeypatch.setattr(conversion, "on_cpu", lambda: False)
    with pytest.raises(Stopped):
        net_of(**given)(mx.nd.ones((2, 3)))
    return built[-1]


def test_bulks_grow_as_casts_are_added(built, clean):
    flags = flags_on_a_gpu(built, clean)
    assert sizes(flags) == (75, 75) and ("static_alloc", True) in flags


def test_a_size_that_the_user_gave_stays(built, clean):
    assert sizes(flags_on_a_gpu(built, clean, forward_bulk_size=9)) == (9, 75)


def test_sizes_from_the_environment_grow(built, clean):
    clean.setenv(VARIABLE, "4")
    clean.setenv(f"{VARIABLE}_BWD", "7")
    assert sizes(flags_on_a_gpu(built, clean)) == (20, 35)


def test_bulks_that_are_switched_off_stay_off(built, clean):
    clean.setenv(VARIABLE, "0")
    assert sizes(flags_on_a_gpu(built, clean)) == (0, 0)


def test_on_a_cpu_bulks_are_mxnets(built):
    net_of(forward_bulk_size=9)(mx.nd.ones((2, 3)))
    assert sizes(built[0]) == (9, None)
