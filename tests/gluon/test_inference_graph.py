"""The graph that `convert` makes for inference before the first call, and when a call makes its own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import cached_ops, convert, early, inference_graph
from mxmp.gluon.lookup import conversion_of
from mxmp.graph import Graph
from mxmp.symbol import to_graph

X = mx.nd.random.uniform(shape=(2, 3, 8, 8))


def plain(*more):
    """Return a net of some layers, with values that are the same each time."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), *more, nn.Dense(5))
    net.initialize(mx.init.Xavier())
    with autograd.pause():
        net.infer_shape(X)
    for param in net.collect_params().values():
        param._finish_deferred_init()
    return net


def ready_of(net):
    """Return the graph that was made before the first call, None if none was."""
    found = conversion_of(net).early_graph
    return None if found is None else found.ready


@pytest.fixture
def loaded(monkeypatch):
    """The graphs that were loaded for inference, in their order."""
    found = []
    original = inference_graph.from_graph

    def noted(graph, like=None):
        found.append(graph)
        return original(graph, like)

    monkeypatch.setattr(inference_graph, "from_graph", noted)
    return found


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "O1,name:*=float32"])
def test_a_call_gives_what_it_gives_with_a_graph_of_its_own(policy):
    nets = [convert(plain(), policy) for _ in range(2)]
    assert ready_of(nets[0]) is not None
    conversion_of(nets[1]).early_graph = None
    assert (nets[0](X) == nets[1](X)).asnumpy().all()


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_training_gives_what_it_gives_with_a_graph_of_its_own(policy):
    found = []
    for anew in (False, True):
        net = convert(plain(), policy)
        assert ready_of(net) is not None
        if anew:
            conversion_of(net).early_graph = None
        with autograd.record():
            loss = (net(X) ** 2).mean()
        loss.backward()
        arrays = [param.grad() for param in net.collect_params().values() if param.grad_req != "null"]
        found.append([loss.asnumpy(), *(array.asnumpy() for array in arrays)])
    assert len(found[0]) == 7
    for early_value, value in zip(*found):
        np.testing.assert_array_equal(early_value, value)


def test_the_first_call_loads_no_graph(loaded):
    net = convert(plain(), "O1")
    assert len(loaded) == 1
    net(X)
    assert len(loaded) == 1


def test_the_first_call_that_trains_loads_the_casts_alone(loaded):
    net = convert(plain(), "O1")
    with autograd.record():
        net(X)
    assert loaded[1:] == [ready_of(net).split.prepare]


def test_the_symbol_of_both_parts_is_that_of_the_graph():
    found = ready_of(convert(plain(), "O1"))
    whole, expected = to_graph(found.whole_symbol()), found.graph
    assert described(whole) == described(expected) and found.split.prepare is not None


def described(graph: Graph):
    """Return the operators of a graph, each with what it reads, by name, and the names of its outputs."""
    nodes = {
        (node.op, node.name, node.attrs, tuple(graph.entry_name(entry) for entry in node.inputs))
        for node in graph.nodes
        if not node.is_variable
    }
    return nodes, [graph.entry_name(head) for head in graph.heads]


def test_a_graph_without_casts_is_the_whole():
    found = ready_of(convert(plain(), "O1,name:*=float32"))
    assert found.split.prepare is None and found.whole_symbol() is found.symbol is found.converted.symbol


def test_a_net_without_values_has_none():
    net = nn.Dense(2, in_units=3)
    assert ready_of(convert(net, "O1")) is None
    net.initialize()
    assert net(mx.nd.ones((1, 3))).shape == (1, 2)


def test_a_net_on_a_gpu_has_none(monkeypatch):
    monkeypatch.setattr(early, "contexts_of", lambda params: [mx.cpu(), mx.gpu()])
    assert ready_of(convert(plain(), "O1")) is None


def test_a_net_of_a_build_for_cuda_has_none(monkeypatch):
    monkeypatch.setattr(mx.runtime.Features, "is_enabled", lambda features, name: name == "CUDA")
    assert ready_of(convert(plain(), "O1")) is None


def test_a_net_whose_parameters_cannot_be_watched_has_none(monkeypatch):
    monkeypatch.setattr(early, "can_count", lambda: False)
    assert ready_of(convert(plain(), "O1")) is None


def test_where_shapes_have_a_say_there_is_none():
    volume = nn.Conv3DTranspose(2, 3, in_channels=3)  # it is computed by planes, by the shape of its weight
    volume.initialize()
    assert ready_of(convert(volume, "O1")) is None


def for_any_image(pool=None):
    """Return a net for images of any size; the BatchNorm of 24 channels is slow in bfloat16, by its layout."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(32, 3, in_channels=3), nn.BatchNorm(in_channels=32), nn.Activation("relu"))
        net.add(nn.Conv2D(24, 1, in_channels=32), nn.BatchNorm(in_channels=24))
        net.add(pool or nn.GlobalAvgPool2D(), nn.Conv2D(16, 1, in_channels=24), nn.BatchNorm(in_channels=16))
    net.initialize(mx.init.Xavier())
    return net


def test_layouts_have_a_say_that_an_image_of_a_likely_size_tells():
    ready = ready_of(convert(for_any_image(), "mixed_bfloat16"))
    assert [name for name in names_of(ready) if "_wide_" in name and "batchnorm1" in name]
    graph = conversion_of(convert(for_any_image(), "mixed_bfloat16"))._graph_for((X,)).converted
    assert names_of(ready) == [node.name for node in graph.graph_on_cpu(written=ready.params).nodes]


def names_of(ready):
    """Return the names of the nodes of a graph that was made before the first call."""
    return [node.name for node in ready.graph.nodes]


def test_without_a_likely_image_layouts_are_left_to_the_call():
    assert ready_of(convert(plain(), "mixed_bfloat16")) is None  # the last layer is for images of 8 pixels


@pytest.mark.parametrize(
    ("pool", "shape", "same"),
    [
        (None, (1, 3, 8, 8), True),
        (None, (7, 3, 30, 20), True),
        (6, (7, 3, 30, 20), True),
        (6, (1, 3, 8, 8), False),  # the window pools all
    ],
)
def test_an_image_of_another_size_runs_on_it_if_it_changes_no_layout(pool, shape, same):
    net = convert(for_any_image(pool and nn.AvgPool2D(pool)), "mixed_bfloat16")
    graph = conversion_of(net)._graph_for((mx.nd.ones(shape),)).converted
    assert ready_of(net).runs(graph, net.collect_params(), False) == same


def test_what_trains_in_bfloat16_keeps_layouts_apart_all_the_same():
    net = convert(for_any_image(), "mixed_bfloat16")
    graph = conversion_of(net)._graph_for((X,))
    assert ready_of(net).runs(graph.converted, net.collect_params(), False)
    with autograd.record():
        symbol = cached_ops.plan_op(net, graph, "bfloat16").symbol
    assert [name for name in symbol.get_internals().list_outputs() if "_layout_" in name]


@pytest.mark.bfloat16
@pytest.mark.parametrize("pool", [None, nn.AvgPool2D(6)], ids=["the same layouts", "others"])
def test_bfloat16_infers_and_trains_as_with_graphs_of_its_own(pool, loaded):
    nets = [convert(for_any_image(pool), "mixed_bfloat16") for _ in range(2)]
    assert ready_of(nets[0]) is not None
    conversion_of(nets[1]).early_graph = None
    del loaded[:]
    first = nets[0](X).asnumpy()
    assert len(loaded) == (pool is not None)
    np.testing.assert_array_equal(first, nets[1](X).asnumpy())
    for early_value, value in zip(*(results(net, mx.cpu()) for net in nets)):
        np.testing.assert_array_equal(early_value, value)


CHANGES = {
    "a backend": lambda net: net.hybridize(backend="MKLDNN"),
    "a layer": lambda net: replace_layer(net, nn.BatchNorm(in_channels=4, scale=False)),
    "sparse values": lambda net: sparse_weight(net),
}


def replace_layer(net, layer):
    layer.initialize()
    net._children["1"] = layer
    net._clear_cached_op()


def sparse_weight(net):
    net[0].weight._stype = "row_sparse"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_since_makes_it_unfit(change):
    net = convert(plain(), "O1")
    ready = ready_of(net)
    change(net)
    with autograd.predict_mode():
        graph = conversion_of(net)._graph_for((X,)).converted
    fused = bool(net._backend)
    assert not ready.runs(graph, net.collect_params(), fused)


def test_it_runs_the_conversion_for_inputs_of_some_shape():
    net = convert(plain(), "O1")
    graph = conversion_of(net)._graph_for((X,)).converted
    assert graph is not ready_of(net).converted and ready_of(net).runs(graph, net.collect_params(), False)


def test_a_batch_of_another_size_runs_on_it_too(loaded):
    net = convert(plain(), "O1")
    net(X)
    assert net(mx.nd.ones((7, 3, 8, 8))).shape == (7, 5) and len(loaded) == 1


def test_a_symbol_block_has_one_too(loaded):
    data = mx.sym.var("data")
    block = gluon.SymbolBlock(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), data)
    block.initialize()
    block.infer_shape(mx.nd.ones((1, 3)))
    for param in block.collect_params().values():
        param._finish_deferred_init()
    convert(block, "O1")
    assert ready_of(block) is not None
    block(mx.nd.ones((1, 3)))
    assert len(loaded) == 1


class OneWeight(gluon.HybridBlock):
    """A net with one weight, of ones, and what ``compute`` makes of it and the data."""

    def __init__(self, compute, **kwargs):
        super().__init__(**kwargs)
        self.compute = compute
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 6), init=mx.init.One())
        self.initialize()

    def hybrid_forward(self, F, x, weight):
        return self.compute(F, x, weight)


def dense(F, x, weight):
    return F.FullyConnected(x, weight, no_bias=True, num_hidden=4)


def own_cast(F, x, weight):
    """Read the weight by an amp_cast of the net's own, whose gradient MXNet's kernel does not add to another."""
    return dense(F, x, F.amp_cast(weight, dtype="float32"))


def read_twice(F, x, weight):
    """Read the weight cast and as it is."""
    return dense(F, x, weight).sum() + F.exp(weight).sum()


@pytest.mark.parametrize(("grad_req", "expected"), [("write", 1), ("add", 2)])
def test_gradients_of_own_casts_are_added_where_they_should_be(grad_req, expected):
    net = convert(OneWeight(own_cast), "O1")
    net.weight.grad_req = grad_req
    assert ready_of(net) is not None
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((1, 6)))
        loss.backward()
    assert (net.weight.grad().asnumpy() == expected).all()


def test_a_parameter_that_is_read_in_two_ways_is_one_variable():
    net = convert(OneWeight(read_twice), "O1")
    names = ready_of(net).whole_symbol().list_inputs()
    assert sorted(names) == ["data", net.weight.name]
    with autograd.record():
        loss = net(mx.nd.ones((1, 6)))
    loss.backward()
    np.testing.assert_allclose(net.weight.grad().asnumpy(), 1 + np.e, rtol=1e-3)


def numpy_net(bias):
    net = nn.Dense(2, in_units=3, use_bias=bias, prefix="net_")
    net.initialize(mx.init.One())
    return net


def as_symbol_block(net, folder):
    net.hybridize()
    net(mx.np.ones((1, 3)))
    net.export(str(folder / "net"))
    return gluon.SymbolBlock.imports(str(folder / "net-symbol.json"), "data", str(folder / "net-0000.params"))


@pytest.fixture
def as_numpy():
    """MXNet's numpy interface, as ``npx.set_np`` sets it."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


@pytest.mark.usefixtures("as_numpy")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("imported", [False, True])
def test_numpy_nets_have_one_too(bias, imported, tmp_path):
    net = numpy_net(bias)
    net = convert(as_symbol_block(net, tmp_path) if imported else net, "O1")
    assert ready_of(net) is not None
    x = mx.np.ones((1, 3))
    expected = net(x)
    with autograd.record():
        y = net(x)
    y.backward()
    assert (y == expected).all() and type(y) is mx.np.ndarray
    weight = next(param for name, param in net.collect_params().items() if name.endswith("weight"))
    assert (weight.grad() == 1).all()


def written(net):
    net(X)
    net[0].weight.set_data(net[0].weight.data() * 2)


USES = {
    "weights written": written,
    "static": lambda net: net.hybridize(static_alloc=True, static_shape=True),
    "another context": lambda net: net.collect_params().reset_ctx([mx.cpu(1)]),
    "a backend": lambda net: net.hybridize(backend="MKLDNN"),
    "loaded anew": lambda net: [param.set_data(param.data() + 1) for param in net.collect_params().values()],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_however_it_is_used_it_gives_what_a_graph_of_its_own_gives(use):
    nets = [convert(plain(), "O1") for _ in range(2)]
    assert ready_of(nets[0]) is not None
    conversion_of(nets[1]).early_graph = None
    context = mx.cpu(1) if use is USES["another context"] else mx.cpu()
    for net in nets:
        use(net)
    found, expected = (results(net, context) for net in nets)
    for early_value, value in zip(found, expected):
        np.testing.assert_array_equal(early_value, value)


def results(net, context):
    x = X.as_in_context(context)
    with autograd.record():
        y = net(x)
    y.backward()
    return [y.asnumpy(), net[0].weight.grad().asnumpy(), net(x).asnumpy()]
