"""``mxmp convert``: the files, and the summary."""

import mxnet as mx
import numpy as np
import pytest

from tests.cli.checkpoints import BN, CONV, FC, SHAPE, mxmp, said, save, table
from tests.devices.machines import install_cards
from tests.processors import AMD, NO_BFLOAT16, processor_of
from tests.stress.killed import killed_at_each_rename


def converted(folder, *options, **values):
    out, err = mxmp("convert", save(folder, **values), 3, "-o", folder / "out", *options)
    assert err == ""  # no progress where there is no terminal
    return out


def test_the_summary_by_hand(tmp_path):
    found, before = said(converted(tmp_path, "--shape", SHAPE)), f"{4 * (CONV + FC + BN):,} bytes"
    image = 2 * 4 * 6 * 6
    assert found["operators"] == "5 in float16, 1 in float32"
    assert found["casts"] == f"2 per forward pass: 2 of inputs and activations, 0 of parameters; {6 * (2 * 3 * 64 + 2 * 5):,} bytes moved"
    assert found["parameters"] == f"{2 * (CONV + FC) + 4 * BN:,} bytes, {before[:-6]} before"
    # Four tensors of an image's size, fc's, softmax's; BatchNorm's statistics are read by nobody.
    assert found["activations"] == f"{2 * (4 * image + 10) + 4 * 10:,} bytes, {4 * (4 * image + 20):,} before"
    folded = said(converted(tmp_path, "--shape", SHAPE, "--for-inference", "--force"))
    assert folded["operators"] == "4 in float16, 1 in float32, 1 folded"
    assert folded["parameters"] == f"{2 * (CONV + FC):,} bytes, {before[:-6]} before"


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
    converted(tmp_path, *options)
    assert [row[2] for row in table(mxmp("inspect", tmp_path / "out")[0]) if row[1:2] == [op]] == [expected]


def test_a_dtype_reaches_the_network(tmp_path):
    ids = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=4, name="table")
    arrays = {"table_weight": mx.nd.ones((50, 4)), "fc_weight": mx.nd.ones((2, 12)), "fc_bias": mx.nd.zeros(2)}
    mx.model.save_checkpoint(str(tmp_path / "net"), 0, mx.sym.FullyConnected(ids, num_hidden=2, name="fc"), arrays, {})
    out, _ = mxmp("convert", tmp_path / "net", 0, "-o", tmp_path / "out", "--shape", "data:5,3", "--dtype", "data:int32")
    assert said(out)["casts"].startswith("1 per forward pass: 1 of inputs and activations")  # the output's; ids are not cast


CLAMPED = {"clamped": "fc_weight: 5 values beyond float16's range, the largest 70000", "became zero": "fc_weight: 10 values"}
KEPT = {"kept in float32": "fc_weight: values beyond float16's range"}


@pytest.mark.parametrize("options, lines, largest", [([], CLAMPED, 65504), (["--out-of-range", "float32"], KEPT, 7e4)])
def test_values_that_do_not_fit_are_listed(options, lines, largest, tmp_path):
    out = converted(tmp_path, *options, fc_weight=[7e4] + [1e-9] * 2 + [1.0] * 141)
    assert lines.items() <= said(out).items()
    assert np.max(mx.nd.load(str(tmp_path / "out-0003.params"))["arg:fc_weight"].asnumpy()) == largest


UNCHANGED = "nothing is changed: the new files hold the same network, because "


def notes(out):
    return [row[1] for row in table(out) if row[0] == "note"]


def test_a_network_in_float16_of_its_own_is_said_to_be_unchanged(tmp_path):
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="narrow")
    low = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), act_type="relu")
    arrays = {"fc_weight": mx.nd.ones((2, 3)).astype("float16"), "fc_bias": mx.nd.zeros(2).astype("float16")}
    mx.model.save_checkpoint(str(tmp_path / "net"), 0, mx.sym.Cast(low, dtype="float32", name="wide"), arrays, {})
    out, _ = mxmp("convert", tmp_path / "net", 0, "-o", tmp_path / "out")
    assert f"{UNCHANGED}2 operators have float16 inputs already, by the network's own casts and dtypes" in notes(out)
    assert not any(note.startswith(UNCHANGED) for note in notes(converted(tmp_path, "--force")))


@pytest.mark.parametrize(
    "policy, twice, why",
    [
        ("O0", False, "the network is float32 already"),
        ("O1,name:*=float32", False, "no operator of it can run in float16 under this policy"),
        ("O1", True, "it was converted by this policy before"),
        ("O2", True, "it was converted by this policy before"),
    ],
)
def test_a_conversion_that_changes_nothing_says_so(policy, twice, why, tmp_path):
    convert = "convert", save(tmp_path), 3, "--policy", policy, "-o"
    out, _ = mxmp(*convert, tmp_path / "out")
    if twice:
        assert not any(note.startswith(UNCHANGED) for note in notes(out))
        out, _ = mxmp("convert", tmp_path / "out", "--policy", policy, "-o", tmp_path / "again")
    assert f"{UNCHANGED}{why}" in notes(out)


def test_a_network_whose_values_are_rounded_is_not_said_to_be_unchanged(tmp_path):
    mxmp("convert", save(tmp_path), 3, "--policy", "O2", "-o", tmp_path / "out")
    file = str(tmp_path / "out-0003.params")
    mx.nd.save(file, {name: array.astype("float32") for name, array in mx.nd.load(file).items()})
    (tmp_path / "out-0003.manifest.json").unlink()
    out, _ = mxmp("convert", tmp_path / "out", 3, "--policy", "O2", "-o", tmp_path / "again")
    assert not any(note.startswith(UNCHANGED) for note in notes(out))


def test_values_that_were_rounded_before_are_said_to_be(tmp_path):
    converted(tmp_path)
    rounded = "4 parameters were stored in float16: their values were rounded to it, and stay so"
    out, _ = mxmp("convert", tmp_path / "out", 3, "-o", tmp_path / "wide", "--policy", "O0")
    assert notes(out) == [rounded] == notes(mxmp("inspect", tmp_path / "out", "--policy", "O0")[0])
    assert rounded not in notes(mxmp("convert", tmp_path / "out", 3, "-o", tmp_path / "again")[0])


@pytest.mark.parametrize(
    "policy, cards, runs_bfloat16, note",
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
def test_surprises_for_the_machine_or_the_reader_are_said(
    policy, cards, runs_bfloat16, note, tmp_path, monkeypatch, on_processor
):
    install_cards(tmp_path, monkeypatch, cards)
    on_processor(processor_of(AMD if runs_bfloat16 else NO_BFLOAT16, name="Xeon"))
    found = [note for note in notes(converted(tmp_path, "--policy", policy)) if not note.startswith(UNCHANGED)]
    assert len(found) == bool(note) and all(each.startswith(note) for each in found)


@pytest.mark.parametrize("policy, cast", [("O1", True), ("O1,param=float16", False), ("O0", False)])
def test_weights_that_inference_casts_at_each_call_are_said(policy, cast, tmp_path):
    note = "weights are stored in float32 and cast at each call, which is slow; add param=float16 to the policy"
    assert (note in notes(converted(tmp_path, "--policy", policy, "--for-inference"))) == cast
    assert note not in notes(converted(tmp_path, "--policy", policy, "--force"))


def test_auto_prints_the_policy_the_machine_and_why(tmp_path, on_processor):
    on_processor(processor_of(AMD, name="EPYC"))
    out, _ = mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--policy", "auto")
    rows = dict(row[:2] for row in table(out))
    assert rows["policy"] == "mixed_bfloat16" and rows["machine"].startswith("EPYC (avx2, ")
    assert rows["note"].startswith("The policy 'auto' takes mixed_bfloat16 here, because this processor (EPYC) is of the kind")


@pytest.mark.stress
def test_a_conversion_that_is_killed_leaves_no_mixture_that_a_command_reads(tmp_path):
    (tmp_path / "set").mkdir()
    source, out = save(tmp_path), tmp_path / "set" / "out"
    mxmp("convert", source, 3, "-o", out, "--policy", "O1")
    convert = ("convert", source, 3, "-o", out, "--policy", "O3", "--force")
    for number in killed_at_each_rename(lambda: mxmp(*convert), str(tmp_path / "set")):
        for command in (["inspect", out], ["convert", out, 3, "-o", tmp_path / "again", "--force"]):
            assert ("does not fit" in mxmp(*command, code=1 if number else 0)[1]) == bool(number)
    mxmp("inspect", out)
