"""What the first call of a net for inference takes over of `convert`: the folded graph, and the folded values."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.errors import MxmpError
from mxmp.gluon import convert, folding, prepared, report, restore
from mxmp.gluon.lookup import conversion_of

STATIC = {"static_alloc": True, "static_shape": True}
POLICIES = ["float32", "O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
X = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (2, 3, 8, 8)))


def make(dense=None, initialize=True, ctx=None):
    """Return a net whose BatchNorms do something, its parameters' shapes known."""
    mx.random.seed(5)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.Conv2D(4, 3, in_channels=8), nn.BatchNorm(in_channels=4), nn.Dropout(0.5))
        net.add(*(dense or [nn.Dense(5, in_units=64)]))
    if initialize:
        net.initialize(mx.init.Xavier(), ctx=ctx)
        values = np.random.RandomState(0)
        for param in net.collect_params(".*(running|gamma|beta).*").values():
            param.set_data(mx.nd.array(values.uniform(0.5, 2, param.shape)))
    return net


@pytest.fixture
def work(monkeypatch):
    """The conversions and the foldings of values so far, by name."""
    done = []

    def note(module, name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kwargs: [done.append(name), original(*args, **kwargs)][1])

    note(folding, "convert_graph")
    note(prepared, "fold_params")
    return done


def afresh(policy, **kwargs):
    """Return a net that takes nothing over."""
    net = convert(make(**kwargs), policy, for_inference=True)
    conversion_of(net).early_graph = conversion_of(net).early_values = None
    return net


@pytest.mark.parametrize("policy", POLICIES)
def test_a_first_call_neither_converts_nor_folds(policy, work):
    net = convert(make(), policy, for_inference=True)
    assert work[-1] == "fold_params"
    before = len(work)
    found = net(X).asnumpy()
    assert len(work) == before
    np.testing.assert_array_equal(found, afresh(policy)(X).asnumpy())


@pytest.mark.parametrize("policy", ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("flags", [STATIC, {"backend": "MKLDNN"}], ids=["static", "backend"])
def test_values_serve_a_graph_that_a_backend_partitions(flags, policy, work):
    net = convert(make(), policy, for_inference=True)
    before = work.count("fold_params")
    net.hybridize(**flags)
    found = net(X).asnumpy()
    assert work.count("fold_params") == before
    other = afresh(policy)
    other.hybridize(**flags)
    np.testing.assert_array_equal(found, other(X).asnumpy())


@pytest.mark.parametrize("flags", [{}, STATIC], ids=["plain", "static"])
@pytest.mark.parametrize("name", ["conv0_weight", "batchnorm1_running_mean", "dense0_weight"])
def test_a_parameter_that_has_changed_since_counts(name, flags):
    net = convert(make(), "O1", for_inference=True)
    net.hybridize(**flags)
    net.collect_params()[f"net_{name}"].data()[:] *= 1.5
    other = make()
    other.collect_params()[f"net_{name}"].data()[:] *= 1.5
    convert(other, "O1", for_inference=True).hybridize(**flags)
    np.testing.assert_array_equal(net(X).asnumpy(), other(X).asnumpy())


def test_a_parameter_that_has_been_replaced_since_counts():
    net, expected = convert(make(), "O1", for_inference=True), make()
    for each in (net, expected):
        dense = nn.Dense(5, in_units=64, prefix="net_dense0_")
        dense.initialize(mx.init.One())
        each.register_child(dense, str(len(each) - 1))
    np.testing.assert_array_equal(net(X).asnumpy(), convert(expected, "O1", for_inference=True)(X).asnumpy())


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_the_report_is_that_of_a_conversion_anew(policy):
    net, other = convert(make(), policy, for_inference=True), afresh(policy)
    assert report(net).activation_bytes is None
    net(X), other(X)
    assert report(net) == report(other) and report(net).activation_bytes is not None


def test_values_are_held_by_what_reads_them_alone():
    net = convert(make(), "O1", for_inference=True)
    assert conversion_of(net).early_values is not None
    net(X)
    assert conversion_of(net).early_values is None


def test_a_net_that_is_had_back_holds_none():
    net = convert(make(), "O1", for_inference=True)
    conversion = conversion_of(net)
    restore(net)
    assert conversion.early_values is None


def test_parameters_without_values_are_left_to_the_first_call(work):
    net = convert(make(initialize=False), "O1", for_inference=True)
    assert "fold_params" not in work
    net.initialize()
    assert net(X).shape == (2, 5)


@pytest.mark.parametrize("mode", [autograd.record, autograd.train_mode])
def test_nothing_is_computed_where_the_next_call_may_train(mode):
    net = make()
    with mode():
        convert(net, "O1", for_inference=True)
    assert conversion_of(net).early_values is None
    assert net(X).shape == (2, 5)


def test_nothing_is_held_for_a_net_that_may_train():
    net = convert(make(), "O1")
    assert conversion_of(net).early_values is None


def test_a_part_that_has_moved_is_converted_again():
    net = nn.Sequential()
    net.add(make(), make())
    convert(net, "O1", for_inference=True)
    net[0].collect_params().reset_ctx(mx.cpu(1))
    convert(net, "float32", for_inference=True)
    assert [conversion_of(each).policy.is_mixed for each in net] == [False, False]


def test_parts_on_other_contexts_are_left_to_the_first_call():
    net = make()
    net.collect_params(".*conv.*|.*batchnorm.*").reset_ctx([mx.cpu(0)])
    net.collect_params(".*dense.*").reset_ctx([mx.cpu(1)])
    convert(net, "O1", for_inference=True)
    net.collect_params().reset_ctx(mx.cpu(0))
    np.testing.assert_array_equal(net(X).asnumpy(), afresh("O1")(X).asnumpy())


def test_parameters_that_move_after_it():
    net = convert(make(), "O1", for_inference=True)
    net.collect_params().reset_ctx(mx.cpu(1))
    np.testing.assert_array_equal(net(X.as_in_context(mx.cpu(1))).asnumpy(), afresh("O1")(X).asnumpy())


def test_parameters_that_do_not_fit_are_refused_by_the_call():
    net = make()
    param = net[1].running_var
    param._data, param._shape = None, (5,)
    param.initialize(mx.init.One())
    convert(net, "O1", for_inference=True)
    with pytest.raises(MxmpError, match="net_batchnorm0"):
        net(X)


def test_nothing_is_emulated_where_parameters_may_go_to_a_gpu(monkeypatch):
    monkeypatch.setattr(mx.runtime.Features, "is_enabled", lambda self, name: True)
    net = convert(make(), "O1", for_inference=True)
    assert conversion_of(net).early_values is None


def test_values_out_of_range_are_left_to_the_first_call():
    found = []
    for early in (True, False):
        net = make()
        net[1].running_var.set_data(mx.nd.full(8, -1.0))  # its square root is not a number
        convert(net, "O1", for_inference=True)
        assert conversion_of(net).early_values is None
        if not early:
            conversion_of(net).early_graph = None
        found.append(net(X).asnumpy())
        assert {row.name: row.precision for row in report(net).rows}["net_batchnorm0_fwd"] != "folded"
    np.testing.assert_array_equal(*found)


def test_each_context_has_its_values(work):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = convert(make(ctx=contexts), "O1", for_inference=True)
    before = work.count("fold_params")
    found = [net(X.as_in_context(ctx)).asnumpy() for ctx in contexts]
    assert work.count("fold_params") == before
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("axis", "decided"), [(3, False), (-1, True)])
def test_a_fold_that_the_rank_of_inputs_decides_is_decided_by_the_call(axis, decided):
    net = make([nn.Dense(6, in_units=4, flatten=False), nn.BatchNorm(axis=axis, in_channels=6)])
    convert(net, "float32", for_inference=True)
    assert (conversion_of(net).early_graph is not None) == decided
    net(X)
    assert [row.precision for row in report(net).rows if row.op == "BatchNorm"] == ["folded"] * 3


def test_a_net_with_a_backend_that_folds_still_trains():
    net = make()
    net.hybridize(backend="MKLDNN")
    convert(net, "O1")
    with autograd.record():
        net(X).sum().backward()
    assert "folded" not in {row.precision for row in report(net).rows}
    assert net[1].gamma.grad().asnumpy().any()
