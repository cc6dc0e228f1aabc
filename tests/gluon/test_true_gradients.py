"""Between the block of scale_loss and the step a user sees gradients without the loss scale."""

from __future__ import annotations

import copy
import threading
import time

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp import amp
from mxmp.errors import TrainerError
from mxmp.train.loss_heads import HEAD_SCALE
from tests.gluon.trainer_tools import DTYPES, TWO, loss_of, param, value

SCALE = 2.0**10


def make(dtype="float32", contexts=1, grad_req="write", names="ab", loss_scale=SCALE, kvstore="device", lr=0.5):
    ctx = TWO[:contexts]
    params = [param([1.0, -2.0], dtype, ctx, name, grad_req=grad_req) for name in names]
    trainer = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": lr}, kvstore=kvstore, loss_scale=loss_scale)
    return params, trainer


def backward(trainer, params, factor=0.25, others=()):
    """Give each parameter on each context the gradient ``factor``."""
    with mx.autograd.record():
        losses = [(mx.nd.Cast(w, dtype="float32") * factor).sum() for p in params for w in p.list_data()]
    with trainer.scale_loss(losses, *others) as scaled:
        mx.autograd.backward(scaled)


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
    "_grad": lambda p: p._grad[0],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("contexts", [1, 2])
def test_who_reads_a_gradient_sees_the_true_one(dtype, contexts, look):
    params, trainer = make(dtype, contexts)
    backward(trainer, params)
    for each in params:
        gradient = look(each)
        assert gradient.dtype == np.float32 and gradient.asnumpy().tolist() == [0.25, 0.25]
        assert len(each.list_grad()) == contexts and gradient is not each.data(TWO[0])
        assert next(iter(each.list_grad())) in each.list_grad()
    assert trainer.step(1)
    for each in params:
        assert value(each.list_data()[0]).tolist() == [1 - 0.125 * contexts, -2 - 0.125 * contexts]


def test_a_gradient_that_is_popped_is_true():
    (w,), trainer = make(names="a")
    backward(trainer, [w])
    assert w.list_grad().pop().asnumpy().tolist() == [0.25, 0.25]
    assert trainer.step(1) and w.data().asnumpy().tolist() == [0.875, -2.125]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_too_small_for_its_dtype_is_seen(dtype):
    params, trainer = make(dtype, loss_scale=2.0**16)
    backward(trainer, params, 2.0**-30)
    assert params[0].grad().asnumpy().tolist() == [2.0**-30, 2.0**-30]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_to_a_gradient_that_was_read_is_what_the_step_takes(dtype):
    params, trainer = make(dtype)
    backward(trainer, params)
    mx.gluon.utils.clip_global_norm([p.grad() for p in params], 0.25)  # the norm is 0.5
    trainer.step(1)
    np.testing.assert_allclose(value(params[0].data()), [1 - 0.0625, -2 - 0.0625], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_allreduce_clip_update_is_what_it_is_without_a_scale(dtype, contexts):
    """As GluonNLP's scripts train: with the loss scale in the gradients nothing would be trained."""
    found = []
    for loss_scale in (None, SCALE, "dynamic"):
        params, trainer = make(dtype, contexts, loss_scale=loss_scale)
        for number in range(3):
            backward(trainer, params, 0.5 + number)
            trainer.allreduce_grads()
            norm = mx.gluon.utils.clip_global_norm([p.grad(p.list_ctx()[0]) for p in params], 1.0)
            trainer.update(1)
        found.append((norm, [value(p.list_data()[0]).tolist() for p in params]))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("contexts", [1, 2])
def test_clipping_what_master_params_give_after_a_look_is_of_the_sum(contexts):
    net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Zero(), ctx=TWO[:contexts])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, update_on_kvstore=False)
    amp.initialize(net, trainer, "O1")
    with mx.autograd.record():
        losses = [net(mx.nd.array([[3.0, 4.0]], ctx=ctx)) for ctx in TWO[:contexts]]
    with amp.scale_loss(losses, trainer) as scaled:
        mx.autograd.backward(scaled)
    net.weight.list_grad()[0].sum()
    norm = mx.gluon.utils.clip_global_norm([array.grad for array in amp.master_params(trainer)], 1.0)
    assert norm == pytest.approx(5 * contexts) and trainer.step(1)
    np.testing.assert_allclose(net.weight.list_data()[0].asnumpy(), [[-0.6, -0.8]], rtol=1e-5)


def test_a_look_reads_nothing_on_the_host(monkeypatch):
    params, trainer = make()
    backward(trainer, params)
    with monkeypatch.context() as patch:
        for name in ("asnumpy", "asscalar", "wait_to_read"):
            patch.setattr(mx.nd.NDArray, name, None)
        params[0].grad()
    trainer.step(1)


def test_a_step_without_a_look_does_not_unscale(monkeypatch):
    params, trainer = make()
    backward(trainer, params)
    monkeypatch.setattr("mxmp.train.step.scale_in_place", None)
    assert trainer.step(1) and params[0].data().asnumpy().tolist() == [0.875, -2.125]


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


def test_unscale_after_a_look_only_sums():
    params, trainer = make(contexts=2)
    backward(trainer, params)
    assert params[0].grad(TWO[1]).asnumpy().tolist() == [0.25, 0.25]
    trainer.unscale()
    assert params[0].grad(TWO[1]).asnumpy().tolist() == [0.5, 0.5]
    with pytest.raises(TrainerError, match="unscaled already"):
        trainer.unscale()


@pytest.mark.parametrize("contexts", [1, 2])
def test_clipping_after_a_look_is_of_the_sum(contexts):
    params, trainer = make(contexts=contexts)
    backward(trainer, params)
    assert params[0].grad(TWO[0]).asnumpy().tolist() == [0.25, 0.25]
    assert trainer.clip_global_norm(100.0) == 0.5 * contexts  # the norm of four elements
    assert trainer.step(1)
    assert params[0].list_data()[0].asnumpy().tolist() == [1 - 0.125 * contexts, -2 - 0.125 * contexts]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_further_backward_adds_to_gradients_that_were_read(dtype):
    params, trainer = make(dtype, grad_req="add")
    for p in params:
        p.zero_grad()
    for _ in range(3):
        backward(trainer, params)
        last = params[0].grad().asnumpy().tolist()
    assert last == [0.75, 0.75]
    trainer.step(1)
    assert value(params[1].data()).tolist() == [1 - 0.375, -2 - 0.375]


def test_a_backward_that_comes_after_a_look_and_unscale_is_noticed():
    params, trainer = make(kvstore=None)
    backward(trainer, params)
    params[0].grad()
    trainer.unscale()
    with mx.autograd.record():
        loss_of(params, 1).backward()
    with pytest.raises(TrainerError, match="backward wrote the gradient of parameter 'a' after the gradients were unscaled"):
        trainer.step(1)


@pytest.mark.parametrize("look", [True, False])
def test_a_context_without_a_batch_is_no_overflow(look):
    """What lies there is an inf of the step before, which was skipped."""
    (w,), trainer = make(contexts=2, names="a", loss_scale="dynamic")
    backward(trainer, [w])
    w.list_data()[0].grad[:] = np.inf
    assert not trainer.step(1)
    with mx.autograd.record():
        loss = loss_of(w, 0.25, TWO[1])
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    if look:
        assert w.grad(TWO[1]).asnumpy().tolist() == [0.25, 0.25]
    assert trainer.step(1, ignore_stale_grad=True)
    assert w.data(TWO[0]).asnumpy().tolist() == [0.875, -2.125]


# Within blocks, and where they fail.


def test_within_a_block_gradients_are_scaled_whoever_reads_them():
    params, trainer = make()
    backward(trainer, params)
    held = params[0].list_grad()
    trainer.step(1)
    with mx.autograd.record():
        loss = loss_of(params, 0.25)
    with trainer.scale_loss(loss) as scaled:
        held[0].sum()
        scaled.backward()
        assert params[0].grad().asnumpy().tolist() == [0.25 * SCALE, 0.25 * SCALE]
    assert params[0].grad().asnumpy().tolist() == [0.25, 0.25]
    assert trainer.step(1) and params[0].data().asnumpy().tolist() == [0.75, -2.25]


def test_within_a_block_of_one_trainer_nothing_of_another_is_unscaled_that_shares_its_losses():
    (first, one), (second, other) = make(names="a"), make(names="b")
    backward(one, [*first, *second], others=[other])
    one.step(1)
    with mx.autograd.record():
        loss = loss_of(first, 0.25)
    with one.scale_loss(loss) as scaled:
        assert second[0].grad().asnumpy().tolist() == [0.25 * SCALE, 0.25 * SCALE]
        scaled.backward()
    assert second[0].grad().asnumpy().tolist() == [0.25, 0.25]
    assert one.step(1) and other.step(1)
    assert first[0].data().asnumpy().tolist() == [0.75, -2.25] and second[0].data().asnumpy().tolist() == [0.875, -2.125]


def test_a_look_from_a_thread_waits_for_the_block_of_another():
    params, trainer = make(contexts=2, names="a")
    (w,), seen = params, []
    backward(trainer, params)
    trainer.step(1)
    with mx.autograd.record():
        losses = [loss_of(w, 0.25, ctx) for ctx in TWO]
    with trainer.scale_loss(losses[0]) as scaled:
        scaled.backward()
    gradients = w.list_grad()
    with trainer.scale_loss(losses[1]) as scaled:
        thread = threading.Thread(target=lambda: seen.append(gradients[0].asnumpy().tolist()))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not seen
        scaled.backward()
    thread.join(20)
    assert seen == [[0.25, 0.25]]
    assert trainer.step(1) and w.data(TWO[0]).asnumpy().tolist() == [0.5, -2.5]


@pytest.mark.parametrize("with_heads", [False, True], ids=["", "loss heads"])
def test_threads_that_look_at_one_anothers_gradients_within_blocks_do_not_wait_for_ever(with_heads):
    if with_heads:
        HEAD_SCALE.data(mx.cpu())  # as after the first call of a converted net with a loss head
    pairs, inside = [make(names=name, grad_req="add") for name in "ab"], threading.Barrier(1 if with_heads else 2)
    for params, trainer in pairs:
        backward(trainer, params)
    lists = [params[0].list_grad() for params, _ in pairs]

    def work(number):
        params, trainer = pairs[number]
        with mx.autograd.record():
            loss = loss_of(params, 0.25)
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
            inside.wait(20)
            time.sleep(0.1)  # for the other thread to come to its block
            lists[1 - number][0].sum()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    for params, trainer in pairs:
        assert params[0].grad().asnumpy().tolist() == [0.5, 0.5] and trainer.step(1)


@pytest.mark.parametrize("error", [KeyError, TrainerError], ids=["the user's", "no loss"])
@pytest.mark.parametrize("begun", [True, False], ids=["a later block", "the first block"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_that_raises_leaves_gradients_as_before_it(dtype, begun, error):
    (w,), trainer = make(dtype, names="a")
    plain = w._grad
    if begun:
        backward(trainer, [w])
        w.grad()[:] *= 2
    with pytest.raises(error):
        with trainer.scale_loss("no loss" if error is TrainerError else loss_of(w, 1)):
            raise KeyError
    if begun:
        assert w.grad().asnumpy().tolist() == [0.5, 0.5]
        assert trainer.step(1) and value(w.data()).tolist() == [0.75, -2.25]
    assert w._grad is plain and type(plain) is list


def test_a_call_that_is_refused_leaves_gradients_true():
    params, trainer = make(contexts=2)
    backward(trainer, params[:1])
    with pytest.raises(TrainerError, match="update came before allreduce_grads"):
        trainer.update(1, ignore_stale_grad=True)
    with pytest.raises(UserWarning, match="the gradient of parameter 'b' on context"):
        trainer.step(1)
    assert params[0].grad(TWO[0]).asnumpy().tolist() == [0.25, 0.25]
    assert trainer.step(1, ignore_stale_grad=True) and params[0].data(TWO[0]).asnumpy().tolist() == [0.75, -2.25]


def test_a_block_that_cannot_begin_leaves_gradients_true():
    params, trainer = make(grad_req="add", names="a")
    others, other = make(grad_req="add", names="b")
    backward(trainer, params)
    with mx.autograd.record():
        loss = loss_of(others, 1)
    loss.backward()
    with pytest.raises(TrainerError, match="gradient of parameter 'b', to which this block would add"):
        backward(trainer, params, others=[other])
    assert params[0].grad().asnumpy().tolist() == [0.25, 0.25] and trainer.step(1)


# Several trainers.


def test_trainers_of_one_loss_are_unscaled_together():
    first, one = make(names="a")
    second, other = make(names="b")
    backward(one, [*first, *second], others=[other])
    assert second[0].grad().asnumpy().tolist() == [0.25, 0.25]
    assert one._scaler.state.is_unscaled and other._scaler.state.is_unscaled
    assert one.step(1) and other.step(1)
    assert first[0].data().asnumpy().tolist() == second[0].data().asnumpy().tolist() == [0.875, -2.125]


def sharing(shared, *others):
    """Return trainers, each of a parameter of its own and of one that they share."""
    options = {"learning_rate": 0.5}
    return [mxmp.gluon.Trainer([shared, other], "sgd", options, loss_scale=SCALE) for other in others]


@pytest.mark.parametrize("steps_first", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("look", [(), (0,), (0, 1, 2)], ids=["no look", "a look", "looks"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_trainers_of_one_block_may_share_a_parameter(dtype, look, steps_first):
    params = [param([1.0, -2.0], dtype, name=name) for name in "abc"]
    lists = [p._grad for p in params]
    trainers = sharing(*params)
    for _ in range(2):
        backward(trainers[0], params, others=trainers[1:])
        for number in look:
            assert params[number].grad().asnumpy().tolist() == [0.25, 0.25]
        assert trainers[steps_first].step(1) and trainers[1 - steps_first].step(1, ignore_stale_grad=True)
    assert all(value(p.data()).tolist() == [0.75, -2.25] for p in params)
    assert all(p._grad is before for p, before in zip(params, lists))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_further_block_of_one_trainer_leaves_what_another_shares_with_it_of_one_scale(dtype):
    params = [param([1.0, -2.0], dtype, name=name, grad_req="add") for name in "abc"]
    one, other = sharing(*params)
    backward(one, params, others=[other])
    assert params[0].grad().asnumpy().tolist() == [0.25, 0.25]
    backward(one, params[:2])
    assert [p.grad().asnumpy()[0] for p in params] == [0.5, 0.5, 0.25]
    assert other.step(1) and one.step(1, ignore_stale_grad=True)
    assert [value(p.data()).tolist()[0] for p in params] == [0.75, 0.75, 0.875]


@pytest.mark.parametrize("loss_scale", [4 * SCALE, None], ids=["scaled", "without a scale"])
def test_two_trainers_of_one_parameter_outside_of_one_block_are_refused(loss_scale):
    """Before a backward: what waits is what the first trainer then steps with."""
    params, one = make(names="a")
    other = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": 0.5}, loss_scale=loss_scale)
    backward(one, params)
    with pytest.raises(TrainerError, match="parameter 'a' waits for the step of another trainer"):
        backward(other, params, 1)
    assert one.step(1) and params[0].data().asnumpy().tolist() == [0.875, -2.125]
    backward(one, params)
    one.discard_grads()
    backward(other, params)
    assert other.step(1) and params[0].data().asnumpy().tolist() == [0.75, -2.25]


def test_a_trainer_that_is_dropped_before_its_step_leaves_nothing_behind():
    params, one = make("float16")
    backward(one, params)
    params, other = make("float16")[0], None
    one = mxmp.gluon.Trainer(params, "sgd", loss_scale=SCALE)
    backward(one, params)
    del one
    other = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": 0.5}, loss_scale=SCALE)
    backward(other, params)
    assert params[0].grad().asnumpy().tolist() == [0.25, 0.25]
    assert other.step(1) and value(params[0].data()).tolist() == [0.875, -2.125]


def test_after_the_step_gradients_are_plain_lists_again():
    params, trainer = make("float16")
    lists = [p._grad for p in params]
    backward(trainer, params)
    params[0].grad()
    trainer.step(1)
    assert all(p._grad is before and type(before) is list for p, before in zip(params, lists))
    backward(trainer, params)
    trainer.discard_grads()
    assert all(p._grad is before for p, before in zip(params, lists))


def test_a_net_that_is_copied_before_the_step_has_gradients_of_its_own():
    params, trainer = make()
    backward(trainer, params)
    other = copy.deepcopy(params[0]._grad)
    assert type(other) is list and other[0] is not params[0]._grad.arrays[0]


def test_row_sparse_gradients_are_true_ones_too():
    net = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    net.initialize(mx.init.One())
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=SCALE)
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 3])).sum()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    grad = net.weight.list_grad()[0]
    assert grad.stype == "row_sparse" and grad.asnumpy()[[1, 3]].tolist() == [[1, 1], [1, 1]]
    trainer.step(1)
    assert net.weight.list_data()[0].asnumpy()[:, 0].tolist() == [1, 0, 1, 0, 1]
