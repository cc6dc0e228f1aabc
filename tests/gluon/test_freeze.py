"""Blocks for inference alone: `freeze`, and `export` of nets for inference."""

from __future__ import annotations

import os
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

import mxmp
from mxmp.devices import check
from mxmp.devices.processor import Processor
from mxmp.dtypes import canonical
from mxmp.errors import CheckpointError, ConvertError, MxmpError, ParamsError, PolicyError, TrainerError
from mxmp.gluon import convert, export, freeze, report, restore, set_policy
from mxmp.symbol import convert_model, load_checkpoint, to_graph

HALF = float(np.finfo(np.float16).eps)
CLOSE = {"float32": 2e-5, "O2": 20 * HALF, "O3": 20 * HALF}
"""Largest difference as a share of the largest output: of folding, and of some fifty roundings to float16."""


class Small(nn.HybridSequential):
    """Two convolutions with BatchNorm, one with dropout behind it, and a dense layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Conv2D(4, 3, use_bias=False, in_channels=3), nn.BatchNorm(in_channels=4))
            self.add(nn.Activation("relu"), nn.Dropout(0.5), nn.Conv2D(4, 3, groups=2, in_channels=4))
            self.add(nn.BatchNorm(scale=False, in_channels=4), nn.LeakyReLU(0.1), nn.Dense(3, in_units=64))


class Words(nn.HybridBlock):
    """An embedding, an LSTM, a dense layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.words, self.lstm = nn.Embedding(20, 8), rnn.LSTM(8, input_size=8)
            self.scores = nn.Dense(5, flatten=False, in_units=8)

    def hybrid_forward(self, F, x):
        return self.scores(self.lstm(self.words(x)))


class Loop(nn.HybridBlock):
    """A convolution in front of a loop; two inputs, outputs nested."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4)
            self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x, state):
        x = F.mean(self.norm(self.conv(x)), axis=(2, 3))
        step = lambda data, states: (self.dense(states[0]) + data, [self.dense(states[0])])  # noqa: E731
        outputs, states = F.contrib.foreach(step, F.stack(x, x, x, axis=0), [state])
        return outputs, [states[0], x]


class Shared(nn.HybridBlock):
    """One convolution in two places, with a BatchNorm of its own in each; three outputs, which other layers read."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = nn.Conv2D(3, 3, padding=1, in_channels=3)
            self.norms = [nn.BatchNorm(in_channels=3) for _ in range(2)]
            for norm in self.norms:
                self.register_child(norm)

    def hybrid_forward(self, F, x):
        first = self.norms[0](self.conv(x))
        second = self.norms[1](self.conv(F.relu(first)))
        return second, (first, F.relu(second) + first)


IMAGES, STATE, LARGE = (
    mx.nd.array(np.random.RandomState(0).normal(size=size)) for size in ((2, 3, 32, 32), (2, 4), (1, 3, 224, 224))
)
NETS = {
    "resnet18_v1": (lambda: vision.resnet18_v1(classes=10), [IMAGES]),
    "resnet18_v2": (lambda: vision.resnet18_v2(classes=10), [IMAGES]),
    "mobilenet": (lambda: vision.mobilenet0_25(classes=10), [IMAGES]),
    "squeezenet": (lambda: vision.squeezenet1_1(classes=10), [LARGE]),
    "lstm": (Words, [mx.nd.array([[1, 2], [3, 19], [0, 7]])]),
    "loop": (Loop, [IMAGES, STATE]),
    "shared": (Shared, [IMAGES]),
}


def trained(make, args):
    """Return a net with random weights, each BatchNorm's statistics those of what it reads, as after training."""
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier(magnitude=2))
    net(*args)
    norms, hooks = [], []
    net.apply(lambda block: norms.append(block) if isinstance(block, nn.BatchNorm) else None)
    for norm in norms:
        hooks.append(norm.register_forward_pre_hook(settle))
    net(*args)
    for hook in hooks:
        hook.detach()
    return net


def settle(norm, inputs):
    mean = inputs[0].mean(axis=(0, 2, 3))
    variance = (inputs[0] - mean.reshape((1, -1, 1, 1))).square().mean(axis=(0, 2, 3))
    norm.running_mean.set_data(mean + 0.1)
    norm.running_var.set_data(variance + 0.1)
    if norm._kwargs["fix_gamma"] is False:  # else each call of the net sets it to 1
        norm.gamma.set_data(mx.nd.random.uniform(0.5, 1.5, shape=mean.shape))
    norm.beta.set_data(mx.nd.random.normal(scale=0.2, shape=mean.shape))


def small(prefix="net_"):
    net = trained(lambda: Small(prefix=prefix), [IMAGES[:, :, :8, :8]])
    return net, IMAGES[:, :, :8, :8], net(IMAGES[:, :, :8, :8]).asnumpy()


def leaves(outputs):
    return [leaf for each in outputs for leaf in leaves(each)] if isinstance(outputs, (list, tuple)) else [outputs]


def nesting(outputs):
    return [nesting(each) for each in outputs] if isinstance(outputs, (list, tuple)) else None


def difference(outputs, expected):
    """Return the largest difference of outputs as a share of the largest value expected."""
    pairs = zip(leaves(outputs), leaves(expected))
    return max(float(np.abs(a.asnumpy() - b.asnumpy()).max() / np.abs(b.asnumpy()).max()) for a, b in pairs)


def values(net):
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def ops(symbol):
    return [node.op for node in to_graph(symbol).operators()]


# ------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("policy", CLOSE)
@pytest.mark.parametrize("name", NETS)
def test_it_computes_what_the_net_does(name, policy):
    make, args = NETS[name]
    net = trained(make, args)
    expected, before = net(*args), values(net)
    frozen = freeze(net, policy)
    assert isinstance(frozen, gluon.SymbolBlock)
    for _ in range(2):  # kernels and memory are kept
        outputs = frozen(*args)
        assert nesting(outputs) == nesting(expected)
        assert all(each.dtype == np.float32 for each in leaves(outputs))
        assert difference(outputs, expected) < CLOSE[policy]
    low = np.float16 if policy != "float32" else np.float32
    assert low in {param.dtype for param in frozen.collect_params().values()}
    frozen.hybridize()
    assert difference(frozen(*args), expected) < CLOSE[policy]
    assert difference(net(*args), expected) == 0
    for key, value in values(net).items():
        np.testing.assert_array_equal(value, before[key])


def test_batch_norm_and_dropout_are_gone():
    frozen = freeze(small()[0], "O1")
    assert set(frozen.collect_params()) == {f"net_{layer}_{kind}" for layer in ("conv0", "conv1", "dense0")
                                            for kind in ("weight", "bias")}  # fmt: skip
    assert {param.dtype for param in frozen.collect_params().values()} == {np.float16}
    assert {param.grad_req for param in frozen.collect_params().values()} == {"null"}
    assert report(frozen).count == {"float16": 5, "folded": 2, "dropped": 1}


def test_weights_are_folded_before_they_are_rounded():
    net, x, _ = small()
    exact = values(freeze(net))
    convert(net, "O2")
    net(x)
    for name, value in values(freeze(net, "O2")).items():
        np.testing.assert_array_equal(value, exact[name].astype(np.float16))


@pytest.mark.parametrize("policy", ["float32", "O2"])
def test_any_batch_size(policy):
    net, x, _ = small()
    frozen = freeze(net, policy)
    for size in (2, 5, 1, 5, 16):
        batch = mx.nd.random.normal(shape=(size, *x.shape[1:]))
        assert difference(frozen(batch), net(batch)) < CLOSE[policy]


def test_memory_and_kernels_are_kept_but_for_control_flow():
    def flags(name):
        return dict(freeze(trained(*NETS[name]))._flags)

    assert flags("shared")["static_alloc"] and flags("shared")["static_shape"]
    assert flags("loop")["static_alloc"] and not flags("loop")["static_shape"]


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")
def test_onednn_fuses_the_graph():
    net = trained(*NETS["resnet18_v1"])
    frozen, names = freeze(net), []
    frozen.register_op_hook(lambda name, opr, array: names.append(mx.base.py_str(name)))
    frozen(IMAGES)
    assert any(name.startswith("sg_mkldnn") for name in names) is mx.runtime.Features().is_enabled("MKLDNN")


def test_a_batch_norm_that_cannot_be_folded_stays():
    net, x, _ = small()
    net[1].running_var.set_data(-mx.nd.ones(4))
    frozen = freeze(net)
    assert report(frozen).count["folded"] == 1
    np.testing.assert_array_equal(frozen(x).asnumpy(), net(x).asnumpy())


def test_float64_runs_without_onednn():
    net, x, _ = small()
    net.cast("float64")
    x = x.astype("float64")
    frozen = freeze(net, dtypes={"data": "float64"})
    assert frozen(x).dtype == np.float64
    assert difference(frozen(x), net(x)) < 1e-12


def test_under_np_arrays():
    mx.npx.set_np()
    try:
        net = Small()
        net.initialize(mx.init.Xavier())
        x = IMAGES[:, :, :8, :8].as_np_ndarray()
        for policy in ("float32", "O1"):
            outputs = freeze(net, policy)(x)
            assert isinstance(outputs, mx.np.ndarray)
            assert difference([outputs], [net(x)]) < CLOSE["float32" if policy == "float32" else "O2"]
    finally:
        mx.npx.reset_np()


# ------------------------------------------------------------------ what is given


def of_converted(policy, called):
    def make(net, x, folder):
        convert(net, policy)
        if called:
            net(x)
        return net

    return make


def imported(net, x, folder):
    net.hybridize()
    net(x)
    net.export(str(folder / "plain"))
    return gluon.SymbolBlock.imports(str(folder / "plain-symbol.json"), ["data"], str(folder / "plain-0000.params"))


def model_of(net, x, folder):
    return load_checkpoint(export(net, str(folder / "net"), for_inference=True)[0][: -len("-symbol.json")], 0)


GIVEN = {
    "hybridized": lambda net, x, folder: (net.hybridize(), net(x), net)[2],
    "converted": of_converted("O2", True),
    "converted, not called": of_converted("O1", False),
    "converted to float32": of_converted("float32", True),
    "SymbolBlock": imported,
    "converted SymbolBlock": lambda net, x, folder: convert(imported(net, x, folder), "O1"),
    "frozen": lambda net, x, folder: freeze(net),
    "frozen, low": lambda net, x, folder: freeze(net, "O2"),
    "model": model_of,
    "ConvertedModel": lambda net, x, folder: convert_model(*model_of(net, x, folder), "O2"),
    "files": lambda net, x, folder: export(net, str(folder / "net"), for_inference=True),
    "prefix": lambda net, x, folder: (export(net, str(folder / "net"), for_inference=True), folder / "net")[1],
    "low files": lambda net, x, folder: export(freeze(net, "O2"), str(folder / "net")),
    "MXNet's files": lambda net, x, folder: (imported(net, x, folder), str(folder / "plain"))[1],
}


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("policy", ["float32", "O2"])
@pytest.mark.parametrize("given", GIVEN)
def test_what_may_be_given(given, policy, tmp_path):
    net, x, expected = small()
    frozen = freeze(GIVEN[given](net, x, tmp_path), policy)
    was_low = given in ("frozen, low", "ConvertedModel", "low files")
    close = CLOSE["O2" if was_low else policy]
    assert np.abs(frozen(x).asnumpy() - expected).max() < close * np.abs(expected).max()
    assert {param.dtype for param in frozen.collect_params().values()} == {np.float16 if policy == "O2" else np.float32}


def test_inputs_have_the_order_of_the_call(tmp_path):
    class Second(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return y - 2 * x  # which MXNet lists as data1, data0

    net, x, y = Second(), mx.nd.ones((2,)), mx.nd.zeros((2,))
    net.hybridize()
    for given in (net, (net(x, y), export(net, str(tmp_path / "net"), for_inference=True))[1]):
        assert freeze(given)(x, y).asnumpy().tolist() == [-2, -2]


def test_none_among_the_inputs():
    class Masked(nn.HybridBlock):
        def hybrid_forward(self, F, x, mask, y):
            return x + y if mask is None else x * mask + y

    net, x = Masked(), mx.nd.ones((2,))
    net.hybridize()
    net(x, None, x)
    assert freeze(net)(x, None, x).asnumpy().tolist() == [2, 2]


def test_layers_that_a_backend_has_replaced_are_there_again():
    net, x, _ = small()
    net.hybridize(backend="MKLDNN")
    net(x)
    assert report(freeze(net, "O2")).count == {"float16": 5, "folded": 2, "dropped": 1}


def test_policies_of_blocks_hold():
    net, x, _ = small()
    set_policy(net[4], "float32")
    net.hybridize()
    net(x)
    with mxmp.gluon.precision("float32"):  # a region around the call is none of the net's
        frozen = freeze(net, "O2")
    assert [row.precision for row in report(frozen).rows if row.op == "Convolution"] == ["float16", "float32"]


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_the_policy_of_a_symbol_block_holds(tmp_path):
    net, x, _ = small()
    block = imported(net, x, tmp_path)
    set_policy(block, "float32")
    assert "float16" not in report(freeze(block, "O2")).count


def test_patterns_have_to_match_something():
    for policy, changes in (("O2,name:nothing=float32", {}), (None, {"names": {"nothing": "float32"}})):
        with pytest.raises(PolicyError, match="names: 'nothing' matches no node"):
            freeze(small()[0], policy, **changes)


def test_a_frozen_block_can_be_converted_and_restored(tmp_path):
    net, x, expected = small()
    frozen = freeze(net)
    convert(frozen, "O1")
    files = export(frozen, str(tmp_path / "net"), for_inference=True)
    assert {array.dtype for array in mx.nd.load(files[1]).values()} == {np.float16}
    assert 0 < np.abs(frozen(x).asnumpy() - expected).max() < CLOSE["O2"] * np.abs(expected).max()
    assert report(frozen).count == {"float16": 5}
    restore(frozen)
    np.testing.assert_allclose(frozen(x).asnumpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "flags, expected",
    [({"avx2"}, "float32"), ({"avx512bw"}, "float32"), ({"avx512bw", "avx512_bf16"}, "bfloat16")],
)
def test_the_processors_flags_choose(flags, expected, monkeypatch):
    monkeypatch.setattr(check, "read_processor", lambda: Processor("a processor", frozenset(flags)))
    for net in (small()[0], convert(small()[0], "O1")):
        types = {canonical(param.dtype) for param in freeze(net).collect_params().values()}
        assert types == {expected}
    assert check.fastest_dtype(mx.gpu(0)) == "float16"


def test_several_contexts_give_one():
    net = nn.Dense(3, in_units=4)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    x = mx.nd.ones((2, 4), ctx=mx.cpu(1))
    assert freeze(net).collect_params()[net.weight.name].list_ctx() == [mx.cpu(0)]
    assert difference(freeze(net, ctx=mx.cpu(1))(x), net(x)) == 0


def test_within_another_net():
    net, x, expected = small()
    outer = nn.HybridSequential()
    outer.add(freeze(net), nn.Activation("relu"))
    for hybridized in (False, True):
        outer.hybridize(hybridized)
        np.testing.assert_allclose(outer(x).asnumpy(), np.maximum(expected, 0), atol=1e-5)


def test_a_recorded_call_is_refused_but_within_pause():
    """As a teacher it gives values without gradients, and its statistics stay."""
    frozen, head = freeze(trained(*NETS["resnet18_v1"])), nn.Dense(2, in_units=10)
    head.initialize()
    expected = frozen(IMAGES).asnumpy()
    with autograd.record():
        with pytest.raises(ConvertError, match=r"is frozen, and has no gradients; .* within autograd\.pause"):
            frozen(IMAGES)
        with autograd.pause():
            features = frozen(IMAGES)
        loss = head(features).sum()
    loss.backward()
    np.testing.assert_allclose(head.weight.grad().asnumpy()[0], expected.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(frozen(IMAGES).asnumpy(), expected)


@pytest.mark.parametrize("called", [False, True])
def test_parameters_take_no_other_value(called, tmp_path):
    net, x, _ = small()
    frozen = freeze(net)
    expected, params = frozen(x).asnumpy() if called else None, frozen.collect_params()
    params.save(str(tmp_path / "values"))
    write = next(iter(params.values()))
    for change in (
        lambda: write.set_data(write.data() * 0),
        lambda: params.initialize(force_reinit=True),
        lambda: params.load(str(tmp_path / "values")),
        lambda: params.reset_ctx(mx.cpu(1)),
    ):
        with pytest.raises(ConvertError, match="is of a frozen block, a snapshot"):
            change()
    assert np.array_equal(frozen(x).asnumpy(), expected if called else freeze(net)(x).asnumpy())


class Scored(nn.HybridBlock):
    """In training it gives something else."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        scores = self.scores(x)
        return (scores, scores) if autograd.is_training() else scores


@pytest.mark.parametrize("prepare", [lambda net: convert(net, "O2"), lambda net: net.hybridize(), lambda net: None])
def test_the_network_of_inference_is_frozen_whatever_ran_last(prepare):
    net, x = Scored(), mx.nd.random.normal(shape=(2, 4))
    net.initialize()
    expected = net(x).asnumpy()
    prepare(net)
    with autograd.record():
        net(x)
        frozen = freeze(net, "float32")
    np.testing.assert_allclose(frozen(x).asnumpy(), expected, atol=1e-6)


def test_a_region_around_a_hybridized_call_is_of_that_call():
    net, x, _ = small()
    net.hybridize()
    with mxmp.gluon.precision("float32"):
        net(x)
    assert report(freeze(net, "O1")).count["float16"] > 0


def test_an_outer_net_that_is_hybridized_is_read_in_float32():
    net, x, expected = small()
    outer = nn.HybridSequential()
    outer.add(convert(net, "O1"))
    outer.hybridize()
    outer(x)
    frozen = freeze(outer, "float32")
    assert report(frozen).count.get("folded")
    np.testing.assert_allclose(frozen(x).asnumpy(), expected, atol=1e-5)


class Scaled(nn.Dense):
    def forward(self, x):
        return super().forward(x / 255)


def test_a_forward_of_the_class_itself_is_warned_of():
    net = Scaled(2, in_units=3)
    net.initialize()
    with pytest.warns(UserWarning, match=r"hybrid_forward is frozen, without Scaled\.forward around it"):
        freeze(net)


# ------------------------------------------------------------------ errors


def plain(net):
    outer = gluon.nn.Sequential()
    outer.add(net)
    return outer


def written_past_its_master(net, x):
    convert(net, "O2")
    trainer = mxmp.gluon.Trainer(net, "sgd")
    with autograd.record(), trainer.scale_loss(net(x).sum()) as loss:
        loss.backward()
    trainer.step(1)
    net[7].weight.data()[:] = 7
    return net


def test_files_of_two_models(tmp_path):
    files = [export(small(prefix)[0], str(tmp_path / prefix), for_inference=True) for prefix in ("a", "b")]
    os.replace(files[0][1], files[1][1])
    with pytest.raises(CheckpointError, match=r"b-0000\.params"):
        freeze(files[1])


DENSE = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
ERRORS = {
    "another type": (lambda net, x: 3, {}, ConvertError, "^freeze: found a int; expected a HybridBlock, a model"),
    "a symbol": (lambda net, x: DENSE, {}, ConvertError, "^freeze: found a Symbol; expected a HybridBlock, a model"),
    "half a model": (lambda net, x: (DENSE, {}), {}, ConvertError, "^freeze: found a tuple of 2; expected"),
    "no symbol": (lambda net, x: ("a", {}, {}), {}, ConvertError, "^sym is a str; expected a Symbol"),
    "no values": (lambda net, x: (DENSE, {}, {}), {}, ParamsError, "^arg_params lacks 'fc_weight', 'fc_bias', which the"),
    "no file": (lambda net, x: "nowhere", {}, CheckpointError, "^nowhere-symbol.json: there is no such file"),
    "no graph": (lambda net, x: plain(net), {}, ConvertError, r"\(Sequential\) has no graph of its own; freeze the blocks in it: net"),
    "no block with one": (lambda net, x: gluon.nn.Sequential(), {}, ConvertError, "holds no HybridBlock"),
    "no value": (lambda net, x: nn.Dense(2, prefix="d_"), {}, ConvertError, "^block 'd': parameter 'd_weight' has no value yet; init"),
    "no shape": (lambda net, x: initialized(nn.Dense(2, prefix="d_")), {}, ConvertError, "and run one batch if its shape follows"),
    "not traced": (lambda net, x: Indexing(prefix="i_"), {}, ConvertError, r"^block 'i' \(Indexing\) cannot be traced before its first"),
    "no states": (lambda net, x: initialized(rnn.LSTM(3, input_size=2)), {}, ConvertError, "cannot be traced before its first call"),
    "no GPU": (lambda net, x: net, {"ctx": mx.gpu(7)}, ConvertError, r"^freeze: ctx is gpu\(7\), but MXNet finds \d GPUs here"),
    "policy": (lambda net, x: net, {"policy": "O7"}, PolicyError, "^unknown policy 'O7'"),
    "field": (lambda net, x: net, {"speed": 1}, PolicyError, "^unknown policy field 'speed'"),
    "context": (lambda net, x: net, {"ctx": "gpu"}, ConvertError, r"^freeze: ctx is 'gpu'; expected a context, such as mx.cpu\(\)"),
    "bfloat16 on a GPU": (lambda net, x: net, {"policy": "bf16", "ctx": mx.gpu(0)}, ConvertError, "^block 'net': policy .* no bfloat16 k"),
    "shapes": (lambda net, x: net, {"shapes": {"date": (1,)}}, ConvertError, "^shapes: the symbol has no variable 'date'"),
    "wrong shapes": (lambda net, x: net, {"shapes": {"data": (1, 4, 8, 8)}}, MxmpError, "^block 'net': .*net_conv0_fwd"),
    "a lost master": (written_past_its_master, {}, TrainerError, "net_dense0_weight"),
}  # fmt: skip


class Indexing(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.asnumpy()


def initialized(net):
    net.initialize()
    return net


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    make, options, kind, message = ERRORS[case]
    net, x, _ = small()
    given = make(net, x)
    with pytest.raises(kind, match=message):
        freeze(given, **options)


def test_bfloat16_where_mxnet_does_not_run_it(monkeypatch):
    monkeypatch.setattr(check, "read_processor", lambda: Processor("a processor", frozenset({"avx2"})))
    with pytest.raises(ConvertError, match="^block 'net' computes in bfloat16, which MXNet does not run on this proc"):
        freeze(small()[0], "mixed_bfloat16")


# ------------------------------------------------------------------ export for inference

PLAIN = """
import sys, warnings
import numpy as np
{first}
import mxnet as mx
warnings.simplefilter("ignore")
symbol_file, params_file, images, outputs = sys.argv[1:]
net = mx.gluon.SymbolBlock.imports(symbol_file, ["data"], params_file)
net.hybridize(backend="MKLDNN", static_alloc=True, static_shape=True)
for _ in range(2):
    result = net(mx.nd.array(np.load(images)))
np.save(outputs, result.asnumpy())
"""
# MXNet 1.9.1 imports by itself with numpy below 1.24 and Python below 3.12 alone.
FIRST = "" if sys.version_info < (3, 12) and np.lib.NumpyVersion(np.__version__) < "1.24.0" else "import mxmp"


@pytest.mark.parametrize("name", ["resnet18_v1", "resnet18_v2"])
def test_plain_mxnet_runs_what_is_written(name, tmp_path):
    make, (images,) = NETS[name]
    net = trained(make, [images])
    files = export(net, str(tmp_path / "net"), for_inference=True)
    assert not any(op.startswith("_sg_") for op in ops(mx.sym.load(files[0])))
    np.save(tmp_path / "images.npy", images.asnumpy())
    args = [*files, str(tmp_path / "images.npy"), str(tmp_path / "outputs.npy")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", PLAIN.format(first=FIRST), *args], check=True)
    expected = freeze(net)(images).asnumpy()
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("policy", ["O1", "O2", "float16"])
def test_a_converted_net_is_written_under_its_policy(policy, tmp_path):
    net, x, expected = small()
    convert(net, policy)
    usual = net(x).asnumpy()
    files = export(net, str(tmp_path / "net"), for_inference=True)
    assert not {"BatchNorm", "Dropout"} & set(ops(load_checkpoint(str(tmp_path / "net"), 0).symbol))
    assert {array.dtype for array in mx.nd.load(files[1]).values()} == {np.float16}
    block = convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1]), policy)  # which emulates float16
    assert np.abs(block(x).asnumpy() - expected).max() < 0.005 * np.abs(expected).max()
    np.testing.assert_array_equal(net(x).asnumpy(), usual)
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert np.abs(net.collect_params()["net_batchnorm0_gamma"].grad().asnumpy()).max() > 0


def test_a_frozen_block_is_written_as_it_is(tmp_path):
    net, x, _ = small()
    frozen = freeze(net, "O2")
    export(frozen, str(tmp_path / "frozen"))
    convert(net, "O2")
    export(net, str(tmp_path / "net"), for_inference=True)
    ours, theirs = (load_checkpoint(str(tmp_path / name), 0) for name in ("frozen", "net"))
    assert ours.symbol.tojson(remove_amp_cast=False) == theirs.symbol.tojson(remove_amp_cast=False)
    for name, array in ours.arg_params.items():
        np.testing.assert_array_equal(array.asnumpy(), theirs.arg_params[name].asnumpy())


def test_patterns_of_other_parts_of_a_net_are_no_error(tmp_path):
    """Each part of a plain Block is exported by itself."""
    first, x, _ = small()
    outer = plain(first)
    outer.add(initialized(nn.Dense(2, prefix="last_")))
    convert(outer, "O1,name:last_fwd=float32")
    outer(x)
    export(first, str(tmp_path / "net"), for_inference=True)
    assert "BatchNorm" not in ops(load_checkpoint(str(tmp_path / "net"), 0).symbol)


def test_exports_that_are_refused(tmp_path):
    net, x, _ = small()
    with pytest.raises(ConvertError, match="there is no folder"):
        export(net, str(tmp_path / "missing" / "net"), for_inference=True)
    outer = plain(net)
    with pytest.raises(ConvertError, match=r"\(Sequential\) has no graph of its own; freeze the blocks in it: net"):
        export(outer, str(tmp_path / "net"), for_inference=True)
    convert(outer, "O1")
    with pytest.raises(ConvertError, match="has no graph of its own; export the converted blocks in it: net"):
        export(outer, str(tmp_path / "net"), for_inference=True)
    with pytest.raises(ConvertError, match="parameter 'd_weight' has no value yet"):
        export(initialized(nn.Dense(2, prefix="d_")), str(tmp_path / "net"), for_inference=True)
    assert not list(tmp_path.iterdir())
    restore(outer)
