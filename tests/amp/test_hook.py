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
from mxmp.errors import ConvertError
from mxmp.gluon import conversion
from tests.amp.nets import IMAGES, images
from tests.amp.scenarios import X, dense

LOW = {"Convolution": "float16", "BatchNorm": "float16", "Activation": "float16", "FullyConnected": "float16"}


@pytest.fixture(autouse=True)
def undo():
    yield
    amp.disable()


def run(net, x=IMAGES):
    return net(x).asnumpy()


def precisions(net):
    return {row.op: row.precision for row in mxmp.gluon.report(net).rows}


def is_converted(net):
    try:
        return bool(precisions(net))
    except ConvertError:
        return False


def test_init_gives_what_convert_gives():
    net, float32 = images()
    before = dict(vars(gluon.HybridBlock))
    amp.init()
    amp.init()
    mixed = run(net)
    by_hand = run(mxmp.gluon.convert(net, "O1"))
    amp.disable()
    amp.disable()
    np.testing.assert_array_equal(mixed, by_hand)
    np.testing.assert_array_equal(mixed, run(net))  # converted by hand, it stays so
    assert (mixed != float32).any() and dict(vars(gluon.HybridBlock)) == before


@pytest.mark.parametrize(
    "arguments, expected",
    [
        pytest.param((mxmp.dtypes.NUMPY_BFLOAT16,), {"Convolution": "bfloat16"}, marks=pytest.mark.bfloat16),
        (
            ("float16", ["FullyConnected", "BatchNorm"], [("Activation", "act_type", ["relu"])], ["Flatten"]),
            {**LOW, "Convolution": "float32", "Activation": "float32"},
        ),
        (("float16", ["Convolution", "RNN"], [("Activation", "act_type", ["elu"])], ["topk"]), {**LOW, "FullyConnected": "float32"}),
    ],
    ids=["bfloat16", "lists", "operators that the net lacks"],
)
def test_the_arguments_decide(arguments, expected):
    net, _ = images()
    amp.init(*arguments)
    run(net)
    assert expected.items() <= precisions(net).items()


def test_nets_run_as_written_until_they_are_hybridized():
    amp.init()
    net, float32 = images(hybridize=False)
    np.testing.assert_array_equal(run(net), float32)
    net.hybridize()
    mixed = run(net)
    assert (mixed != float32).any()
    for again in ({"static_alloc": True, "static_shape": True}, {"active": False}):
        net.hybridize(**again)  # a converted net stays one, as by gluon.convert
        np.testing.assert_array_equal(run(net), mixed)
    amp.disable()
    np.testing.assert_array_equal(run(net), float32)


def test_a_part_that_ran_alone_becomes_a_part_of_the_whole():
    net, _ = images()
    amp.init()
    for called in (net[0], net, net[0]):
        run(called)
    assert precisions(net) == LOW
    amp.disable()
    assert not is_converted(net) and not is_converted(net[0])


@pytest.mark.parametrize("part", [False, True], ids=["net", "part of it"])
def test_nets_converted_by_hand_stay_as_they_are(part):
    net, _ = images()
    chosen = net[3] if part else net
    mxmp.gluon.convert(chosen, "O1,op:FullyConnected=float32")
    expected = run(net)
    amp.init()
    np.testing.assert_array_equal(run(net), expected)
    amp.disable()
    np.testing.assert_array_equal(run(net), expected)
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
    run(net, mx.nd.array(X))
    assert is_converted(net.first) and is_converted(net.second)


def test_nets_are_not_kept_alive():
    amp.init()
    net, _ = images()
    run(net)
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None


def test_threads_that_call_one_net_at_once():
    net, float32 = images()
    amp.init()
    outputs = []
    threads = [threading.Thread(target=lambda: outputs.append(run(net))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 3 and (outputs[0] != float32).any()
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


@pytest.mark.parametrize("way, rtol", [("O1", 1e-5), ("O2", 2.0**-8), ("init", 1e-5)])
def test_disable_casts_runs_converted_nets_in_float32(way, rtol):
    """O2's weights stay as they are stored, rounded to float16; else a graph, which fuses, rounds otherwise."""
    net, float32 = images()
    amp.init() if way == "init" else mxmp.gluon.convert(net, way)
    mixed = run(net)
    for _ in range(2):
        with pytest.raises(KeyError), amp.disable_casts():
            wide = run(net)
            raise KeyError
        np.testing.assert_allclose(wide, float32, rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(run(net), mixed)
    assert (wide != mixed).any()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_net_that_is_not_hybridized_is_warned_of_once(by_hand, caplog):
    amp.init()
    net = dense("net")
    if by_hand:
        mxmp.gluon.convert(net, "O1")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    amp.init_trainer(trainer, 8)
    for _ in range(2):
        with autograd.record(), amp.scale_loss(net(mx.nd.array(X)).sum(), trainer) as scaled:
            scaled.backward()
        trainer.step(1)
    assert caplog.text.count("amp.init has converted no net so far") == (not by_hand)


@pytest.mark.parametrize("fix", [mxmp.gluon.freeze, lambda net: mxmp.gluon.convert(net, "float32")])
def test_a_net_that_is_frozen_or_float32_by_name_stays_so(fix):
    net, float32 = images()
    net = fix(net)
    run(net)
    amp.init()
    np.testing.assert_allclose(run(net), float32, atol=1e-6)
    amp.disable()
    assert "float16" not in precisions(net).values()


def test_a_thread_that_calls_a_net_while_another_converts_it_waits(monkeypatch):
    net, float32 = images()
    outputs, thread = [], threading.Thread(target=lambda: outputs.append(run(net)))
    note_policy = conversion.note_policy

    def midway(*args):
        thread.start()
        thread.join(0.5)
        note_policy(*args)

    monkeypatch.setattr(conversion, "note_policy", midway)
    amp.init()
    converted = run(net)
    thread.join()
    np.testing.assert_array_equal(outputs, [converted])
    assert (converted != float32).any()
