"""nnvm JSON to Graph and back."""

from __future__ import annotations

import json

import mxnet as mx
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp.errors import GraphError
from mxmp.graph import from_json, to_json

NETWORKS = ["resnet18_v2", "vgg11_bn", "squeezenet1.0", "densenet121", "mobilenetv2_1.0", "inceptionv3"]


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
def test_round_trip_loses_nothing(make):
    text = make().tojson(remove_amp_cast=False)
    assert json.loads(to_json(from_json(text))) == json.loads(text)


@pytest.mark.parametrize("make", SYMBOLS.values(), ids=SYMBOLS.keys())
def test_mxnet_reads_what_is_written(make):
    text = make().tojson(remove_amp_cast=False)
    loaded = mx.sym.load_json(to_json(from_json(text)))
    assert json.loads(loaded.tojson(remove_amp_cast=False)) == json.loads(text)


def _broken(change):
    data = json.loads(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="fc").tojson())
    change(data)
    return json.dumps(data)


BAD = {
    "truncated": (lambda: mx.sym.var("x").tojson()[:40], "truncated or no symbol file"),
    "a list": (lambda: "[]", "no 'nodes' and 'heads'"),
    "no row pointer": (lambda: _broken(lambda d: d.pop("node_row_ptr")), "lacks a valid 'node_row_ptr'"),
    "unknown field": (lambda: _broken(lambda d: d.update(extra=1)), r"unknown fields \['extra'\]"),
    "node without inputs": (lambda: _broken(lambda d: d["nodes"][3].pop("inputs")), "node 3 \\('fc'\\)"),
    "input out of range": (
        lambda: _broken(lambda d: d["nodes"][3].update(inputs=[[57, 0, 0]])),
        r"node 'fc' \(FullyConnected\): input 0 refers to node 57, but the graph has 4 nodes",
    ),
    "cycle": (
        lambda: _broken(lambda d: d["nodes"][3].update(inputs=[[3, 0, 0]])),
        r"input 0 refers to node 'fc' \(FullyConnected\), which comes later or is itself",
    ),
    "no such output": (
        lambda: _broken(lambda d: d["nodes"][3].update(inputs=[[0, 4, 0]])),
        "refers to output 4 of node 'x' \\(null\\), which has 1",
    ),
    "variable with inputs": (
        lambda: _broken(lambda d: d["nodes"][1].update(inputs=[[0, 0, 0]])),
        "a variable cannot have inputs",
    ),
    "no outputs": (lambda: _broken(lambda d: d.update(heads=[])), "no outputs"),
}


@pytest.mark.parametrize("make, message", BAD.values(), ids=BAD.keys())
def test_bad_json_is_refused_with_the_node(make, message):
    with pytest.raises(GraphError, match=message):
        from_json(make())
