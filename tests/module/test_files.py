"""Checkpoints of modules on a full disk, or damaged: all of the old, or all of the new."""

from __future__ import annotations

import os

import mxnet as mx
import pytest

from mxmp.errors import CheckpointError
from mxmp.module import BucketingModule, Module
from tests.full_disk import files_of_at_most
from tests.module.tools import batches, bits, ready, trace, values
from tests.symbol.refusals import contents, nothing_written, refused

KEYS = (4, 2)
WRITTEN = "{}: the checkpoint cannot be written: "  # the checkpoint, whichever file and temporary name it was


def sym_gen(key):
    x = mx.sym.FullyConnected(mx.sym.mean(mx.sym.var("data"), axis=1), num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax"), ("data",), ("softmax_label",)


def buckets():
    module = BucketingModule(sym_gen, KEYS[0], policy="O2", loss_scale=8)
    module.bind([("data", (3, KEYS[0], 5))], [("softmax_label", (3,))])
    module.init_params()
    module.init_optimizer(optimizer_params={"momentum": 0.9})
    module.switch_bucket(KEYS[1], [("data", (3, KEYS[1], 5))], [("softmax_label", (3,))])
    return module


def stepped():
    module = ready(policy="O2", loss_scale=8)
    module.forward_backward(batches()[0])
    module.update()
    return module


@pytest.mark.parametrize("make", [stepped, buckets])
@pytest.mark.parametrize("which", ["params", "symbol.json", "states"])
def test_a_full_disk_leaves_the_earlier_checkpoint(make, which, tmp_path):
    """Each file in turn is the first that does not fit, by a byte."""
    prefix = str(tmp_path / "net")
    make().save_checkpoint(prefix, 3, save_optimizer_states=True)
    size = max(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path) if name.endswith(which))
    with nothing_written(tmp_path), refused(CheckpointError, WRITTEN.format(prefix)), files_of_at_most(size - 1):
        make().save_checkpoint(prefix, 3, save_optimizer_states=True)


def test_parameters_and_states_alone_are_whole_too(tmp_path):
    module, path = stepped(), str(tmp_path / "file")
    for save in (module.save_params, module.save_optimizer_states):
        save(path)
        with nothing_written(tmp_path), refused(CheckpointError, path), files_of_at_most(os.path.getsize(path) - 1):
            save(path)


def test_the_files_are_those_of_mxnet(tmp_path):
    module = stepped()
    module.save_checkpoint(str(tmp_path / "ours"), 3)
    mx.mod.Module.save_checkpoint(module, str(tmp_path / "theirs"), 3, remove_amp_cast=False)
    files = contents(tmp_path)
    assert files["ours-symbol.json"] == files["theirs-symbol.json"]
    assert files["ours-0003.params"] == files["theirs-0003.params"]


@pytest.mark.parametrize("name", ["net-0003.params", "net-symbol.json"])
def test_a_damaged_checkpoint_is_named(name, tmp_path):
    stepped().save_checkpoint(str(tmp_path / "net"), 3)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-40])
    with refused(CheckpointError, str(path), "truncated"):
        Module.load(str(tmp_path / "net"), 3)


def test_damaged_parameters_change_nothing(tmp_path):
    module, path = stepped(), tmp_path / "net.params"
    module.save_params(str(path))
    whole = path.read_bytes()
    other = stepped()
    before = trace(other)
    path.write_bytes(whole[:-9])
    with refused(CheckpointError, str(path), "truncated"):
        other.load_params(str(path))
    assert trace(other) == before
    path.write_bytes(whole)
    other.load_params(str(path))
    assert bits(values(other)) == bits(values(module))


@pytest.mark.parametrize("name", ["net.buckets", "net-2-symbol.json", "net-0003.params"])
def test_a_damaged_checkpoint_of_buckets_is_named(name, tmp_path):
    buckets().save_checkpoint(str(tmp_path / "net"), 3)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-3])
    with refused(CheckpointError, str(path), "truncated"):
        BucketingModule.load(str(tmp_path / "net"), 3, sym_gen, KEYS[0])
