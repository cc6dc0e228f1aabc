"""``mxmp convert``: the files, and the summary."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.devices import check
from mxmp.devices.processor import Processor
from mxmp.symbol import convert_checkpoint
from tests.cli.checkpoints import BN, CONV, FC, SHAPE, SHAPES, mxmp, save, table
from tests.devices.machines import install_cards
from tests.killed import killed_at_each_rename


def totals(out):
    return {row[0]: row[1] for row in table(out)}


@pytest.mark.parametrize("folded", [False, True])
def test_the_files_are_those_of_convert_checkpoint(folded, tmp_path):
    prefix = save(tmp_path)
    mxmp("convert", prefix, 3, "-o", tmp_path / "cli", "--shape", SHAPE, *["--for-inference"] * folded)
    convert_checkpoint(prefix, 3, str(tmp_path / "api"), "O2", SHAPES, for_inference=folded)
    for end in ("symbol.json", "0003.params"):
        assert (tmp_path / f"cli-{end}").read_bytes() == (tmp_path / f"api-{end}").read_bytes()
    assert ("BatchNorm" in mxmp("inspect", tmp_path / "cli")[0]) != folded


def test_the_summary_by_hand(tmp_path):
    out, err = mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--shape", SHAPE)
    found = totals(out)
    assert found["operators"] == "5 in float16, 1 in float32"
    assert found["casts"] == f"2 (2 of activations), {6 * (2 * 3 * 64 + 2 * 5):,} bytes per forward pass"
    assert found["parameters"] == f"{2 * (CONV + FC) + 4 * BN:,} bytes, {4 * (CONV + FC + BN):,} before"
    image = 2 * 4 * 6 * 6
    # Four tensors of an image's size, fc's, softmax's; BatchNorm's statistics are read by nobody.
    assert found["activations"] == f"{2 * (4 * image + 10) + 4 * 10:,} bytes, {4 * (4 * image + 20):,} before"
    assert str(tmp_path / "out-0003.params") in out and str(tmp_path / "out-symbol.json") in out
    assert err == ""  # no progress where there is no terminal


@pytest.mark.parametrize(
    "options, op, expected",
    [
        (["--keep-float32", "fc*"], "FullyConnected", "float32"),
        (["--keep-float32", "bn", "--keep-float32", "c?nv"], "Convolution", "float32"),
        (["--policy", "O1,op:Convolution=float32"], "Convolution", "float32"),
        (["--policy", "mixed_bfloat16"], "FullyConnected", "bfloat16"),
    ],
    ids=["pattern", "two patterns", "policy text", "bfloat16"],
)
def test_options_reach_the_network(options, op, expected, tmp_path):
    mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", *options)
    out, _ = mxmp("inspect", tmp_path / "out")
    assert [row[2] for row in table(out) if row[1:2] == [op]] == [expected]


def test_a_dtype_reaches_the_network(tmp_path):
    ids = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=4, name="table")
    symbol = mx.sym.FullyConnected(ids, num_hidden=2, name="fc")
    prefix = str(tmp_path / "net")
    arrays = {"table_weight": mx.nd.ones((50, 4)), "fc_weight": mx.nd.ones((2, 12)), "fc_bias": mx.nd.zeros(2)}
    mx.model.save_checkpoint(prefix, 0, symbol, arrays, {})
    out, _ = mxmp("convert", prefix, 0, "-o", tmp_path / "out", "--shape", "data:5,3", "--dtype", "data:int32")
    assert totals(out)["casts"].startswith("1 (1 of activations)")  # the output's; ids are not cast


@pytest.mark.parametrize(
    "options, said, largest",
    [
        ([], {"clamped": "fc_weight: 5 values beyond float16's range, the largest 70000", "became zero": "fc_weight: 10 values"}, 65504),
        (["--out-of-range", "float32"], {"kept in float32": "fc_weight: values beyond float16's range"}, 7e4),
    ],
)
def test_values_that_do_not_fit_are_listed(options, said, largest, tmp_path):
    prefix = save(tmp_path, fc_weight=[7e4] + [1e-9] * 2 + [1.0] * 141)
    out, _ = mxmp("convert", prefix, 3, "-o", tmp_path / "out", *options)
    assert said.items() <= totals(out).items()
    assert np.max(mx.nd.load(str(tmp_path / "out-0003.params"))["arg:fc_weight"].asnumpy()) == largest


def notes(out):
    return [row[1] for row in table(out) if row[0] == "note"]


def test_values_that_were_rounded_before_are_said_to_be(tmp_path):
    mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "low")
    out, _ = mxmp("convert", tmp_path / "low", 3, "-o", tmp_path / "wide", "--policy", "O0")
    rounded = "4 parameters were stored in float16: their values were rounded to it, and stay so"
    assert notes(out) == [rounded] == notes(mxmp("inspect", tmp_path / "low", "--policy", "O0")[0])
    assert rounded not in notes(mxmp("convert", tmp_path / "low", 3, "-o", tmp_path / "again")[0])


@pytest.mark.parametrize(
    "policy, cards, ok, said",
    [
        ("O2", [], None, "not for this machine: float16 needs a GPU"),
        ("O2", [("NVIDIA A100", "8.0")], None, ""),
        ("mixed_bfloat16", [], False, "not for this machine: CPU (Xeon): bfloat16 does not run, because MXNet needs AVX-512"),
        ("mixed_bfloat16", [], True, ""),
        ("bfloat16", [], True, "outputs are bfloat16: integers in numpy; --output-dtype float32"),
        ("O0", [], None, ""),
        ("O1,name:*=float32", [], None, ""),  # float32 throughout, whatever it is called
    ],
)
def test_what_surprises_who_runs_it_is_said(policy, cards, ok, said, tmp_path, monkeypatch):
    install_cards(tmp_path, monkeypatch, cards)
    flags = frozenset(["avx512bw", "avx512_bf16"] if ok else ["avx2"])
    monkeypatch.setattr(check, "read_processor", lambda: Processor("Xeon", flags))
    monkeypatch.setattr(check, "is_for_gpus", lambda: True)
    found = notes(mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--policy", policy)[0])
    assert len(found) == bool(said) and all(note.startswith(said) for note in found)


def test_the_summary_says_what_was_folded(tmp_path):
    out, _ = mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--shape", SHAPE, "--for-inference")
    assert totals(out)["operators"] == "4 in float16, 1 in float32, 1 folded"
    assert totals(out)["parameters"] == f"{2 * (CONV + FC):,} bytes, {4 * (CONV + FC + BN):,} before"


def test_a_conversion_that_is_killed_leaves_no_mixture_that_a_command_reads(tmp_path):
    (tmp_path / "set").mkdir()
    source, out = save(tmp_path), tmp_path / "set" / "out"
    mxmp("convert", source, 3, "-o", out, "--policy", "O1")

    def convert():
        mxmp("convert", source, 3, "-o", out, "--policy", "O3", "--force")

    for number in killed_at_each_rename(convert, str(tmp_path / "set")):
        for command in (["inspect", out], ["convert", out, 3, "-o", tmp_path / "again", "--force"]):
            _, text = mxmp(*command, code=1 if number else 0)
            assert ("does not fit" in text) == bool(number)
    mxmp("inspect", out)
