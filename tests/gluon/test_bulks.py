"""A converted net is launched on a GPU in as many bulks as the float32 net."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxmp.gluon import conversion, convert
from tests.gluon.nets import initialized

VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"
ONE, TWO = {"forward_bulk_size": 9}, {VARIABLE: "4", f"{VARIABLE}_BWD": "7"}
CASES = {
    "they grow as casts are added": (True, {}, {}, (75, 75)),
    "a size that the user gave stays": (True, {}, ONE, (9, 75)),
    "sizes from the environment grow": (True, TWO, {}, (20, 35)),
    "off stays off": (True, {VARIABLE: "0"}, {}, (0, 0)),
    "on a CPU they are MXNet's": (False, TWO, ONE, (9, None)),
}


class Stopped(Exception):
    """Nothing can run in float16 on a CPU."""


@pytest.mark.parametrize("gpu, environment, given, expected", CASES.values(), ids=CASES)
def test_sizes_of_bulks_of_one_operator_and_its_four_casts(gpu, environment, given, expected, monkeypatch):
    def cached_op(symbol, flags=()):
        asked.update(flags)
        raise Stopped

    asked = {}
    for name in (VARIABLE, f"{VARIABLE}_FWD", f"{VARIABLE}_BWD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mx.nd, "CachedOp", cached_op)
    monkeypatch.setattr(conversion, "on_cpu", lambda: not gpu)
    net = convert(initialized(nn.Dense(4, in_units=3)), "O1")
    net.hybridize(static_alloc=True, **given)
    with pytest.raises(Stopped):
        net(mx.nd.ones((2, 3)))
    assert (asked.get("forward_bulk_size"), asked.get("backward_bulk_size")) == expected
    assert asked["static_alloc"] is True
