"""init, disable and disable_casts: which nets run in mixed precision, and when."""

from __future__ import annotations

import gc
import threading
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.gluon.lookup import conversion_of
from tests.amp.scenarios import X, dense


@pytest.fixture(autouse=True)
def undo():
    yield
    amp.disable()


def chain(prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Activation("relu"), nn.Dense(4))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier(rnd_type="gaussian"))
    return net


def images():
    return mx.nd.array(np.random.RandomState(0).rand(2, 2, 6, 6))


def precisions(net):
    return {row.op: row.precision for row in mxmp.gluon.report(net).rows}


def is_converted(net):
    return conversion_of(net) is not None


def test_init_gives_what_convert_gives():
    net, x = chain(), images()
    net(x)  # finishes initialization
    mxmp.gluon.convert(net, "O1")
    expected = net(x).asnumpy()
    mxmp.gluon.restore(net)
    net.hybridize()
    float32 = net(x).asnumpy()
    amp.init()
    np.testing.assert_array_equal(net(x).asnumpy(), expected)
    assert (expected != float32).any()


@pytest.mark.bfloat16
def test_bfloat16():
    net = chain()
    net.hybridize()
    amp.init(mxmp.dtypes.NUMPY_BFLOAT16)
    net(images())
    assert precisions(net)["Convolution"] == "bfloat16"


def test_lists_of_operators():
    amp.init("float16", ["FullyConnected", "BatchNorm"], [("Activation", "act_type", ["relu"])], ["Flatten"])
    net = chain()
    net.hybridize()
    net(images())
    expected = {"Convolution": "float32", "BatchNorm": "float16", "Activation": "float32", "FullyConnected": "float16"}
    assert precisions(net) == expected


def test_operators_in_the_list_that_a_net_lacks_are_no_error():
    amp.init("float16", ["FullyConnected", "RNN"], [("LeakyReLU", "act_type", ["elu"])], ["topk"])
    net = dense("net")
    net.hybridize()
    net(mx.nd.array(X))
    assert precisions(net) == {"FullyConnected": "float16"}


def test_nets_that_are_not_hybridized_run_as_written():
    amp.init()
    net, x = dense("net"), mx.nd.array(X)
    before = net(x).asnumpy()
    assert not is_converted(net)
    net.hybridize()
    mixed = net(x).asnumpy()
    assert (mixed != before).any() and is_converted(net)
    net.hybridize(False)  # a converted net is one until disable, as by gluon.convert
    np.testing.assert_array_equal(net(x).asnumpy(), mixed)
    amp.disable()
    np.testing.assert_array_equal(net(x).asnumpy(), before)


def test_hybridizing_again_keeps_the_precision():
    amp.init()
    net, x = dense("net"), mx.nd.array(X)
    net.hybridize()
    before = net(x).asnumpy()
    net.hybridize(static_alloc=True, static_shape=True)
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    assert is_converted(net)


def test_a_part_that_ran_alone_becomes_a_part_of_the_whole():
    net, x = chain(), images()
    net.hybridize()
    amp.init()
    net[0](x)
    net(x)
    net[0](x)
    assert precisions(net)["FullyConnected"] == "float16"
    amp.disable()
    assert not is_converted(net) and not is_converted(net[0])


@pytest.mark.parametrize("part", [False, True], ids=["net", "part of it"])
def test_what_was_converted_by_hand_stays_as_it_is(part):
    net, x = chain(), images()
    net(x)
    net.hybridize()
    chosen = net[3] if part else net
    mxmp.gluon.convert(chosen, "O1,op:FullyConnected=float32")
    expected = net(x).asnumpy()
    amp.init()
    np.testing.assert_array_equal(net(x).asnumpy(), expected)
    assert precisions(chosen)["FullyConnected"] == "float32"
    assert is_converted(net) != part
    amp.disable()
    assert is_converted(chosen)


def test_blocks_in_a_plain_block_are_converted_each():
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            self.first, self.second = dense("first"), nn.Dense(2, in_units=2)
            self.second.initialize()

        def forward(self, x):
            return self.second(self.first(x))

    net = Plain()
    net.hybridize()
    amp.init()
    net(mx.nd.array(X))
    assert is_converted(net.first) and is_converted(net.second)


def test_image_transforms_give_what_they_gave():
    transforms = gluon.data.vision.transforms
    chained = transforms.Compose([transforms.Resize(8), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
    image = mx.nd.array(np.random.RandomState(0).randint(0, 256, (10, 12, 3)), dtype="uint8")
    before = chained(image).asnumpy()
    amp.init()
    np.testing.assert_array_equal(chained(image).asnumpy(), before)


def test_init_twice_and_disable_twice_are_no_error():
    before = gluon.HybridBlock._call_cached_op
    amp.init()
    amp.init()
    amp.disable()
    assert gluon.HybridBlock._call_cached_op is before
    amp.disable()


def test_nets_are_not_kept_alive():
    amp.init()
    net = dense("net")
    net.hybridize()
    net(mx.nd.array(X)).wait_to_read()
    found = weakref.ref(net)
    del net
    gc.collect()
    assert found() is None


def test_threads_that_call_one_net_at_once():
    amp.init()
    nets = [dense(f"net{i}") for i in range(3)]
    expected = [net(mx.nd.array(X)).asnumpy() for net in nets]
    for net in nets:
        net.hybridize()
    found = {}

    def run(number):
        found[number] = nets[number](mx.nd.array(X)).asnumpy()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, value in enumerate(expected):
        np.testing.assert_allclose(found[number], value, rtol=2e-3)
        assert is_converted(nets[number])


@pytest.mark.parametrize("way", ["O1", "O2", "init"])
def test_disable_casts_runs_converted_nets_in_float32(way):
    net, x = chain(), images()
    float32 = net(x).asnumpy()
    if way == "init":
        net.hybridize()
        amp.init()
    else:
        mxmp.gluon.convert(net, way)
    mixed = net(x).asnumpy()
    for _ in range(2):
        with amp.disable_casts():
            wide = net(x).asnumpy()
        # O2's weights stay as they are stored, rounded to float16; a graph fuses.
        np.testing.assert_allclose(wide, float32, rtol=2**-8 if way == "O2" else 1e-5, atol=2**-8 if way == "O2" else 1e-6)
        assert (wide != mixed).any()
        np.testing.assert_array_equal(net(x).asnumpy(), mixed)


def test_a_net_that_init_converted_can_be_converted_by_hand():
    net, x = chain(), images()
    net.hybridize()
    amp.init()
    net(x)
    mxmp.gluon.convert(net, "O2")
    expected = net(x).asnumpy()
    amp.disable()
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("float32",), "target_dtype='float32': expected float16 or bfloat16"),
        (("fp61",), "target_dtype: unknown dtype 'fp61'"),
        (("float16", "FullyConnected"), "target_precision_ops is a str; expected a list"),
        (("float16", ["FullyConected"]), "no operator 'FullyConected'; the nearest are FullyConnected"),
        (("float16", [1]), "target_precision_ops: MXNet has no operator 1"),
        (("float16", None, ["Activation"]), "'Activation' is no .operator, attribute, list of values."),
        (("float16", None, [("Activation", "act_type", "relu")]), "is no .operator, attribute, list of values."),
        (("float16", ["exp"], None, ["exp"]), "'exp' is in both target_precision_ops and fp32_ops; keep it in one"),
        (("float16", ["concat"], None, ["Concat"]), "'Concat' is in both"),
        (("float16", None, [("exp", "x", ["1"])], ["exp"]), "'exp' is in both fp32_ops and conditional_fp32_ops"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(amp.AmpError, match=message):
        amp.init(*arguments)
    assert gluon.HybridBlock._call_cached_op.__module__ == "mxnet.gluon.block"


def test_a_net_that_is_not_hybridized_is_warned_of(caplog):
    amp.init()
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer, 8)
    for _ in range(2):
        with autograd.record(), amp.scale_loss(net(mx.nd.ones((2, 3))).sum(), trainer) as scaled:
            scaled.backward()
        trainer.step(1)
    assert caplog.text.count("amp.init has converted no net so far") == 1


def test_a_net_that_was_converted_by_hand_is_not_warned_of(caplog):
    amp.init()
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    mxmp.gluon.convert(net, "O1")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer, 8)
    with autograd.record(), amp.scale_loss(net(mx.nd.ones((2, 3))).sum(), trainer) as scaled:
        scaled.backward()
    assert "amp.init has converted no net so far" not in caplog.text


class _Residual(gluon.Block):
    """A net, and what runs eagerly around it."""

    def __init__(self, *layers):
        super().__init__()
        with self.name_scope():
            self.net = nn.HybridSequential()
            self.net.add(*layers)

    def forward(self, x):
        return self.net(x) + x


def residual(*layers):
    block = _Residual(*layers)
    block.initialize()
    return block


def test_a_net_that_mxmp_cast_meets_eager_operators():
    amp.init()
    block, x = residual(nn.Dense(3, in_units=3)), mx.nd.array(X)
    expected = block(x).asnumpy()
    mxmp.gluon.cast(block.net, "float16")
    np.testing.assert_allclose(block(x).asnumpy(), expected, rtol=2**-9)
