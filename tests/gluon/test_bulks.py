"""A converted net is launched on a GPU in as many bulks as the float32 net."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxmp.gluon import bulks, convert
from tests.graph.text import from_text

BEFORE = from_text("x = null()\na = relu(x)\nb = tanh(a)\nreturn b")
AFTER = from_text("x = null()\nc = Cast(x)\na = relu(c)\nb = tanh(a)\nd = Cast(b)\nreturn d")
VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"


@pytest.fixture
def clean(monkeypatch):
    for name in (VARIABLE, f"{VARIABLE}_FWD", f"{VARIABLE}_BWD"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def sizes(flags):
    return dict(flags).get("forward_bulk_size"), dict(flags).get("backward_bulk_size")


def test_bulks_grow_as_casts_are_added(clean):
    assert sizes(bulks.bulk_flags([("static_alloc", True)], BEFORE, AFTER)) == (30, 30)
    assert bulks.bulk_flags([("static_alloc", True)], BEFORE, AFTER)[0] == ("static_alloc", True)


def test_without_casts_nothing_changes(clean):
    assert bulks.bulk_flags([], BEFORE, BEFORE) == []


def test_sizes_from_the_environment_grow(clean):
    clean.setenv(VARIABLE, "4")
    clean.setenv(f"{VARIABLE}_BWD", "7")
    assert sizes(bulks.bulk_flags([], BEFORE, AFTER)) == (8, 14)


def test_bulks_that_are_switched_off_stay_off(clean):
    clean.setenv(VARIABLE, "0")
    assert sizes(bulks.bulk_flags([], BEFORE, AFTER)) == (0, 0)


def test_a_size_that_the_user_gave_stays(clean):
    assert sizes(bulks.bulk_flags([("forward_bulk_size", 9)], BEFORE, AFTER)) == (9, 30)


@pytest.fixture
def built(clean):
    """The flags of each cached operator that MXNet is asked for."""
    found, original = [], mx.nd.CachedOp

    def cached_op(symbol, flags=()):
        found.append(flags)
        return original(symbol, flags)

    clean.setattr(mx.nd, "CachedOp", cached_op)
    return found


def net_of(policy):
    net = nn.Dense(4, in_units=3)
    net.initialize()
    convert(net, policy).hybridize(static_alloc=True, forward_bulk_size=9)
    return net


def test_a_cached_operator_for_a_gpu_gets_them(built, clean):
    """One operator and its four casts."""
    clean.setattr(bulks, "on_cpu", lambda: False)
    net = net_of("O1")
    net(mx.nd.ones((2, 3)))
    assert sizes(built[0]) == (9, 5 * 15) and ("static_alloc", True) in built[0]
    net.hybridize()
    net(mx.nd.ones((2, 3)))
    assert sizes(built[1]) == (75, 75)


def test_on_a_cpu_bulks_are_mxnets(built):
    net_of("O1")(mx.nd.ones((2, 3)))
    assert sizes(built[0]) == (9, None)
