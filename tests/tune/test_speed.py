"""compare_speed: what is timed, on a clock that is told and on the real one; the network stays as it is."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import mxmp
from mxmp.processors import NO_BFLOAT16
from mxmp.tune import PolicySpeed, SpeedComparison, compare_speed
from mxmp.tune import speed as module
from tests.cli.checkpoints import table
from tests.freeze import freeze as frozen_values
from tests.tune.networks import WithMask, classifier, convnet, imported, make_module

IMAGES, LABELS = mx.nd.random.uniform(shape=(2, 3, 8, 8)), mx.nd.array([0, 1])
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss()
SHORT = {"seconds": 1e-3, "progress": False}


@pytest.fixture
def told(monkeypatch):
    """Return a function that has the laps of policies, in their order, take seconds that are told."""

    def tell(*seconds):
        laps = iter(seconds)

        def lap_of(watch, run):
            mine = next(laps)
            return lambda: mine

        monkeypatch.setattr(module.Stopwatch, "lap_of", lap_of)

    return tell


# ------------------------------------------------------------------ times


def test_times_are_medians_relative_to_the_first_policy(told):
    told(2.0, 1.0, 4.0, 2.0, 1.5)
    found = compare_speed(convnet(), [IMAGES], ["float32", "O1", "O2", "O2,output=float16", "auto"], **SHORT)
    assert [(row.policy, row.seconds, row.ratio, row.verdict) for row in found.rows] == [
        ("float32", 2.0, 1.0, ""),
        ("O1", 1.0, 0.5, "faster"),
        ("O2", 4.0, 2.0, "slower"),
        ("O2,output=float16", 2.0, 1.0, "within the noise"),
        ("auto", 1.5, 0.75, "faster"),
    ]
    assert [row.emulated for row in found.rows] == [False, True, True, True, False]
    assert all(len(row.times) == len(found.rows[0].times) >= 5 and row.spread == 0 for row in found.rows)
    assert found.fastest == "O1" and not found.training
    assert [row[0] for row in table(str(found))][:4] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert any("float16 is emulated" in note for note in found.notes) and "'auto' takes" in str(found)


@pytest.mark.parametrize("seconds, fastest", [((1.0, 0.97), "float32"), ((1.0, 0.5), "O1"), ((1.0, 2.0), "float32")])
def test_the_fastest_is_faster_by_more_than_the_noise_or_it_is_the_first(seconds, fastest, told):
    told(*seconds)
    assert compare_speed(convnet(), [IMAGES], ["float32", "O1"], **SHORT).fastest == fastest


def test_a_policy_as_a_value_is_named_by_its_text(told):
    told(1.0, 0.5)
    policy = mxmp.Policy.parse("O1", ops={"BatchNorm": "float32"})
    found = compare_speed(convnet(), [IMAGES], ["float32", policy], **SHORT)
    assert mxmp.Policy.parse(found.fastest) == policy


def test_a_comparison_is_json_a_table_and_a_chart(told):
    told(1.0, 0.5)
    found = compare_speed(convnet(), [IMAGES], ["float32", "O1"], **SHORT)
    assert SpeedComparison.from_json(found.to_json()) == found and json.loads(found.to_json())["record"] == "speed comparison"
    assert "Milliseconds by round" in found.to_html() and "<svg" in found.to_html()
    rows = (PolicySpeed("float32", 1.0, 0.2, 1.0, "", (1.0, 2.0)), PolicySpeed("bfloat16", failure="no kernel"))
    text = str(SpeedComparison(True, rows, "Some processor", "AMX", False, ("End other programs.",)))
    assert "does not run: no kernel" in text and "Some processor (AMX; AMX off)" in text and "End other programs." in text


def test_the_real_clock_runs_and_the_processor_is_told(on_processor):
    on_processor(NO_BFLOAT16)
    found = compare_speed(convnet(), [IMAGES], **SHORT)
    assert [row.policy for row in found.rows] == ["float32"] and found.rows[0].seconds > 0
    assert (found.kind, found.amx) == ("no bfloat16", False) and "'auto' takes float32" in found.notes[0]
    row = compare_speed(convnet(), [IMAGES], ["float32", "mixed_bfloat16"], **SHORT).rows[1]
    assert row.seconds is row.ratio is None and "bfloat16" in row.failure and row.verdict == ""


def test_the_policies_unless_given_are_those_that_the_processor_runs(monkeypatch, told):
    monkeypatch.setattr(module, "runs_bfloat16", lambda: True)
    assert list(module._named(None, mx.cpu())[0]) == ["float32", "mixed_bfloat16", "bfloat16"]
    assert list(module._named(None, mx.gpu())[0]) == ["float32", "O1", "O2"]


# ------------------------------------------------------------------ what runs


class Counted(mx.optimizer.SGD):
    """Counts the updates of weights."""

    updates = 0

    def update(self, index, weight, grad, state):
        type(self).updates += 1
        super().update(index, weight, grad, state)

    update_multi_precision = update


mx.optimizer.Optimizer.register(Counted)


def state_of(net):
    """Return all that is seen of a net: classes, parameters and the gradients of those that have one."""
    params = net.collect_params().values()
    grads = [param.grad() for param in params if param.grad_req != "null"]
    return type(net), sorted(vars(net)), frozen_values([[param.data() for param in params], grads])


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
    before = state_of(net)
    found = compare_speed(net, [(IMAGES, LABELS)], ["float32", "O1", "O2"], loss, **SHORT)
    assert state_of(net) == before and found.training == (loss is not None) and all(row.seconds for row in found.rows)


@pytest.mark.parametrize("loss", [None, SOFTMAX], ids=["inference", "training"])
def test_a_caller_may_be_recording(loss):
    with autograd.record():
        found = compare_speed(convnet(), [(IMAGES, LABELS)], ["float32", "O1"], loss, **SHORT)
        assert autograd.is_recording()
    assert all(row.seconds for row in found.rows)


def test_inference_is_that_of_the_frozen_network(monkeypatch):
    blocks, freeze = [], mxmp.gluon.freeze

    def kept(*args, **kwargs):
        blocks.append(freeze(*args, **kwargs))
        return blocks[-1]

    monkeypatch.setattr(module, "freeze", kept)
    net = convnet()
    net(IMAGES)
    mxmp.gluon.convert(net, "O2")
    compare_speed(net, [IMAGES], ["float32", "O1"], **SHORT)
    compare_speed(make_module(), [{"data": IMAGES}], ["float32", "O1"], **SHORT)
    assert len(blocks) == 4
    for block in blocks:
        assert "BatchNorm" not in {row.op for row in mxmp.gluon.report(block).rows if row.precision != "folded"}


def test_training_makes_whole_steps_which_change_no_weight():
    net = convnet()
    net(IMAGES)
    Counted.updates = 0
    found = compare_speed(net, [(IMAGES, LABELS)], ["float32", "O2"], SOFTMAX, optimizer="counted", **SHORT)
    trained = sum(param.grad_req != "null" for param in net.collect_params().values())
    assert Counted.updates >= trained * sum(len(row.times) for row in found.rows)


@pytest.mark.parametrize("loss", [None, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["model", "module"])
def test_models_and_modules_run_and_their_parameters_stay(kind, loss):
    made = make_module(classifier())
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


def test_nets_of_numpy_arrays_run():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = nn.HybridSequential()
        net.add(nn.Dense(3, in_units=4), nn.Dense(2, in_units=3))
        net.initialize()
        batch = mx.np.ones((2, 4)), mx.np.ones((2, 2))
        for loss in (None, gluon.loss.L2Loss()):
            assert all(row.seconds for row in compare_speed(net, [batch], ["float32", "O1"], loss, **SHORT).rows)


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    compare_speed(convnet(), [IMAGES], ["float32"], seconds=1e-3)
    assert "round 5" in capsys.readouterr().err
