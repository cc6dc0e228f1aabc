"""The files of a checkpoint load together or not at all: a manifest tells those that were not saved together."""

from __future__ import annotations

import hashlib
import json
import os
import threading

import mxnet as mx
import pytest

from mxmp.errors import CheckpointError
from mxmp.module import BucketingModule, Module
from tests.killed import killed_at_each_rename
from tests.module.tools import batches, bits, ready, values

SHAPES = [("data", (8, 6))], [("softmax_label", (8,))]


def network(act_type):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.Activation(x, act_type=act_type, name="act"), name="softmax")


def stepped(act_type="relu", steps=1):
    """Return a module whose network, parameters and states all depend on the arguments."""
    module = ready(network(act_type), "O2", loss_scale=8)
    for _ in range(steps):
        module.forward_backward(batches()[0])
        module.update()
    module.get_params()
    return module


def loaded(prefix, epoch=1):
    """Return the network, the parameters and the momentum of a checkpoint."""
    module = Module.load(prefix, epoch, load_optimizer_states=True, policy="O2", loss_scale=8)
    module.bind(*SHAPES)
    module.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    before = bits(values(module))
    for _ in range(2):  # the second step depends on the momentum
        module.forward_backward(batches()[0])
        module.update()
    return module.symbol.tojson(), before, bits(values(module))


def with_manifest(prefix):
    stepped().save_checkpoint(prefix, 1, save_optimizer_states=True)


def without_manifest(prefix):
    with_manifest(prefix)
    os.remove(f"{prefix}-0001.manifest.json")


def another_epoch(prefix):
    stepped().save_checkpoint(prefix, 0, save_optimizer_states=True)


@pytest.mark.parametrize("older", [with_manifest, without_manifest, another_epoch])
def test_a_save_that_is_killed_leaves_the_older_set_the_newer_or_an_error(older, tmp_path):
    prefix, newer = str(tmp_path / "set" / "net"), stepped("tanh", 3)
    (tmp_path / "new").mkdir()
    newer.save_checkpoint(str(tmp_path / "new" / "net"), 1, save_optimizer_states=True)
    (tmp_path / "set").mkdir()
    older(prefix)
    whole = [loaded(str(tmp_path / "new" / "net"))] + ([] if older is another_epoch else [loaded(prefix)])
    found = []
    for _ in killed_at_each_rename(lambda: newer.save_checkpoint(prefix, 1, True), str(tmp_path / "set")):
        try:
            found.append(whole.index(loaded(prefix)))
        except (CheckpointError, FileNotFoundError) as e:
            missing = older is another_epoch and str(e).count("net-0001.")
            assert "does not fit" in str(e) or missing
            found.append("refused")
    assert len(found) == 4 and "refused" in found
    assert found[0] == ("refused" if older is another_epoch else 1)
    assert loaded(prefix) == whole[0]


def test_a_mixture_loads_once_its_manifest_is_deleted(tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    mx.model.save_checkpoint(prefix, 1, network("tanh"), *stepped(steps=2).get_params())
    message = f"^{prefix}-symbol.json: it does not fit {prefix}-0001.manifest.json, .* or delete the manifest to load"
    with pytest.raises(CheckpointError, match=message):
        Module.load(prefix, 1)
    os.remove(f"{prefix}-0001.manifest.json")
    assert Module.load(prefix, 1).symbol.tojson() == network("tanh").tojson()


def test_a_manifest_has_the_size_and_the_hash_of_each_file(tmp_path):
    with_manifest(str(tmp_path / "net"))
    records = json.loads((tmp_path / "net-0001.manifest.json").read_text())["files"]
    assert sorted(records) == ["net-0001.params", "net-0001.states", "net-symbol.json"]
    assert records.pop("net-symbol.json").keys() == {"network_sha256"}  # epochs share it; names may count on
    for name, record in records.items():
        content = (tmp_path / name).read_bytes()
        assert (record["size"], record["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", ["net-symbol.json", "net-0001.params", "net-0001.states"])
def test_a_file_of_the_same_size_that_another_save_wrote_is_refused(name, tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    before = (tmp_path / name).read_bytes()
    stepped("tanh", 2).save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert len((tmp_path / name).read_bytes()) == len(before)
    (tmp_path / name).write_bytes(before)
    with pytest.raises(CheckpointError, match=f"{name}: it does not fit"):
        Module.load(prefix, 1, load_optimizer_states=True)


def test_states_of_an_earlier_save_are_refused(tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    stepped(steps=3).save_checkpoint(prefix, 1)
    Module.load(prefix, 1)
    with pytest.raises(CheckpointError, match=r"net-0001.states: it does not fit"):
        Module.load(prefix, 1, load_optimizer_states=True)


def test_a_file_that_a_module_saves_alone_joins_the_set(tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    newer = stepped(steps=3)
    newer.save_checkpoint(prefix, 1)
    newer.save_optimizer_states(f"{prefix}-0001.states")
    newer.save_checkpoint(str(tmp_path / "new"), 1, save_optimizer_states=True)
    assert loaded(prefix) == loaded(str(tmp_path / "new"))
    stepped().save_params(f"{prefix}-0001.params")
    assert loaded(prefix)[1] == bits(values(stepped()))


def test_states_that_are_saved_beside_a_checkpoint_load_with_it(tmp_path):
    prefix, module = str(tmp_path / "net"), stepped()
    module.save_checkpoint(prefix, 1)
    module.save_optimizer_states(f"{prefix}-0001.states")
    module.save_checkpoint(str(tmp_path / "whole"), 1, save_optimizer_states=True)
    assert loaded(prefix) == loaded(str(tmp_path / "whole"))


def test_a_set_without_its_states_loads_without_them(tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    os.remove(f"{prefix}-0001.states")
    Module.load(prefix, 1)


def test_plain_mxnets_save_of_the_same_network_and_parameters_fits(tmp_path):
    prefix, module = str(tmp_path / "net"), stepped()
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    before = loaded(prefix)
    mx.model.save_checkpoint(prefix, 1, module.symbol, *module.get_params())
    assert loaded(prefix) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1}', '{"files": {"net-0001.params": 1}}', "\x00", "{}"])
def test_a_damaged_manifest_is_named(text, tmp_path):
    prefix = str(tmp_path / "net")
    with_manifest(prefix)
    (tmp_path / "net-0001.manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"net-0001.manifest.json: it is damaged; delete it"):
        Module.load(prefix, 1)
    with_manifest(prefix)
    loaded(prefix)


def test_epochs_share_the_file_of_their_network_but_not_that_of_another(tmp_path):
    prefix = str(tmp_path / "net")
    for epoch in (1, 2):
        stepped(steps=epoch).save_checkpoint(prefix, epoch, save_optimizer_states=True)
    assert loaded(prefix, 1)[1] != loaded(prefix, 2)[1]
    stepped("tanh").save_checkpoint(prefix, 3, save_optimizer_states=True)
    with pytest.raises(CheckpointError, match=r"net-symbol.json: it does not fit .*net-0001.manifest.json"):
        loaded(prefix, 1)


def counted(length):
    """A bucket whose operators without a name count on from one call to the next, as in MXNet's example of an LSTM."""
    x = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 5))
    x = mx.sym.mean(mx.sym.Reshape(x, shape=(-1, length, 5)), axis=1)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4, name="fc"), name="softmax"), *NAMES


NAMES = ("data",), ("softmax_label",)


def buckets(lengths=(4, 2), sym_gen=counted):
    module = BucketingModule(sym_gen, lengths[0], policy="O2", loss_scale=8)
    module.bind([("data", (3, lengths[0], 5))], [("softmax_label", (3,))])
    module.init_params()
    module.init_optimizer(optimizer_params={"momentum": 0.9})
    for length in lengths[1:]:
        module.switch_bucket(length, [("data", (3, length, 5))], [("softmax_label", (3,))])
    return module


def test_earlier_epochs_of_buckets_load_when_operators_count_on_and_lengths_are_added(tmp_path):
    prefix, module = str(tmp_path / "net"), buckets()
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    before = (tmp_path / "net-4-symbol.json").read_text()
    module.switch_bucket(3, [("data", (3, 3, 5))], [("softmax_label", (3,))])
    module.save_checkpoint(prefix, 2, save_optimizer_states=True)
    assert (tmp_path / "net-4-symbol.json").read_text() != before
    for epoch in (1, 2):
        BucketingModule.load(prefix, epoch, counted, 4, load_optimizer_states=True)


def test_buckets_that_were_not_saved_together_are_refused(tmp_path):
    """Killed over an older set of the same lengths."""
    (tmp_path / "set").mkdir()
    prefix, newer = str(tmp_path / "set" / "net"), buckets()
    buckets().save_checkpoint(prefix, 1)
    params = (tmp_path / "set" / "net-0001.params").read_bytes()
    found = []
    for _ in killed_at_each_rename(lambda: newer.save_checkpoint(prefix, 1), str(tmp_path / "set")):
        is_old = (tmp_path / "set" / "net-0001.params").read_bytes() == params
        try:
            BucketingModule.load(prefix, 1, counted, 4)
            found.append(is_old)
        except CheckpointError as e:
            assert "net-0001.params: it does not fit" in str(e) and not is_old
            found.append("refused")
    assert found == [True, True, True, True, "refused"]  # two networks, which are as before, and the lengths


def test_threads_that_save_one_checkpoint_leave_that_of_one_of_them(tmp_path):
    prefix, modules, errors = str(tmp_path / "net"), [stepped("relu"), stepped("tanh", 2)], []
    whole = []
    for module in modules:
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        whole.append(loaded(prefix))

    def save(module):
        try:
            for _ in range(10):
                module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=save, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert loaded(prefix) in whole
