"""Blocks of scale_loss: what they yield, their backward, errors within them, and losses of several trainers."""

import gc
from collections import namedtuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.errors import StaleGradientError, TrainerError, UnscaledLossError
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.nets import sequence, started
from tests.gluon.trainer_tools import (
    TWO,
    backward,
    backward_everywhere,
    loss_of,
    param,
    run,
    run_backward,
    sgd,
    trained,
    value,
)

ONE = mx.nd.ones((1,))


def recorded(*args):
    with autograd.record():
        return loss_of(*args)


# What a block yields.


MODES = {"inside record": autograd.record, "in predict mode": lambda: autograd.record(False), "outside": autograd.pause}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_scale_loss_works_inside_and_outside_of_record_and_keeps_the_mode(mode):
    w = param([1.0])
    trainer, loss = sgd(w, 8), recorded(w, 3)
    with mode():
        before = autograd.is_recording(), autograd.is_training()
        with trainer.scale_loss(loss) as scaled:
            assert (autograd.is_recording(), autograd.is_training()) == before
            scaled.backward()
    assert w.data().grad.asscalar() == scaled.asscalar() == 24
    assert not autograd.is_recording()


Pair = namedtuple("Pair", "left right")


@pytest.mark.behaviour("nested losses")
@pytest.mark.parametrize(
    "build",
    [lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: [a, (b, [a])], lambda a, b: Pair(a, [b]), lambda a, b: []],
    ids=["list", "tuple", "nested", "namedtuple", "empty"],
)
def test_scale_loss_keeps_containers(build):
    def numbers(tree):
        if isinstance(tree, (list, tuple)):
            return type(tree), [numbers(item) for item in tree]
        return tree.asscalar()

    one, two = mx.nd.array([1.0]), mx.nd.array([2.0])
    with sgd(param([1.0]), 4).scale_loss(build(one, two)) as scaled:
        assert numbers(scaled) == numbers(build(one * 4, two * 4))


@pytest.mark.parametrize(
    "dtype, scale, outcomes",
    [
        ("float16", DynamicLossScale(init_scale=2.0**16), [False, True]),
        ("float16", "dynamic", [True] * 10),
        ("bfloat16", 2.0**15, [True]),
    ],
    ids=["65536", "default", "bfloat16"],
)
def test_a_low_precision_loss_is_scaled_in_float32_and_costs_one_skip_at_65536(dtype, scale, outcomes):
    w, trainer = trained(param([3.0], dtype), scale)
    for taken in outcomes:
        with autograd.record(), trainer.scale_loss(w.data() * 1) as scaled:
            assert scaled.dtype == np.float32 and scaled.asscalar() == value(w.data()) * trainer.loss_scale.value
            scaled.backward()
        assert trainer.step(1) is taken
    assert trainer.loss_scale.value == 2.0**15 and value(w.data()) == 3 - sum(outcomes)


# The backward of a block.

NONE = r"^no backward was called on {} times the loss scale\. Run backward on the loss that scale_loss yields"
ITSELF = r"^backward was called on {0} itself, not on {0} times the loss scale"
ANOTHER = r"^no backward was called on loss times the loss scale, but one of another loss, .*parameter '{}'"
MISUSES = {
    "none": (lambda loss, other: None, NONE.format("loss")),
    "of the loss": (lambda loss, other: loss.backward(), ITSELF.format("loss")),
    "of the loss, retained": (lambda loss, other: loss.backward(retain_graph=True), ANOTHER.format("net_weight")),
    "of another loss": (lambda loss, other: other.backward(), ANOTHER.format("net_weight")),
}


def dense(kind):
    """Return a net that runs eagerly, hybridized or converted."""
    net = nn.Dense(1, in_units=2, use_bias=False, prefix="net_")
    net.initialize(mx.init.One())
    if kind == "hybridized":
        net.hybridize()
    return convert(net, "O1") if kind == "converted" else net


@pytest.mark.parametrize("kind", ["eager", "hybridized", "converted"])
@pytest.mark.parametrize(("misuse", "message"), MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("scale", [8, 1])
def test_a_missing_backward_is_an_error_at_the_end_of_the_block(kind, misuse, message, scale):
    net = dense(kind)
    trainer = sgd([net.weight], scale)
    with autograd.record():
        loss, other, last = (net(mx.nd.array([x])).sum() for x in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0]))
    with pytest.raises(TrainerError, match=message), trainer.scale_loss(loss):
        misuse(loss, other)
    with pytest.raises(TrainerError, match="was not scaled|not scaled; call discard_grads|no parameter has a gradient"):
        trainer.step(1)
    trainer.discard_grads()
    with trainer.scale_loss(last) as scaled:
        scaled.backward()
    assert trainer.step(1) and net.weight.data().asnumpy().tolist() == [[0, -1]]


def of_sum(scaled):
    with autograd.record():
        total = scaled.sum() * 1
    total.backward()


def twice(scaled):
    scaled.backward(retain_graph=True)
    scaled.backward()


RUNS = {
    "method": lambda scaled: scaled.backward(),
    "function": lambda scaled: autograd.backward([scaled]),
    "retained": lambda scaled: scaled.backward(retain_graph=True),
    "twice": twice,
    "with a head gradient": lambda scaled: scaled.backward(mx.nd.ones(scaled.shape)),
    "of what is made of it": of_sum,
}


@pytest.mark.parametrize("way", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("kind, dtype", [("eager", "float32"), ("converted", "float16")])
def test_every_way_to_run_backward_counts(way, kind, dtype):
    net = dense(kind)
    trainer = sgd([net.weight], 8)
    for number in (1, 2):
        with autograd.record(), trainer.scale_loss(mx.nd.Cast(net(mx.nd.array([[1.0, 2.0]])), dtype=dtype)) as scaled:
            way(scaled)
        assert trainer.step(1) and net.weight.data().asnumpy().tolist() == [[1 - number, 1 - 2 * number]]


def test_each_of_several_losses_needs_a_backward_unless_it_is_a_constant():
    w, trainer = trained(param([0.0], grad_req="add"), 8)
    losses = [recorded(w, 1), (recorded(w, 2), [recorded(w, 3)])]
    with pytest.raises(TrainerError, match=NONE.format(r"loss\[1\]\[1\]\[0\]")):
        with trainer.scale_loss(losses) as (first, (second, _)):
            autograd.backward([first, second])
    w.zero_grad()
    losses = [recorded(w, 1), recorded(w, 2)]
    with pytest.raises(TrainerError, match=ITSELF.format(r"loss\[1\]")), trainer.scale_loss(losses) as (first, _):
        autograd.backward([first, losses[1]])
    trainer.discard_grads()
    w.zero_grad()
    with trainer.scale_loss([recorded(w, 1), recorded(w, 2), ONE]) as (first, second, _):
        autograd.backward([first, second])
    assert trainer.step(1) and value(w.data()) == [-3]


def test_a_loss_that_was_not_recorded_has_no_backward():
    w = param([0.0])
    trainer, loss = sgd(w, 8), recorded(w, 1)
    with pytest.raises(TrainerError, match=ANOTHER.format("w")), trainer.scale_loss(loss.detach()):
        loss.backward()
    trainer.discard_grads()
    other = recorded(w, 1)
    for losses, path in ((ONE, "loss"), (other.detach(), "loss"), ([other, ONE], r"loss\[1\]")):
        message = rf"scale_loss: {path} was not recorded.*; compute it within autograd.record\(\)"
        with pytest.raises(TrainerError, match=message), trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)


# Backward passes outside of scale_loss, beside one that is scaled.


def two(loss_scale=8, **options):
    """Return two parameters with their trainer."""
    params = [param([0.0], name=name, **options) for name in "ab"]
    return params, sgd(params, loss_scale)


USES = {
    "step": lambda trainer: trainer.step(1),
    "step, stale ignored": lambda trainer: trainer.step(1, ignore_stale_grad=True),
    "unscale": lambda trainer: trainer.unscale(),
    "clip": lambda trainer: trainer.clip_global_norm(1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_gradient_of_a_later_backward_that_was_not_scaled_is_named(grad_req, use):
    """Of one context, as well as of all."""
    (a, b), trainer = two(grad_req=grad_req, ctx=TWO)
    loss = recorded(b, 1, TWO[1])
    backward_everywhere(trainer, a, [1, 1])
    backward(trainer, b, 1, TWO[0])
    loss.backward()
    with pytest.raises(TrainerError, match=r"parameter 'b' on cpu\(1\) was written by a backward outside of scale_loss"):
        use(trainer)
    assert value(a.data(TWO[0])) == value(b.data(TWO[0])) == [0]
    trainer.discard_grads()
    for each in (a, b):
        each.zero_grad()
    assert run(trainer, [a, b]) and value(a.data(TWO[0])) == value(b.data(TWO[0])) == [-2]


def test_a_gradient_of_an_earlier_backward_that_was_not_scaled_is_stale():
    (a, b), trainer = two()
    recorded([a, b], 1).backward()
    backward(trainer, a, 1)
    with pytest.raises(StaleGradientError, match="gradient of parameter 'b'"):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True) and value(a.data()) == [-1] and value(b.data()) == [0]


def test_without_a_loss_scale_no_backward_is_asked_for():
    (a, b), trainer = two(None)
    loss = recorded([a, b], 1)
    with trainer.scale_loss(loss):
        pass
    loss.backward()
    assert trainer.step(1)


def test_a_trainer_whose_parameters_the_loss_does_not_reach_is_told_so():
    (a, b), _ = two()
    trainer = sgd(b, 8)
    backward(trainer, a, 1)
    with pytest.raises(StaleGradientError, match="step: .*scaled loss, but it depends on no parameter of this trainer"):
        trainer.step(1)
    assert run(trainer, b)


@pytest.mark.parametrize("in_float32", [(), ("output",)], ids=["all parameters", "some parameters"])
def test_a_net_that_is_converted_between_backward_and_step_is_the_named_cause(in_float32):
    net, x = started(sequence(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4, prefix="output_"))), mx.nd.ones((1, 3))
    trainer = Trainer(convert(net, "O1"), "sgd", loss_scale=8)

    def run_backward_of_net():
        with autograd.record(), trainer.scale_loss(net(x).sum()) as scaled:
            scaled.backward()

    run_backward_of_net()
    convert(net, "O2", blocks=tuple((name, "float32") for name in in_float32))(x)
    with pytest.raises(StaleGradientError, match="step: after backward, parameters got other arrays"):
        trainer.step(1)
    trainer.discard_grads()
    run_backward_of_net()
    assert trainer.step(1)


# Blocks that fail.


def fail(loss, other):
    raise KeyError


FAILURES = {"the user's": (fail, False), **{name: (MISUSES[name][0], name != "none") for name in MISUSES}}


@pytest.mark.parametrize("misuse, keeps_back", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("begun", [True, False], ids=["a later block", "the first block"])
def test_a_block_that_fails_leaves_the_step_as_it_was_or_keeps_it_back(begun, misuse, keeps_back):
    """Where the error was not heard, as that of a thread, the step must not be taken with what it wrote."""
    (a, b), trainer = two()
    if begun:
        backward(trainer, a, 1)
    loss, other = recorded(b, np.nan), recorded(b, 2)
    with pytest.raises((KeyError, TrainerError)), trainer.scale_loss(loss):
        misuse(loss, other)
    if not begun:
        with pytest.raises(TrainerError, match="was not scaled|no parameter has a gradient"):
            trainer.step(1)
        backward(trainer, a, 1)  # and the NaN loss is forgotten
    if keeps_back:
        with pytest.raises(TrainerError, match="step: a scale_loss block of this step has raised.*; call discard_grads"):
            trainer.step(1, ignore_stale_grad=True)
        trainer.discard_grads()
        backward(trainer, a, 1)
    assert trainer.step(1, ignore_stale_grad=True) and (value(a.data()), value(b.data())) == ([-1], [0])


@pytest.mark.parametrize("error", [TrainerError, KeyError], ids=["its own", "the user's"])
def test_a_closed_block_leaves_no_mark_on_its_losses(error):
    first, second = sgd(param([1.0]), 8), sgd(param([1.0]), 4)
    with pytest.raises(error), first.scale_loss(ONE, first) as scaled:  # a trainer that is given twice counts once
        assert scaled.asscalar() == 8
        if error is KeyError:
            raise KeyError
        autograd.backward(scaled)  # which was not recorded
    with second.scale_loss(scaled) as again:
        assert again.asscalar() == 32


# Several trainers.


def pair(first=8, second=8, dtype="float32", **options):
    """Return two parameters and a trainer of each."""
    a, b = param([0.0], name="a"), param([0.0], dtype, name="b", **options)
    return a, b, sgd(a, first), sgd(b, second)


def joint(a, b, first, second):
    with autograd.record(), first.scale_loss(loss_of([a, b], 1), second) as scaled:
        scaled.backward()


@pytest.mark.behaviour("two models")
@pytest.mark.parametrize(
    "scales, joint_scale, after",
    [
        ((DynamicLossScale(init_scale=2.0**16), DynamicLossScale(init_scale=2.0**8)), 2.0**8, (2.0**16, 2.0**7)),
        ((2.0**14, None), 2.0**14, (2.0**14, 1)),
    ],
    ids=["the smaller scale", "the only one"],
)
def test_of_two_trainers_of_one_loss_one_can_skip_alone(scales, joint_scale, after):
    a, b, first, second = pair(*scales, "float16")
    joint(a, b, first, second)
    assert a.data().grad.asscalar() == joint_scale
    b.grad()[:] = np.inf
    assert first.step(1) and not second.step(1) and (value(a.data()), value(b.data())) == ([-1], [0])
    assert (first.loss_scale.value, second.loss_scale.value) == after
    joint(a, b, first, second)
    assert first.step(1) and second.step(1) and value(b.data()) == [-1]


def test_a_trainer_without_a_scale_goes_on_in_a_step_that_has_one():
    """Its second loss is multiplied too, since its gradients are unscaled together."""
    a, b, scaling, plain = pair(8, None, grad_req="add")
    joint(a, b, scaling, plain)
    backward(plain, b, 2)
    assert scaling.step(1) and plain.step(1) and (value(a.data()), value(b.data())) == ([-1], [-3])


@pytest.mark.behaviour("two models")
def test_two_models_with_two_losses_in_two_open_blocks():
    a, b, first, second = pair(4, 8)
    with first.scale_loss(recorded(a, 1)) as s1, second.scale_loss(recorded(b, 1)) as s2:
        autograd.backward([s1, s2])
    assert first.step(1) and second.step(1) and value(a.data()) == value(b.data()) == [-1]


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_joint_loss_needs_a_backward_though_one_trainer_has_gradients(wrong):
    a, b, first, second = pair()
    loss, other = recorded([a, b], 1), recorded([a, b][wrong], 1)
    with pytest.raises(TrainerError, match=ANOTHER.format("ab"[wrong])), first.scale_loss(loss, second):
        other.backward()
    for trainer in (first, second):
        with pytest.raises(TrainerError, match="call discard_grads|no parameter has a gradient"):
            trainer.step(1)
        trainer.discard_grads()
    joint(a, b, first, second)
    assert first.step(1) and second.step(1)


def test_scaling_one_loss_by_two_trainers_in_turn_is_refused():
    a, _, first, second = pair()
    with pytest.raises(TrainerError, match=r"loss\[0\] is scaled by another trainer already.*first.scale_loss"):
        with first.scale_loss(ONE) as scaled, second.scale_loss([scaled]):
            pass
    assert run(first, a)


def test_trainers_that_wait_at_different_scales_cannot_join():
    a, b, first, second = pair(4, 8)
    backward(first, a, 1)
    backward(second, b, 1)
    with pytest.raises(TrainerError, match=r"wait at different scales \[4.0, 8.0\]; call step"):
        joint(a, b, first, second)
    assert first.step(1) and second.step(1)


def test_a_second_trainer_must_be_told_of_a_scaled_loss():
    a, b, first, second = pair()
    assert run(first, [a, b])
    with pytest.raises(TrainerError, match=r"step: the loss of this step was not scaled, .*first.scale_loss\(loss, second\)"):
        second.step(1)
    assert b.data().asscalar() == 0


def test_lost_statistics_of_a_net_that_no_trainer_has_are_named_once(caplog, recwarn):
    """A teacher in training mode: its running statistics are not put back after a step that overflows."""
    teacher = sequence(nn.BatchNorm(in_channels=3, prefix="norm_"), prefix="teacher_")
    student = nn.Dense(3, in_units=3)
    for net in (teacher, student):
        net.initialize()
    trainer = Trainer(student, "sgd", loss_scale=8, nonfinite_loss="skip")
    convert(teacher, "O1")
    for bad in (1.0, np.inf, np.inf):
        x = mx.nd.ones((4, 3)) * bad
        with autograd.record():
            loss = mx.nd.square(student(mx.nd.ones((4, 3))) - teacher(x)).mean()
        run_backward(trainer, loss)
        assert trainer.step(1) == (bad == 1.0)
    said = [record.getMessage() for record in caplog.records] + [str(each.message) for each in recwarn]
    assert len([text for text in said if "teacher" in text and "running statistics" in text]) == 1


def count_arrays():
    gc.collect()
    return sum(isinstance(each, mx.nd.NDArray) for each in gc.get_objects())


def test_a_step_keeps_no_array():
    """The loss scale is a variable of autograd, made once and used again by the steps to come."""
    w = param([1.0, 2.0])
    trainer = sgd(w, 64)
    assert run(trainer, w)
    before = count_arrays()
    for _ in range(4):
        assert run(trainer, w)
    assert count_arrays() == before


# ---------------------------------------------------------------------- what another trainer has scaled


REQUESTS = pytest.mark.parametrize("grad_req", ["write", "add"])


@REQUESTS
@pytest.mark.parametrize("reads_all", [True, False], ids=["the loss itself", "a penalty on one weight"])
@pytest.mark.parametrize("within", [True, False], ids=["in the block", "after the block"])
def test_a_backward_of_a_loss_that_is_not_scaled_is_refused_by_the_step_at_the_latest(within, reads_all, grad_req):
    params = [param([1.0, 2.0], name=name, grad_req=grad_req) for name in "ab"]
    trainer = sgd(params, 64)
    with autograd.record():
        loss = loss_of(params, 0.5)
        unscaled = loss * 1 if reads_all else loss_of(params[1], 0.25)
    with pytest.raises(TrainerError):
        with trainer.scale_loss(loss) as scaled:
            scaled.backward(retain_graph=True)
            if within:
                unscaled.backward()
        if not within:
            unscaled.backward()
        trainer.step(1)
    np.testing.assert_array_equal(value(params[0].data()), [1, 2])


@pytest.mark.parametrize("adds", [True, False], ids=["to one weight", "of another weight"])
def test_a_backward_of_a_loss_that_is_not_scaled_before_that_of_one_in_its_block_is_refused(adds):
    a, b = (param([1.0, 2.0], name=name, grad_req="add" if adds else "write") for name in "ab")
    trainer = sgd([a, b], 64)
    loss, unscaled = recorded(a, 0.5), recorded(a if adds else b, 0.25)
    with pytest.raises(TrainerError, match="parameter '[ab]', which is not scaled"), trainer.scale_loss(loss) as scaled:
        unscaled.backward()
        scaled.backward()


@pytest.mark.parametrize("adds", [False, True])
def test_a_trainer_without_a_scale_neither_takes_nor_adds_to_gradients_that_a_former_one_scaled(adds):
    """A cell of a notebook that was run up to its backward, and again with another trainer."""
    w = param([1.0, 2.0], grad_req="add" if adds else "write")
    backward(sgd(w, 64), w, 0.5)
    trainer = sgd(w, None)
    with pytest.raises(TrainerError):
        if adds:
            backward(trainer, w, 0.25)
        trainer.step(1)
    assert value(w.data()).tolist() == [1, 2]


@pytest.mark.parametrize("steps_first", [False, True])
def test_a_trainer_without_a_scale_that_is_forgotten_in_scale_loss_takes_no_scaled_gradients(steps_first):
    a, b = (param([1.0], name=name) for name in "ab")
    first, second = sgd(a, 1024), sgd(b, None)
    with autograd.record():
        loss = loss_of([a, b], 0.5)
    with first.scale_loss(loss) as scaled:
        scaled.backward()
    if steps_first:
        first.step(1)
    with pytest.raises(TrainerError):
        second.step(1)
    assert value(b.data()) == [1]


def jointly(trainers, *params):
    """Run a backward in one block of several trainers, which gives each parameter the gradient 0.5."""
    with autograd.record():
        loss = loss_of(list(params), 0.5)
    with trainers[0].scale_loss(loss, *trainers[1:]) as scaled:
        scaled.backward()


def test_discarded_gradients_stay_discarded_when_their_trainers_meet_again():
    a, b, c = (param([1.0], name=name, grad_req="add" if name == "a" else "write") for name in "abc")
    first, second = sgd(a, 64), sgd([b, c], 64)
    jointly([first, second], a, b)
    second.discard_grads()
    jointly([first, second], a, c)
    assert second.step(1, ignore_stale_grad=True) and first.step(1)
    assert [value(each.data()).item() for each in (a, b, c)] == [0, 1, 0.5]


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_block_without_a_scale_does_not_hide_that_a_later_one_of_another_trainer_wrote_its_gradient(grad_req):
    a, b = (param([1.0], name=name, grad_req=grad_req) for name in "ab")
    plain, scaled = sgd(a, None), sgd(b, 1024)
    backward(plain, a, 0.25)
    backward(scaled, [a, b], 0.5)
    assert scaled.step(1)
    with pytest.raises(TrainerError, match="no parameter has a gradient"):
        plain.step(1)


def test_a_gradient_that_waits_unscaled_is_not_dropped_by_a_scaled_block():
    a, b = (param([1.0], name=name) for name in "ab")
    plain, scaled = sgd(a, None), sgd(b, 1024)
    backward(plain, a, 0.25)
    with pytest.raises(TrainerError, match="'a' waits for a step, and is not scaled"):
        jointly([scaled, plain], b)
    assert plain.step(1) and value(a.data()) == [0.75]


def test_a_gradient_that_a_block_added_before_it_raised_is_told_of_by_the_next():
    w = param([1.0], grad_req="add")
    trainer = sgd(w, 64)
    with autograd.record():
        loss = loss_of(w, 0.25)
    with pytest.raises(KeyError), trainer.scale_loss(loss) as scaled:
        scaled.backward()
        raise KeyError
    with pytest.raises(TrainerError, match="in a block that raised, has written"):
        backward(trainer, w, 0.25)
    w.zero_grad()
    trainer.discard_grads()
    backward(trainer, w, 0.25)
    assert trainer.step(1) and value(w.data()) == [0.75]


def test_the_remedy_for_a_step_without_a_scaled_loss_holds_after_states_that_bring_a_scale(tmp_path):
    w, file = param([1.0, 2.0]), str(tmp_path / "states")
    sgd(w, 64).save_states(file)
    trainer = sgd(w, None)
    trainer.load_states(file)
    with autograd.record():
        loss = loss_of(w, 0.5)
    loss.backward()
    with pytest.raises(UnscaledLossError, match=r"set trainer\.loss_scale = None, after states are loaded"):
        trainer.step(1)
    trainer.loss_scale = None
    assert trainer.step(1)
    np.testing.assert_array_equal(value(w.data()), [0.5, 1.5])
