"""Where updates may happen: in the trainer, or unchecked inside of the kvstore."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.distributed import KVStore
from mxmp.errors import StaleGradientError, TrainerError
from mxmp.gluon import Trainer, convert, restore
from tests.distributed.engines import Second
from tests.gluon.trainer_tools import DTYPES, TWO, backward, loss_of, param, sgd, value


def train(loss_scale, dtype, steps=3, optimizer="adam", **options):
    """Return the values of a parameter on two contexts after some steps with the same gradients."""
    w = param(np.linspace(-1, 1, 5), dtype, ctx=TWO)
    trainer = Trainer([w], optimizer, {"learning_rate": 0.01}, loss_scale=loss_scale, **options)
    for number in range(steps):
        for ctx in TWO:
            backward(trainer, w, np.sin(np.arange(5) + number), ctx)
        assert trainer.step(2)
    return [value(w.data(ctx)) for ctx in TWO]


@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_static_scale_may_update_on_the_kvstore(dtype, kvstore):
    checked = train(2.0**6, dtype, kvstore=kvstore)
    found = train(2.0**6, dtype, kvstore=kvstore, update_on_kvstore=True)
    np.testing.assert_array_equal(found, checked)
    np.testing.assert_array_equal(found, train(None, dtype, kvstore=kvstore, update_on_kvstore=True))


def test_nothing_is_checked_where_the_kvstore_updates():
    w = param([1.0, 2.0], ctx=TWO)
    trainer = sgd(w, 8, update_on_kvstore=True)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    w.grad(TWO[1])[0] = np.inf
    assert trainer.step(1) and trainer.skipped_steps == 0
    assert value(w.data(TWO[0])).tolist() == [-np.inf, 0]


def test_a_loss_that_was_not_scaled_is_refused_where_the_kvstore_updates():
    w = param([1.0], ctx=TWO)
    trainer = sgd(w, 8, update_on_kvstore=True)
    for ctx in TWO:
        with autograd.record():
            loss = loss_of(w, 1, ctx)
        loss.backward()
    with pytest.raises(TrainerError, match="step: the loss of this step was not scaled"):
        trainer.step(1)


def sparse():
    return param(np.ones((3, 2)), stype="row_sparse", grad_stype="row_sparse")


ON_KVSTORE = {"update_on_kvstore": True}
NO_KVSTORE = "1 context: MXNet makes no kvstore there; leave update_on_kvstore out"
UNCHECKED = " updates weights inside the all-reduce.*destroy them: {}give a static loss scale with update_on_kvstore=True"
SPARSE = "the kvstore of a row_sparse parameter" + UNCHECKED.format("make the parameter with stype='default' .*, or ")
DYNAMIC = "update_on_kvstore=True" + UNCHECKED.format("leave update_on_kvstore out, or ")
ASYNCHRONOUS = "kvstore 'dist_async'" + UNCHECKED.format("")
REFUSED = {
    "a dynamic scale": (TWO, {**ON_KVSTORE}, DYNAMIC),
    "asynchronous, dynamic": (None, {"kvstore": "dist_async"}, ASYNCHRONOUS),
    "asynchronous, static": (None, {"kvstore": "dist_async", "loss_scale": 8}, ASYNCHRONOUS),
    "row_sparse": (sparse, {}, SPARSE),
    "row_sparse, static": (sparse, {"loss_scale": 8}, SPARSE),
    "row_sparse, chosen": (sparse, {**ON_KVSTORE}, SPARSE),
    "one context": (None, {**ON_KVSTORE, "loss_scale": None, "kvstore": "device"}, NO_KVSTORE),
    "no kvstore": (None, {**ON_KVSTORE, "loss_scale": None, "kvstore": None}, NO_KVSTORE),
    "norms": (TWO, {**ON_KVSTORE, "loss_scale": 8, "optimizer": "lbsgd"}, "LBSGD needs gradients that are unscaled fir"),
    "unknown": (None, {"kvstore": "devise"}, "unknown kvstore 'devise'.*device"),
    "a number": (None, {"kvstore": 3}, "kvstore is 3; expected a name, a KVStore or None"),
}


@pytest.mark.parametrize("where, options, message", REFUSED.values(), ids=REFUSED)
def test_a_trainer_is_refused_and_leaves_parameters_alone(where, options, message):
    w = where() if callable(where) else param([1.0], ctx=where)
    with pytest.raises(TrainerError, match=message):
        Trainer([w], **{"optimizer": "sgd", **options})
    assert w._trainer is None


CURES = {
    "dense": ("default", {}),
    "static": ("row_sparse", {"loss_scale": 8, "update_on_kvstore": True}),
    "unscaled": ("row_sparse", {"loss_scale": None}),
}


@pytest.mark.parametrize("stype, options", CURES.values(), ids=CURES)
def test_each_way_out_that_a_row_sparse_parameter_is_offered_trains(stype, options):
    w = param(np.ones((3, 2)), stype=stype, grad_stype="row_sparse")
    trainer = Trainer([w], "sgd", {"learning_rate": 0.5}, **options)
    rows = mx.nd.array([0, 1, 2])
    for _ in range(2):
        data = w.data() if stype == "default" else w.row_sparse_data(rows)
        with autograd.record():
            loss = mx.nd.Embedding(mx.nd.array([1, 1]), data, input_dim=3, output_dim=2, sparse_grad=True).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        assert trainer.step(2)
    found = w.data() if stype == "default" else w.row_sparse_data(rows)
    np.testing.assert_array_equal(found.asnumpy(), [[1, 1], [0, 0], [1, 1]])


def test_a_scale_that_must_be_checked_cannot_be_set_where_the_kvstore_updates():
    trainer = sgd(param([1.0], ctx=TWO), None, update_on_kvstore=True)
    with pytest.raises(TrainerError, match="the kvstore of this trainer updates weights"):
        trainer.loss_scale = "dynamic"
    for allowed in (128, None):
        trainer.loss_scale = allowed
    trainer = Trainer([param([1.0], ctx=TWO)], "lbsgd", loss_scale=None, update_on_kvstore=True)
    with pytest.raises(TrainerError, match="LBSGD needs gradients that are unscaled first"):
        trainer.loss_scale = 8


def test_calls_that_need_gradients_are_refused_where_the_kvstore_updates():
    w = param([1.0], ctx=TWO)
    trainer = sgd(w, None, update_on_kvstore=True)
    for call in (
        trainer.unscale,
        lambda: trainer.clip_global_norm(1.0),
        trainer.allreduce_grads,
        lambda: trainer.update(1),
    ):
        with pytest.raises(TrainerError, match="cannot be used where the kvstore updates"):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_of_a_kvstore_that_updates_are_saved_without_pickle(dtype, tmp_path):
    fname, contexts = str(tmp_path / "states"), [mx.cpu(1), mx.cpu(2)]  # the kvstore works on another one

    def run(steps, resume=None):
        w = param(np.linspace(-1, 1, 5) if resume is None else resume, dtype, ctx=contexts)
        trainer = Trainer([w], "adam", {"learning_rate": 0.01}, loss_scale=8, update_on_kvstore=True)
        if resume is not None:
            trainer.load_states(fname)
        for number in steps:
            for ctx in contexts:
                backward(trainer, w, np.sin(np.arange(5) + number), ctx)
            trainer.step(2)
        return trainer, value(w.data(contexts[0]))

    _, whole = run([0, 1, 2, 3])
    trainer, half = run([0, 1])
    trainer.save_states(fname)
    assert np.load(fname, allow_pickle=False).files
    _, resumed = run([2, 3], half)
    np.testing.assert_array_equal(resumed, whole)


def test_a_file_with_a_dynamic_scale_does_not_load_where_the_kvstore_updates(tmp_path):
    fname = str(tmp_path / "states")
    saved = Trainer([param([1.0], ctx=TWO)], "sgd", {"learning_rate": 0.5}, loss_scale="dynamic")
    saved.save_states(fname)
    trainer = sgd(param([1.0], ctx=TWO), 8, update_on_kvstore=True)
    with pytest.raises(TrainerError, match=f"^{fname}: its loss scale does not fit.*the kvstore of this trainer updates"):
        trainer.load_states(fname)
    assert trainer.loss_scale.value == 8 and trainer.learning_rate == 1.0


def test_a_second_step_needs_a_backward_and_states_none(tmp_path):
    """Nothing is left of a step, even where gradients are added up."""
    w = param([1.0], ctx=TWO, grad_req="add")
    trainer = sgd(w, 8, update_on_kvstore=True)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    trainer.step(1)
    trainer.save_states(str(tmp_path / "states"))
    with pytest.raises(StaleGradientError, match="run backward first"):
        trainer.step(1)
    assert value(w.data(TWO[0])) == -1


def test_setting_a_parameter_keeps_the_states_of_a_kvstore_that_updates():
    def run(**options):
        w = param([1.0], ctx=TWO)
        trainer = Trainer([w], "sgd", {"learning_rate": 1.0, "momentum": 0.9}, loss_scale=8, **options)
        for number in range(3):
            for ctx in TWO:
                backward(trainer, w, 1, ctx)
            trainer.step(1)
            if number == 1:
                w.set_data(mx.nd.zeros((1,)))
        return value(w.data(TWO[1]))

    assert run(update_on_kvstore=True) == run()


def test_masters_of_a_kvstore_are_what_is_saved_and_restored():
    contexts = [mx.cpu(1), mx.cpu(2)]  # the kvstore works on another one
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    convert(net, "O2")
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3}, loss_scale=8, update_on_kvstore=True)
    for number in range(5):
        losses = []
        with autograd.record():
            for ctx in contexts:
                losses.append(net(mx.nd.ones((2, 4), ctx=ctx) * number).square().mean())
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        trainer.step(2)
    index = trainer._param2idx[net.weight.name]
    master = trainer._kvstore._updater.states[index].master.asnumpy()
    np.testing.assert_array_equal(net.weight._reduce().asnumpy(), master)
    restore(net)
    for ctx in contexts:
        np.testing.assert_array_equal(net.weight.data(ctx).asnumpy(), master)


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_a_value_that_is_set_after_a_step_becomes_the_master_of_a_kvstore(kvstore):
    contexts = [mx.cpu(1), mx.cpu(2)]
    net = mx.gluon.nn.Dense(3, in_units=4, use_bias=False)
    net.initialize(ctx=contexts)
    convert(net, "O2")
    trainer = Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.0}, kvstore, loss_scale=8, update_on_kvstore=True
    )
    value = np.random.RandomState(0).randn(3, 4).astype("float32")
    for _ in range(2):
        with autograd.record():
            losses = [net(mx.nd.ones((2, 4), ctx=ctx)).sum() for ctx in contexts]
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        trainer.step(2)
        net.weight.set_data(mx.nd.array(value))
    np.testing.assert_array_equal(net.weight._reduce().asnumpy(), value)


class Exact(Second):
    """The second worker of one whose float32 value float16 has not."""

    def broadcast(self, key, array):
        super().broadcast(key, array)
        array[:] = 5 + 2.0**-12


def test_a_worker_without_masters_keeps_worker_0s():
    """Or weights that round alike would go different ways."""
    w = param([1.0], "float16")
    trainer = sgd(w, 1.0, kvstore=KVStore(Exact()))
    backward(trainer, w, [0])
    trainer.step(1)
    assert value(w.data()) == 5 and trainer._updaters[0].states[0].master.asscalar() == 5 + 2.0**-12
