"""Files of a converted net: on a full disk or damaged, and imported as a SymbolBlock."""

import os
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import CheckpointError
from mxmp.gluon import convert, export, freeze, restore
from tests.devices.machines import install_cards
from tests.full_disk import files_of_at_most
from tests.gluon.nets import X, cnn, exact, exported, imported, precisions, sequence, train
from tests.symbol.refusals import nothing_written, refused

DATA = mx.nd.ones((2, 30))


class Noting(nn.HybridSequential):
    """A net whose class defines the export."""

    def export(self, path, epoch=0, **kwargs):
        super().export(path, epoch, **kwargs)
        Path(f"{path}-note").write_text("mine")


def dense(policy="O2", units=50, kind=nn.HybridSequential):
    net = kind(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(units, in_units=30), nn.BatchNorm(in_channels=units), nn.Dense(5, in_units=units))
    net.initialize(mx.init.Xavier())
    convert(net, policy)(DATA)
    return net


SAVES = {
    "save_parameters": lambda net, path: net.save_parameters(f"{path}.params"),
    "save_params": lambda net, path: net.save_params(f"{path}.params"),
    "export": export,
    "save_states": lambda net, path: train(net, 1, x=DATA).save_states(f"{path}.states"),
}


@pytest.mark.filterwarnings("ignore:save_params is deprecated")
@pytest.mark.parametrize("units", [50, 1])  # the largest file of an export is that of the parameters, or of the symbol
@pytest.mark.parametrize("missing", [1, 3000, 0.5, 0.99])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_a_full_disk_leaves_the_earlier_files(save, missing, units, tmp_path):
    """One byte is missing, MXNet's last buffer, or much."""
    path, other = str(tmp_path / "net"), dense(units=units)
    save(dense(units=units), path)
    largest = max(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path))
    size = max(largest - missing, 0) if missing >= 1 else int(largest * (1 - missing))
    with nothing_written(tmp_path), refused(CheckpointError, path, "cannot be written"), files_of_at_most(size):
        save(other, path)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_files_are_what_mxnet_writes(policy, tmp_path):
    net = dense(policy)
    net.save_parameters(str(tmp_path / "ours"))
    gluon.Block.save_parameters(net, str(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    net.export(str(tmp_path / "ours"), 3)
    assert {"ours-symbol.json", "ours-0003.params"} < set(os.listdir(tmp_path))
    arrays = {name.split(":")[1]: array for name, array in mx.nd.load(str(tmp_path / "ours-0003.params")).items()}
    stored = {name: param.data() for name, param in net.collect_params().items()}
    assert {name: array.dtype for name, array in arrays.items()} == {name: array.dtype for name, array in stored.items()}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array.asnumpy(), stored[name].asnumpy())


def test_an_export_that_the_class_defines_is_called(tmp_path):
    dense(kind=Noting).export(str(tmp_path / "net"))
    assert sorted(os.listdir(tmp_path)) == ["net-0000.params", "net-note", "net-symbol.json"]


@pytest.mark.parametrize("policy, unfit", [("O1", True), ("O1,name:*=float32", False)])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_export_that_plain_mxnet_does_not_run_on_this_machine_is_logged(policy, unfit, frozen, tmp_path, monkeypatch, caplog):
    install_cards(tmp_path, monkeypatch, [])
    net = dense(policy)
    export(freeze(net, policy) if frozen else net, str(tmp_path / "net"))
    assert ("net-symbol.json is for plain MXNet, but not for this machine: float16 needs a GPU" in caplog.text) == unfit


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
    path, net = tmp_path / "net", dense()
    dense().save_parameters(str(path))
    path.write_bytes(damage(path.read_bytes()))
    before = exact(net)
    with refused(CheckpointError, str(path), message):
        net.load_parameters(str(path))
    np.testing.assert_equal(exact(net), before)


def test_a_missing_file_is_named(tmp_path):
    with refused(CheckpointError, f"{tmp_path}/none: there is no such file"):
        dense().load_parameters(str(tmp_path / "none"))


# ---------------------------------------------------------------------- an imported net is like the one that was exported

EXPORTED = ["O1", "O2", "O3", "O2,output_dtype=float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
MIXED = ["O1", "O2", "O3"]
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)


def rounded(policy):
    """The net that is exported, with the values that its files hold."""
    net = cnn(policy)
    net(X)
    for param in net.collect_params().values():
        param.set_data(param.data().astype("float32"))
    return restore(net)


def trained(net, **options):
    train(net, **options)
    return net


def saved(net, folder):
    net.save_parameters(str(folder / "saved.params"))
    return mx.nd.load(str(folder / "saved.params"))


def of(net):
    return net(X).asnumpy()


@pytest.mark.parametrize("policy", ["float32", *MIXED, MIXED_BFLOAT16])
@pytest.mark.parametrize("written", [*EXPORTED, MIXED_BFLOAT16])
def test_an_imported_net_computes_trains_and_saves_as_the_exported_one(written, policy, tmp_path):
    block, net = convert(imported(exported(cnn(written), tmp_path)), policy), convert(rounded(written), policy)
    net.hybridize()  # a float32 net has its graph then
    np.testing.assert_array_equal(of(block), of(net))
    assert precisions(block) == precisions(net)
    types = [{name: np.dtype(param.dtype) for name, param in each.collect_params().items()} for each in (block, net)]
    assert types[0] == types[1]
    np.testing.assert_array_equal(of(trained(block)), of(trained(net)))
    arrays, expected = saved(block, tmp_path), dict(restore(net).collect_params().items())
    assert {array.dtype for array in arrays.values()} == {np.float32} and len(arrays) == len(expected)
    for (_, array), (_, param) in zip(sorted(arrays.items()), sorted(expected.items())):
        np.testing.assert_array_equal(array.asnumpy(), param.data().asnumpy())
    np.testing.assert_array_equal(of(restore(block)), of(net))


@pytest.mark.parametrize("policy", ["float32", *MIXED])
def test_an_imported_net_within_another(policy, tmp_path):
    nets = []
    for part in (imported(exported(cnn("O2"), tmp_path)), rounded("O2")):
        net = sequence(part, nn.Dense(2, in_units=5))
        net[1].initialize(mx.init.One())
        nets.append(trained(convert(net, policy)))
    np.testing.assert_array_equal(*map(of, nets))
    np.testing.assert_array_equal(*(of(restore(net)) for net in nets))


@pytest.mark.parametrize("is_called", [True, False])
@pytest.mark.parametrize("source", ["current", "saved"])
@pytest.mark.parametrize("policy", MIXED)
def test_parameters_of_an_exported_net_are_loaded_into_a_converted_one(policy, source, is_called, tmp_path):
    symbol, params = exported(cnn("O2"), tmp_path)
    net, block = cnn(policy, "other_"), gluon.SymbolBlock(mx.sym.load(symbol), mx.sym.var("data"))
    if is_called:
        of(net)
    convert(block, policy).load_parameters(params, ctx=mx.cpu(), cast_dtype=True, dtype_source="saved")
    mx.nd.save(params, {name.split("net_")[1]: value for name, value in mx.nd.load(params).items()})
    dtypes = {name: param.dtype for name, param in net.collect_params().items()}
    net.load_parameters(params, cast_dtype=True, dtype_source=source)
    assert {name: param.dtype for name, param in net.collect_params().items()} == dtypes
    expected = convert(rounded("O2"), policy)
    np.testing.assert_array_equal(of(block), of(expected))
    np.testing.assert_array_equal(of(trained(net)), of(trained(expected)))
    assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}


def test_a_save_after_an_export_has_the_float32_masters(tmp_path):
    net = convert(cnn(), "O2")
    train(net)
    before = saved(net, tmp_path)
    export(net, str(tmp_path / "net"))
    after = saved(net, tmp_path)
    assert {array.dtype for array in after.values()} == {np.float32}
    assert all(np.array_equal(after[name].asnumpy(), array.asnumpy()) for name, array in before.items())
