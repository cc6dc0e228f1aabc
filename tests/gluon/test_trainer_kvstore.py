"""Where updates may happen: in the trainer, or unchecked inside of the kvstore."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.distributed import KVStore
from mxmp.errors import StaleGradientError, TrainerError
from mxmp.gluon import Trainer, convert, restore
from tests.distributed.engines import Second
from tests.freeze import freeze
from tests.gluon.trainer_tools import (
    DTYPES,
    TWO,
    backward_everywhere,
    loss_of,
    param,
    run,
    run_backward,
    sgd,
    trained,
    value,
)

ON_KVSTORE = {"update_on_kvstore": True}
OTHERS = [mx.cpu(1), mx.cpu(2)]  # the kvstore works on another one


def adam(dtype, ctx=TWO, values=(-1, -0.5, 0, 0.5, 1), loss_scale=8, **options):
    w = param(values, dtype, ctx=ctx)
    return w, Trainer([w], "adam", {"learning_rate": 0.01}, loss_scale=loss_scale, **options)


def steps(w, trainer, numbers=range(3)):
    """Return the values of a parameter on its contexts after some steps."""
    assert all(run(trainer, w, np.sin(np.arange(5) + number)) for number in numbers)
    return freeze(w.list_data())


@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_static_scale_may_update_on_the_kvstore(dtype, kvstore):
    found = []
    for options in ({}, ON_KVSTORE, {**ON_KVSTORE, "loss_scale": None}):
        w, trainer = adam(dtype, kvstore=kvstore, **options)
        steps(w, trainer)
        w.set_data(mx.nd.zeros((5,)))  # which keeps the states
        found.append(steps(w, trainer))
    assert found[0] == found[1] == found[2]


def test_nothing_is_checked_where_the_kvstore_updates():
    w, trainer = trained(param([1.0], ctx=TWO), 8, **ON_KVSTORE)
    assert run(trainer, w, bad=np.inf) and trainer.skipped_steps == 0 and value(w.data(TWO[0])) == [-np.inf]


@pytest.mark.parametrize(
    "scaled, message",
    [(0, "step: the loss of this step was not scaled"), (1, "'b' on .* was written by a backward outside of scale_loss")],
)
def test_a_loss_that_was_not_scaled_is_refused_where_the_kvstore_updates(scaled, message):
    params = [param([0.0], ctx=TWO, name=name) for name in "ab"]
    trainer = sgd(params, 8, **ON_KVSTORE)
    with autograd.record():
        losses = [loss_of(params[scaled:], 1, ctx) for ctx in TWO]
    if scaled:
        backward_everywhere(trainer, params[0], [1, 1])
    autograd.backward(losses)
    with pytest.raises(TrainerError, match=message):
        trainer.step(1)


def sparse():
    return param(np.ones((3, 2)), stype="row_sparse", grad_stype="row_sparse")


NO_KVSTORE = "1 context: MXNet makes no kvstore there; leave update_on_kvstore out"
UNCHECKED = " updates weights inside the all-reduce.*destroy them: {}give a static loss scale with update_on_kvstore=True"
SPARSE = "the kvstore of a row_sparse parameter" + UNCHECKED.format("make the parameter with stype='default' .*, or ")
DYNAMIC = "update_on_kvstore=True" + UNCHECKED.format("leave update_on_kvstore out, or ")
ASYNCHRONOUS = "kvstore 'dist_async'" + UNCHECKED.format("")
REFUSED = {
    "a dynamic scale": (TWO, ON_KVSTORE, DYNAMIC),
    "asynchronous, dynamic": (None, {"kvstore": "dist_async"}, ASYNCHRONOUS),
    "asynchronous, static": (None, {"kvstore": "dist_async", "loss_scale": 8}, ASYNCHRONOUS),
    "row_sparse": (sparse, {}, SPARSE),
    "row_sparse, static": (sparse, {"loss_scale": 8}, SPARSE),
    "row_sparse, chosen": (sparse, ON_KVSTORE, SPARSE),
    "one context": (None, {**ON_KVSTORE, "loss_scale": None, "kvstore": "device"}, NO_KVSTORE),
    "no kvstore": (None, {**ON_KVSTORE, "loss_scale": None, "kvstore": None}, NO_KVSTORE),
    "norms": (TWO, {**ON_KVSTORE, "loss_scale": 8, "optimizer": "lbsgd"}, "LBSGD needs gradients that are unscaled fir"),
}


@pytest.mark.parametrize("where, options, message", REFUSED.values(), ids=REFUSED)
def test_a_trainer_is_refused_and_leaves_parameters_alone(where, options, message):
    w = where() if callable(where) else param([1.0], ctx=where)
    with pytest.raises(TrainerError, match=message):
        Trainer([w], **{"optimizer": "sgd", **options})
    assert w._trainer is None


CURES = {
    "dense": ("default", {}),
    "static": ("row_sparse", {"loss_scale": 8, **ON_KVSTORE}),
    "unscaled": ("row_sparse", {"loss_scale": None}),
}


@pytest.mark.parametrize("stype, options", CURES.values(), ids=CURES)
def test_each_way_out_that_a_row_sparse_parameter_is_offered_trains(stype, options):
    w = param(np.ones((3, 2)), stype=stype, grad_stype="row_sparse")
    trainer = Trainer([w], "sgd", {"learning_rate": 0.5}, **options)

    def data():
        return w.data() if stype == "default" else w.row_sparse_data(mx.nd.array([0, 1, 2]))

    for _ in range(2):
        with autograd.record():
            loss = mx.nd.Embedding(mx.nd.array([1, 1]), data(), input_dim=3, output_dim=2, sparse_grad=True).sum()
        run_backward(trainer, loss)
        assert trainer.step(2)
    np.testing.assert_array_equal(data().asnumpy(), [[1, 1], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    "optimizer, refused, message",
    [("sgd", "dynamic", "this trainer updates weights"), ("lbsgd", 8, "LBSGD needs gradients that are unscaled first")],
)
def test_a_scale_that_the_kvstore_cannot_update_with_cannot_be_set(optimizer, refused, message):
    trainer = Trainer([param([1.0], ctx=TWO)], optimizer, loss_scale=None, **ON_KVSTORE)
    with pytest.raises(TrainerError, match=message):
        trainer.loss_scale = refused
    assert trainer.loss_scale.value == 1
    for allowed in (128, None) if optimizer == "sgd" else ():
        trainer.loss_scale = allowed


CALLS = {
    "unscale": lambda trainer: trainer.unscale(),
    "clip_global_norm": lambda trainer: trainer.clip_global_norm(1.0),
    "allreduce_grads": lambda trainer: trainer.allreduce_grads(),
    "update": lambda trainer: trainer.update(1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_that_need_gradients_are_refused_where_the_kvstore_updates(call):
    with pytest.raises(TrainerError, match="cannot be used where the kvstore updates"):
        call(sgd(param([1.0], ctx=TWO), None, **ON_KVSTORE))


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_of_a_kvstore_that_updates_are_saved_without_pickle(dtype, tmp_path):
    fname = str(tmp_path / "states")
    w, trainer = adam(dtype, OTHERS, **ON_KVSTORE)
    steps(w, trainer)
    trainer.save_states(fname)
    assert np.load(fname, allow_pickle=False).files
    other, resumed = adam(dtype, OTHERS, value(w.data(OTHERS[0])), **ON_KVSTORE)
    resumed.load_states(fname)
    assert steps(other, resumed) == steps(w, trainer)


def test_a_file_with_a_dynamic_scale_does_not_load_where_the_kvstore_updates(tmp_path):
    fname = str(tmp_path / "states")
    sgd(param([1.0], ctx=TWO), lr=0.5).save_states(fname)
    trainer = sgd(param([1.0], ctx=TWO), 8, **ON_KVSTORE)
    with pytest.raises(TrainerError, match=f"^{fname}: its loss scale does not fit.*the kvstore of this trainer updates"):
        trainer.load_states(fname)
    assert trainer.loss_scale.value == 8 and trainer.learning_rate == 1.0


def test_a_second_step_needs_a_backward_and_states_none(tmp_path):
    """Nothing is left of a step, even where gradients are added up."""
    w, trainer = trained(param([1.0], ctx=TWO, grad_req="add"), 8, **ON_KVSTORE)
    assert run(trainer, w)
    trainer.save_states(str(tmp_path / "states"))
    with pytest.raises(StaleGradientError, match="run backward first"):
        trainer.step(1)
    assert value(w.data(TWO[0])) == -1


def dense(kvstore="device", lr=1e-3):
    """Return a converted net on two contexts and a trainer whose kvstore updates it."""
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier(), ctx=OTHERS)
    convert(net, "O2")
    return net, Trainer(net, "adam", {"learning_rate": lr}, kvstore, loss_scale=8, **ON_KVSTORE)


def step(net, trainer, factor=1):
    with autograd.record():
        losses = [net(mx.nd.ones((2, 4), ctx=ctx) * factor).square().mean() for ctx in OTHERS]
    run_backward(trainer, losses)
    assert trainer.step(2)


def test_masters_of_a_kvstore_are_what_is_saved_and_restored():
    net, trainer = dense()
    for number in range(5):
        step(net, trainer, number)
    index = trainer._param2idx[net.weight.name]
    master = freeze(trainer._kvstore._updater.states[index].master)
    assert freeze(net.weight._reduce()) == master
    restore(net)
    assert freeze(net.weight.list_data()) == [master, master]


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_a_value_that_is_set_after_a_step_becomes_the_master_of_a_kvstore(kvstore):
    net, trainer = dense(kvstore, lr=0.0)
    exact = mx.nd.array(np.random.RandomState(0).randn(3, 4))
    for _ in range(2):
        step(net, trainer)
        net.weight.set_data(exact)
    assert freeze(net.weight._reduce()) == freeze(exact)


class Exact(Second):
    """The second worker of one whose float32 value float16 has not."""

    def broadcast(self, key, array):
        super().broadcast(key, array)
        array[:] = 5 + 2.0**-12


def test_a_worker_without_masters_keeps_worker_0s():
    """Or weights that round alike would go different ways."""
    w, trainer = trained(param([1.0], "float16"), 1.0, kvstore=KVStore(Exact()))
    assert run(trainer, w, 0) and value(w.data()) == 5
    assert trainer._updaters[0].states[0].master.asscalar() == 5 + 2.0**-12
