"""convert, cast and restore on real nets."""

import json
import random
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp import Policy
from mxmp.errors import PolicyError
from mxmp.gluon import Trainer, cast, convert, export, report, restore
from tests.gluon.nets import Function, X, exact, initialized, operator_precisions, sequence, started
from tests.values import DTYPES

BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.bfloat16)
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)
LOW_BFLOAT16 = pytest.param("param=bfloat16,compute=bfloat16", marks=pytest.mark.bfloat16)
# Two roundings per layer over a handful of layers; logits are of order one.
ATOL = {"float16": 2e-2, "bfloat16": 1.2e-1}


class Residual(gluon.HybridBlock):
    """A small network with the parts that matter: BatchNorm, a residual add, pooling, softmax."""

    def __init__(self, in_channels=0, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv0 = nn.Conv2D(8, 3, padding=1, in_channels=in_channels)
            self.bn = nn.BatchNorm(in_channels=8 if in_channels else 0)
            self.conv1 = nn.Conv2D(8, 3, padding=1, in_channels=8 if in_channels else 0)
            self.pool = nn.GlobalAvgPool2D()
            self.out = nn.Dense(5, in_units=8 if in_channels else 0)

    def hybrid_forward(self, F, x):
        x = F.relu(self.bn(self.conv0(x)))
        x = F.relu(x + self.conv1(x))
        return F.softmax(self.out(self.pool(x)))


def make(**kwargs):
    return initialized(Residual(**kwargs), mx.init.Xavier())


def batch(size=4, channels=3, seed=1):
    return mx.nd.array(np.random.RandomState(seed).randn(size, channels, 8, 8))


def dtypes_of(net):
    return {
        name[len(net.prefix) :]: "bfloat16" if str(p.dtype).startswith("[") else np.dtype(p.dtype).name
        for name, p in net.collect_params().items()
    }


def gradients(net, x, calls=1):
    """Return the gradient of every parameter as float32 arrays, of several calls in one record."""
    with autograd.record():
        (sum(net(x) for _ in range(calls)) * mx.nd.arange(5)).sum().backward()
    return {
        name: mx.nd.amp_cast(p.grad(), dtype="float32").asnumpy()
        for name, p in net.collect_params().items()
        if p.grad_req != "null"
    }


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", MIXED_BFLOAT16, "float16"])
@pytest.mark.parametrize("hybridized", [False, True], ids=["plain", "hybridized"])
def test_a_net_runs_in_low_precision_until_it_is_restored(policy, hybridized):
    x, net, other = batch(), make(), make()
    expected, others = net(x).asnumpy(), other(x).asnumpy()
    if hybridized:
        net.hybridize(static_alloc=True, static_shape=True)
    before = set(vars(net))
    assert convert(net, policy) is net
    first = net(x)
    assert first.dtype == (np.float16 if policy == "float16" else np.float32)
    np.testing.assert_allclose(first.asnumpy(), expected, atol=ATOL[Policy.parse(policy).compute_dtype])
    assert not np.array_equal(first.asnumpy(), expected)
    for active in (True, False, hybridized):
        net.hybridize(active)
        assert np.array_equal(net(x).asnumpy(), first.asnumpy()) and net._active is active
    assert np.array_equal(other(x).asnumpy(), others)
    assert restore(net) is net
    assert set(vars(net)) == before and net._active is hybridized
    assert np.array_equal(net(x).asnumpy(), expected)
    assert set(dtypes_of(net).values()) == {"float32"}


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16, LOW_BFLOAT16])
@pytest.mark.parametrize("static", [False, True])
def test_gradients_are_close_to_float32_written_and_added_in_turns(policy, static):
    """MXNet's amp_cast loses gradients under grad_req='add' on CPU; see GuardAmpCasts.

    The graph for gradients that are written casts weights without a copy, and would lose added ones.
    """
    net, reference, x = make(prefix="net_"), make(prefix="net_"), batch()
    net(x), reference(x)  # finish the deferred initialization from one seed each
    for name, param in reference.collect_params().items():
        net.collect_params()[name].set_data(param.data())
    convert(net, policy)
    net.hybridize(static_alloc=static)
    expected, once = gradients(reference, x), gradients(net, x)
    atol = 8 * 2.0 ** (-7 if "bfloat16" in policy else -10) * max(np.abs(grad).max() for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(once[name], grad, atol=atol, err_msg=name)
    rtol = 4 * 2.0 ** (-10 if policy == "O2" else -7)
    for grad_req, times in (("add", 4), ("write", 1), ("add", 3), ("write", 1)):
        for param in net.collect_params().values():
            param.grad_req = "null" if param.grad_req == "null" else grad_req
        for _ in range(times):
            found = gradients(net, x)
        for name, grad in once.items():
            np.testing.assert_allclose(found[name], times * grad, rtol=rtol, atol=1e-6, err_msg=name)
    for name, grad in gradients(net, x, calls=2).items():
        np.testing.assert_allclose(grad, 2 * once[name], rtol=rtol, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("policy, low", [("O1", "float32"), ("O2", "float16"), ("mixed_bfloat16", "float32")])
def test_parameters_are_the_same_objects_in_the_dtype_that_the_policy_stores(policy, low):
    def parameters():
        return {n: (id(p), p.shape, p.grad_req, p.lr_mult, p.wd_mult) for n, p in net.collect_params().items()}

    net = make()
    net(batch())
    net.conv0.weight.lr_mult = 3.0
    net.conv1.weight.grad_req = "null"
    before = parameters()
    convert(net, policy)
    if policy != "mixed_bfloat16":
        net(batch())
    assert parameters() == before
    assert dtypes_of(net) == {
        "conv0_weight": low, "conv0_bias": low, "conv1_weight": low, "conv1_bias": low,
        "batchnorm0_gamma": "float32", "batchnorm0_beta": "float32",
        "batchnorm0_running_mean": "float32", "batchnorm0_running_var": "float32",
        "dense0_weight": low, "dense0_bias": low,
    }  # fmt: skip


ORDERS = [
    "convert, initialize, call",
    "initialize, convert, call",
    "initialize, call, convert, call",
    "hybridize, initialize, convert, call",
    "convert, hybridize, initialize, call",
    "hybridize, initialize, call, convert, call, hybridize, call",
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("in_channels", [0, 3], ids=["deferred", "known"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_conversion_works_at_any_time(order, in_channels, policy):
    net = Residual(in_channels=in_channels)
    steps = {
        "convert": lambda: convert(net, policy),
        "initialize": lambda: net.initialize(mx.init.Xavier()),
        "hybridize": lambda: net.hybridize(),
        "call": lambda: net(batch()).wait_to_read(),
    }
    for step in order.split(", "):
        steps[step]()
    assert report(net).count == {"float16": 8, "float32": 1}
    assert net(batch()).dtype == np.float32


@pytest.mark.bfloat16
def test_another_policy_replaces_the_first_in_all_parts():
    net = make()
    net(batch())
    exact = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    convert(net.conv1, "O2")
    convert(net, "O3")
    convert(net, "mixed_bfloat16")(batch())
    assert report(net).policy.startswith("param=float32,compute=bfloat16")
    assert set(report(net).count) == {"bfloat16", "float32"}
    assert report(net).rows[0].name.startswith(net.prefix)
    assert all(np.array_equal(p.data().asnumpy(), exact[n]) for n, p in net.collect_params().items())
    restore(net)
    assert "_mxmp_conversion" not in vars(net.conv1)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_cast_is_low_storage_with_float32_where_it_matters(dtype):
    net, x = make(), batch()
    expected = net(x).asnumpy()
    cast(net, dtype)
    found = net(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.asnumpy(), expected, atol=ATOL[dtype])
    stored = dtypes_of(net)
    assert stored["conv0_weight"] == dtype and stored["batchnorm0_gamma"] == "float32"
    assert operator_precisions(net)["softmax"] == "float32" and operator_precisions(net)["Convolution"] == dtype
    cast(net, "float32")
    assert np.array_equal(net(x).asnumpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_inputs_of_other_float_dtypes(dtype):
    net, low = convert(make(), "O1"), mx.nd.amp_cast(batch(), dtype=DTYPES[dtype])
    assert np.array_equal(net(low).asnumpy(), net(mx.nd.amp_cast(low, dtype="float32")).asnumpy())


def test_gradients_of_a_float16_input_accumulate():
    net = convert(initialized(nn.Dense(1, in_units=4, use_bias=False), mx.init.One()), "O1")
    x = mx.nd.ones((2, 4), dtype="float16")
    x.attach_grad("add")
    for _ in range(3):
        with autograd.record():
            net(x).backward()
    assert (x.grad.asnumpy() == 3).all()


@pytest.mark.behaviour("labels and indices")
@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("policy", ["O1", "O3"])
def test_indices_are_never_cast(dtype, policy):
    net = initialized(sequence(nn.Embedding(3000, 4), nn.Dense(2, flatten=False)))
    ids = mx.nd.array([[2049, 2051]], dtype=dtype)  # float16 would make both 2048 and 2052
    expected = net(ids).asnumpy()
    np.testing.assert_allclose(convert(net, policy)(ids).asnumpy(), expected, atol=1e-4)


def test_batches_of_a_data_loader_with_workers():
    net, x = convert(initialized(sequence(nn.Dense(2, in_units=3))), "O1"), mx.nd.random.uniform(shape=(4, 3))
    assert (net(x.as_in_context(mx.Context("cpu_shared", 0))) == net(x)).min() == 1


def test_a_symbol_block_and_the_symbol_that_it_gives():
    net, x = make(), batch()
    expected = net(x).asnumpy()
    net.hybridize()
    block = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=net.collect_params())
    for each in (net, block):
        convert(each, "O1")
        np.testing.assert_allclose(each(x).asnumpy(), expected, atol=ATOL["float16"])
        assert report(each).count["float16"] == 8
        assert each(mx.sym.var("data")).tojson().count('"Cast"') == report(each).casts
        restore(each)
        assert np.array_equal(each(x).asnumpy(), expected)
    symbol = convert(net, "O1")(mx.sym.var("images"))
    assert symbol.list_arguments()[0] == "images"
    assert symbol.list_outputs() == restore(net)(mx.sym.var("images")).list_outputs()


class Plain(gluon.Block):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(6, activation="relu"), nn.Dense(3)

    def forward(self, x):
        x = self.first(x)
        assert x.dtype == np.float32
        return self.second(x * int(x.shape[0] > 0))


class OwnForward(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.out = nn.Dense(3)

    def forward(self, x):
        return self.out(x) * x.shape[0]


OUTER = {
    "a plain block": (lambda: initialized(Plain()), 3),
    "a hybrid block with a forward of its own": (lambda: initialized(OwnForward()), 1),
    "a block that stands twice": (lambda: initialized(sequence(*[nn.Dense(4, in_units=4)] * 2, kind=nn.Sequential)), 1),
}


@pytest.mark.parametrize("make_net, low", OUTER.values(), ids=OUTER)
def test_hybrid_blocks_in_a_block_without_a_graph(make_net, low):
    net, x = make_net(), mx.nd.random.normal(shape=(2, 4))
    expected = net(x).asnumpy()
    convert(net, "O2")
    convert(net, "O1")
    found = net(x).asnumpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert not np.array_equal(found, expected)
    assert report(net).count == {"float16": low}
    restore(net)
    assert np.array_equal(net(x).asnumpy(), expected)


def symbol_block():
    return gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), mx.sym.var("data"))


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("inner", [lambda: nn.Dense(4), symbol_block], ids=["layer", "symbol"])
def test_a_converted_block_inside_an_unconverted_one(inner, policy):
    net, x = initialized(sequence(inner(), nn.Dense(3))), mx.nd.random.normal(shape=(2, 4))
    convert(net[0], policy)
    found = net(x).asnumpy()  # the parameters come late
    for active in (True, False):
        net.hybridize(active)
        assert np.array_equal(net(x).asnumpy(), found)
    restore(net[0])
    expected = net(x).asnumpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert not np.array_equal(found, expected)


@pytest.mark.parametrize("is_called_alone", [False, True])
def test_a_part_of_a_net_has_another_policy_only_for_its_own_calls(is_called_alone, caplog):
    net, x = started(sequence(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))), mx.nd.random.normal(shape=(2, 3))
    convert(net, "O1")
    expected, rows = net(x).asnumpy(), report(net).rows
    convert(net[0], "O1")
    assert not caplog.records
    convert(net[0], "O2")
    assert "is part of net 'net', which is converted to another policy" in caplog.text
    if is_called_alone:
        net[0](x)
        assert net[0].weight.dtype == np.float16
    assert np.array_equal(net(x).asnumpy(), expected)
    assert report(net).rows == rows
    restore(net)
    assert np.dtype(net[0].weight.dtype) == np.float32


def tied_step(policy, early):
    """Return the parameters after one step, of a net converted before or after it was initialized.

    Its two graphs share a weight: the first one runs before the second one is known.
    """
    mx.random.seed(0)
    embedding = nn.Embedding(10, 6, prefix="net_")
    net = nn.Sequential(prefix="net_")
    net.add(embedding, nn.Dense(10, flatten=False, params=embedding.params, prefix="net_"))
    if early:
        convert(net, policy)
    net.initialize(mx.init.Xavier())
    if not early:
        convert(net, policy)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record(), trainer.scale_loss(net(mx.nd.array([[1, 2, 3]])).square().sum()) as scaled:
        scaled.backward()
    assert trainer.step(1) and net[0].weight is net[1].weight
    return {name: p.data().astype("float32").asnumpy() for name, p in net.collect_params().items()}


def test_a_weight_tied_across_graphs_trains_alike_whenever_it_is_converted():
    early, late, exact = tied_step("O2", True), tied_step("O2", False), tied_step("O0", False)
    for name, value in early.items():
        np.testing.assert_array_equal(value, late[name])
        np.testing.assert_allclose(value, exact[name], rtol=4e-3, atol=4e-3)  # a float16 rounding per operator


def add_norm_in_training(net, F, x, weight):
    y = F.FullyConnected(x, weight, no_bias=True, num_hidden=3)
    return F.broadcast_add(y, F.sum(F.square(weight))) if autograd.is_training() else y


def test_storage_when_training_reads_a_parameter_in_float32():
    net, x = initialized(Function(add_norm_in_training, {"weight": (3, 4)})), mx.nd.ones((2, 4))
    expected = net(x).asnumpy()
    with autograd.record():
        trained = net(x).asnumpy()
    convert(net, "O2")
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-3)
    with autograd.record():
        out = net(x)
    out.backward()
    np.testing.assert_allclose(out.asnumpy(), trained, atol=1e-3)


def raw_in_training(net, F, x):
    """Like GluonCV's detectors: raw predictions in training, decoded ones in inference."""
    x = net.out(x)
    return (x, F.exp(x)) if autograd.is_training() else F.softmax(x)


@pytest.mark.parametrize("hybridized", [False, True])
def test_training_and_inference_graphs_may_differ_and_that_for_inference_is_exported(hybridized, tmp_path):
    net, x = initialized(Function(raw_in_training, out=nn.Dense(4))), mx.nd.ones((2, 3))
    convert(net, "O1")
    if hybridized:
        net.hybridize()
    for _ in range(2):
        expected = net(x)
        assert expected.shape == (2, 4)
        with autograd.record():
            first, second = net(x)
        np.testing.assert_allclose(second.asnumpy(), np.exp(first.asnumpy()), rtol=1e-6)
    symbol, params = export(net, str(tmp_path / "net"))
    block = convert(gluon.SymbolBlock.imports(symbol, ["data"], params), "O1")
    assert np.array_equal(block(x).asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_export_is_read_by_plain_mxnet(tmp_path, policy):
    net, x = convert(make(), policy), batch()
    expected = net(x).asnumpy()
    path = str(tmp_path / "model")
    files = f"{path}-symbol.json", f"{path}-0003.params"
    assert export(net, path, epoch=3) == files
    ops = [node["op"] for node in json.loads((tmp_path / "model-symbol.json").read_text())["nodes"]]
    # the emulated graph would hold many more
    assert ops.count("amp_cast" if "bfloat16" in policy else "Cast") == report(net).casts
    block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    if "bfloat16" not in policy:  # float16 convolutions need a GPU in plain MXNet
        convert(block, policy)
    assert np.array_equal(block(x).asnumpy(), expected)


def looped(net, F, x, weight):
    """A loop with a layer inside, behind another layer."""

    def step(row, state):
        new = F.tanh(F.dot(row, weight, name="inner") + state)
        return new, new

    return F.contrib.foreach(step, net.before(x), F.zeros((2, 4)))[0]


@pytest.mark.parametrize("policy, stored", [("O1", "float32"), ("O2", "float16")])
def test_the_last_layer_may_be_float32(policy, stored):
    net = convert(make(), f"{policy},last_layer_fp32=True")
    net(batch())
    assert operator_precisions(net).items() >= {"FullyConnected": "float32", "Convolution": "float16"}.items()
    assert dtypes_of(net).items() >= {"dense0_weight": "float32", "conv0_weight": stored}.items()


def test_the_last_layer_may_be_within_a_loop():
    net = initialized(Function(looped, {"weight": (4, 4)}, before=nn.Dense(4, flatten=False)))
    convert(net, "O1,last_layer_fp32=True")
    net(mx.nd.ones((3, 2, 5)))
    assert operator_precisions(net).items() >= {"FullyConnected": "float16", "dot": "float32", "tanh": "float32"}.items()


def test_bad_policy_changes_nothing():
    net, x = convert(make(), "O1"), batch()
    converted = net(x).asnumpy()
    for bad in ("O7", Policy.parse("O2", blocks={"nothing*": "float32"})):
        with pytest.raises(PolicyError):
            convert(net, bad)
    assert np.array_equal(net(x).asnumpy(), converted)


@pytest.mark.parametrize("first", ["with states", "without"])
def test_a_recurrent_layer_may_be_called_with_and_without_states(first):
    layer = convert(initialized(gluon.rnn.LSTM(4, input_size=3)), "O1")
    x = mx.nd.random.uniform(shape=(5, 2, 3))
    if first == "without":
        layer(x)
    for _ in range(2):
        out, states = layer(x, layer.begin_state(2))
        assert len(states) == 2
        assert np.array_equal(layer(x).asnumpy(), out.asnumpy())


@pytest.mark.parametrize("policy, stored", [("O1", np.float32), ("O2", np.float16)])
def test_summary_works_as_before(policy, stored, capsys):
    net, x = convert(initialized(sequence(nn.Dense(4, in_units=3), nn.Dense(2))), policy), mx.nd.ones((2, 3))
    net.lock = threading.Lock()  # which cannot be copied
    expected = net(x).asnumpy()
    net.summary(x)
    assert "Total params" in capsys.readouterr().out
    assert net[0].weight.data().dtype == stored
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


def test_a_summary_of_a_symbol_block_between_a_block_and_its_step_changes_nothing(capsys):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="dense")
    net, x = convert(initialized(gluon.SymbolBlock(symbol, mx.sym.var("data"))), "O2"), mx.nd.ones((2, 3))
    expected, trainer = net(x).asnumpy(), Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    with autograd.record(), trainer.scale_loss(net(x).sum()) as scaled:
        scaled.backward()
    net.summary(x)
    assert "Total params" in capsys.readouterr().out
    assert trainer.step(1)
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


# ---------------------------------------------------------------------- row_sparse gradients


def embedding():
    return initialized(sequence(nn.Embedding(9, 4, sparse_grad=True), nn.Dense(2, in_units=12)), mx.init.Normal(0.5))


def embedding_step(net):
    """Train one step and return the embedding's gradient and weight."""
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with autograd.record(), trainer.scale_loss((net(mx.nd.array([[1, 2, 3], [3, 4, 5]])) ** 2).sum()) as scaled:
        scaled.backward()
    gradient = net[0].weight.grad() / trainer.loss_scale.value
    assert trainer.step(2)
    return gradient, net[0].weight.data().astype("float32").asnumpy()


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_an_embedding_keeps_its_row_sparse_gradient_and_trains(policy):
    (expected, trained), net = embedding_step(embedding()), convert(embedding(), policy)
    gradient, weight = embedding_step(net)
    assert report(net).rows[0].precision == "float32"  # a cast of the weight would make its gradient dense
    assert gradient.stype == "row_sparse"
    assert sorted(gradient.indices.asnumpy().tolist()) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(gradient.asnumpy(), expected.asnumpy(), rtol=0.02, atol=0.02)
    np.testing.assert_allclose(weight, trained, rtol=0.02, atol=0.02)


# ---------------------------------------------------------------------- seeded runs


def test_random_numbers_of_python_and_numpy_are_left_alone():
    before, drawn = random.getstate(), np.random.get_state()[1].tolist()
    net = convert(started(nn.Dense(3, in_units=4)), "O1")
    trainer = Trainer(net, "sgd")
    with autograd.record(), trainer.scale_loss(net(mx.nd.ones((2, 4))).sum()) as scaled:
        scaled.backward()
    trainer.step(2)
    assert str(report(net))
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == drawn


def crossed(net, F, x):
    """Layers that are used in another order than they were made in, two of them side by side."""
    x = F.relu(net.first(x))
    return net.last(net.norm(net.second(x)) + net.side(x))


def with_crossed_layers():
    layers = dict(last=nn.Dense(2), second=nn.Dense(4), norm=nn.BatchNorm(), first=nn.Dense(4), side=nn.Dense(4))
    return sequence(nn.Conv2D(3, 3), nn.Activation("relu"), Function(crossed, **layers), nn.Dense(2))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_parameters_of_unknown_shape_get_the_values_that_mxnet_gives_them(policy):
    def values(when):
        net = with_crossed_layers()
        if when == "before":
            convert(net, policy)
        started(net).hybridize()
        if when == "after":
            convert(net, policy)
        net(X)
        return mx.nd.random.uniform().asscalar(), exact(net)

    for when in ("before", "after"):
        np.testing.assert_equal(values(when), values("never"))


def test_a_conversion_that_fails_gives_the_loss_scale_of_the_one_before_back(monkeypatch):
    net = convert(started(nn.Dense(2, in_units=2)), "O1,loss_scale=64")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("mxmp.gluon.api.note_policy", lambda *args: 1 / 0)
        convert(net, "O2,loss_scale=8")
    assert Trainer(net.collect_params(), "sgd").loss_scale.value == 64
