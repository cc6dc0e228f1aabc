"""Checkpoints and states: resumed bit for bit, read by plain MXNet, all files of one save or none."""

import json
import os

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError, StateError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from mxmp.module import BucketingModule, Module
from tests.full_disk import files_of_at_most
from tests.module.tools import (
    SGD,
    SHAPES,
    arrays,
    batches,
    bits,
    convnet,
    iterator,
    mlp,
    plain,
    ready,
    trace,
    train,
    values,
)  # fmt: skip
from tests.stress.killed import killed_at_each_rename
from tests.symbol.refusals import contents, nothing_written, refused


def resume(prefix, epoch, load_optimizer_states=True, **kwargs):
    """Return a module made from a checkpoint, ready to train."""
    module = Module.load(prefix, epoch, load_optimizer_states, **kwargs)
    module.bind(*SHAPES)
    module.init_optimizer("local", "sgd", SGD)
    return module


def operators_of(symbol):
    return [(node["op"], node["name"], node.get("attrs")) for node in json.loads(symbol.tojson())["nodes"]]


# ---------------------------------------------------------------------- plain MXNet, other policies


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_plain_mxnet_loads_a_checkpoint(policy, tmp_path):
    module, data = ready(convnet(), policy, (8, 1, 6, 6), loss_scale=4), iterator(shape=(1, 6, 6))
    train(module, batches(shape=(1, 6, 6))).save_checkpoint(str(tmp_path / "ours"), 3)
    mx.mod.Module.save_checkpoint(module, str(tmp_path / "theirs"), 3, remove_amp_cast=False)
    files = contents(tmp_path)
    assert not [end for end in ("-symbol.json", "-0003.params") if files[f"ours{end}"] != files[f"theirs{end}"]]
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "ours"), 3)
    assert operators_of(symbol) == operators_of(convnet())
    assert {a.dtype for a in (*args.values(), *aux.values())} == {np.float32}
    assert bits({n: a.asnumpy() for n, a in {**args, **aux}.items()}) == bits(values(module))
    reference = mx.mod.Module.load(str(tmp_path / "ours"), 3)
    reference.bind(data.provide_data, data.provide_label, for_training=False)
    assert np.abs(module.predict(data).asnumpy() - reference.predict(data).asnumpy()).max() < 16 * np.finfo(np.float16).eps  # two layers in float16


@pytest.mark.parametrize("policy, dtype", [("O1", "float16"), ("O2", "float32")])
def test_a_checkpoint_of_plain_mxnet_goes_on_in_mixed_precision(policy, dtype, tmp_path):
    prefix = str(tmp_path / "model")
    args = {name: array.astype(dtype) for name, array in plain().get_params()[0].items()}
    mx.model.save_checkpoint(prefix, 0, mlp(), args, {})
    module = resume(prefix, 0, load_optimizer_states=False, policy=policy, loss_scale=8)
    assert bits(values(module)) == bits({name: a.astype("float32").asnumpy() for name, a in args.items()})
    train(module, batches()[:1])
    assert any(np.any(a != a.astype(np.float16)) for a in values(module).values()) and not module.skipped_steps


def test_a_run_of_plain_mxnet_goes_on_bit_for_bit(tmp_path):
    reference = train(plain(), batches()[:3])
    reference.save_checkpoint(str(tmp_path / "model"), 3, save_optimizer_states=True)
    module = resume(str(tmp_path / "model"), 3, policy="float32")
    assert bits(values(train(module, batches()))) == bits(values(train(reference, batches())))


@pytest.mark.behaviour(51)
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_module_goes_on_from_its_checkpoint_bit_for_bit(policy, tmp_path):
    whole = train(ready(policy=policy, loss_scale="dynamic"), batches())
    whole.save_checkpoint(str(tmp_path / "model"), 1, save_optimizer_states=True)
    resumed = resume(str(tmp_path / "model"), 1, policy=policy)
    assert bits(values(train(resumed, batches()))) == bits(values(train(whole, batches())))
    assert resumed.loss_scale == whole.loss_scale != DynamicLossScale()


@pytest.mark.parametrize("before, after", [("O1", "O2"), ("O2", "O1")])
def test_a_run_goes_on_under_another_policy_from_the_exact_values(before, after, tmp_path):
    """The states of O1 have no masters: they are made of the float32 parameters."""
    whole = train(ready(policy=before, loss_scale=8), batches())
    whole.save_checkpoint(str(tmp_path / "model"), 1, save_optimizer_states=True)
    resumed = resume(str(tmp_path / "model"), 1, policy=after, loss_scale=8)
    assert bits(values(resumed)) == bits(values(whole))
    fresh = ready(policy=after, loss_scale=8)  # which has the same momentum and float32 values
    fresh.set_params(*whole.get_params())
    if before == "O1":
        resumed.save_optimizer_states(str(tmp_path / "states"))
        fresh.load_optimizer_states(str(tmp_path / "states"))
        assert bits(values(train(resumed, batches()))) == bits(values(train(fresh, batches())))


def test_weights_decide_at_once_where_loaded_masters_differ(tmp_path):
    """As those of a trainer: a state of an earlier step does not undo parameters that were set since."""
    fname, module = str(tmp_path / "states"), train(ready(policy="O2", loss_scale=8), batches())
    module.save_optimizer_states(fname)
    old, new = values(module), {name: array + 1 for name, array in module.get_params()[0].items()}
    new["fc1_bias"] = module.get_params()[0]["fc1_bias"].copy()
    module.set_params(new, {})
    module.load_optimizer_states(fname)
    after = values(module)
    assert np.array_equal(after["fc1_bias"], old["fc1_bias"])  # its master was its float32 value
    assert np.array_equal(after["fc1_weight"], arrays(module, "fc1_weight")[0].asnumpy())
    assert np.abs(after["fc1_weight"] - new["fc1_weight"].asnumpy()).max() < 2.0**-9


def test_states_that_do_not_fit_change_nothing(tmp_path):
    of_another, scaled = str(tmp_path / "of_another"), str(tmp_path / "scaled")
    ready(convnet(), "float32", (8, 3, 8, 8)).save_optimizer_states(of_another)
    ready(policy="float32", loss_scale="dynamic").save_optimizer_states(scaled)
    module, fitting = ready(policy="float32"), ready(policy="float32", loss_scale=1)
    before = trace(module)
    with pytest.raises(StateError, match="of_another: "):
        module.load_optimizer_states(of_another)
    message = "^[^:]*scaled: its loss scale does not fit, .*: this module was bound without a loss scale, .*make the module with loss_scale=1"
    with pytest.raises(TrainerError, match=message):
        module.load_optimizer_states(scaled)
    fitting.load_optimizer_states(scaled)
    assert trace(module) == before and fitting.loss_scale.value > 1


# ---------------------------------------------------------------------- whole sets of files


def network(act_type):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.Activation(x, act_type=act_type, name="act"), name="softmax")


def stepped(act_type="relu", steps=1):
    """Return a module whose network, parameters and states all depend on the arguments."""
    return train(ready(network(act_type), "O2", loss_scale=8), batches()[:1] * steps)


def loaded(prefix, epoch=1):
    """Return the network, the parameters and, by two steps, the momentum of a checkpoint."""
    module = resume(prefix, epoch, policy="O2", loss_scale=8)
    return module.symbol.tojson(), bits(values(module)), bits(values(train(module, batches()[:1] * 2)))


def counted(length):
    """A bucket whose operators without a name count on from one call to the next, as in MXNet's example of an LSTM."""
    x = mx.sym.mean(mx.sym.Reshape(mx.sym.var("data"), shape=(-1, length, 5)), axis=1)
    fc = mx.sym.FullyConnected(x, num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(fc, name="softmax"), ("data",), ("softmax_label",)


def buckets(lengths=(4, 2)):
    module = BucketingModule(counted, lengths[0], policy="O2", loss_scale=8)
    module.bind([("data", (3, lengths[0], 5))], [("softmax_label", (3,))])
    module.init_params()
    module.init_optimizer(optimizer_params={"momentum": 0.9})
    for length in lengths[1:]:
        module.switch_bucket(length, [("data", (3, length, 5))], [("softmax_label", (3,))])
    return module


def load_buckets(prefix, epoch=1, states=False):
    return BucketingModule.load(prefix, epoch, counted, 4, load_optimizer_states=states)


@pytest.mark.parametrize("make", [stepped, buckets])
@pytest.mark.parametrize("which", ["params", "symbol.json", "states"])
def test_a_full_disk_leaves_the_earlier_files(make, which, tmp_path):
    """Each file in turn is the first that does not fit, by a byte; and each that is saved alone."""
    prefix = str(tmp_path / "net")
    make().save_checkpoint(prefix, 3, save_optimizer_states=True)
    size = max(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path) if name.endswith(which))
    message = f"{prefix}: the checkpoint cannot be written: "
    with nothing_written(tmp_path), refused(CheckpointError, message), files_of_at_most(size - 1):
        make().save_checkpoint(prefix, 3, save_optimizer_states=True)
    alone = {"params": "save_params", "states": "save_optimizer_states"}.get(which)
    fname = f"{prefix}-0003.{which}"
    with nothing_written(tmp_path), refused(CheckpointError, fname if alone else message), files_of_at_most(size - 1):
        getattr(make(), alone)(fname) if alone else make().save_checkpoint(prefix, 3)


@pytest.mark.parametrize("name", ["net-0001.params", "net-symbol.json", "net.buckets", "net-2-symbol.json"])
def test_a_damaged_file_is_named_and_changes_nothing(name, tmp_path):
    of_buckets = name in ("net.buckets", "net-2-symbol.json")
    (buckets() if of_buckets else stepped()).save_checkpoint(str(tmp_path / "net"), 1)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    with refused(CheckpointError, str(tmp_path / name), "truncated"):
        (load_buckets if of_buckets else Module.load)(str(tmp_path / "net"), 1)
    if name.endswith("params"):
        module = stepped(steps=2)
        before = trace(module)
        with refused(CheckpointError, name, "truncated"):
            module.load_params(str(tmp_path / name))
        assert trace(module) == before


@pytest.mark.stress
def test_buckets_that_were_not_saved_together_are_refused(tmp_path):
    """Killed over an older set of the same lengths: two networks, which are as before, and the lengths; parameters."""
    (tmp_path / "set").mkdir()
    prefix, newer, found = str(tmp_path / "set" / "net"), buckets(), []
    buckets().save_checkpoint(prefix, 1)
    for _ in killed_at_each_rename(lambda: newer.save_checkpoint(prefix, 1), str(tmp_path / "set")):
        try:
            found.append(load_buckets(prefix) is not None)
        except CheckpointError as e:
            assert "net-0001.params: it does not fit" in str(e)
            found.append("refused")
    assert found == [True] * 4 + ["refused"]
    newer.save_checkpoint(prefix, 1, save_optimizer_states=True)
    newer.switch_bucket(3, [("data", (3, 3, 5))], [("softmax_label", (3,))])
    newer.save_checkpoint(prefix, 2, save_optimizer_states=True)
    for epoch in (1, 2):  # the earlier one too, though operators count on and a length was added
        load_buckets(prefix, epoch, states=True)


@pytest.mark.behaviour(52)
@pytest.mark.parametrize("name", ["net-symbol.json", "net-0001.params", "net-0001.states"])
def test_a_file_of_another_save_is_refused_unless_it_was_saved_alone(name, tmp_path):
    prefix, newer = str(tmp_path / "net"), stepped("tanh", 2)
    stepped().save_checkpoint(prefix, 1, save_optimizer_states=True)
    older = (tmp_path / name).read_bytes()
    newer.save_checkpoint(prefix, 1, save_optimizer_states=True)
    whole, size = loaded(prefix), (tmp_path / name).stat().st_size
    assert (tmp_path / name).write_bytes(older) == size
    with pytest.raises(CheckpointError, match=f"{name}: it does not fit .*-0001.manifest.json, .* delete the manif"):
        loaded(prefix)
    if name == "net-0001.states":
        Module.load(prefix, 1)  # which wants no states
    save = {"params": newer.save_params, "states": newer.save_optimizer_states}.get(name.split(".")[-1])
    if save is not None:
        save(str(tmp_path / name))
        assert loaded(prefix) == whole
    os.remove(f"{prefix}-0001.manifest.json")
    assert loaded(prefix) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1}', '{"files": {"net-0001.params": 1}}', "\x00", "{}"])
def test_a_damaged_manifest_is_named(text, tmp_path):
    stepped().save_checkpoint(str(tmp_path / "net"), 1, save_optimizer_states=True)
    (tmp_path / "net-0001.manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"net-0001.manifest.json: the manifest is damaged; to load"):
        Module.load(str(tmp_path / "net"), 1)
    stepped().save_checkpoint(str(tmp_path / "net"), 1, save_optimizer_states=True)
    loaded(str(tmp_path / "net"))
