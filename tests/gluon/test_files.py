"""Files of a converted net on a full disk, interrupted, or damaged: all of the old, or all of the new."""

from __future__ import annotations

import os
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import CheckpointError
from mxmp.gluon import Trainer, convert, export
from mxmp.gluon.storage import reading_stored
from tests.full_disk import files_of_at_most
from tests.symbol.refusals import nothing_written, refused

DATA = mx.nd.ones((2, 30))


class Noting(nn.HybridSequential):
    """A net whose class defines the export."""

    def export(self, path, epoch=0, **kwargs):
        super().export(path, epoch, **kwargs)
        Path(f"{path}-note").write_text("mine")


def make(policy="O2", units=50, kind=nn.HybridSequential):
    net = kind(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(units, in_units=30), nn.BatchNorm(in_channels=units), nn.Dense(5, in_units=units))
    net.initialize(mx.init.Xavier())
    convert(net, policy)(DATA)
    return net


def save_states(net, path):
    trainer = Trainer(net.collect_params(), "adam", loss_scale=8)
    with mx.autograd.record(), trainer.scale_loss(net(DATA).sum()) as scaled:
        scaled.backward()
    trainer.step(1)
    trainer.save_states(f"{path}.states")


SAVES = {
    "save_parameters": lambda net, path: net.save_parameters(f"{path}.params"),
    "save_params": lambda net, path: net.save_params(f"{path}.params"),
    "export": export,
    "save_states": save_states,
}


@pytest.mark.filterwarnings("ignore:save_params is deprecated")
@pytest.mark.parametrize("units", [50, 1])  # the largest file of an export is that of the parameters, or of the symbol
@pytest.mark.parametrize("missing", [1, 3000, 0.5, 0.99])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_a_full_disk_leaves_the_earlier_files(save, missing, units, tmp_path):
    """One byte is missing, MXNet's last buffer, or much."""
    path, other = str(tmp_path / "net"), make(units=units)
    save(make(units=units), path)
    largest = max(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path))
    size = max(largest - missing, 0) if missing >= 1 else int(largest * (1 - missing))
    with nothing_written(tmp_path), refused(CheckpointError, path, "cannot be written"), files_of_at_most(size):
        save(other, path)


@pytest.mark.parametrize("save", ["save_parameters", "export"])
def test_an_interrupted_save_leaves_the_earlier_files(save, tmp_path, monkeypatch):
    def interrupt(file, arrays):
        Path(file).write_bytes(b"half of it")
        raise KeyboardInterrupt

    net, path = make(), str(tmp_path / "net")
    SAVES[save](net, path)
    monkeypatch.setattr(mx.nd, "save", interrupt)
    with nothing_written(tmp_path), pytest.raises(KeyboardInterrupt):
        SAVES[save](net, path)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_files_are_what_mxnet_writes(policy, tmp_path):
    net = make(policy)
    net.save_parameters(str(tmp_path / "ours"))
    gluon.Block.save_parameters(net, str(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    net.export(str(tmp_path / "ours"), 3)
    net._cached_op_args = [(False, param) for param in net.collect_params().values()]  # those of the whole graph
    with reading_stored():
        gluon.HybridBlock.export(net, str(tmp_path / "theirs"), 3, remove_amp_cast=False)
    assert (tmp_path / "ours-symbol.json").read_text() == (tmp_path / "theirs-symbol.json").read_text()
    ours, theirs = (mx.nd.load(str(tmp_path / f"{name}-0003.params")) for name in ("ours", "theirs"))
    assert {name: array.dtype for name, array in ours.items()} == {name: array.dtype for name, array in theirs.items()}
    for name, array in ours.items():
        np.testing.assert_array_equal(array.asnumpy(), theirs[name].asnumpy())


def test_an_export_that_the_class_defines_is_called(tmp_path):
    make(kind=Noting).export(str(tmp_path / "net"))
    assert sorted(os.listdir(tmp_path)) == ["net-0000.params", "net-note", "net-symbol.json"]


def declares_too_much(data):
    """Without the check MXNet asks for 8 exbibytes, or zeroes them for minutes."""
    second_size = 24 + 4 + 4 + 4 + 8 + 4  # of the first entry: 30 becomes 127 * 2**32 + 30
    return data[:second_size] + b"\x7f" + data[second_size + 1 :]


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data[:-700], "truncated"),
        (lambda data: data[:-9000], "truncated"),
        (declares_too_much, "(50, 545460846622)"),
    ],
)
def test_damaged_parameters_are_named_and_change_nothing(damage, message, tmp_path):
    path, net = tmp_path / "net", make()
    make().save_parameters(str(path))
    path.write_bytes(damage(path.read_bytes()))
    before = [param._reduce().asnumpy() for param in net.collect_params().values()]
    with refused(CheckpointError, str(path), message):
        net.load_parameters(str(path))
    np.testing.assert_equal([param._reduce().asnumpy() for param in net.collect_params().values()], before)


def test_a_missing_file_is_named(tmp_path):
    with refused(CheckpointError, f"{tmp_path}/none: there is no such file"):
        make().load_parameters(str(tmp_path / "none"))
