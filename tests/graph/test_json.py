"""nnvm JSON to Graph and back."""

from __future__ import annotations

import json

import mxnet as mx
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp.graph import from_json, to_json

NETWORKS = ["resnet18_v2", "squeezenet1.0", "densenet121"]


def _while_loop():
    data = mx.sym.var("data")
    out, _ = mx.sym.contrib.foreach(lambda x, s: (x + s, s * 2), data, mx.sym.var("state"))
    return out


def _with_group():
    with mx.AttrScope(ctx_group="dev1"):
        return mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")


SYMBOLS = {
    "control flow body": _while_loop,
    "ctx_group": _with_group,
    "batch norm with hidden outputs": lambda: mx.sym.BatchNorm(mx.sym.var("data"), name="bn"),
    "several outputs": lambda: mx.sym.Group(list(mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=3))),
    "declared dtype": lambda: mx.sym.var("data", dtype="float16") * 2,
    "amp_cast": lambda: mx.sym.amp_cast(mx.sym.var("data"), dtype="float16"),
    **{name: (lambda name=name: vision.get_model(name)(mx.sym.var("data"))) for name in NETWORKS},
}


@pytest.mark.parametrize("make", SYMBOLS.values(), ids=SYMBOLS.keys())
def test_a_network_comes_back_unchanged_to_mxnet_too(make):
    text = make().tojson(remove_amp_cast=False)
    written = to_json(from_json(text))
    assert json.loads(written) == json.loads(text)
    assert json.loads(mx.sym.load_json(written).tojson(remove_amp_cast=False)) == json.loads(text)
