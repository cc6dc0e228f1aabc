"""Between the block of scale_loss and the step a user sees gradients without the loss scale."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.errors import TrainerError
from tests.gluon.trainer_tools import param, value

SCALE = 2.0**10
TWO = [mx.cpu(0), mx.cpu(1)]
DTYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]


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
    "list_grad": lambda p: p.list_grad()[0],
    "loop": lambda p: next(iter(p.list_grad())),
    "last": lambda p: p.list_grad()[-1],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("contexts", [1, 2])
def test_who_reads_a_gradient_sees_the_true_one(dtype, contexts, look):
    params, trainer = make(dtype, contexts)
    backward(trainer, params)
    for each in params:
        found = look(each)
        assert found.dtype == np.float32 and found.asnumpy().tolist() == [0.25, 0.25]
    assert trainer.step(1)
    for each in params:
        assert value(each.list_data()[0]).tolist() == [1 - 0.125 * contexts, -2 - 0.125 * contexts]


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


def test_trainers_of_one_loss_are_unscaled_together():
    first, one = make(names="a")
    second, other = make(names="b")
    backward(one, [*first, *second], others=[other])
    assert second[0].grad().asnumpy().tolist() == [0.25, 0.25]
    assert one._scaler.state.is_unscaled and other._scaler.state.is_unscaled
    assert one.step(1) and other.step(1)
    assert first[0].data().asnumpy().tolist() == second[0].data().asnumpy().tolist() == [0.875, -2.125]


def test_two_trainers_of_one_parameter_outside_of_one_block_are_refused():
    params, one = make(names="a")
    other = mxmp.gluon.Trainer(params, "sgd", loss_scale=SCALE)
    backward(one, params)
    with pytest.raises(TrainerError, match="parameter 'a' waits for the step of another trainer"):
        backward(other, params)
    one.discard_grads()
    backward(other, params)
    assert other.step(1)


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
