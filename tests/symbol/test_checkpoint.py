"""Checkpoints: what is written loads again, in plain MXNet too, and is written whole or not at all."""

import os
from pathlib import Path

import mxnet as mx
import pytest

from mxmp.errors import CheckpointError
from mxmp.symbol import convert_checkpoint, convert_model, load_checkpoint, save_checkpoint, to_graph
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


@pytest.mark.parametrize(
    "policy", [*("O0", "O1", "O2", "O3", "mixed_bfloat16"), pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
)
def test_what_is_written_is_what_is_returned(policy, saved, tmp_path):
    before, told = contents(tmp_path), []
    options = {"out_epoch": 12, "on_stage": lambda stage: told.append((stage, len(os.listdir(tmp_path))))}
    model = convert_checkpoint(saved, 3, str(tmp_path / "low"), policy, SHAPES, **options)
    assert told == [("load", 3), ("convert", 3), ("write", 3)]  # each as it begins
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["low-0012.manifest.json", "low-0012.params", "low-symbol.json"]
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "low"), 12)
    assert to_graph(symbol) == to_graph(model.symbol)
    assert dtypes_of(args) == dtypes_of(model.arg_params) and dtypes_of(aux) == dtypes_of(model.aux_params)
    assert (values(args), values(aux)) == (values(model.arg_params), values(model.aux_params))
    assert convert_model(NETWORK, ARGS, AUX, policy, SHAPES).report == model.report


def test_parameters_that_are_float32_again_are_listed_with_what_they_were(saved, tmp_path):
    low = convert_checkpoint(saved, 3, str(tmp_path / "low"), "O2")
    found = convert_checkpoint(str(tmp_path / "low"), 3, str(tmp_path / "wide"), "O1")
    stored_low = {name: dtype for name, dtype in dtypes_of(low.arg_params).items() if dtype == "float16"}
    assert stored_low and low.widened == {} and found.widened == stored_low
    assert convert_checkpoint(str(tmp_path / "low"), 3, str(tmp_path / "again"), "O2").widened == {}


@pytest.mark.parametrize("spelling", ["net", "./net", "sub/../net", "link/net", "{}/net"])
def test_the_checkpoint_itself_is_never_written_over(spelling, saved, tmp_path, monkeypatch):
    os.symlink(tmp_path, tmp_path / "link", target_is_directory=True)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    out = spelling.format(tmp_path)
    with nothing_written(tmp_path), refused(CheckpointError, f"out_prefix={out!r} is the prefix of the checkpoint itself"):
        convert_checkpoint(saved, 3, out, "O2", SHAPES)


def test_a_missing_epoch_is_answered_by_those_that_are_there(tmp_path):
    prefix = str(tmp_path / "a[b]")
    NETWORK.save(f"{prefix}-symbol.json")
    for name in ("0003", "12345", "00012", "12", "last", "more-0001"):
        Path(f"{prefix}-{name}.params").touch()
    with refused(CheckpointError, "there is no such file; there are epochs 3, 12345."):
        load_checkpoint(prefix, 7)


def layer(data, name):
    """Return a layer whose parameters have names, and whose operator has one that counts on."""
    variables = (mx.sym.var(f"{name}_{kind}", shape=shape) for kind, shape in (("weight", (4, 4)), ("bias", (4,))))
    return mx.sym.FullyConnected(data, *variables, num_hidden=4)


def foreach():
    def step(row, state):
        new = mx.sym.tanh(layer(row + state, "a"))
        return new, new

    return mx.sym.contrib.foreach(step, mx.sym.expand_dims(mx.sym.var("x"), axis=0), mx.sym.var("s"))[0]


BUILT_AGAIN = {  # networks whose operators have other names each time that they are built
    "layers": lambda: layer(mx.sym.relu(layer(mx.sym.var("x"), "a")), "b"),
    "a product with a factor": lambda: mx.sym.linalg.gemm2(layer(mx.sym.var("x"), "a"), mx.sym.var("b_weight"), alpha=0.5),
    "foreach": foreach,

    "cond": lambda: mx.sym.contrib.cond(
        mx.sym.sum(mx.sym.var("y")) > 0, lambda: layer(mx.sym.var("x"), "a"), lambda: layer(mx.sym.var("x"), "b")
    ),
}


@pytest.mark.parametrize("policy", ["O0", "O1", "O2", "mixed_bfloat16"])
@pytest.mark.parametrize("make", BUILT_AGAIN.values(), ids=BUILT_AGAIN)
def test_all_epochs_fit_a_network_that_was_built_again(make, policy, tmp_path):
    prefix, shapes = str(tmp_path / "net"), {"x": (2, 4), "s": (2, 4), "i": (1,), "y": (1,)}
    saved = []
    for epoch in (1, 2):
        symbol = make()
        names = [name for name in symbol.list_arguments() if name not in shapes]
        args = {name: mx.nd.full((4,) if "bias" in name else (4, 4), epoch) for name in names}
        known = {name: shape for name, shape in shapes.items() if name in symbol.list_arguments()}
        save_checkpoint(prefix, epoch, *convert_model(symbol, args, {}, policy, known))
        saved.append(Path(f"{prefix}-symbol.json").read_text())
    assert saved[0] != saved[1]
    for epoch in (1, 2):
        assert {array.asnumpy().max() for array in load_checkpoint(prefix, epoch).arg_params.values()} == {epoch}
    save_checkpoint(prefix, 3, *convert_model(mx.sym.relu(symbol[0]), args, {}, policy, known))
    with refused(CheckpointError, "does not fit"):
        load_checkpoint(prefix, 1)
