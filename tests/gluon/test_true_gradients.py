"""Between the block of scale_loss and the step a user sees gradients without the loss scale."""

import contextlib
import copy
import threading

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.errors import TrainerError
from tests.gluon.trainer_tools import DTYPES, TWO, loss_of, param, value

SCALE = 2.0**10
SCALED = [0.25 * SCALE, 0.25 * SCALE]


def make(dtype="float32", contexts=1, grad_req="write", names="ab", loss_scale=SCALE, lr=0.5):
    params = [param([1.0, -2.0], dtype, TWO[:contexts], name, grad_req=grad_req) for name in names]
    return params, mxmp.gluon.Trainer(params, "sgd", {"learning_rate": lr}, loss_scale=loss_scale)


def backward(trainer, params, factor=0.25, others=()):
    """Give each parameter on each context the gradient ``factor``."""
    with scaled_losses(trainer, params, factor, others) as losses:
        mx.autograd.backward(losses)


@contextlib.contextmanager
def scaled_losses(trainer, params, factor=0.25, others=()):
    with mx.autograd.record():
        losses = [(mx.nd.Cast(w, dtype="float32") * factor).sum() for p in params for w in p.list_data()]
    with trainer.scale_loss(losses, *others) as scaled:
        yield scaled


def seen(p, ctx=TWO[0]):
    return p.grad(ctx).asnumpy().tolist()


def weights(*params):
    return [value(p.list_data()[0]).tolist() for p in params]


LOOKS = {
    "grad": lambda p: p.grad(p.list_ctx()[0]),
    "first": lambda p: p.list_grad()[0],
    "last": lambda p: p.list_grad()[-1],
    "slice": lambda p: p.list_grad()[:].pop(),
    "loop": lambda p: next(iter(p.list_grad())),
    "loop from the end": lambda p: next(reversed(p.list_grad())),
    "copy": lambda p: p.list_grad().copy()[0],
    "list + another": lambda p: (p.list_grad() + [])[0],
    "another + list": lambda p: ([] + p.list_grad())[0],
    "sum": lambda p: sum([p.list_grad()], [])[0],
    "list * 1": lambda p: (p.list_grad() * 1)[0],
    "1 * list": lambda p: (1 * p.list_grad())[0],
    "copy.copy": lambda p: copy.copy(p.list_grad())[0],
    "arguments": lambda p: mx.nd.add_n(*[g.as_in_context(mx.cpu(0)) for g in p.list_grad()]) / len(p.list_grad()),
    "pop": lambda p: p.list_grad().pop(),
    "_grad": lambda p: p._grad[0],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("dtype, contexts", [("float32", 1), ("float16", 2), ("bfloat16", 1)])
def test_who_reads_a_gradient_sees_the_true_one(dtype, contexts, look):
    """One that has no number in float16, too; after the step the lists are plain ones again."""
    (w,), trainer = make(dtype, contexts, names="a", loss_scale=2.0**16, lr=2.0**29)
    plain = w._grad
    backward(trainer, [w], 2.0**-30)
    gradient = look(w)
    assert gradient.dtype == np.float32 and gradient.asnumpy().tolist() == [2.0**-30, 2.0**-30]
    assert len(w.list_grad()) == contexts and next(iter(w.list_grad())) in w.list_grad()
    assert trainer.step(1) and weights(w) == [[1 - 0.5 * contexts, -2 - 0.5 * contexts]]
    assert w._grad is plain and type(plain) is list


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_low_precision_are_seen_in_float32_at_a_scale_of_1_too(dtype):
    (w,), trainer = make(dtype, names="a", loss_scale=1)
    backward(trainer, [w])
    assert mx.gluon.utils.clip_global_norm([w.grad()], 1.0) < 1 and w.grad().dtype == np.float32
    assert trainer.step(1) and weights(w) == [[0.875, -2.125]]


@pytest.mark.parametrize("dtype, contexts, splits", [("float32", 2, True), ("float16", 2, True), ("float32", 1, False)])
def test_clipping_gradients_that_were_read_is_what_it_is_without_a_scale(dtype, contexts, splits):
    """As GluonNLP's scripts train: with the loss scale in the gradients nothing would be trained."""
    found = []
    for loss_scale in (None, SCALE, "dynamic"):
        params, trainer = make(dtype, contexts, loss_scale=loss_scale)
        for number in range(3):
            backward(trainer, params, 0.5 + number)
            if splits:
                trainer.allreduce_grads()
            norm = mx.gluon.utils.clip_global_norm([p.grad(TWO[0]) for p in params], 1.0)
            assert trainer.update(1) if splits else trainer.step(1)
        found.append((norm, weights(*params)))
    assert found[0] == found[1] == found[2]


def clip_masters(trainer):
    assert mx.gluon.utils.clip_global_norm([array.grad for array in trainer.master_params()], 0.5) == 1


@pytest.mark.parametrize(
    "call, factor",
    [(lambda t: t.unscale(), 1), (lambda t: t.clip_global_norm(0.5), 0.5), (clip_masters, 0.5)],
    ids=["unscale", "clip_global_norm", "master_params"],
)
def test_after_a_look_gradients_are_summed_once(call, factor):
    params, trainer = make(contexts=2)
    backward(trainer, params)
    assert seen(params[0], TWO[1]) == [0.25, 0.25]
    call(trainer)
    np.testing.assert_allclose(seen(params[0]), [0.5 * factor] * 2, rtol=1e-6)
    with pytest.raises(TrainerError, match="unscaled already"):
        trainer.unscale()
    assert trainer.step(1)
    np.testing.assert_allclose(weights(params[0]), [[1 - 0.25 * factor, -2 - 0.25 * factor]], rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [3, 6, 7, 12])
def test_who_reads_a_gradient_changes_no_bit_of_the_step(optimizer, batch_size):
    """MXNet gets 1/batch_size/scale as text, which it reads with an error in the last bit."""
    values = np.random.RandomState(0).randn(2, 1000)
    weights = []
    for reads in (False, True):
        p = param(values[0], name="a")
        trainer = mxmp.gluon.Trainer([p], optimizer, {"learning_rate": 0.1}, loss_scale=4 * SCALE)
        backward(trainer, [p], mx.nd.array(values[1]))
        if reads:
            p.grad()
        trainer.step(batch_size)
        weights.append(value(p.data()).tolist())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("fill", [None, 0.0])
def test_a_gradient_that_was_not_finite_before_the_look_skips_the_step(fill):
    params, trainer = make(loss_scale="dynamic")
    backward(trainer, params)
    params[0].data().grad[:1] = np.inf
    for p in params:
        grad = p.grad()
        if fill is not None:
            grad[:] = fill
    assert not trainer.step(1) and trainer.last_step_skipped


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_further_backward_adds_to_gradients_that_were_read(dtype):
    params, trainer = make(dtype, grad_req="add")
    for number in range(3):
        backward(trainer, params)
        assert seen(params[0]) == [0.25 * (number + 1)] * 2
    assert trainer.step(1) and weights(*params) == [[1 - 0.375, -2 - 0.375]] * 2


# Within blocks, and where they fail.


def test_within_a_block_gradients_are_scaled_whoever_reads_them():
    (w,), trainer = make(names="a")
    held = w.list_grad()
    for _ in range(2):
        with scaled_losses(trainer, [w]) as losses:
            held[0].sum()
            mx.autograd.backward(losses)
            assert seen(w) == SCALED
        held = w.list_grad()
        assert seen(w) == [0.25, 0.25] and trainer.step(1)
    assert weights(w) == [[0.75, -2.25]]


def test_within_a_block_of_one_trainer_gradients_that_wait_for_another_are_true():
    ((first,), one), ((second,), other) = make(names="a"), make(names="b")
    backward(one, [first, second], others=[other])
    one.step(1)
    with scaled_losses(one, [first]) as losses:
        assert seen(second) == [0.25, 0.25]
        mx.autograd.backward(losses)
    assert seen(second) == [0.25, 0.25] and one.step(1) and other.step(1)
    assert weights(first, second) == [[0.75, -2.25], [0.875, -2.125]]


def test_a_look_from_a_thread_waits_for_the_block_of_another():
    (w,), trainer = make(names="a", grad_req="add")
    found = []
    backward(trainer, [w])
    gradients = w.list_grad()
    with scaled_losses(trainer, [w]) as losses:
        thread = threading.Thread(target=lambda: found.append(gradients[0].asnumpy().tolist()))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not found
        mx.autograd.backward(losses)
    thread.join(20)
    assert found == [[0.5, 0.5]] and trainer.step(1) and weights(w) == [[0.75, -2.25]]


def test_threads_that_look_at_one_anothers_gradients_within_blocks_do_not_wait_for_ever():
    pairs, inside = [make(names=name, grad_req="add") for name in "ab"], threading.Barrier(2)
    for params, trainer in pairs:
        backward(trainer, params)
    lists = [params[0].list_grad() for params, _ in pairs]

    def work(number):
        params, trainer = pairs[number]
        with scaled_losses(trainer, params) as losses:
            mx.autograd.backward(losses)
            inside.wait(20)
            lists[1 - number][0].sum()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    for params, trainer in pairs:
        assert seen(params[0]) == [0.5, 0.5] and trainer.step(1)


@pytest.mark.parametrize("error", [KeyError, TrainerError], ids=["the user's", "no loss"])
@pytest.mark.parametrize("begun", [True, False], ids=["a later block", "the first block"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_block_that_raises_leaves_gradients_as_before_it(dtype, begun, error):
    (w,), trainer = make(dtype, names="a")
    plain = w._grad
    if begun:
        backward(trainer, [w])
        w.grad()[:] *= 2
    with pytest.raises(error), trainer.scale_loss("no loss" if error is TrainerError else loss_of(w, 1)):
        raise KeyError
    if begun:
        assert seen(w) == [0.5, 0.5] and trainer.step(1) and weights(w) == [[0.75, -2.25]]
    assert w._grad is plain and type(plain) is list


def test_a_call_that_is_refused_leaves_gradients_true():
    (w, other), trainer = make(contexts=2)
    backward(trainer, [w])
    with pytest.raises(TrainerError, match="update came before allreduce_grads"):
        trainer.update(1, ignore_stale_grad=True)
    with pytest.raises(UserWarning, match="the gradient of parameter 'b' on context"):
        trainer.step(1)
    assert seen(w) == [0.25, 0.25] and trainer.step(1, ignore_stale_grad=True)
    assert weights(w, other) == [[0.75, -2.25], [1, -2]]


def test_a_block_that_would_add_to_what_was_not_scaled_cannot_begin_and_leaves_gradients_true():
    ((a,), trainer), ((b,), other) = (make(grad_req="add", names=name) for name in "ab")
    backward(trainer, [a])
    with mx.autograd.record():
        loss = loss_of(b, 1)
    loss.backward()
    with pytest.raises(TrainerError, match=r"gradient of parameter 'b', to which this block would add.*zero_grad and disc"):
        backward(trainer, [a], others=[other])
    assert seen(a) == [0.25, 0.25]
    b.zero_grad()  # of a gradient of zeros nothing is left
    backward(trainer, [b], others=[other])
    assert trainer.step(1) and other.step(1) and weights(a, b) == [[0.875, -2.125]] * 2


# Several trainers.


def sharing(dtype, **kwargs):
    """Return three parameters, and two trainers: of the first and second, and of the first and third."""
    params = [param([1.0, -2.0], dtype, name=name, **kwargs) for name in "abc"]
    options = {"learning_rate": 0.5}
    return params, [mxmp.gluon.Trainer([params[0], p], "sgd", options, loss_scale=SCALE) for p in params[1:]]


@pytest.mark.parametrize("steps_first", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("look", [(), (0,), (0, 1, 2)], ids=["no look", "a look", "looks"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_trainers_of_one_block_may_share_a_parameter(dtype, look, steps_first):
    params, trainers = sharing(dtype)
    lists = [p._grad for p in params]
    for _ in range(2):
        backward(trainers[0], params, others=trainers[1:])
        assert all(seen(params[number]) == [0.25, 0.25] for number in look)
        assert trainers[steps_first].step(1) and trainers[1 - steps_first].step(1, ignore_stale_grad=True)
    assert weights(*params) == [[0.75, -2.25]] * 3
    assert all(p._grad is before for p, before in zip(params, lists))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_further_block_of_one_trainer_leaves_what_another_shares_with_it_of_one_scale(dtype):
    params, (one, other) = sharing(dtype, grad_req="add")
    backward(one, params, others=[other])
    assert seen(params[0]) == [0.25, 0.25]
    backward(one, params[:2])
    assert [seen(p)[0] for p in params] == [0.5, 0.5, 0.25]
    assert other.step(1) and one.step(1, ignore_stale_grad=True)
    assert [first for first, _ in weights(*params)] == [0.75, 0.75, 0.875]


@pytest.mark.parametrize("loss_scale", [4 * SCALE, None], ids=["scaled", "without a scale"])
def test_two_trainers_of_one_parameter_outside_of_one_block_are_refused(loss_scale):
    """Before a backward: what waits is what the first trainer then steps with."""
    params, one = make(names="a")
    other, plain = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": 0.5}, loss_scale=loss_scale), params[0]._grad
    backward(one, params)
    with pytest.raises(TrainerError, match="parameter 'a' waits for the step of another trainer"):
        backward(other, params, 1)
    assert one.step(1) and weights(*params) == [[0.875, -2.125]]
    backward(one, params)
    one.discard_grads()
    assert params[0]._grad is plain
    backward(other, params)
    assert other.step(1) and weights(*params) == [[0.75, -2.25]]


def test_a_trainer_that_is_dropped_before_its_step_leaves_nothing_behind():
    params, one = make("float16")
    backward(one, params)
    del one
    other = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": 0.5}, loss_scale=SCALE)
    backward(other, params)
    assert seen(params[0]) == [0.25, 0.25] and other.step(1) and weights(params[0]) == [[0.875, -2.125]]


def test_a_gradient_that_was_attached_anew_after_a_look_stays_attached():
    (a,), trainer = make("float16", names="a")
    backward(trainer, (a,))
    assert seen(a) == [0.25, 0.25]
    a.grad_req = "null"
    a.grad_req = "write"
    trainer.discard_grads()
    assert type(a._grad) is list and seen(a) == [0, 0]
