"""init, disable and disable_casts: which nets run in mixed precision, and when."""

import gc
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from mxmp.errors import TrainerError
from tests.amp.nets import IMAGES, images
from tests.amp.scenarios import X, dense
from tests.perceptron import policy_of

LOW = {"Convolution": "float16", "BatchNorm": "float16", "Activation": "float16", "FullyConnected": "float16"}


@pytest.fixture(autouse=True)
def undo():
    yield
    amp.disable()


def run(net, x=IMAGES):
    return net(x).asnumpy()


def precisions(net):
    return {row.op: row.precision for row in mxmp.gluon.report(net).rows}


@pytest.mark.behaviour(53)
def test_init_converts_nets_that_are_hybridized_as_convert_does_until_disable():
    before = dict(vars(gluon.HybridBlock))
    amp.init()
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
    amp.disable()
    np.testing.assert_array_equal(run(net), float32)
    assert dict(vars(gluon.HybridBlock)) == before
    np.testing.assert_array_equal(run(mxmp.gluon.convert(net, "O1")), mixed)


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


def test_a_part_that_ran_alone_becomes_a_part_of_the_whole():
    net, _ = images()
    amp.init()
    for called in (net[0], net, net[0]):
        run(called)
    assert precisions(net) == LOW
    amp.disable()
    assert policy_of(net) is policy_of(net[0]) is None


def part_by_hand(net):
    mxmp.gluon.convert(net[3], "O1,op:FullyConnected=float32")
    return net


BY_HAND = {
    "converted": lambda net: mxmp.gluon.convert(net, "O1,op:FullyConnected=float32"),
    "a part of it converted": part_by_hand,
    "frozen": mxmp.gluon.freeze,
    "float32 by name": lambda net: mxmp.gluon.convert(net, "float32"),
}


@pytest.mark.parametrize("prepare", BY_HAND.values(), ids=BY_HAND.keys())
def test_nets_prepared_by_hand_stay_as_they_are(prepare):
    net = prepare(images()[0])
    expected = run(net)
    amp.init()
    np.testing.assert_array_equal(run(net), expected)
    amp.disable()
    np.testing.assert_array_equal(run(net), expected)


def test_a_net_that_is_converted_by_hand_while_init_holds_stays_so():
    net, _ = images()
    amp.init()
    mixed = run(net)
    mxmp.gluon.convert(net, "O1")
    amp.disable()
    np.testing.assert_array_equal(run(net), mixed)


def test_nets_are_not_kept_alive():
    amp.init()
    net, _ = images()
    run(net)
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("way, rtol", [("init", 1e-5), ("O2", 2.0**-8)])
def test_disable_casts_runs_converted_nets_in_float32(way, rtol):
    net, float32 = images()
    amp.init() if way == "init" else mxmp.gluon.convert(net, way)
    mixed = run(net)
    with pytest.raises(KeyError), amp.disable_casts():
        wide = run(net)
        raise KeyError
    # O2's weights stay as they are stored, rounded to float16; else a graph, which fuses, rounds otherwise.
    np.testing.assert_allclose(wide, float32, rtol=rtol, atol=rtol)
    assert (wide != mixed).any()
    np.testing.assert_array_equal(run(net), mixed)


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


@pytest.mark.parametrize("contexts", [1, 2])
def test_states_are_loaded_after_init_trainer_as_the_error_says(contexts, tmp_path):
    """GluonCV's train_recognizer loads them before."""

    def made(**options):
        net = gluon.nn.Dense(2, in_units=3, prefix="net_")
        net.initialize(ctx=[mx.cpu(number) for number in range(contexts)])
        return gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.5}, **options)

    before, file = gluon.Trainer.load_states, str(tmp_path / "net.states")
    amp.init()
    made(update_on_kvstore=False).save_states(str(tmp_path / "mxnet.states"))
    made(update_on_kvstore=False).load_states(str(tmp_path / "mxnet.states"))  # those of MXNet as before
    trainer = made()
    amp.init_trainer(trainer, 512)
    trainer.set_learning_rate(0.25)
    trainer.save_states(file)
    trainer = made()
    with pytest.raises(TrainerError, match=r"net\.states: a trainer of mxmp.*amp\.init_trainer\(trainer\) before"):
        trainer.load_states(file)
    amp.init_trainer(trainer)
    trainer.load_states(file)
    assert trainer.loss_scale.value == 512 and trainer.learning_rate == 0.25
    amp.disable()
    assert gluon.Trainer.load_states is before


def test_an_eager_operator_that_meets_a_net_that_was_cast_says_why():
    """As GluonCV's targets of Faster R-CNN: contrib.amp casts the inputs of eager operators, mxmp does not."""
    before = gluon.Block.__call__
    amp.init()
    net = gluon.nn.Dense(2)
    net.initialize()
    net.cast("float16")
    with pytest.raises(amp.AmpError, match=r"two dtypes.*net\.cast\('float16'\).*mxmp\.gluon\.cast\(net, 'float16'\)"):
        net(mx.nd.ones((2, 3)))
    with pytest.raises(mx.MXNetError, match="broadcast"):  # other errors stay as they are
        gluon.nn.Lambda(lambda x: x + mx.nd.ones((7, 7)))(mx.nd.ones((2, 2)))
    amp.disable()
    assert gluon.Block.__call__ is before
