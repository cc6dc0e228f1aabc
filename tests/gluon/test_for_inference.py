"""``convert(net, policy, for_inference=True)``: BatchNorm folded into float32 weights, as often as these change."""

from __future__ import annotations

import contextlib
import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

import mxmp
from mxmp.errors import ConvertError
from mxmp.gluon import convert, export, folding, report, restore
from mxmp.gluon.api import convert_all

STATIC = {"static_alloc": True, "static_shape": True}
FLAGS = [{}, STATIC, {"backend": "MKLDNN"}, {"backend": "MKLDNN", **STATIC}]
POLICIES = ["float32", "O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


def make(ctx=None):
    mx.random.seed(5)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2DTranspose(6, 2), nn.BatchNorm(scale=False), nn.Dropout(0.3), nn.Dense(7), nn.BatchNorm())
        net.add(nn.Dense(5))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net(batch().as_in_context((ctx or [mx.cpu()])[0]))
    values = np.random.RandomState(0)
    for param in net.collect_params(".*(running|gamma|beta|bias).*").values():
        low, high = (0.3, 2) if param.name.endswith("var") else (-1, 1)
        param.set_data(mx.nd.array(values.uniform(low, high, param.shape)))
    return net


def batch(seed=1):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, (2, 3, 6, 6)), dtype="float32")


def bound(policy, expected):
    """Three roundings to the policy's dtype, or float32's, in each of three layers."""
    eps = {"float32": 2.0**-22, "mixed_bfloat16": 2.0**-8}.get(policy, 2.0**-11)
    return 9 * eps * np.abs(expected).max()


@pytest.mark.parametrize("flags", FLAGS, ids=["plain", "static", "backend", "static backend"])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_gives_what_the_net_gives(policy, flags):
    net = make()
    expected = net(batch()).asnumpy()
    convert(net, policy, for_inference=True).hybridize(**flags)
    found = net(batch()).asnumpy()
    assert np.abs(found - expected).max() < bound(policy, expected)
    assert {row.precision for row in report(net).rows if row.op in ("BatchNorm", "Dropout")} == {"folded", "dropped"}
    np.testing.assert_array_equal(net(batch()).asnumpy(), found)


@pytest.mark.parametrize("flags", FLAGS, ids=["plain", "static", "backend", "static backend"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["conv0_weight", "batchnorm0_running_mean", "batchnorm1_running_var", "dense1_bias"])
def test_parameters_that_change_are_folded_again(name, policy, flags):
    net = convert(make(), policy, for_inference=True)
    net.hybridize(**flags)
    before = net(batch()).asnumpy()
    net.collect_params()[f"net_{name}"].data()[:] *= 1.5
    after = net(batch()).asnumpy()
    assert not np.array_equal(after, before)
    expected = restore(net)(batch()).asnumpy()
    assert np.abs(after - expected).max() < bound(policy, expected)


@pytest.mark.parametrize("flags", FLAGS[2:], ids=["backend", "static backend"])
@pytest.mark.parametrize("for_inference", [True, False])
def test_shapes_of_parameters_may_come_from_the_first_batch(for_inference, flags):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(3), nn.BatchNorm())
    convert(net, "O1", for_inference=for_inference).hybridize(**flags)
    net.initialize(mx.init.Xavier())
    found = net(batch()).asnumpy()
    expected = restore(net)(batch()).asnumpy()
    assert np.abs(found - expected).max() < bound("O1", expected)


def test_parameters_stay_and_the_net_can_be_had_back(tmp_path):
    net = make()
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    expected = net(batch()).asnumpy()
    convert(net, "O1", for_inference=True)
    net(batch())
    assert all(param.data().dtype == np.float32 for param in net.collect_params().values())
    net.save_parameters(str(tmp_path / "net.params"))
    convert(net, "O1")  # trains again
    with autograd.record():
        y = net(batch())
    y.backward()
    restore(net)
    for name, value in before.items():
        if "running" not in name and "gamma" not in name:  # training changes these
            np.testing.assert_array_equal(net.collect_params()[name].data().asnumpy(), value)
    net.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_allclose(net(batch()).asnumpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", [autograd.record, autograd.train_mode, lambda: autograd.record(train_mode=False)])
def test_what_trains_is_refused(mode):
    net = convert(make(), "O1", for_inference=True)
    with mode(), pytest.raises(
        ConvertError, match="block 'net' was converted with for_inference=True.*autograd.record"
    ):
        net(batch())
    assert np.isfinite(net(batch()).asnumpy()).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_export_is_the_folded_model(policy, tmp_path):
    net = convert(make(), policy, for_inference=True)
    found = net(batch()).asnumpy()
    export(net, str(tmp_path / "net"))
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert not aux and "BatchNorm" not in symbol.tojson() and "Dropout" not in symbol.tojson()
    executor = mxmp.symbol.on_cpu(symbol).bind(mx.cpu(), {**args, "data": batch()})
    eps = 0 if policy == "float32" else bound(policy, found)
    assert np.abs(executor.forward()[0].asnumpy() - found).max() <= eps


def test_it_is_what_convert_model_gives():
    net = make()
    net.hybridize()
    net(batch())
    symbol = net._cached_graph[1]
    params = {name: param.data() for name, param in net.collect_params().items()}
    aux = {name: params.pop(name) for name in symbol.list_auxiliary_states()}
    model = mxmp.symbol.convert_model(symbol, params, aux, "O1", {"data": (2, 3, 6, 6)}, for_inference=True)
    executor = mxmp.symbol.on_cpu(model.symbol).bind(mx.cpu(), {**model.arg_params, "data": batch()})
    convert(net, "O1", for_inference=True)
    np.testing.assert_array_equal(net(batch()).asnumpy(), executor.forward()[0].asnumpy())


def test_an_imported_block_is_folded(tmp_path):
    net = make()
    net.hybridize()
    expected = net(batch()).asnumpy()
    net.export(str(tmp_path / "net"))
    with pytest.warns(UserWarning, match="Cannot decide type"):
        block = gluon.SymbolBlock.imports(f"{tmp_path}/net-symbol.json", ["data"], f"{tmp_path}/net-0000.params")
    convert(block, "O1", for_inference=True)
    assert np.abs(block(batch()).asnumpy() - expected).max() < bound("O1", expected)
    assert "folded" in {row.precision for row in report(block).rows}
    restore(block)
    np.testing.assert_allclose(block(batch()).asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_within_another_net_it_is_refused():
    """The outer net may train; convert that one for inference."""
    net = convert(make(), "O1", for_inference=True)
    outer = nn.HybridSequential()
    outer.add(net)
    outer.hybridize()
    for mode in (contextlib.nullcontext, autograd.record):
        with mode(), pytest.raises(ConvertError, match="block 'net' .* symbols.*Convert the outermost net for inference"):
            outer(batch())
    convert(outer, "O1", for_inference=True)
    expected = make()(batch()).asnumpy()
    assert np.abs(outer(batch()).asnumpy() - expected).max() < bound("O1", expected)


@pytest.mark.parametrize("for_inference,flags", [(True, {}), (True, STATIC), (False, FLAGS[2]), (False, FLAGS[3])])
@pytest.mark.parametrize("change", [{"running_var": -1.0}, {"gamma": 1e7}, {"running_mean": 1e7}, {"beta": np.inf}])
def test_values_that_leave_the_range_later_are_not_folded(change, for_inference, flags):
    net = convert(make(), "O1", for_inference=for_inference)
    net.hybridize(**flags)
    before = {row.name: row.precision for row in (net(batch()), report(net))[1].rows}
    for name, value in change.items():
        net.collect_params()[f"net_batchnorm0_{name}"].data()[2] = value
    net(batch())
    after = {row.name: row.precision for row in report(net).rows}
    assert before["net_batchnorm0_fwd"] == after["net_batchnorm1_fwd"] == "folded" != after["net_batchnorm0_fwd"]


@pytest.mark.parametrize("flags", FLAGS, ids=["plain", "static", "backend", "static backend"])
@pytest.mark.parametrize("for_inference", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_channel_of_zeros_without_variance_is_what_it_was(policy, for_inference, flags):
    """Weights by 1e6 overflow float16, but the channel's input is zero."""
    nets = [make(), make()]
    x = batch()
    x[:, 0] = 0
    for net in nets:
        net[0].weight.data()[3] = 0
        net[0].weight.data()[3, 0] = 1
        net[1].running_mean.data()[3] = 0
        net[1].running_var.data()[3] = 0
        net[1]._kwargs["eps"] = 1e-12
        net.hybridize(False)
    expected = nets[0](x).asnumpy()
    convert(nets[1], policy, for_inference=for_inference).hybridize(**flags)
    found = nets[1](x).asnumpy()
    assert np.abs(found - expected).max() < bound(policy, expected)
    np.testing.assert_array_equal(nets[1](x).asnumpy(), found)


def test_it_is_installed_anew_only_where_it_changes():
    net = convert(make(), "O1", for_inference=True)
    installed = net._mxmp_conversion
    assert convert(net, "O1", for_inference=True)._mxmp_conversion is installed
    assert convert(net, "O1")._mxmp_conversion is not installed
    convert(net, "O1", for_inference=True)
    with pytest.raises(ConvertError):
        convert_all([net, object()], "O1")
    assert net._mxmp_conversion.for_inference


def test_copies_fold_for_themselves():
    net = convert(make(), "O1", for_inference=True)
    y = net(batch()).asnumpy()
    other = copy.deepcopy(net)
    other[0].weight.set_data(other[0].weight.data() * 2)
    assert not np.array_equal(other(batch()).asnumpy(), y)
    np.testing.assert_array_equal(net(batch()).asnumpy(), y)


def test_nothing_is_folded_where_writes_cannot_be_counted(monkeypatch):
    monkeypatch.setattr(folding, "can_count", lambda: False)
    net = make()
    expected = net(batch()).asnumpy()
    convert(net, "O1", for_inference=True)
    assert np.abs(net(batch()).asnumpy() - expected).max() < bound("O1", expected)
    assert {row.precision for row in report(net).rows if row.op == "Dropout"} == {"dropped"}
    assert "folded" not in {row.precision for row in report(net).rows}


def test_no_parameter_is_said_to_be_unused(recwarn):
    """Those of a BatchNorm that is folded are used, but not by the graph that runs."""
    convert(make(), "O1", for_inference=True)(batch())
    assert not [each for each in recwarn if "not used" in str(each.message)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18_v1", "resnet18_v2", "mobilenet0.25", "squeezenet1.0"])
def test_networks_of_the_zoo_give_what_they_gave(name):
    mx.random.seed(1)
    net = vision.get_model(name, classes=10)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(-1, 1, shape=(2, 3, 224, 224))
    with autograd.record():  # running statistics of their own
        y = net(x)
    y.backward()
    expected = net(x).asnumpy()
    convert(net, "float32", for_inference=True).hybridize(**STATIC)
    assert np.abs(net(x).asnumpy() - expected).max() < 1e-4 * np.abs(expected).max()
