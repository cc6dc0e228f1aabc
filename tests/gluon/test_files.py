"""Files of a converted net on a full disk, interrupted, or damaged: all of the old, or all of the new."""

from __future__ import annotations

import os

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import CheckpointError
from mxmp.gluon import Trainer, convert, export
from tests.full_disk import files_of_at_most
from tests.symbol.refusals import contents, nothing_written, refused

DATA = mx.nd.ones((2, 30))


def make(policy="O2", units=50):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(units, in_units=30), nn.BatchNorm(in_channels=units), nn.Dense(5, in_units=units))
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    net(DATA)
    return net


def values(net):
    return {name: param._reduce().asnumpy() for name, param in net.collect_params().items()}


def save_parameters(net, path):
    net.save_parameters(f"{path}.params")


def save_states(net, path):
    trainer = Trainer(net.collect_params(), "adam", loss_scale=8)
    with mx.autograd.record(), trainer.scale_loss(net(DATA).sum()) as scaled:
        scaled.backward()
    trainer.step(1)
    trainer.save_states(f"{path}.states")


SAVES = {"save_parameters": save_parameters, "export": export, "save_states": save_states}


@pytest.mark.parametrize("missing", [1, 3000, 0.5, 0.99])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_a_full_disk_leaves_the_earlier_files(save, missing, tmp_path):
    """One byte is missing, MXNet's last buffer, or much."""
    net, path = make(), str(tmp_path / "net")
    save(net, path)
    largest = max(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path))
    size = largest - missing if missing >= 1 else int(largest * (1 - missing))
    other = make()
    with nothing_written(tmp_path), refused(CheckpointError, path, "cannot be written"), files_of_at_most(size):
        save(other, path)


def test_an_export_whose_symbol_does_not_fit_leaves_both_files(tmp_path):
    net, path = make(units=1), str(tmp_path / "net")
    export(net, path)
    assert os.path.getsize(f"{path}-symbol.json") > os.path.getsize(f"{path}-0000.params")
    with nothing_written(tmp_path), refused(CheckpointError, path), files_of_at_most(
        os.path.getsize(f"{path}-symbol.json") - 1
    ):
        export(make(units=1), path)


@pytest.mark.parametrize("save", [save_parameters, export])
def test_an_interrupted_save_leaves_the_earlier_files(save, tmp_path, monkeypatch):
    def interrupt(file, arrays):
        with open(file, "wb") as stream:
            stream.write(b"half of it")
        raise KeyboardInterrupt

    net, path = make(), str(tmp_path / "net")
    save(net, path)
    monkeypatch.setattr(mx.nd, "save", interrupt)
    with nothing_written(tmp_path), pytest.raises(KeyboardInterrupt):
        save(net, path)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_what_is_written_is_what_mxnet_writes(policy, tmp_path):
    net = make(policy)
    net.save_parameters(str(tmp_path / "ours"))
    gluon.Block.save_parameters(net, str(tmp_path / "theirs"))
    files = contents(tmp_path)
    assert files["ours"] == files["theirs"]


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_an_export_is_what_mxnet_exports(policy, tmp_path):
    from mxmp.gluon.storage import reading_stored

    net = make(policy)
    net.export(str(tmp_path / "ours"), 3)
    net._cached_op_args = [(False, param) for param in net.collect_params().values()]  # those of the whole graph
    with reading_stored():
        gluon.HybridBlock.export(net, str(tmp_path / "theirs"), 3, remove_amp_cast=False)
    files = contents(tmp_path)
    assert files["ours-symbol.json"] == files["theirs-symbol.json"]
    ours, theirs = (mx.nd.load(str(tmp_path / f"{name}-0003.params")) for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array.asnumpy(), theirs[name].asnumpy())


def test_an_export_that_the_class_defines_is_called(tmp_path):
    class Noting(nn.Dense):
        def export(self, path, epoch=0, **kwargs):
            super().export(path, epoch, **kwargs)
            (tmp_path / "note").write_text("mine")

    net = Noting(3, in_units=4)
    net.initialize()
    convert(net, "O2")
    net(mx.nd.ones((1, 4)))
    net.export(str(tmp_path / "net"))
    assert sorted(os.listdir(tmp_path)) == ["net-0000.params", "net-symbol.json", "note"]


def test_the_deprecated_save_params_is_whole_too(tmp_path):
    net, path = make(), str(tmp_path / "net")
    with pytest.warns(UserWarning, match="deprecated"):
        net.save_params(path)
    with nothing_written(tmp_path), refused(CheckpointError, path), files_of_at_most(os.path.getsize(path) - 1):
        with pytest.warns(UserWarning, match="deprecated"):
            net.save_params(path)


@pytest.mark.parametrize("missing", [1, 700, 9000])
def test_parameters_that_are_cut_off_change_nothing(missing, tmp_path):
    path = tmp_path / "net"
    make().save_parameters(str(path))
    path.write_bytes(path.read_bytes()[:-missing])
    net = make()
    before = values(net)
    with refused(CheckpointError, str(path), "truncated"):
        net.load_parameters(str(path))
    assert all((value == values(net)[name]).all() for name, value in before.items())


def test_parameters_that_declare_too_much_are_named(tmp_path):
    """Without the check MXNet asks for 8 exbibytes, or zeroes them for minutes."""
    path = tmp_path / "net"
    make().save_parameters(str(path))
    data = bytearray(path.read_bytes())
    data[24 + 4 + 4 + 4 + 8 + 4] = 0x7F  # the second size of the first entry: 30 becomes 127 * 2**32 + 30
    path.write_bytes(bytes(data))
    with refused(CheckpointError, str(path), "entry 0", "(50, 545460846622)"):
        make().load_parameters(str(path))


def test_a_missing_file_is_named(tmp_path):
    with refused(CheckpointError, f"{tmp_path}/none: there is no such file"):
        make().load_parameters(str(tmp_path / "none"))
