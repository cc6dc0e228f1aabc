"""Names and files of any characters: converted, saved, loaded, reported, exported."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
from hypothesis import given, settings
from mxnet import autograd, gluon

import mxmp
from mxmp.symbol import convert_checkpoint, convert_model, convert_symbol, load_checkpoint, save_checkpoint, to_graph
from tests.names import ANY, EACH

ROWS = mx.nd.array(np.random.RandomState(0).rand(2, 3))


def network(name):
    layer = mx.sym.FullyConnected(mx.sym.var(f"data{name}"), num_hidden=4, name=name)
    return mx.sym.softmax(layer, name=f"soft{name}")


def params_of(name):
    rng = np.random.RandomState(1)
    return {f"{name}_weight": mx.nd.array(rng.rand(4, 3)), f"{name}_bias": mx.nd.array(rng.rand(4))}


def run(symbol, args, name):
    return symbol.eval(ctx=mx.cpu(), **args, **{f"data{name}": ROWS})[0].asnumpy()


@settings(max_examples=30, deadline=None)
@given(ANY)
def test_a_network_of_any_name_converts_and_back(name):
    symbol = network(name)
    converted = convert_symbol(symbol, "O1")
    assert converted.list_outputs() == symbol.list_outputs()
    assert set(converted.list_inputs()) == set(symbol.list_inputs())
    assert to_graph(convert_symbol(converted, "O0")) == to_graph(symbol)


@EACH
def test_a_checkpoint_of_any_name_converts_and_loads_in_mxnet(name, tmp_path):
    folder = tmp_path / name.replace("/", "")
    folder.mkdir()
    prefix, out = str(folder / name), str(folder / f"{name}-low")
    save_checkpoint(prefix, 0, network(name), params_of(name), {})
    convert_checkpoint(prefix, 0, out, "O2", {f"data{name}": (2, 3)})
    symbol, args, _ = mx.model.load_checkpoint(out, 0)
    assert args[f"{name}_weight"].dtype == np.float16
    assert symbol.tojson(remove_amp_cast=False) == load_checkpoint(out, 0).symbol.tojson(remove_amp_cast=False)
    expected = run(network(name), params_of(name), name)
    found = run(mxmp.symbol.on_cpu(symbol), args, name)
    assert np.abs(found - expected).max() < 16 * np.finfo(np.float16).eps  # probabilities of one float16 layer


@EACH
def test_a_pattern_of_any_name_keeps_its_node(name):
    pattern = name.replace("[", "[[]")
    policy = mxmp.Policy.parse("O1", names={pattern: "float32"})
    assert mxmp.Policy.parse(str(policy)) == policy
    assert convert_symbol(network(name), policy).tojson() == network(name).tojson()


@EACH
def test_a_report_shows_any_name_in_one_line(name):
    report = convert_model(network(name), params_of(name), {}, "O2", {f"data{name}": (2, 3)}).report
    lines = [line for line in str(report).splitlines() if "FullyConnected" in line]
    assert len(lines) == 1 and not any(0 < ord(c) < 32 or ord(c) == 127 for c in lines[0])
    assert json.loads(report.to_json())["rows"][0]["name"] == name


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
    expected = net(ROWS).asnumpy()
    files = mxmp.gluon.export(net, path)
    again = mxmp.gluon.convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1]), "O2")
    np.testing.assert_array_equal(again(ROWS).asnumpy(), expected)
    assert f"{name}_{name}weight" in net.collect_params()
