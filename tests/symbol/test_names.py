"""Names and files of any characters: converted, saved, loaded, reported, exported; and operators of one name."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.symbol import convert_checkpoint, convert_symbol, on_cpu, save_checkpoint, to_graph
from tests.names import EACH

ROWS = mx.nd.array(np.random.RandomState(0).rand(2, 3))


@EACH
def test_a_network_of_any_name_is_converted_saved_and_reported(name, tmp_path):
    net = mx.sym.FullyConnected(mx.sym.var(f"data{name}"), num_hidden=4, name=name)
    params = {f"{name}_weight": ROWS[0] * mx.nd.ones((4, 1)), f"{name}_bias": mx.nd.ones(4)}
    prefix, out = str(tmp_path / name), str(tmp_path / f"{name}-low")
    save_checkpoint(prefix, 0, net, params, {})
    report = convert_checkpoint(prefix, 0, out, "O2", {f"data{name}": (2, 3)}).report
    (line,) = (line for line in str(report).splitlines() if "FullyConnected" in line)
    assert not any(0 < ord(c) < 32 or ord(c) == 127 for c in line)
    assert json.loads(report.to_json())["rows"][0]["name"] == name
    low, args, _ = mx.model.load_checkpoint(out, 0)
    assert args[f"{name}_weight"].dtype == np.float16 and low.list_outputs() == net.list_outputs()
    found = on_cpu(low).eval(ctx=mx.cpu(), **args, **{f"data{name}": ROWS})[0]
    exact = net.eval(ctx=mx.cpu(), **params, **{f"data{name}": ROWS})[0]
    np.testing.assert_allclose(found.asnumpy(), exact.asnumpy(), rtol=4 * 2.0**-11)
    assert to_graph(convert_symbol(low, "O0")) == to_graph(net)
    policy = mxmp.Policy.parse("O1", names={name.replace("[", "[[]"): "float32"})
    assert mxmp.Policy.parse(str(policy)) == policy
    assert convert_symbol(net, policy).tojson() == net.tojson()


@EACH
def test_a_gluon_net_of_any_prefix_trains_saves_and_exports(name, tmp_path):
    net = gluon.nn.HybridSequential(prefix=f"{name}_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, in_units=3, prefix=name), gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    mxmp.gluon.convert(net, "O2")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", loss_scale=8)
    with autograd.record(), trainer.scale_loss(net(ROWS).sum()) as scaled:
        scaled.backward()
    trainer.step(1)
    path = str(tmp_path / name)
    trainer.save_states(f"{path}.states")
    trainer.load_states(f"{path}.states")
    net.save_parameters(f"{path}.params")
    net.load_parameters(f"{path}.params")
    files = mxmp.gluon.export(net, path)
    again = mxmp.gluon.convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1]), "O2")
    np.testing.assert_array_equal(again(ROWS).asnumpy(), net(ROWS).asnumpy())
    assert f"{name}_{name}weight" in net.collect_params()


def conv(data, name, size=16, kernel=1):
    return mx.sym.Convolution(data, num_filter=size, kernel=(kernel, kernel), no_bias=True, name=name)


@pytest.mark.parametrize("order", [1, -1], ids=["image first", "image last"])
def test_two_batch_norms_of_one_name_are_looked_at_one_by_one(order):
    """oneDNN has a fast bfloat16 kernel for the one of images, MXNet's own for the other is slow."""
    statistics = [mx.sym.var(f"bn_{name}") for name in ("gamma", "beta", "mean", "var")]
    layers = conv(mx.sym.var("data"), "conv", 64, 3), mx.sym.FullyConnected(mx.sym.var("rows"), num_hidden=64, name="fc")
    image, row = (
        mx.sym.BatchNorm(mx.sym.Activation(layer, act_type="relu", name="act"), *statistics, name="bn") for layer in layers
    )
    net = mx.sym.Group([conv(image, "image"), mx.sym.FullyConnected(row, num_hidden=16, name="row")][::order])
    shapes = {"data": (2, 32, 8, 8), "rows": (2, 32)}
    found = mxmp.symbol.convert_graph(net, mxmp.Policy.parse("mixed_bfloat16"), shapes).on_cpu(trains=True)
    nodes = to_graph(found).nodes
    (wide,) = (node for node in nodes if node.op == "BatchNorm" and "_wide_float32" in nodes[node.inputs[0].node].name)
    (reader,) = (n for n in nodes if n.op == "amp_cast" and nodes[n.inputs[0].node] is wide)
    assert [n.op for n in nodes if n.inputs and nodes[n.inputs[0].node] is reader] == ["FullyConnected"]
