"""What the first call takes over of the conversion that `convert` makes, and when it converts anew."""

from __future__ import annotations

import copy

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import InferenceError
from mxmp.gluon import convert, precision, report, traced_net
from mxmp.gluon.lookup import conversion_of
from mxmp.graph import without_versions
from mxmp.policy import Policy

POLICIES = ["O1", "O2", "mixed_bfloat16"]
X = mx.nd.ones((2, 3, 8, 8))


@pytest.fixture
def conversions(monkeypatch):
    """The shapes that conversions were made for, none before the first call."""
    made = []
    original = traced_net.convert_graph

    def counted(symbol, policy, shapes, *args, **kwargs):
        made.append(dict(shapes))
        return original(symbol, policy, shapes, *args, **kwargs)

    monkeypatch.setattr(traced_net, "convert_graph", counted)
    return made


class Net(gluon.HybridBlock):
    """Convolutions, with what ``last`` makes of them."""

    def __init__(self, last=None, **kwargs):
        super().__init__(**kwargs)
        self.factor = 1
        self.last = last
        with self.name_scope():
            self.conv = nn.Conv2D(4, 3, in_channels=3)
            self.norm = nn.BatchNorm(in_channels=4)
            self.dense = nn.Dense(4, in_units=4 * 6 * 6)

    def hybrid_forward(self, F, x):
        y = F.relu(self.norm(self.conv(x)))
        y = self.dense(y * self.factor if self.factor != 1 else y)
        return y if self.last is None else self.last(F, y)


def make(policy="O1", last=None):
    net = Net(last, prefix="net_")
    net.initialize()
    return convert(net, policy)


def graph_for(net, x=X, mode=autograd.predict_mode):
    """Return the graph and the report that a call has, the versions of entries aside; it is not run."""
    with mode():
        found = conversion_of(net)._graph_for((x,)).converted
    return without_versions(found.graph), found.report, found.low_params


def afresh(net):
    """Return a net that takes nothing over."""
    conversion_of(net).early_graph = None
    return net


LASTS = {
    "nothing": None,
    "softmax": lambda F, y: F.softmax(y),
    "a free operator": lambda F, y: F.flatten(y),
    "a sum": lambda F, y: F.mean(y, axis=0),
    "a slice": lambda F, y: F.exp(F.slice_axis(y, axis=1, begin=0, end=1)),
    "several": lambda F, y: F.dot(F.softmax(y), F.relu(y), transpose_a=True),
}


@pytest.mark.parametrize("mode", [autograd.predict_mode, autograd.train_mode])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("last", LASTS.values(), ids=LASTS)
def test_the_graph_is_that_of_a_conversion_anew(last, policy, mode):
    assert graph_for(make(policy, last), mode=mode) == graph_for(afresh(make(policy, last)), mode=mode)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_early_conversion_is_taken_over(conversions, policy):
    net = make(policy)
    graph_for(net)
    graph_for(net, mode=autograd.train_mode)
    assert conversions == [{}]


@pytest.mark.parametrize(("last", "anew"), [("several", False), ("a slice", True)])
def test_it_is_converted_anew_if_sizes_place_casts_elsewhere(last, anew, conversions):
    graph_for(make(last=LASTS[last]))
    assert [bool(shapes) for shapes in conversions] == [False, True][: 1 + anew]


def test_a_condition_that_shapes_decide_is_asked_again(conversions):
    short, long = X, mx.nd.ones((2000, 3, 8, 8))
    reduced = [graph_for(make(last=LASTS["a sum"]), x)[1].rows[-1] for x in (short, long)]
    assert [row.precision for row in reduced] == ["float16", "float32"]
    assert sum(bool(shapes) for shapes in conversions) >= 1


def test_an_attribute_that_has_changed_since_counts(conversions):
    net = make()
    net.factor = 2
    graph, *_ = graph_for(net)
    assert "_mul_scalar" in {node.op for node in graph.operators()} and len(conversions) == 2


def test_a_layer_that_has_come_since_counts():
    net = make()
    net.norm = nn.BatchNorm(in_channels=4, scale=False, prefix="net_other_")
    net.norm.initialize()
    graph, *_ = graph_for(net)
    assert {"net_other_gamma"} <= {node.name for node in graph.nodes if node.is_variable}
    assert net(X).shape == (2, 4)


def test_inputs_of_another_dtype_are_converted_for():
    net = convert(nn.HybridLambda(lambda F, x: F.relu(F.dot(F.cast(x, "float32"), F.ones((3, 3)))), prefix="n_"), "O1")
    x = mx.nd.ones((2, 3), dtype="int32")
    assert graph_for(net, x) == graph_for(afresh(convert(copy.deepcopy(net), "O1")), x)
    assert net(x).asnumpy().tolist() == [[3.0] * 3] * 2


def test_a_region_is_converted_for():
    net = make()
    with precision("float32"):
        low = graph_for(net)[1].rows
    assert {row.precision for row in low} == {"float32"} != {row.precision for row in graph_for(net)[1].rows}


def test_storage_is_that_of_parameters_now():
    net = make("O2")
    with autograd.record():
        net(X)
    assert graph_for(net)[2] == graph_for(afresh(make("O2")))[2] != frozenset()


def test_the_report_has_the_sizes_of_the_call():
    net = make()
    assert report(net).activation_bytes is None
    net(X)
    assert report(net).activation_bytes == report_of_call(afresh(make())).activation_bytes is not None


def report_of_call(net):
    net(X)
    return report(net)


def test_inputs_that_do_not_fit_are_refused_by_the_node_and_others_run():
    net = make()
    with pytest.raises(InferenceError, match="block 'net': node 'net_conv0_fwd': MXNet cannot infer its shapes"):
        net(mx.nd.ones((2, 5, 8, 8)))
    assert net(X).shape == (2, 4)
    assert report(net).activation_bytes is not None


def test_a_copy_converts_for_itself(conversions):
    net = make()
    other = copy.deepcopy(net)
    assert conversion_of(other).early_graph is None
    assert (other(X) == net(X)).asnumpy().all() and report(other) == report(net)


def test_another_policy_takes_nothing_over():
    net = make()
    early, params = conversion_of(net).early_graph, params_read_by(net)
    args = {"data": X.shape}, {"data": "float32"}, params, early.storage
    assert early.converted_for(Policy.parse("O1"), *args) is not None
    assert early.converted_for(Policy.parse("O1", last_layer_fp32=True), *args) is None


@pytest.mark.parametrize("change", ["storable", "stored"])
def test_other_storage_takes_nothing_over(change):
    net = make("O2")
    early, params = conversion_of(net).early_graph, params_read_by(net)
    args = Policy.parse("O2"), {"data": X.shape}, {"data": "float32"}, params
    low = early.converted.low_params
    assert early.converted_for(*args, early.storage._replace(stored=low)) is not None
    name = frozenset(["net_batchnorm0_gamma" if change == "stored" else "net_conv0_weight"])
    other = {"stored": low | name, "storable": early.storage.storable - name}[change]
    assert early.converted_for(*args, early.storage._replace(**{change: other})) is None


def params_read_by(net):
    """Return the parameters that a call of a net reads, by name."""
    return conversion_of(net).traced_for((X,)).params
