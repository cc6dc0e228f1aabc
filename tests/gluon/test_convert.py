"""convert, cast and restore on real nets."""

from __future__ import annotations

import copy
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp import Policy
from mxmp.errors import ConvertError, PolicyError
from mxmp.gluon import Trainer, cast, convert, export, precision, report, restore

BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.bfloat16)
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)
LOW_BFLOAT16 = pytest.param("param=bfloat16,compute=bfloat16", marks=pytest.mark.bfloat16)
POLICIES = ["O1", "O2", "O3", MIXED_BFLOAT16, "float16"]
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


def make(seed=0, **kwargs):
    mx.random.seed(seed)
    net = Residual(**kwargs)
    net.initialize(mx.init.Xavier())
    return net


def batch(size=4, channels=3, seed=1):
    return mx.nd.array(np.random.RandomState(seed).randn(size, channels, 8, 8))


def dtypes_of(net):
    return {
        name[len(net.prefix) :]: "bfloat16" if str(p.dtype).startswith("[") else np.dtype(p.dtype).name
        for name, p in net.collect_params().items()
    }


def train_step(net, x):
    """Return the gradient of every parameter as float32 arrays."""
    with autograd.record():
        (net(x) * mx.nd.arange(5)).sum().backward()
    return {
        name: mx.nd.amp_cast(p.grad(), dtype="float32").asnumpy()
        for name, p in net.collect_params().items()
        if p.grad_req != "null"
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hybridized", [False, True], ids=["plain", "hybridized"])
def test_outputs_are_close_to_float32(policy, hybridized):
    x, net = batch(), make()
    expected = net(x).asnumpy()
    if hybridized:
        net.hybridize(static_alloc=True, static_shape=True)
    assert convert(net, policy) is net
    found = net(x)
    low = Policy.parse(policy).compute_dtype
    assert found.dtype == (np.float16 if policy == "float16" else np.float32)
    np.testing.assert_allclose(found.asnumpy(), expected, atol=ATOL[low])
    assert not np.array_equal(found.asnumpy(), expected)  # it did run in low precision


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_gradients_are_close_to_float32(policy):
    x = batch()
    net, reference = make(prefix="net_"), make(prefix="net_")
    net(x), reference(x)  # finish the deferred initialization from one seed each
    for name, param in reference.collect_params().items():
        net.collect_params()[name].set_data(param.data())
    convert(net, policy)
    expected, found = train_step(reference, x), train_step(net, x)
    scale = max(np.abs(g).max() for g in expected.values())
    tolerance = 8 * 2.0 ** (-10 if Policy.parse(policy).compute_dtype == "float16" else -7)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, atol=scale * tolerance, err_msg=name)


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16, LOW_BFLOAT16])
@pytest.mark.parametrize("static", [False, True])
def test_gradients_accumulate(policy, static):
    """MXNet's amp_cast loses gradients under grad_req='add' on CPU; see GuardAmpCasts."""
    net, x = make(), batch()
    convert(net, policy)
    net.hybridize(static_alloc=static)
    net(x)
    once = train_step(net, x)
    for param in net.collect_params().values():
        param.grad_req = "add" if param.grad_req != "null" else "null"
    for _ in range(4):
        added = train_step(net, x)
    eps = 2.0**-10 if Policy.parse(policy).param_dtype == "float16" else 2.0**-7
    for name, gradient in once.items():
        np.testing.assert_allclose(added[name], 4 * gradient, rtol=4 * eps, atol=1e-6, err_msg=name)


@pytest.mark.bfloat16
@pytest.mark.parametrize("static", [False, True])
def test_gradients_are_added_and_written_in_turns(static):
    """The graph for gradients that are written casts weights without a copy, and would lose added ones."""
    net, x = make(), batch()
    convert(net, "mixed_bfloat16")
    net.hybridize(static_alloc=static)
    net(x)
    once = train_step(net, x)
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    for grad_req, times in (("add", 2), ("write", 1), ("add", 3), ("write", 1)):
        for param in trained:
            param.grad_req = grad_req
        for _ in range(times):
            found = train_step(net, x)
        for name, gradient in once.items():
            np.testing.assert_allclose(found[name], times * gradient, rtol=2.0**-5, atol=1e-6, err_msg=name)


@pytest.mark.bfloat16
def test_a_net_that_is_called_twice_in_one_record_gets_the_sum_of_both_gradients():
    net, x = make(), batch()
    convert(net, "mixed_bfloat16")
    net(x)
    once = train_step(net, x)
    with autograd.record():
        ((net(x) + net(x)) * mx.nd.arange(5)).sum().backward()
    for name, gradient in once.items():
        found = net.collect_params()[name].grad().asnumpy()
        np.testing.assert_allclose(found, 2 * gradient, rtol=2.0**-5, atol=1e-5, err_msg=name)


def test_parameters_stay_the_same_objects():
    net = make()
    net(batch())
    net.conv0.weight.lr_mult = 3.0
    net.conv1.weight.grad_req = "null"
    before = {n: (id(p), p.shape, p.grad_req, p.lr_mult, p.wd_mult) for n, p in net.collect_params().items()}
    convert(net, "O2")
    net(batch())
    after = {n: (id(p), p.shape, p.grad_req, p.lr_mult, p.wd_mult) for n, p in net.collect_params().items()}
    assert after == before


@pytest.mark.parametrize(
    "policy, low",
    [("O1", "float32"), ("O2", "float16"), pytest.param("mixed_bfloat16", "float32", marks=pytest.mark.bfloat16)],
)
def test_storage_of_parameters(policy, low):
    net = make()
    convert(net, policy)
    net(batch())
    assert dtypes_of(net) == {
        "conv0_weight": low, "conv0_bias": low, "conv1_weight": low, "conv1_bias": low,
        "batchnorm0_gamma": "float32", "batchnorm0_beta": "float32",
        "batchnorm0_running_mean": "float32", "batchnorm0_running_var": "float32",
        "dense0_weight": low, "dense0_bias": low,
    }  # fmt: skip


ORDERS = {
    "convert, initialize, call": ("convert", "initialize", "call"),
    "initialize, convert, call": ("initialize", "convert", "call"),
    "initialize, call, convert, call": ("initialize", "call", "convert", "call"),
    "hybridize, initialize, convert, call": ("hybridize", "initialize", "convert", "call"),
    "convert, hybridize, initialize, call": ("convert", "hybridize", "initialize", "call"),
    "hybridize, initialize, call, convert, call, hybridize, call": (
        "hybridize", "initialize", "call", "convert", "call", "hybridize", "call",
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("in_channels", [0, 3], ids=["deferred", "known"])
@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_conversion_works_at_any_time(order, in_channels, policy):
    mx.random.seed(0)
    net = Residual(in_channels=in_channels)
    steps = {
        "convert": lambda: convert(net, policy),
        "initialize": lambda: net.initialize(mx.init.Xavier()),
        "hybridize": lambda: net.hybridize(),
        "call": lambda: net(batch()).wait_to_read(),
    }
    for step in order:
        steps[step]()
    assert report(net).count == {Policy.parse(policy).compute_dtype: 8, "float32": 1}
    assert net(batch()).dtype == np.float32


def test_rehybridizing_keeps_the_conversion():
    net, x = make(), batch()
    convert(net, "O1")
    first = net(x).asnumpy()
    for active in (True, False, True):
        net.hybridize(active)
        assert np.array_equal(net(x).asnumpy(), first)
        assert net._active is active


def test_converting_twice_changes_nothing():
    net, x = make(), batch()
    convert(net, "O1")
    first = net(x).asnumpy()
    state = dict(vars(net))
    convert(net, Policy.parse("mixed_float16"))
    assert vars(net) == state
    assert np.array_equal(net(x).asnumpy(), first)


def test_another_policy_replaces_the_first():
    net, x = make(), batch()
    net(x)
    exact = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    convert(net, "O2")
    convert(net, "mixed_bfloat16")
    assert report(net).policy.startswith("param=float32,compute=bfloat16")
    assert all(np.array_equal(p.data().asnumpy(), exact[n]) for n, p in net.collect_params().items())


@pytest.mark.parametrize("policy", POLICIES)
def test_restore_gives_the_float32_net_back(policy):
    net, x = make(), batch()
    expected = net(x).asnumpy()
    before = set(vars(net))
    convert(net, policy)
    net(x)
    assert restore(net) is net
    assert set(vars(net)) == before and not net._active
    assert np.array_equal(net(x).asnumpy(), expected)
    assert set(dtypes_of(net).values()) == {"float32"}


def test_restore_keeps_what_training_changed():
    net, x = make(), batch()
    convert(net, "O2")
    net(x)
    weight = net.conv0.weight
    weight.set_data(mx.nd.ones(weight.shape, dtype="float16") * 0.1)
    restore(net)
    assert np.array_equal(weight.data().asnumpy(), np.full(weight.shape, np.float16(0.1), "float32"))


def test_nothing_else_is_touched():
    convolution, get_graph = mx.nd.Convolution, gluon.HybridBlock._get_graph
    net, other, x = make(), make(), batch()
    expected = other(x).asnumpy()
    convert(net, "O1")
    net(x)
    assert mx.nd.Convolution is convolution and gluon.HybridBlock._get_graph is get_graph
    assert np.array_equal(other(x).asnumpy(), expected)


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
    rows = {row.op: row.precision for row in report(net).rows}
    assert rows["softmax"] == "float32" and rows["Convolution"] == dtype
    cast(net, "float32")
    assert np.array_equal(net(x).asnumpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "float64", BFLOAT16])
def test_inputs_of_other_float_dtypes(dtype):
    net, x = make(), batch()
    convert(net, "O1")
    expected = net(mx.nd.array(x.asnumpy().astype("float16"))).asnumpy()
    if dtype == "bfloat16":
        low = mx.nd.amp_cast(x, dtype=np.dtype([("bfloat16", np.uint16)]))
        assert net(low).dtype == np.float32
    elif dtype == "float16":
        assert np.array_equal(net(x.astype(dtype)).asnumpy(), expected)
    else:
        with pytest.raises(mx.MXNetError):  # as without conversion: the weights are float32
            restore(net)(x.astype(dtype)).wait_to_read()


@pytest.mark.behaviour("labels and indices")
@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("policy", ["O1", "O3"])
def test_indices_are_never_cast(dtype, policy):
    net = nn.HybridSequential()
    net.add(nn.Embedding(3000, 4), nn.Dense(2, flatten=False))
    net.initialize()
    ids = mx.nd.array([[2049, 2051]], dtype=dtype)  # float16 would make both 2048 and 2052
    expected = net(ids).asnumpy()
    convert(net, policy)
    np.testing.assert_allclose(net(ids).asnumpy(), expected, atol=1e-4)


def test_symbol_block():
    net, x = make(), batch()
    net.hybridize()
    expected = net(x).asnumpy()
    sym = net(mx.sym.var("data"))
    block = gluon.SymbolBlock(sym, mx.sym.var("data"), params=net.collect_params())
    convert(block, "O1")
    assert report(block).count["float16"] == 8
    np.testing.assert_allclose(block(x).asnumpy(), expected, atol=ATOL["float16"])
    assert "Cast" in block(mx.sym.var("data")).tojson()
    restore(block)
    assert np.array_equal(block(x).asnumpy(), expected)


class Outer(gluon.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(6, activation="relu")
            self.second = nn.Dense(3)

    def forward(self, x):
        x = self.first(x)
        assert x.dtype == np.float32
        return self.second(x * int(x.shape[0] > 0))


def test_hybrid_blocks_inside_a_plain_block():
    net = Outer()
    net.initialize()
    x = mx.nd.random.normal(shape=(2, 4))
    expected = net(x).asnumpy()
    convert(net, "O1")
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-3)
    assert report(net).count == {"float16": 3}
    restore(net)
    assert np.array_equal(net(x).asnumpy(), expected)


def test_converted_block_inside_an_unconverted_one():
    net, x = make(), batch()
    expected = net(x).asnumpy()
    convert(net.conv1, "O1")
    partly = net(x).asnumpy()
    np.testing.assert_allclose(partly, expected, atol=ATOL["float16"])
    assert not np.array_equal(partly, expected)
    net.hybridize()
    assert np.array_equal(net(x).asnumpy(), partly)
    net.hybridize(False)
    assert np.array_equal(net(x).asnumpy(), partly)


@pytest.mark.bfloat16
def test_converting_the_outer_block_takes_over_the_inner_one():
    net, x = make(), batch()
    net(x)
    convert(net.conv1, "O2")
    convert(net, "mixed_bfloat16")
    assert dtypes_of(net)["conv1_weight"] == "float32"
    assert set(report(net).count) == {"bfloat16", "float32"}
    assert report(net).rows[0].name.startswith(net.prefix)
    restore(net)
    assert "_mxmp_conversion" not in vars(net.conv1)


def test_two_contexts():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = Residual()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    convert(net, "O2")
    x = batch()
    outputs = [net(x.as_in_context(ctx)) for ctx in contexts]
    assert [out.ctx for out in outputs] == contexts
    assert np.array_equal(outputs[0].asnumpy(), outputs[1].asnumpy())
    assert {array.dtype for array in net.conv0.weight.list_data()} == {np.float16}


def test_shared_parameters_stay_shared():
    net = nn.HybridSequential()
    with net.name_scope():
        first = nn.Dense(4, in_units=4)
        net.add(first, nn.Dense(4, in_units=4, params=first.params))
    net.initialize()
    convert(net, "O2")
    x = mx.nd.random.normal(shape=(2, 4))
    with autograd.record():
        net(x).sum().backward()
    assert net[0].weight is net[1].weight
    assert net[0].weight.grad().dtype == np.float16
    assert len(net.collect_params().keys()) == 2


class TiedBlock(gluon.Block):
    """Two graphs that share a weight: the first one runs before the second one is known."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.embedding = nn.Embedding(10, 6)
            self.decoder = nn.Dense(10, flatten=False, params=self.embedding.params)

    def forward(self, x):
        return self.decoder(self.embedding(x))


def tied_step(policy, early):
    """Return the parameters after one step, of a net converted before or after it was initialized."""
    mx.random.seed(0)
    net = TiedBlock()
    if early:
        convert(net, policy)
    net.initialize(mx.init.Xavier())
    if not early:
        convert(net, policy)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    with autograd.record(), trainer.scale_loss(net(mx.nd.array([[1, 2, 3]])).square().sum()) as scaled:
        scaled.backward()
    assert trainer.step(1)
    return {name: p.data().astype("float32").asnumpy() for name, p in net.collect_params().items()}


def test_a_weight_tied_across_graphs_trains_alike_whenever_it_is_converted():
    early, late, exact = tied_step("O2", True), tied_step("O2", False), tied_step("O0", False)
    for name, value in early.items():
        np.testing.assert_array_equal(value, late[name])
        np.testing.assert_allclose(value, exact[name], rtol=4e-3, atol=4e-3)  # a float16 rounding per operator


def test_a_parameter_that_float32_reads_too_stays_float32():
    class Tied(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.weight = self.params.get("weight", shape=(4, 4))

        def hybrid_forward(self, F, x, weight):
            return F.broadcast_add(F.dot(x, weight), F.exp(weight).sum(axis=0))

    net = Tied()
    net.initialize()
    expected = net(mx.nd.ones((4, 4))).asnumpy()
    convert(net, "O2")
    np.testing.assert_allclose(net(mx.nd.ones((4, 4))).asnumpy(), expected, atol=1e-2)
    assert net.weight.dtype in (np.float32, "float32")


class TwoGraphs(gluon.HybridBlock):
    """Like GluonCV's detectors: raw predictions in training, decoded ones in inference."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.out = nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = self.out(x)
        return (x, F.exp(x)) if autograd.is_training() else F.softmax(x)


@pytest.mark.parametrize("hybridized", [False, True])
def test_training_and_inference_graphs_may_differ(hybridized):
    net, x = TwoGraphs(), mx.nd.ones((2, 3))
    net.initialize()
    convert(net, "O1")
    if hybridized:
        net.hybridize()
    for _ in range(2):
        assert net(x).shape == (2, 4)
        with autograd.record():
            first, second = net(x)
        np.testing.assert_allclose(second.asnumpy(), np.exp(first.asnumpy()), rtol=1e-6)


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
@pytest.mark.parametrize("how", ["net.export", "mxmp.gluon.export"])
def test_export_is_read_by_plain_mxnet(tmp_path, policy, how):
    net, x = make(), batch()
    convert(net, policy)
    expected = net(x).asnumpy()
    path = str(tmp_path / "model")
    if how == "net.export":
        net.export(path, epoch=3)
    else:
        assert export(net, path, epoch=3) == (f"{path}-symbol.json", f"{path}-0003.params")
    ops = [node["op"] for node in json.loads((tmp_path / "model-symbol.json").read_text())["nodes"]]
    casts = "amp_cast" if "bfloat16" in policy else "Cast"
    assert ops.count(casts) == report(net).casts  # the emulated graph would hold many more
    block = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0003.params")
    if "bfloat16" in policy:  # float16 convolutions need a GPU in plain MXNet
        assert np.array_equal(block(x).asnumpy(), expected)
    else:
        convert(block, policy)
        assert np.array_equal(block(x).asnumpy(), expected)


def test_net_on_a_symbol_gives_the_converted_symbol():
    net = make()
    convert(net, "O1")
    net(batch())
    symbol = net(mx.sym.var("images"))
    assert symbol.tojson().count('"Cast"') == report(net).casts
    assert symbol.list_arguments()[0] == "images"
    assert symbol.list_outputs() == [make(prefix=net.prefix)(mx.sym.var("data")).list_outputs()[0]]


class Region(gluon.HybridBlock):
    def __init__(self, dtype, **kwargs):
        super().__init__(**kwargs)
        self.dtype = dtype
        with self.name_scope():
            self.a = nn.Dense(4)
            self.b = nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = self.a(x)
        with precision(self.dtype):
            return self.b(x)


@pytest.mark.parametrize(
    "policy, dtype, expected",
    [
        ("O1", "float32", ["float16", "float32"]),
        ("O1", "low", ["float16", "float16"]),
        pytest.param("mixed_bfloat16", "fp32", ["bfloat16", "float32"], marks=pytest.mark.bfloat16),
        pytest.param("mixed_bfloat16", "bfloat16", ["bfloat16", "bfloat16"], marks=pytest.mark.bfloat16),
    ],
)
def test_precision_region(policy, dtype, expected):
    net = Region(dtype)
    net.initialize()
    x = mx.nd.ones((2, 3))
    net(x)  # without conversion a region changes nothing
    convert(net, policy)
    net(x)
    assert [row.precision for row in report(net).rows] == expected


def test_block_and_name_overrides():
    net = make()
    policy = Policy.parse("O1", blocks={net.out.prefix: "float32"}, names={"*softmax*": "float16"})
    convert(net, policy)
    net(batch())
    found = {row.op: row.precision for row in report(net).rows}
    assert found["FullyConnected"] == "float32"
    assert found["softmax"] == "float16"
    assert found["Convolution"] == "float16"


class TwoInputs(gluon.HybridBlock):
    """Its one argument is a pair, which nobody can guess."""

    def hybrid_forward(self, F, pair):
        first, second = pair
        return F.elemwise_add(first, second)


def test_pattern_that_matches_nothing_in_several_graphs():
    net = gluon.nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, prefix="known_"), TwoInputs(prefix="late_"))
    net.initialize()
    convert(net, Policy.parse("O1", names={"*typo*": "float32"}))
    net[0](mx.nd.ones((2, 3)))
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"names: '\*typo\*' matches no node"):
            net[1]([mx.nd.ones((2, 3)), mx.nd.ones((2, 3))])


class Untraceable(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


def test_a_net_that_cannot_be_traced_names_the_block():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3), Untraceable(prefix="culprit_"))
    net.initialize()
    convert(net, "O1")
    with pytest.raises(ConvertError, match=r"block 'net_culprit' \(Untraceable\) cannot be traced: AttributeError"):
        net(mx.nd.ones((2, 3)))
    restore(net)
    assert net(mx.nd.ones((2, 3))).shape == (2, 3)


def test_bad_policy_changes_nothing():
    net, x = make(), batch()
    expected = net(x).asnumpy()
    convert(net, "O1")
    converted = net(x).asnumpy()
    for bad in ("O7", Policy.parse("O2", names={"nothing*": "float32"})):
        with pytest.raises(PolicyError):
            convert(net, bad)
    assert np.array_equal(net(x).asnumpy(), converted)
    assert np.array_equal(restore(net)(x).asnumpy(), expected)


def test_report_counts_casts_and_bytes():
    net = make()
    convert(net, "O1")
    net(batch())
    found = report(net)
    # Casts: the input, three weights and three biases, and the way up to softmax.
    assert (found.casts, found.activation_casts) == (8, 2)
    params = sum(p.data().size for n, p in net.collect_params().items() if "batchnorm" not in n)
    assert found.cast_bytes == 6 * (batch().size + params + 4 * 5)
    assert "softmax" in str(found) and "deny" in str(found)
    assert json.loads(found.to_json())["casts"] == 8


class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("mxmp_gluon_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Twice()


def test_operators_without_a_rule_are_named():
    class Unknown(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Custom(F.dot(x, x), op_type="mxmp_gluon_twice")

    net = Unknown()
    convert(net, "O1")
    net(mx.nd.ones((2, 2)))
    assert report(net).without_rule == ("Custom",)
    assert "no rule, left as they were: Custom" in report(net).summary[-1]


class Reduction(gluon.HybridBlock):
    """Safe in float16 on small images, not on large ones."""

    def hybrid_forward(self, F, x):
        x = F.Convolution(x, F.ones((4, 1, 1, 1)), kernel=(1, 1), num_filter=4, no_bias=True)
        return F.sum(x, axis=(2, 3)) * 0.001


@pytest.mark.parametrize("sizes", [(8, 300), (300, 8)])
def test_verdicts_follow_the_shapes(sizes):
    net = Reduction()
    convert(net, "O1")
    for size in sizes:
        found = net(mx.nd.ones((1, 1, size, size))).asnumpy()
        np.testing.assert_allclose(found, size * size / 1000, rtol=2e-3)
        rows = {row.op: row.precision for row in report(net).rows}
        assert rows["sum"] == ("float16" if size == 8 else "float32")


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_cast_of_an_imported_block(tmp_path, dtype):
    net, x = make(), batch()
    net.hybridize()
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    cast(block, dtype)  # its parameters have data, but no shape
    np.testing.assert_allclose(block(x).asnumpy(), expected, atol=ATOL[dtype])
    restore(block)
    assert np.array_equal(block(x).asnumpy(), expected)


def test_a_failure_while_storing_leaves_the_net_as_it_was(monkeypatch):
    net, x = make(), batch()
    expected = net(x).asnumpy()
    calls = []

    def fail_third(array, dtype):
        calls.append(array)
        if len(calls) == 3:
            raise MemoryError("out of memory")
        return array.astype(dtype)

    monkeypatch.setattr("mxmp.gluon.storage.round_to", fail_third)
    with pytest.raises(MemoryError):
        convert(net, "O2")
    assert np.array_equal(net(x).asnumpy(), expected) and set(dtypes_of(net).values()) == {"float32"}


class SharedInTraining(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(3, 4))

    def hybrid_forward(self, F, x, weight):
        y = F.FullyConnected(x, weight, no_bias=True, num_hidden=3)
        return F.broadcast_add(y, F.sum(F.square(weight))) if autograd.is_training() else y


def test_storage_when_training_reads_a_parameter_in_float32():
    net, x = SharedInTraining(), mx.nd.ones((2, 4))
    net.initialize()
    expected = net(x).asnumpy()
    with autograd.record():
        trained = net(x).asnumpy()
    convert(net, "O2")
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-3)
    with autograd.record():
        out = net(x)
    out.backward()
    np.testing.assert_allclose(out.asnumpy(), trained, atol=1e-3)


def test_gradients_of_a_float16_input_accumulate():
    net = nn.Dense(1, in_units=4, use_bias=False)
    net.initialize(mx.init.One())
    convert(net, "O1")
    x = mx.nd.ones((2, 4), dtype="float16")
    x.attach_grad("add")
    for _ in range(3):
        with autograd.record():
            net(x).backward()
    assert (x.grad.asnumpy() == 3).all()


def test_a_block_that_stands_twice():
    block = nn.Dense(4, in_units=4)
    net = nn.Sequential()
    net.add(block, block)
    net.initialize()
    x = mx.nd.random.normal(shape=(2, 4))
    expected = net(x).asnumpy()
    convert(net, "O1")
    convert(net, "O2")
    restore(net)
    assert np.array_equal(net(x).asnumpy(), expected)


class OwnForward(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.out = nn.Dense(3)

    def forward(self, x):
        return self.out(x) * x.shape[0]


def test_a_hybrid_block_with_a_forward_of_its_own():
    net = OwnForward()
    net.initialize()
    x = mx.nd.ones((2, 4))
    expected = net(x).asnumpy()
    convert(net, "O1")
    assert not np.array_equal(net(x).asnumpy(), expected)
    assert report(net).count == {"float16": 1}


def test_calls_of_different_structure():
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    convert(loss, "O1")
    pred, label, weight = mx.nd.ones((2, 3)), mx.nd.array([0, 2]), mx.nd.array([[1], [3]])
    for _ in range(2):
        np.testing.assert_allclose(loss(pred, label).asnumpy(), np.log(3) * np.ones(2), rtol=1e-5)
        np.testing.assert_allclose(loss(pred, label, weight).asnumpy(), np.log(3) * np.array([1, 3]), rtol=1e-5)


@pytest.mark.bfloat16
def test_export_writes_the_inference_graph(tmp_path):
    net, x = TwoGraphs(), mx.nd.ones((2, 3))
    net.initialize()
    convert(net, "mixed_bfloat16")
    expected = net(x).asnumpy()
    with autograd.record():
        net(x)
    symbol, params = export(net, str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params)
    assert np.array_equal(block(x).asnumpy(), expected)


def test_inner_low_storage_within_an_unconverted_net():
    inner = nn.Dense(1, use_bias=False)
    outer = nn.HybridSequential()
    outer.add(inner)
    outer.initialize(mx.init.Constant(1 + 2.0**-12))
    convert(inner, "O2")
    outer.hybridize()
    assert outer(mx.nd.array([[1, -1]])).asscalar() == 0
    assert outer(mx.nd.array([[1, 0]])).asscalar() == 1  # rounded, though the parameter came late


def test_symbol_block_within_an_unconverted_net():
    inner = gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), mx.sym.var("data"))
    outer = nn.HybridSequential()
    outer.add(inner, nn.Dense(3))
    outer.initialize()
    x = mx.nd.ones((2, 4))
    expected = outer(x).asnumpy()
    convert(inner, "O1")
    np.testing.assert_allclose(outer(x).asnumpy(), expected, atol=1e-3)
    outer.hybridize()
    np.testing.assert_allclose(outer(x).asnumpy(), expected, atol=1e-3)


def test_a_float32_policy_takes_casts_out_of_an_imported_block(tmp_path):
    net, x = make(), batch()
    expected = net(x).asnumpy()
    convert(net, "O1")
    net(x)
    symbol, params = export(net, str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(symbol, ["data"], params)
    convert(block, "float32")
    assert np.array_equal(block(x).asnumpy(), expected)


def test_export_into_a_missing_folder(tmp_path):
    net = make()
    convert(net, "O1")
    net(batch())
    with pytest.raises(ConvertError, match=r"there is no folder .*missing; make it first"):
        net.export(str(tmp_path / "missing" / "net"))


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_the_last_layer_may_be_float32(policy):
    net, x = make(), batch()
    convert(net, f"{policy},last_layer_fp32=True")
    net(x)
    rows = {row.op: row.precision for row in report(net).rows}
    assert rows["FullyConnected"] == "float32" and rows["Convolution"] == Policy.parse(policy).compute_dtype
    stored = dtypes_of(net)
    assert stored["dense0_weight"] == "float32" and (stored["conv0_weight"] == "float32") == (policy != "O2")


class Recurrent(gluon.HybridBlock):
    """Its outputs come out of a loop with a layer inside, behind another layer."""

    def __init__(self, **kwargs):
        super().__init__(prefix="net_", **kwargs)
        with self.name_scope():
            self.before = nn.Dense(4, flatten=False)
            self.weight = self.params.get("weight", shape=(4, 4))

    def hybrid_forward(self, F, x, weight):
        def step(row, state):
            new = F.tanh(F.dot(row, weight, name="inner") + state)
            return new, new

        return F.contrib.foreach(step, self.before(x), F.zeros((2, 4)))[0]


def test_the_last_layer_may_be_within_a_loop():
    net = Recurrent()
    net.initialize()
    convert(net, "O1,last_layer_fp32=True")
    net(mx.nd.ones((3, 2, 5)))
    rows = {row.op: row.precision for row in report(net).rows}
    assert (rows["FullyConnected"], rows["dot"], rows["tanh"]) == ("float16", "float32", "float32")


def test_restoring_twice_leaves_parameters_alone():
    net, x = make(), batch()
    convert(net, "O2")
    net(x)
    conversion = net._mxmp_conversion
    restore(net)
    assert conversion.stored == []


@pytest.mark.parametrize("first", ["with states", "without"])
def test_a_recurrent_layer_may_be_called_with_and_without_states(first):
    layer = gluon.rnn.LSTM(4, input_size=3)
    layer.initialize()
    convert(layer, "O1")
    x = mx.nd.random.uniform(shape=(5, 2, 3))
    calls = [lambda: layer(x, layer.begin_state(2)), lambda: layer(x)]
    for _ in range(2):
        for call in calls if first == "with states" else reversed(calls):
            found = call()
            if call is calls[0]:
                out, states = found
                assert len(states) == 2
            else:
                out = found
            assert out.shape == (5, 2, 4)


def test_batches_of_a_data_loader_with_workers():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    data = gluon.data.ArrayDataset(np.random.rand(4, 3).astype("float32"))
    (batch,) = list(gluon.data.DataLoader(data, 4, num_workers=0))
    shared = batch.as_in_context(mx.Context("cpu_shared", 0))
    expected = convert(net, "O1")(batch)
    assert (net(shared) == expected).min() == 1


def two_layers():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
    net.initialize()
    return net


@pytest.mark.parametrize("policy, stored", [("O1", "float32"), ("O2", "float16")])
def test_summary_works_as_before(policy, stored, capsys):
    net = convert(two_layers(), policy)
    x = mx.nd.ones((2, 3))
    expected = net(x).asnumpy()
    net.summary(x)
    assert "Total params" in capsys.readouterr().out
    assert net[0].weight.data().dtype == np.dtype(stored)
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_net_that_was_not_called_yet_can_be_copied(policy):
    net = convert(two_layers(), policy)
    twin = copy.deepcopy(net)
    x = mx.nd.random.uniform(shape=(2, 3))
    np.testing.assert_array_equal(twin(x).asnumpy(), net(x).asnumpy())


def test_export_writes_the_graph_that_ran_last(tmp_path):
    """Of several for inference, which differ where verdicts depend on shapes."""
    net = Reduction()
    convert(net, "O1")
    written = []
    for size in (8, 300, 8):
        net(mx.nd.ones((1, 1, size, size)))
        export(net, str(tmp_path / "net"))
        written.append((tmp_path / "net-symbol.json").read_text())
    assert written[0] == written[2] != written[1]


def test_too_many_arguments():
    net = make(prefix="net_")
    convert(net, "O1")
    with pytest.raises(ConvertError, match=r"block 'net' \(Residual\) cannot be traced: TypeError: .*positional arg"):
        net(batch(), batch())
