"""Blocks for inference alone: `freeze`, and `export` of nets for inference."""

import subprocess
import sys
from ctypes.util import find_library

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

import mxmp
from mxmp.errors import ConvertError
from mxmp.gluon import convert, export, freeze, report, restore, set_policy
from mxmp.symbol import convert_model, load_checkpoint, to_graph
from tests.alone import alone
from tests.gluon.nets import Function, recorded, sequence, started
from tests.processors import AMD, AMX, EMULATED, KINDS, NO_BFLOAT16
from tests.values import name_of

HALF = float(np.finfo(np.float16).eps)
CLOSE = {"float32": 2e-5, "O2": 20 * HALF}
"""Largest difference as a share of the largest output: of folding, and of some fifty roundings to float16."""


class Loop(nn.HybridSequential):
    """A convolution in front of a loop; two inputs, outputs nested."""

    def hybrid_forward(self, F, x, state):
        conv, norm, dense = self
        x = F.mean(norm(conv(x)), axis=(2, 3))
        step = lambda data, states: (dense(states[0]) + data, [dense(states[0])])  # noqa: E731
        outputs, states = F.contrib.foreach(step, F.stack(x, x, x, axis=0), [state])
        return outputs, [states[0], x]


IMAGES, STATE = (mx.nd.array(np.random.RandomState(0).normal(size=size)) for size in ((2, 3, 32, 32), (2, 4)))
X = IMAGES[:, :, :8, :8]


@pytest.fixture(autouse=True)
def _float32_by_default(on_processor, request):
    """Pin a kind on which freeze takes float32 where no policy is given; tests in bfloat16 have this machine's own."""
    if request.node.get_closest_marker("bfloat16") is None:
        on_processor(EMULATED)


def small_layers():
    """Return two convolutions with BatchNorm, one with dropout behind it, and a dense layer."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, use_bias=False, in_channels=3), nn.BatchNorm(in_channels=4))
        net.add(nn.Activation("relu"), nn.Dropout(0.5), nn.Conv2D(4, 3, groups=2, in_channels=4))
        net.add(nn.BatchNorm(scale=False, in_channels=4), nn.LeakyReLU(0.1), nn.Dense(3, in_units=64))
    return net


def loop():
    layers = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Dense(4, in_units=4)
    return sequence(*layers, kind=Loop)


def words():
    return sequence(nn.Embedding(20, 8), rnn.LSTM(8, input_size=8), nn.Dense(5, flatten=False, in_units=8))


NETS = {
    "resnet18_v1": (lambda: vision.resnet18_v1(classes=10), [IMAGES]),
    "resnet18_v2": (lambda: vision.resnet18_v2(classes=10), [IMAGES]),
    "mobilenet": (lambda: vision.mobilenet0_25(classes=10), [IMAGES]),
    "lstm": (words, [mx.nd.array([[1, 2], [3, 19], [0, 7]])]),
    "loop": (loop, [IMAGES, STATE]),
}


def trained(make, args):
    """Return a net with random weights, each BatchNorm's statistics near those of its input, as after training."""
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier(magnitude=2))
    net(*args)
    net.apply(prepare_norm)
    recorded(lambda: leaves(net(*args)))
    net.hybridize()
    return called(net, *args)


def prepare_norm(block):
    if isinstance(block, nn.BatchNorm):
        block._kwargs["momentum"] = 0.5  # one batch moves the statistics half-way
        if not block._kwargs["fix_gamma"]:  # else each call of the net sets it to 1
            block.gamma.set_data(mx.nd.random.uniform(0.5, 1.5, shape=block.gamma.shape))
        block.beta.set_data(mx.nd.random.normal(scale=0.2, shape=block.beta.shape))


def small():
    return trained(small_layers, [X])


def called(net, *args):
    net(*(args or [X]))
    return net


def hybridized(net):
    net.hybridize()
    return called(net)


def leaves(outputs):
    return [leaf for each in outputs for leaf in leaves(each)] if isinstance(outputs, (list, tuple)) else [outputs]


def nesting(outputs):
    return [nesting(each) for each in outputs] if isinstance(outputs, (list, tuple)) else None


def difference(outputs, expected):
    """Return the largest difference of outputs as a share of the largest value expected."""
    pairs = zip(leaves(outputs), leaves(expected))
    return max(float(np.abs(a.asnumpy() - b.asnumpy()).max() / np.abs(b.asnumpy()).max()) for a, b in pairs)


def values(net):
    mx.nd.waitall()  # the net's call may still move weights into a layout of oneDNN's, while they are read
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def dtypes(net):
    return {name_of(param.dtype) for param in net.collect_params().values()}


def ops(symbol):
    return {node.op for node in to_graph(symbol).operators()}


# ------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("policy", CLOSE)
@pytest.mark.parametrize("name", NETS)
def test_it_computes_what_the_net_does(name, policy):
    make, args = NETS[name]
    net = trained(make, args)
    expected, before = net(*args), values(net)
    frozen = freeze(net, policy)
    assert isinstance(frozen, gluon.SymbolBlock)
    assert set(frozen._flags) >= {("static_alloc", True), ("static_shape", name != "loop")}
    for _ in range(2):  # kernels and memory are kept
        outputs = frozen(*args)
        assert nesting(outputs) == nesting(expected)
        assert {each.dtype for each in leaves(outputs)} == {np.float32}
        assert difference(outputs, expected) < CLOSE[policy]
    assert ("float32" if policy == "float32" else "float16") in dtypes(frozen)
    frozen.hybridize()
    assert difference(frozen(*args), expected) < CLOSE[policy]
    assert difference(net(*args), expected) == 0
    np.testing.assert_equal(values(net), before)


def test_batch_norm_and_dropout_are_gone_and_weights_are_folded_before_they_are_rounded():
    net = small()
    exact, frozen = values(freeze(net)), freeze(called(convert(net, "O2")), "O2")
    names = [f"net_{layer}_{kind}" for layer in ("conv0", "conv1", "dense0") for kind in ("weight", "bias")]
    np.testing.assert_equal(values(frozen), {name: exact[name].astype(np.float16) for name in names})
    assert {param.grad_req for param in frozen.collect_params().values()} == {"null"}
    assert report(frozen).count == {"float16": 5, "folded": 2, "dropped": 1}
    for size in (2, 5, 1, 5, 16):
        batch = mx.nd.random.normal(shape=(size, *X.shape[1:]))
        assert difference(frozen(batch), net(batch)) < CLOSE["O2"]


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "within another net"])
@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_hook_sees_each_operator_that_onednn_fuses(policy, inside):
    frozen, names = freeze(small(), policy), []
    expected = frozen(X).asnumpy()
    net = sequence(frozen) if inside else frozen
    net.register_op_hook(lambda name, opr, array: names.append(mx.base.py_str(name)))
    np.testing.assert_array_equal(net(X).asnumpy(), expected)
    if mx.runtime.Features().is_enabled("MKLDNN"):
        layers = [name for name in names if name.startswith("sg_mkldnn")]
        assert layers == [f"sg_mkldnn_{layer}_output" for layer in ("conv_act_0", "conv_act_1", "fully_connected_0")]


def test_a_batch_norm_that_cannot_be_folded_stays():
    net = small()
    net[1].running_var.set_data(-mx.nd.ones(4))
    frozen = freeze(net)
    assert report(frozen).count["folded"] == 1
    assert difference(frozen(X), net(X)) < CLOSE["float32"]


def test_float64_runs_without_onednn():
    net = small()
    net.cast("float64")
    net(X.astype("float64"))
    outputs = freeze(net, dtypes={"data": "float64"})(X.astype("float64"))
    assert outputs.dtype == np.float64
    assert difference(outputs, net(X.astype("float64"))) < 1e-12


def test_under_np_arrays():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net, x = started(small_layers()), X.as_np_ndarray()
        net.hybridize()
        net(x)
        for policy in CLOSE:
            outputs = freeze(net, "O1" if policy == "O2" else policy)(x)
            assert isinstance(outputs, mx.np.ndarray)
            assert difference(outputs, net(x)) < CLOSE[policy]


# ------------------------------------------------------------------ what is given


def plain_files(net, folder):
    hybridized(net).export(str(folder / "plain"))
    return str(folder / "plain-symbol.json"), str(folder / "plain-0000.params")


def imported(net, folder):
    symbol_file, params_file = plain_files(net, folder)
    return gluon.SymbolBlock.imports(symbol_file, ["data"], params_file)


def inference_files(net, folder):
    return export(net, str(folder / "net"), for_inference=True)


def loaded(files):
    return load_checkpoint(files[0][: -len("-symbol.json")], 0)


GIVEN = {
    "hybridized": lambda net, folder: hybridized(net),
    "converted": lambda net, folder: called(convert(net, "O2")),
    "converted, not called": lambda net, folder: convert(net, "O1"),
    "converted to float32": lambda net, folder: called(convert(net, "float32")),
    "SymbolBlock": imported,
    "converted SymbolBlock": lambda net, folder: convert(imported(net, folder), "O1"),
    "frozen": lambda net, folder: freeze(net),
    "frozen, low": lambda net, folder: freeze(net, "O2"),
    "model": lambda net, folder: loaded(inference_files(net, folder)),
    "ConvertedModel": lambda net, folder: convert_model(*loaded(inference_files(net, folder)), "O2"),
    "low model": lambda net, folder: loaded(export(freeze(net, "O2"), str(folder / "net"))),
    "MXNet's model": lambda net, folder: loaded(plain_files(net, folder)),
}


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("given", GIVEN)
def test_what_may_be_given(given, tmp_path):
    net = small()
    expected = net(X)
    was_low = given in ("frozen, low", "ConvertedModel", "low model")
    argument = GIVEN[given](net, tmp_path)
    for policy in CLOSE:
        frozen = freeze(argument, policy)
        assert difference(frozen(X), expected) < CLOSE["O2" if was_low else policy]
        assert dtypes(frozen) == {"float16" if policy == "O2" else "float32"}


def test_inputs_have_the_order_of_the_call(tmp_path):
    net = Function(lambda net, F, x, y: y - 2 * x)  # MXNet lists its inputs as data1, data0
    masked = Function(lambda net, F, x, mask, y: x + y if mask is None else x * mask + y)
    x, y = mx.nd.ones((2,)), mx.nd.zeros((2,))
    net.hybridize()
    masked.hybridize()
    assert net(x, y).asnumpy().tolist() == freeze(net)(x, y).asnumpy().tolist() == [-2, -2]
    assert freeze(loaded(inference_files(net, tmp_path)))(x, y).asnumpy().tolist() == [-2, -2]
    masked(x, None, x)
    assert freeze(masked)(x, None, x).asnumpy().tolist() == [2, 2]


def with_mask(net, F, x, mask=None):
    """A layer with an optional mask."""
    return net.dense(x) if mask is None else F.broadcast_mul(net.dense(x), mask)


@pytest.mark.parametrize("given", [(STATE,), (STATE, STATE[:, :3])], ids=["without", "with"])
def test_an_optional_input_is_that_of_the_last_call_of_a_hybridized_net_as_the_error_says(given):
    net = started(Function(with_mask, dense=nn.Dense(3, in_units=4)))
    others = [each for each in ((STATE,), (STATE, STATE[:, :3])) if len(each) != len(given)]
    net(*others[0])
    if len(given) == 2:  # of an eager call nothing is known
        with pytest.raises(ConvertError, match=r"with the inputs data; this call gives 2.* Hybridize the net"):
            freeze(net, "float32")(*given)
    net.hybridize()
    net(*others[0])
    with pytest.raises(ConvertError, match=rf"with the inputs data.*; this call gives {len(given)}.* Hybridize the net"):
        freeze(net, "float32")(*given)
    net.hybridize()
    expected = net(*given)
    np.testing.assert_allclose(freeze(net, "float32")(*given).asnumpy(), expected.asnumpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_policies_of_blocks_hold_and_regions_around_the_call_do_not(tmp_path):
    net = small()
    set_policy(net[4], "float32")
    with mxmp.gluon.precision("float32"):
        frozen = freeze(hybridized(net), "O2")
    assert [row.precision for row in report(frozen).rows if row.op == "Convolution"] == ["float16", "float32"]
    block = imported(net, tmp_path)
    set_policy(block, "float32")
    assert "float16" not in report(freeze(block, "O2")).count


def test_a_frozen_block_can_be_converted_and_restored(tmp_path):
    net = small()
    frozen = freeze(net)
    convert(frozen, "O1")
    files = inference_files(frozen, tmp_path)
    assert {array.dtype for array in mx.nd.load(files[1]).values()} == {np.float16}
    assert 0 < difference(frozen(X), net(X)) < CLOSE["O2"]
    assert report(frozen).count == {"float16": 5}
    assert difference(restore(frozen)(X), net(X)) < CLOSE["float32"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_kind_of_processor_chooses(kind, on_processor):
    on_processor(kind)
    for net in (small(), called(convert(small(), "O1"))):
        assert dtypes(freeze(net)) == dtypes(freeze(net, "auto")) == {"bfloat16" if kind in (AMD, AMX) else "float32"}
    if kind == NO_BFLOAT16:
        with pytest.raises(ConvertError, match="^block 'net' computes in bfloat16, which MXNet does not run on this"):
            freeze(small(), "mixed_bfloat16")


def test_several_contexts_give_one():
    net, x = nn.Dense(3, in_units=4), mx.nd.ones((2, 4), ctx=mx.cpu(1))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    net.hybridize()
    net(x)
    assert freeze(net).collect_params()[net.weight.name].list_ctx() == [mx.cpu(0)]
    assert difference(freeze(net, ctx=mx.cpu(1))(x), net(x)) == 0


def test_within_another_net():
    net = small()
    outer = sequence(freeze(net), nn.Activation("tanh"))
    for hybridize in (False, True):
        outer.hybridize(hybridize)
        assert difference(outer(X), net(X).tanh()) < CLOSE["float32"]


def test_a_recorded_call_is_refused_but_within_pause():
    """As a teacher it gives values without gradients, and its statistics stay."""
    frozen, head = freeze(small()), started(nn.Dense(2, in_units=3))
    expected = frozen(X).asnumpy()
    with autograd.record():
        with pytest.raises(ConvertError, match=r"is frozen, and has no gradients; .* within autograd\.pause"):
            frozen(X)
        with autograd.pause():
            features = frozen(X)
        head(features).backward()
    np.testing.assert_allclose(head.weight.grad().asnumpy()[0], expected.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(frozen(X).asnumpy(), expected)


@pytest.mark.parametrize("call", [False, True])
def test_parameters_take_no_other_value(call, tmp_path):
    net = small()
    frozen = freeze(net)
    params = (called(frozen) if call else frozen).collect_params()
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
    assert difference(frozen(X), freeze(net)(X)) == 0


def scored(net, F, x):
    """In training it gives something else."""
    scores = net.dense(x)
    return (scores, scores) if autograd.is_training() else scores


@pytest.mark.parametrize("prepare", [lambda net: convert(net, "O2"), lambda net: net.hybridize(), lambda net: None])
def test_the_network_of_inference_is_frozen_whatever_ran_last(prepare):
    net, x = started(Function(scored, dense=nn.Dense(3, in_units=4))), mx.nd.random.normal(shape=(2, 4))
    expected = net(x)
    prepare(net)
    with autograd.record():
        net(x)
        frozen = freeze(net, "float32")
    assert difference(frozen(x), expected) < CLOSE["float32"]


def test_calls_under_another_precision_leave_no_trace():
    """Neither a region around a hybridized call, nor a hybridized net around the converted one."""
    net = small()
    net.hybridize()
    with mxmp.gluon.precision("float32"):
        expected = net(X)
    assert report(freeze(net, "O1")).count["float16"] > 0
    frozen = freeze(hybridized(sequence(convert(net, "O1"))), "float32")
    assert report(frozen).count.get("folded")
    assert difference(frozen(X), expected) < CLOSE["float32"]


# ------------------------------------------------------------------ export for inference

@pytest.mark.parametrize("policy", ["O1", "O2", "float16"])
def test_a_converted_net_is_written_under_its_policy(policy, tmp_path):
    net = small()
    expected = net(X)
    usual = convert(net, policy)(X)
    files = inference_files(net, tmp_path)
    assert not {"BatchNorm", "Dropout"} & ops(load_checkpoint(str(tmp_path / "net"), 0).symbol)
    assert {array.dtype for array in mx.nd.load(files[1]).values()} == {np.float16}
    block = convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1]), policy)  # which emulates float16
    assert difference(block(X), expected) < 0.005
    assert difference(net(X), usual) == 0
    recorded(net, X)
    assert np.abs(net[1].gamma.grad().asnumpy()).max() > 0


def partitioned(net, folder):
    """Return what the guide makes of the files of a net, in plain MXNet."""
    files = inference_files(net, folder)
    block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    block.hybridize(backend="MKLDNN", static_alloc=True, static_shape=True)
    return block


def residual(function):
    """Return a net of a sum of a convolution behind something that reads others."""
    layers = {
        "stem": nn.Conv2D(8, 3, padding=1, in_channels=3),
        "deep": nn.Conv2D(8, 3, padding=1, in_channels=8),
        "short": nn.Conv2D(8, 1, in_channels=8),
        "half": nn.Conv2D(4, 1, in_channels=8),
        "squeeze": nn.Conv2D(2, 1, in_channels=8),
        "excite": nn.Conv2D(8, 1, in_channels=2),
    }
    return Function(lambda net, F, x: function(net, F, F.relu(net.stem(x))), **layers)


def excited(net, F, x):
    mean = F.contrib.AdaptiveAvgPooling2D(x, output_size=1)
    return F.broadcast_mul(x, F.sigmoid(net.excite(F.relu(net.squeeze(mean)))))


RESIDUALS = {
    "squeeze and excitation": lambda net, F, x: F.relu(excited(net, F, net.deep(x)) + net.short(x)),
    "squeeze and excitation, last": lambda net, F, x: F.relu(net.short(x) + excited(net, F, net.deep(x))),
    "a slice of channels": lambda net, F, x: F.relu(
        F.slice_axis(net.deep(x), axis=1, begin=4, end=8) + net.half(F.relu(net.short(x)))
    ),
    "two convolutions": lambda net, F, x: F.relu(net.deep(x) + net.short(x)),
    "itself": lambda net, F, x: x + net.deep(x),
}


@pytest.mark.filterwarnings("ignore:.* not used by any computation")
@pytest.mark.parametrize("policy", ["O0", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("name", RESIDUALS)
def test_the_line_of_the_guide_runs_what_is_written(name, policy, tmp_path):
    """MXNet's partition of a sum behind a convolution mixes up the shapes of arguments where it changes their order."""
    net = started(residual(RESIDUALS[name]))
    net.hybridize()
    expected = net(X).asnumpy()
    convert(net, policy)(X)
    block, bound = partitioned(net, tmp_path), (1e-5 if policy == "O0" else 2**-5) * abs(expected).max()
    for images in (X, X[:1], X):
        np.testing.assert_allclose(block(images).asnumpy(), expected[: len(images)], atol=bound)


SLICES = {
    "half of the channels": ((None, 12), (None, 24)),
    "from the end": ((0, -12), (2, None)),
    "pixels too": ((None, 4, 1), (None, 15, 5)),
    "pixels alone": ((None, None, 1), (None, None, 5)),
}


@pytest.mark.parametrize("policy", ["O0", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("name", SLICES)
def test_slices_of_the_channels_of_a_fused_layer(name, policy, tmp_path):
    """oneDNN's slice cannot cut the blocks of channels that its convolutions write."""
    begin, end = SLICES[name]
    net = started(sequence(nn.Conv2D(24, 3, in_channels=3, padding=1), nn.HybridLambda(lambda F, x: F.clip(x, 0, 6))))
    net.add(nn.HybridLambda(lambda F, x: F.slice(x, begin=begin, end=end)))
    convert(net, policy)
    net.hybridize()
    cut = (*(slice(*pair) for pair in zip(begin, end)),)
    expected = np.maximum(net[0](X).asnumpy(), 0)[cut]
    net(X)
    bound = (1e-5 if policy == "O0" else 2**-6) * abs(expected).max()
    for each in (partitioned(net, tmp_path), freeze(net, policy)):
        np.testing.assert_allclose(each(X).asnumpy(), expected, atol=bound)


def test_a_frozen_block_is_written_as_it_is(tmp_path):
    net = small()
    export(freeze(net, "O2"), str(tmp_path / "frozen"))
    inference_files(called(convert(net, "O2")), tmp_path)
    ours, theirs = (load_checkpoint(str(tmp_path / name), 0) for name in ("frozen", "net"))
    assert ours.symbol.tojson(remove_amp_cast=False) == theirs.symbol.tojson(remove_amp_cast=False)
    for name, array in ours.arg_params.items():
        np.testing.assert_array_equal(array.asnumpy(), theirs.arg_params[name].asnumpy())


def test_patterns_of_other_parts_of_a_net_are_no_error(tmp_path):
    """Each part of a plain Block is exported by itself."""
    outer = sequence(small(), started(nn.Dense(2, prefix="last_")), kind=nn.Sequential)
    called(convert(outer, "O1,name:last_fwd=float32"))
    inference_files(outer[0], tmp_path)
    assert "BatchNorm" not in ops(load_checkpoint(str(tmp_path / "net"), 0).symbol)


# ---------------------------------------------------------------------- memory


@pytest.fixture
def checked(monkeypatch):
    """Let new processes check each block of memory that they free."""
    library = find_library("c_malloc_debug")
    if library is None:
        pytest.skip("no libc_malloc_debug, which glibc has since 2.34")
    for name, value in {"LD_PRELOAD": library, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}.items():
        monkeypatch.setenv(name, value)


def infer_by_mobilenets():
    for name in ("mobilenet0.25", "mobilenetv2_0.25"):  # of 8, 16, 24 channels
        net = vision.get_model(name, classes=10)
        net.initialize()
        net.hybridize()
        net(mx.nd.ones((1, 3, 32, 32)))
        block = freeze(net, "mixed_bfloat16")
        for batch, size in ((2, 64), (1, 32)):  # memory and kernels anew
            block(mx.nd.ones((batch, 3, size, size))).wait_to_read()
        del net, block


@pytest.mark.bfloat16
def test_frozen_mobilenets_write_within_their_memory(checked):
    alone(infer_by_mobilenets)


WRITES_BEYOND = """
import ctypes
import numpy as np
array = np.ones(1000)
ctypes.memset(array.ctypes.data + array.nbytes, 1, 1)
del array
"""


def test_a_write_beyond_an_array_is_seen(checked):
    """Else the test above proves nothing."""
    done = subprocess.run([sys.executable, "-c", WRITES_BEYOND], stderr=subprocess.PIPE, text=True)
    assert "free(): invalid pointer" in done.stderr
