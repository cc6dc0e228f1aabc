"""Checkpoints: what is written loads again, in plain MXNet too, and is written whole or not at all."""

from __future__ import annotations

import os

import mxnet as mx
import numpy as np
import pytest

from mxmp.checkpoint import saved_epochs
from mxmp.errors import CheckpointError
from mxmp.symbol import convert_checkpoint, convert_model, load_checkpoint, save_checkpoint, to_graph
from tests.full_disk import files_of_at_most
from tests.symbol.refusals import contents, nothing_written, refused
from tests.symbol.small import convolutional, dtypes_of, params_of

NETWORK, SHAPES = convolutional()
ARGS, AUX = params_of(NETWORK, SHAPES)


@pytest.fixture
def saved(tmp_path):
    """Return the prefix of a checkpoint, epoch 3."""
    prefix = str(tmp_path / "net")
    save_checkpoint(prefix, 3, NETWORK, ARGS, AUX)
    return prefix


def values(arrays):
    return {name: array.asnumpy().tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("epoch", [-1, 3.0, True, "3", None])
def test_an_epoch_is_a_whole_number_from_0_on(epoch, saved, tmp_path):
    calls = (
        lambda: load_checkpoint(saved, epoch),
        lambda: save_checkpoint(saved, epoch, NETWORK, ARGS, AUX),
        lambda: convert_checkpoint(saved, epoch, str(tmp_path / "out")),
    )
    for call in calls:
        with nothing_written(tmp_path), refused(CheckpointError, f"epoch={epoch!r}: expected a whole number from 0 on"):
            call()


@pytest.mark.parametrize(
    "policy", [*("O0", "O1", "O2", "O3", "mixed_bfloat16"), pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
)
def test_what_is_written_is_what_is_returned(policy, saved, tmp_path):
    model = convert_checkpoint(saved, 3, str(tmp_path / "low"), policy, SHAPES, out_epoch=12)
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "low"), 12)
    assert to_graph(symbol) == to_graph(model.symbol)
    assert dtypes_of(args) == dtypes_of(model.arg_params) and dtypes_of(aux) == dtypes_of(model.aux_params)
    assert (values(args), values(aux)) == (values(model.arg_params), values(model.aux_params))
    assert convert_model(NETWORK, ARGS, AUX, policy, SHAPES).report == model.report


def test_each_stage_of_a_conversion_is_told_as_it_begins(saved, tmp_path):
    told = []
    convert_checkpoint(saved, 3, str(tmp_path / "out"), on_stage=lambda s: told.append((s, len(os.listdir(tmp_path)))))
    assert told == [("load", 3), ("convert", 3), ("write", 3)] and len(os.listdir(tmp_path)) == 6


def test_parameters_that_are_float32_again_are_listed_with_what_they_were(saved, tmp_path):
    low = convert_checkpoint(saved, 3, str(tmp_path / "low"), "O2")
    found = convert_checkpoint(str(tmp_path / "low"), 3, str(tmp_path / "wide"), "O1")
    stored_low = {name: dtype for name, dtype in dtypes_of(low.arg_params).items() if dtype == "float16"}
    assert stored_low and low.widened == {} and found.widened == stored_low
    assert convert_checkpoint(str(tmp_path / "low"), 3, str(tmp_path / "again"), "O2").widened == {}


def test_the_source_files_stay_as_they_are(saved, tmp_path):
    before = contents(tmp_path)
    convert_checkpoint(saved, 3, str(tmp_path / "low"), "O2", SHAPES)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["low-0003.manifest.json", "low-0003.params", "low-symbol.json"]


def test_fields_of_the_policy_and_dtypes_reach_the_conversion(tmp_path):
    ids = mx.sym.var("ids")
    net = mx.sym.Embedding(mx.sym.Cast(ids, dtype="int64"), input_dim=5, output_dim=4, name="embed")
    prefix, shapes = str(tmp_path / "net"), {"ids": (3,)}
    save_checkpoint(prefix, 0, net, *params_of(net, shapes))
    found = convert_checkpoint(
        prefix,
        0,
        str(tmp_path / "low"),
        "O1",
        shapes,
        {"ids": "int32"},
        ops={"Embedding": "float16"},
        output_dtype="float16",
    )
    assert found.symbol.infer_type(ids="int32")[1] == [np.float16]


def test_a_converted_checkpoint_converts_back(saved, tmp_path):
    """Weights are rounded by then; all else is as before."""
    convert_checkpoint(saved, 3, str(tmp_path / "low"), "O2", SHAPES)
    found = convert_checkpoint(str(tmp_path / "low"), 3, str(tmp_path / "back"), "O0", SHAPES)
    assert to_graph(found.symbol) == to_graph(NETWORK)
    assert set(dtypes_of(found.arg_params).values()) == {"float32"}
    for name, array in found.arg_params.items():
        np.testing.assert_allclose(array.asnumpy(), ARGS[name].asnumpy(), rtol=2**-11, atol=2**-25)


@pytest.mark.parametrize("spelling", ["same", "dot", "folder and back", "symlink to the folder", "relative"])
def test_the_checkpoint_itself_is_never_written_over(spelling, saved, tmp_path, monkeypatch):
    os.symlink(tmp_path, tmp_path / "link", target_is_directory=True)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    out = {
        "same": saved,
        "dot": "./net",
        "folder and back": str(tmp_path / "sub" / ".." / "net"),
        "symlink to the folder": str(tmp_path / "link" / "net"),
        "relative": "net",
    }[spelling]
    with nothing_written(tmp_path), refused(
        CheckpointError, f"out_prefix={out!r} is the prefix of the checkpoint itself"
    ):
        convert_checkpoint(saved, 3, out, "O2", SHAPES)


@pytest.fixture
def both(saved, tmp_path):
    """Return (prefix, out prefix) of a checkpoint and of an earlier result, of another network."""
    out = str(tmp_path / "low")
    save_checkpoint(out, 3, mx.sym.relu(mx.sym.var("x")), {"old": mx.nd.ones(2)}, {})
    return saved, out


def fail_half_way(error):
    """Return a ``mx.nd.save`` that writes a part of a file, and raises."""

    def fail(file, arrays):
        with open(file, "wb") as stream:
            stream.write(b"half of it")
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), mx.MXNetError("FileStream.Write incomplete"), KeyboardInterrupt()]
)
def test_a_failed_write_leaves_the_earlier_files(error, both, tmp_path, monkeypatch):
    monkeypatch.setattr(mx.nd, "save", fail_half_way(error))
    interrupted = isinstance(error, KeyboardInterrupt)
    expected = pytest.raises(KeyboardInterrupt) if interrupted else refused(CheckpointError, both[1], "cannot be written")
    with nothing_written(tmp_path), expected:
        convert_checkpoint(both[0], 3, both[1], "O2", SHAPES)


@pytest.mark.parametrize("missing", [1, 100, 3000, 10_000, 24_000])
def test_a_disk_that_is_full_leaves_the_earlier_files(missing, tmp_path):
    """MXNet 1.9.1 does not look at the result of fclose, which writes the last bytes (4,096 at most)."""
    net, out = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=20, name="fc"), str(tmp_path / "low")
    args, _ = params_of(net, {"x": (1, 300)})
    save_checkpoint(out, 0, net, args, {})
    size = os.path.getsize(f"{out}-0000.params")
    with nothing_written(tmp_path), refused(CheckpointError, out, "cannot be written"), files_of_at_most(
        size - missing
    ):
        save_checkpoint(out, 0, net, args, {})


def test_the_epochs_that_are_there(tmp_path):
    prefix = str(tmp_path / "a[b]")
    for name in ("0003", "12345", "00012", "12", "last"):
        (tmp_path / f"a[b]-{name}.params").touch()
    (tmp_path / "a[b]-more-0001.params").touch()
    assert saved_epochs(prefix) == [3, 12345]
