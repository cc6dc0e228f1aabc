"""compare_speed: what runs, in inference and training, of which networks and batches; the network stays as it is."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import mxmp
from mxmp.tune import compare_speed
from tests.diagnose.nets import state
from tests.freeze import freeze as frozen_values
from tests.processors import NO_BFLOAT16
from tests.tune.networks import WithMask, convnet, imported, make_module

IMAGES, LABELS = mx.nd.random.uniform(shape=(2, 3, 8, 8)), mx.nd.array([0, 1])
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss()
SHORT = {"seconds": 1e-3, "progress": False}


def test_the_real_clock_runs_and_the_processor_is_told(on_processor):
    on_processor(NO_BFLOAT16)
    found = compare_speed(convnet(), [IMAGES], **SHORT)
    assert [row.policy for row in found.rows] == ["float32"] and found.rows[0].seconds > 0
    assert (found.kind, found.amx) == ("no bfloat16", False) and "'auto' takes float32" in found.notes[0]
    assert "of float32's time: the ratio within a round, the median of them" in " ".join(str(found).split())
    row = compare_speed(convnet(), [IMAGES], ["float32", "mixed_bfloat16"], **SHORT).rows[1]
    assert row.seconds is row.ratio is None and "bfloat16" in row.failure and row.verdict == ""


# ------------------------------------------------------------------ what runs


class Counted(mx.optimizer.SGD):
    """Counts the updates of weights."""

    updates = 0

    def update(self, index, weight, grad, state):
        type(self).updates += len(index) if isinstance(index, (list, tuple)) else 1  # SGD takes several at once.
        super().update(index, weight, grad, state)

    update_multi_precision = update


mx.optimizer.Optimizer.register(Counted)


@pytest.mark.parametrize("loss", [None, SOFTMAX], ids=["inference", "training"])
@pytest.mark.parametrize("policy", [None, "O2"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_copies_of_a_net_run_and_the_net_stays(hybrid, policy, loss):
    net = convnet()
    net.hybridize(hybrid)
    net(IMAGES)
    if policy:
        mxmp.gluon.convert(net, policy)
    with autograd.record():
        net(IMAGES).sum().backward()
    before = state(net)
    found = compare_speed(net, [(IMAGES, LABELS)], ["float32", "O1", "O2"], loss, **SHORT)
    assert state(net) == before and found.training == (loss is not None) and all(row.seconds for row in found.rows)


@pytest.mark.parametrize("loss", [None, SOFTMAX], ids=["inference", "training"])
def test_a_caller_may_be_recording(loss):
    with autograd.record():
        found = compare_speed(convnet(), [(IMAGES, LABELS)], ["float32", "O1"], loss, **SHORT)
        assert autograd.is_recording()
    assert all(row.seconds for row in found.rows)


def test_training_makes_whole_steps_which_change_no_weight():
    net = convnet()
    net(IMAGES)
    Counted.updates = 0
    found = compare_speed(net, [(IMAGES, LABELS)], ["float32", "O2"], SOFTMAX, optimizer="counted", **SHORT)
    trained = sum(param.grad_req != "null" for param in net.collect_params().values())
    assert Counted.updates >= trained * sum(len(row.times) for row in found.rows)


class Noting(nn.Dense):
    """Counts its calls on arrays; hybridized it is called on symbols."""

    eager_calls = 0

    def hybrid_forward(self, F, *args, **params):
        type(self).eager_calls += F is mx.nd
        return super().hybrid_forward(F, *args, **params)


def test_float32_is_trained_hybridized_like_a_converted_net():
    net = Noting(2, in_units=4)
    net.initialize()
    compare_speed(net, [(mx.nd.ones((2, 4)), mx.nd.zeros((2, 2)))], ["float32"], gluon.loss.L2Loss(), **SHORT)
    assert Noting.eager_calls == 0 and not net._active


@pytest.mark.parametrize("loss", [None, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["model", "module"])
def test_models_and_modules_run_and_their_parameters_stay(kind, loss):
    made = make_module()
    params = made.get_params()
    given = made if kind == "module" else (made.symbol, *params)
    before = frozen_values([dict(each) for each in params])
    found = compare_speed(given, [{"data": IMAGES}], ["float32", "O1", "O2"], loss, **SHORT)
    assert all(row.seconds for row in found.rows)
    assert frozen_values([dict(each) for each in made.get_params()]) == before


def test_a_step_that_would_be_skipped_is_no_time():
    net = nn.Dense(2, in_units=4)
    net.initialize(mx.init.Constant(1e3))
    batch = mx.nd.ones((2, 4)) * 10, mx.nd.zeros((2, 2))
    row = compare_speed(net, [batch], ["float32", "O2"], gluon.loss.L2Loss(weight=1e3), **SHORT).rows[1]
    assert row.seconds is None and "not finite at a loss scale of 1024" in row.failure


# ------------------------------------------------------------------ batches


class Words(gluon.HybridBlock):
    """A net of integers and a state in a list, with sparse gradients and constants of two dtypes."""

    def __init__(self):
        super().__init__(prefix="words_")
        with self.name_scope():
            self.words = nn.Embedding(20, 8, sparse_grad=True)
            self.memory = rnn.LSTM(8, input_size=8)
            self.out = nn.Dense(4, flatten=False, in_units=8)
            self.scale = self.params.get_constant("scale", mx.nd.ones((4, 4)))
            self.index = self.params.get_constant("index", mx.nd.array([0, 2], dtype="int32"))

    def hybrid_forward(self, F, tokens, state, scale, index):
        out, state = self.memory(self.words(tokens), state)
        return F.take(F.dot(self.out(out), scale), index, axis=2), state


def test_nested_inputs_integers_sparse_gradients_and_constants_run():
    net = Words()
    net.initialize()
    batch = mx.nd.array(np.arange(6).reshape(3, 2), dtype="int32"), net.memory.begin_state(2)
    found = compare_speed(net, [batch], ["float32", "O2"], **SHORT)
    assert all(row.seconds for row in found.rows)
    steps = compare_speed(net, [(*batch, None)], ["float32", "O2"], lambda outputs, _: outputs[0].sum(), **SHORT)
    assert all(row.seconds for row in steps.rows)


def given_once():
    batches = mx.io.NDArrayIter(np.zeros((4, 3, 8, 8)), np.zeros(4), 2, label_name="softmax_label")
    batches.next()
    return batches


READ = {
    "a label": (convnet, lambda: [(IMAGES, LABELS)]),
    "a label of an imported net": (imported, lambda: [(IMAGES, LABELS)]),
    "an input that may be left out": (lambda: WithMask(prefix="mask_"), lambda: [IMAGES]),
    "arrays of numpy": (convnet, lambda: [IMAGES.asnumpy()]),
    "an iterator that has given a batch already": (make_module, given_once),
}


@pytest.mark.parametrize("build, batches", READ.values(), ids=READ)
def test_the_first_batch_is_taken_without_what_the_network_does_not_take(build, batches):
    assert compare_speed(build(), batches(), ["float32"], **SHORT).rows[0].seconds


def test_a_net_whose_shapes_are_not_known_yet_and_one_on_two_contexts_run():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3), nn.Dense(2))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    batch = mx.nd.ones((2, 4), mx.cpu(1)), mx.nd.ones((2, 2), mx.cpu(1))
    for loss in (None, gluon.loss.L2Loss()):
        assert all(row.seconds for row in compare_speed(net, [batch], ["float32", "O1", "O2"], loss, **SHORT).rows)
    assert net[0].weight.shape == (3, 0)  # the copies alone were called
