"""The broken runs: each ends in the sentence that explains it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import mxmp
from examples.diagnose import attention_overflow, lost_update, nan_image, vanishing_gradients

pytestmark = pytest.mark.slow


def run(script, *args):
    """Run a script in this process; return the lines that it prints."""
    result = CliRunner().invoke(script.main, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    """Return what the attention script prints, and the run that it leaves."""
    folder = tmp_path_factory.mktemp("runs") / "attention"
    return run(attention_overflow, "--steps", 6, "--run", folder), mxmp.diagnose.read_run(str(folder))


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "detector"
    return run(vanishing_gradients, "--steps", 8, "--run", folder), mxmp.diagnose.read_run(str(folder))


def test_the_verdict_on_attention_names_the_scores_and_the_override(attention):
    printed, _ = attention
    assert printed[0].startswith("O1: 5 of 5 steps skipped")
    assert printed[-1].startswith("activation out of range: no loss scale mends this activation. ")
    assert "forward: 'net_attention_scores' (batch_dot, float16) gives inf" in printed[-1]
    assert "net_attention_scores=float32'" in printed[-1]


def test_attention_trains_with_the_operator_that_is_named_in_float32(attention):
    printed, _ = attention
    name, _, rest = printed[1].partition(": ")
    assert name == "O1,name:net_attention_scores=float32"
    skipped, loss = int(rest.split()[0]), float(rest.split()[-1])
    assert skipped <= 2 < 6 and 0 < loss < 3


def test_the_run_of_attention_has_its_report_steps_and_comparison(attention):
    found = attention[1]
    assert found.missing == ("ledger.json",)
    assert [step["taken"] for step in found.steps] == [False] * 5
    assert found.compare["rows"][0]["name"] == "net_attention_scores"
    assert "net_attention_scores" in found.to_html()


def test_the_ledger_of_ssd_names_layers_that_vanish_and_a_scale_that_keeps_them(detector):
    printed, found = detector
    names = {layer["name"] for layer in found.ledger["layers"]}
    assert printed[-1].startswith("At the scale of 1 an estimated ")
    named = printed[-1].partition("most of '")[2].partition("'")[0]
    assert named in names and "weight" in named
    scale = float(printed[1].partition(":")[0].rpartition(" ")[2])
    assert scale > 1 and f"2**{scale.hex().partition('p+')[2]}" in printed[-1]


def test_no_gradient_of_ssd_vanishes_at_the_scale_advised(detector):
    assert detector[0][2] == "Nothing is wrong with the gradients that were seen."


def test_updates_are_lost_in_float16_alone_and_not_with_masters():
    *scores, sentence = run(lost_update, "--steps", 20)
    masters, alone = (float(line.partition("%")[0].rpartition(" ")[2]) for line in scores)
    assert masters > 2 * alone
    assert "of the updates are lost" in sentence and "'net_dense1_weight'" in sentence
    assert float(sentence.partition("%")[0]) > 80
    assert sentence.endswith("Keep float32 masters: multi_precision=True.")


def test_the_verdict_on_a_nan_image_names_input_and_row(tmp_path):
    printed = run(nan_image, "--run", tmp_path / "digits")
    found = mxmp.diagnose.read_run(str(tmp_path / "digits"))
    skipped = [int(step["step"]) for step in found.steps if not step["taken"]]
    number = skipped[-1]  # of the steps before it none was repeated
    assert f"step {number} was skipped: data" in printed
    order = nan_image.np.random.RandomState(0).permutation(1797)
    row = list(order[(number - 1) * 32 : number * 32]).index(nan_image.CORRUPT)
    assert f"left out: image {nan_image.CORRUPT}" in printed
    assert "input 'data' holds NaN in 3 of 2,048 elements" in printed[-1] and f"in row {row}." in printed[-1]
    assert float(next(line for line in printed if "last loss" in line).split()[-1]) < 1


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "steps.csv").write_text("step\n")
    result = CliRunner().invoke(lost_update.main, ["--run", str(tmp_path)])
    assert result.exit_code == 2 and "is not empty; give another folder." in " ".join(result.output.split())
