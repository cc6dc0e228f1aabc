"""The steps of a module: masters that belong to it, optimizers, kvstores, several contexts, static recipes.

What any step does (scales, skips, clipping, finite checks) is tested over all fronts in tests/train/test_step.py.
"""

import contextlib
import itertools
import re
import warnings

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import NonFiniteLossError, TrainerError
from mxmp.loss_scale import NoOpLossScale, StaticLossScale
from mxmp.module import Module
from mxmp.optimizer import LossScaleOptimizer
from tests.freeze import freeze, freeze_optimizer, saved_arrays
from tests.module.tools import (
    BFLOAT16,
    TWO,
    arrays,
    batches,
    bits,
    bound,
    convnet,
    grads,
    mlp,
    params_of,
    plain,
    ready,
    scale,
    train,
    updating,
    values,
)  # fmt: skip

EPS = float(np.finfo(np.float16).eps)


def close(found, expected, factor=16, eps=EPS):
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() < factor * eps * np.abs(array).max(), name


@pytest.mark.behaviour(50)
@pytest.mark.parametrize("kvstore", [None, "local", "device"])
@pytest.mark.parametrize("optimizer, context", [("sgd", mx.cpu()), ("adam", TWO)])
def test_a_float32_module_with_a_scale_is_bit_identical_to_plain_mxnet(optimizer, context, kvstore):
    """A power of two in, the same out through rescale_grad: not one bit of the weights is touched."""
    options = {"kvstore": kvstore, "context": context, "optimizer": optimizer, "options": {"wd": 1e-3}}
    ours, theirs = ready(policy="float32", loss_scale=1024, **options), plain(**options)
    found, expected = (bits(values(train(module, batches(), epochs=2))) for module in (ours, theirs))
    assert found == expected and ours.skipped_steps == 0 and ours._update_on_kvstore is False
    assert freeze(ours.get_outputs()) == freeze(theirs.get_outputs())


@pytest.mark.bfloat16
def test_mixed_bfloat16_follows_float32():
    ours, theirs = (train(module, batches(), epochs=2) for module in (ready(policy=BFLOAT16), plain()))
    close(values(ours), values(theirs), 32, 2.0**-7)


def test_batch_norm_outlives_a_forward_pass_that_overflows():
    module = ready(convnet(), shape=(8, 2, 5, 5), loss_scale=8)
    batch = batches(shape=(2, 5, 5))[0]
    train(module, [batch])
    before = freeze(module._exec_group.aux_arrays)
    module.forward_backward(mx.io.DataBatch([batch.data[0] * 1e30], batch.label))
    with contextlib.suppress(NonFiniteLossError):
        assert not module.update()
    assert freeze(module._exec_group.aux_arrays) == before
    train(module, [batch])
    assert all(np.isfinite(array.asnumpy()).all() for array in module.get_params()[1].values())


# ---------------------------------------------------------------------- masters


@pytest.mark.parametrize("fixed", [["fc1_weight"], ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]])
def test_fixed_parameters_stay(fixed):
    module = ready(policy="O2", fixed_param_names=fixed)
    before = values(module)
    for batch in batches():
        module.forward_backward(batch)
        assert (module.clip_global_norm(1.0) == 0.0) == (len(fixed) == 4)
        assert module.update()
    after = values(module)
    assert {name for name in before if np.array_equal(after[name], before[name])} == set(fixed)


SETS = {
    "set_params in float64": lambda module, args: module.set_params({n: a.astype("float64") for n, a in args.items()}, {}),
    "set_params": lambda module, args: module.set_params(args, {}),
    "set_params, some missing": lambda module, args: module.set_params(args, {}, allow_missing=True),
    "init_params": lambda module, args: module.init_params(arg_params=args, aux_params={}, force_init=True),
}


@pytest.mark.parametrize("change", SETS.values(), ids=SETS)
def test_parameters_that_are_set_reach_the_masters_exactly(change):
    module, args = train(ready(policy="O2", context=TWO, kvstore=None), batches()[:2]), params_of(mlp(), 5, data=(8, 6))[0]
    for each in (module, bound(policy="O2")):
        change(each, args)
        assert bits(values(each)) == bits({name: array.asnumpy() for name, array in args.items()})
    assert freeze(args["fc1_weight"]) in saved_arrays(module.save_optimizer_states)
    assert train(module, batches()[:1]).skipped_steps == 0
    before = values(module)
    module.bind(module.data_shapes, module.label_shapes, force_rebind=True)  # on contexts that went on by themselves
    assert bits(values(module)) == bits(before)


READS = {
    "get_params": lambda module, folder: module.get_params(),
    "save_params": lambda module, folder: module.save_params(f"{folder}/net.params"),
    "save_checkpoint": lambda module, folder: module.save_checkpoint(f"{folder}/net", 1),
    "save_optimizer_states": lambda module, folder: module.save_optimizer_states(f"{folder}/net.states"),
    "bind": lambda module, folder: module.bind(module.data_shapes, module.label_shapes, force_rebind=True),
    "update": lambda module, folder: train(module, batches()[:1]),
}


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_write_past_a_master_is_found_wherever_it_would_count(read, synced, tmp_path):
    module = train(ready(policy="O2", loss_scale=8), batches() * 2)  # eight steps
    if synced:
        module.get_params()
    arrays(module, "fc2_bias")[0][1] += 0.5
    with pytest.raises(TrainerError, match=r"^parameter 'fc2_bias' is stored in low precision.*set_params of a module"):
        read(module, tmp_path)
    assert list(tmp_path.iterdir()) == []
    module.set_params(params_of(mlp(), data=(8, 6))[0], {})  # which takes a value over
    before = values(train(module, batches() * 3))["fc2_bias"]
    arrays(module, "fc2_bias")[0][1] += 0.5  # after the tenth step nothing looks any more, and the master decides
    train(module, batches()[:1])
    assert np.abs(values(module)["fc2_bias"] - before).max() < 0.1


def adding(base):
    """Return a module that adds a number to each gradient before it updates, as MXNet's SVRGModule does."""

    class Adding(base):
        def update(self):
            for grad in itertools.chain(*self._exec_group.grad_arrays):
                grad[:] = grad + 0.25
            return super().update()

    return Adding


def test_what_a_subclass_adds_to_gradients_is_not_divided_by_the_scale():
    options = {"learning_rate": 0.125, "rescale_grad": 1.0}
    expected = train(ready(cls=adding(mx.mod.Module), options=options), batches())
    module = adding(Module)(mlp(), policy="O0", loss_scale=1024)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(arg_params=params_of(mlp(), data=(8, 6))[0], aux_params={})
    module.init_optimizer("local", "sgd", options)
    found = values(train(module, batches()))
    for name, array in values(expected).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_what_is_written_into_true_gradients_that_add_up_stays():
    """Zeros above all: what executors hold is float16, what is seen between unscale and update are float32 copies."""
    module = ready(policy="O2", loss_scale=8, bind={"grad_req": "add"})
    module.forward_backward(batches()[0])
    shown = module._exec_group.grad_arrays
    owned = [list.copy(each)[0] for each in shown]
    module.unscale()
    for each in shown[1:]:
        each[0][:] = 0
    shown[0][0] = shown[0][0] * 0.5  # replaced, which counts for this step
    module.update()
    assert all(each[0] is own and own.dtype == np.float16 for each, own in zip(shown, owned))
    assert [own.asnumpy().any() for own in owned] == [True, False, False, False]


@pytest.mark.bfloat16
@pytest.mark.parametrize("grad_req", ["write", "add", {"fc1_weight": "add"}], ids=["write", "add", "one is added"])
def test_gradients_in_bfloat16_add_up_where_they_are_to(grad_req):
    """MXNet's amp_cast loses those that are added; where all are written nothing guards against it."""
    if isinstance(grad_req, dict):
        grad_req = {**dict.fromkeys(mlp().list_arguments(), "null"), **grad_req}
    module, found = bound(policy=BFLOAT16, loss_scale=None, bind={"grad_req": grad_req}), []
    for _ in range(2):
        module.forward_backward(batches()[0])
        found.append(grads(module)["fc1_weight"])
    assert found[0].any()
    np.testing.assert_allclose(found[1], found[0] * (1 if grad_req == "write" else 2), rtol=1e-5)


def test_embeddings_with_row_sparse_gradients_train():
    rows = mx.sym.Embedding(mx.sym.var("data"), input_dim=20, output_dim=4, sparse_grad=True, name="embed")
    out = mx.sym.FullyConnected(mx.sym.Flatten(rows, name="flat"), num_hidden=4, name="fc")
    symbol, tokens = mx.sym.SoftmaxOutput(out, name="softmax"), np.random.default_rng(0).integers(0, 20, (8, 3))
    batch = mx.io.DataBatch([mx.nd.array(tokens)], [mx.nd.array([0, 1, 2, 3] * 2)])
    options = {"shape": (8, 3), "kvstore": None, "options": {"learning_rate": 0.5}}
    ours, theirs = ready(symbol, "float32", loss_scale=64, **options), plain(symbol, **options)
    assert bits(values(train(ours, [batch] * 3))) == bits(values(train(theirs, [batch] * 3)))
    assert {shown[0].stype for shown in ours._exec_group.grad_arrays} == {"default", "row_sparse"}


# ---------------------------------------------------------------------- optimizers, kvstores, scales


def test_the_optimizer_is_as_plain_mxnet_makes_it():
    """Names decide over weight decay, attributes over learning rates, the batch over rescale_grad."""
    layer = mx.sym.FullyConnected(mx.sym.var("data"), mx.sym.var("fc_weight", lr_mult=0.5), num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(layer, name="softmax")
    ours, theirs = ready(symbol, policy="float32"), plain(symbol)._optimizer
    inner = ours._optimizer
    assert freeze_optimizer(inner) == freeze_optimizer(theirs)
    assert inner.wd_mult and inner.lr_mult == {"fc_weight": 0.5}
    train(ours, batches()[:1])
    assert inner.rescale_grad == theirs.rescale_grad == 1 / 8


def test_an_optimizer_instance_is_used_and_its_rescale_grad_questioned():
    sgd = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / 8)
    module = ready(optimizer=sgd, options={})
    assert module._optimizer is sgd and set(sgd.idx2name.values()) == set(module.get_params()[0])
    taken = LossScaleOptimizer(mx.optimizer.SGD(rescale_grad=1 / 8), dynamic=False, initial_scale=64)
    assert train(ready(optimizer=taken, options={}, loss_scale=1), batches()[:1]).loss_scale.value == 64
    module.init_optimizer(optimizer="adam")  # ignored with a line in the log
    assert module._optimizer is sgd
    with pytest.warns(UserWarning, match="rescale_grad is 1.0, not 1/batch_size = 0.125"):
        module.init_optimizer(optimizer=mx.optimizer.SGD(), force_init=True)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # MXNet's load_optimizer_states leaves it open
def test_where_the_kvstore_updates_all_is_mxnets(tmp_path):
    ours, theirs = ready(policy="float32", context=TWO, kvstore=updating()), plain(context=TWO, kvstore="device")
    found, expected = (bits(values(train(module, batches()))) for module in (ours, theirs))
    assert ours._update_on_kvstore and found == expected
    for module in (ours, theirs):
        module.save_optimizer_states(str(tmp_path / "states"))
        module.load_optimizer_states(str(tmp_path / "states"))
    with pytest.raises(TrainerError, match="unscale cannot be used where the kvstore updates"):
        ours.unscale()
    with pytest.raises(TrainerError, match="updates weights inside the all-reduce, .* without float32 masters"):
        ready(policy="O2", loss_scale=None, kvstore=updating())


def test_the_scale_is_the_policys_unless_given_and_none_is_as_lenient_as_mxnet():
    assert Module(mlp(), policy="O1,loss_scale=128").loss_scale == StaticLossScale(128)
    assert Module(mlp(), policy="bfloat16").loss_scale == NoOpLossScale()
    module, theirs = ready(policy="float32"), plain()
    for each in (module, theirs):
        each.forward_backward(batches()[0])
        each.update()
        each.update()  # without a backward, with the gradients that are there
    assert bits(values(module)) == bits(values(theirs))


def test_an_update_that_was_left_out_after_clipping_is_answered_by_discard_grads():
    module, batch = ready(), batches()[0]
    module.forward_backward(batch)
    module.clip_global_norm(1.0, batch_size=8)
    for call in (lambda: module.forward_backward(batch), module.unscale):
        with pytest.raises(TrainerError, match="to leave (that step|an update) out call discard_grads"):
            call()
    module.discard_grads()
    module.forward_backward(batch)
    assert module.update()


@pytest.mark.parametrize("classes, dtype, said", [(3000, "float16", 1), (3000, "float32", 0), (4, "float16", 0)])
def test_labels_that_float16_has_rounded_are_named_once(classes, dtype, said):
    module = ready(mlp(classes=classes))
    labels = mx.nd.array([1, 2, 2049, 3, 1, 2, 3, 1]) % classes
    batch = mx.io.DataBatch([mx.nd.ones((8, 6))], [labels.astype(dtype)])
    text = "label 'softmax_label' comes in float16, which rounds whole numbers above 2048 .* has 3000 classes"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            module.forward_backward(batch)
            module.update()
    assert len(caught) == said and all(re.match(text, str(each.message)) for each in caught)


def test_states_are_not_saved_in_the_middle_of_an_accumulation(tmp_path):
    module = ready(loss_scale=None, bind={"grad_req": "add"})
    module.forward_backward(batches()[0])
    for save, args in {module.save_checkpoint: (1, True), module.save_optimizer_states: ()}.items():
        with pytest.raises(TrainerError, match=f"{save.__name__} came between backward and step"):
            save(str(tmp_path / "m"), *args)
    assert not list(tmp_path.iterdir()) and module.update()
    module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)


# ---------------------------------------------------------------------- static recipes


def test_casts_written_by_hand_have_masters_and_a_dynamic_scale():
    """MXNet's guide: Cast down behind the data, Cast up in front of the head; weights are float16."""
    x = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="down")
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=8, name="fc1"), act_type="relu", name="relu1")
    x = mx.sym.Cast(mx.sym.FullyConnected(x, num_hidden=4, name="fc2"), dtype="float32", name="up")
    module = ready(mx.sym.SoftmaxOutput(x, name="softmax"), "float32", options={"learning_rate": 0.1}, loss_scale=scale(2.0**16))
    assert {a[0].dtype for a in module._exec_group.param_arrays} == {np.float16}
    found = values(train(module, batches(), epochs=3))
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)} and not module.last_step_skipped
    assert module.loss_scale.value * 2**module.skipped_steps == 2.0**16
    taken = (batches() * 3)[module.skipped_steps :]
    close(found, values(train(ready(policy="float32", options={"learning_rate": 0.1}), taken)))


