"""Both language model scripts, run small."""

from __future__ import annotations

import json
import signal

import mxnet as mx
import numpy as np
import pytest
from click.testing import CliRunner

from tests.examples.word_lm.small import (
    LEARNERS,
    LENGTH,
    ROWS,
    SCRIPTS,
    TWO,
    WORDS,
    arrays,
    as_module,
    gradients,
    learner,
    plain,
    predict,
)

SMALL = ["--hidden", "8", "--layers", "1", "--length", str(LENGTH), "--batch-size", str(ROWS)]
KINDS = list(SCRIPTS)
kinds = pytest.mark.parametrize("kind", KINDS)


def call(kind, *args):
    return CliRunner().invoke(SCRIPTS[kind].main, [*SMALL, *map(str, args)], env={"COLUMNS": "160"})


def history(folder):
    record = json.loads((folder / "run.json").read_text())["history"]
    return {name: series for name, series in record["steps"].items() if name != "seconds"}, record["epochs"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS))
    return path


# The learners.


@kinds
def test_states_handed_on_give_what_one_long_text_gives(kind, tmp_path):
    found, _, batches = learner(kind)
    figures = found.evaluate(batches)
    words, labels = (
        np.concatenate([getattr(b, name).asnumpy() for b in batches], axis=1) for name in ("words", "following")
    )
    probabilities = predict(*plain(found, tmp_path), words)
    chosen = np.take_along_axis(probabilities, labels.astype(int)[..., None], 2)
    assert figures["perplexity"] == pytest.approx(np.exp(-np.log(chosen).mean()), rel=1e-5)
    assert figures["accuracy"] == pytest.approx((probabilities.argmax(axis=2) == labels).mean())


def test_both_learn_the_same_from_the_same_weights():
    """Of batches of several lengths: states, gradients, clipping and the learning rate are alike."""
    one, batches, held_out = learner("gluon", loss_scale=1024.0, clip=0.05)
    two, _, _ = learner("module", loss_scale=1024.0, clip=0.05)
    two._module.set_params({name: mx.nd.array(value) for name, value in as_module(arrays(one)).items()}, {})
    assert len({batch.words.shape for batch in batches[:8]}) > 2
    for batch in batches[:8]:
        assert one.step(batch) == pytest.approx(two.step(batch), rel=1e-4)
    assert one.evaluate(held_out) == pytest.approx(two.evaluate(held_out), rel=1e-4)
    for name, value in as_module(arrays(one)).items():
        # Adam divides by the size of a gradient: where that is a rounding error, so is the step, of 0.01 at most.
        difference = abs(arrays(two)[name] - value)
        assert np.median(difference) < 1e-5 and difference.max() < 0.01, name


@kinds
def test_gradients_are_those_of_mxnet_and_end_at_the_batch(kind, tmp_path):
    found, (first, second, *_), _ = learner(kind, loss_scale=1024.0)
    found.step(first)
    (states,) = ([state.copy() for state in each] for each in found.states)
    assert any(abs(state).sum() > 0 for state in states)
    symbol, arg_params = plain(found, tmp_path)
    names = [name for name in symbol.list_arguments() if name not in {*arg_params, "data", "softmax_label"}]
    data = {"data": second.words, **dict(zip(names, states))}
    words = mx.sym.Variable("words")
    if kind == "gluon":
        logs = mx.sym.log_softmax(symbol[0])
    else:
        logits = symbol[0].get_children()[0]  # what the loss head reads: (N * T, vocabulary)
        logs = mx.sym.reshape_like(mx.sym.log_softmax(logits), words, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
    loss = mx.sym.MakeLoss(-mx.sym.mean(mx.sym.pick(logs, words), axis=1))
    data["words"] = second.following
    request = {name: "write" if name in arg_params else "null" for name in loss.list_arguments()}
    executor = loss.simple_bind(mx.cpu(), grad_req=request, **{name: array.shape for name, array in data.items()})
    executor.copy_params_from(arg_params)
    executor.forward(is_train=True, **data)
    executor.backward()
    found.step(second)
    slopes = gradients(found)
    assert set(slopes) == set(arg_params)
    for name, slope in slopes.items():
        expected = executor.grad_dict[name].asnumpy()
        np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6, err_msg=name)


@kinds
def test_gradients_are_clipped_after_they_are_unscaled(kind):
    found, (batch, *_), _ = learner(kind, loss_scale=1024.0, clip=0.01)
    found.step(batch)
    norm = np.linalg.norm(np.concatenate([slope.ravel() for slope in gradients(found).values()]))
    assert norm / ROWS == pytest.approx(0.01, rel=1e-4)


@kinds
def test_a_step_is_in_proportion_to_the_length_of_its_batch(kind):
    found, batches, _ = learner(kind)
    before = arrays(found)
    (batch, *_) = (batch for batch in batches if batch.words.shape[1] < LENGTH)
    found.step(batch._replace(first=True))
    schedule = mx.lr_scheduler.CosineScheduler(len(batches), base_lr=0.01, warmup_steps=len(batches) // 20)
    # Adam's first step is the rate wherever there is a gradient.
    moved = np.concatenate([abs(arrays(found)[name] - value).ravel() for name, value in before.items()])
    assert moved.max() == pytest.approx(schedule(1) * batch.words.shape[1] / LENGTH, rel=0.01)


@kinds
def test_two_contexts_learn_what_one_does(kind):
    (one, batches, _), (two, _, _) = learner(kind), learner(kind, ctx=TWO)
    for batch in batches[:3]:
        assert one.step(batch) == pytest.approx(two.step(batch), rel=1e-4)


@kinds
def test_a_checkpoint_loads_in_plain_mxnet(kind, tmp_path):
    found, (batch, *_), held_out = learner(kind, "O2", 128.0)
    found.step(batch)
    symbol, arg_params = plain(found, tmp_path)
    assert {array.dtype for array in arg_params.values()} == {np.float32}
    words, labels = held_out[0].words.asnumpy(), held_out[0].following.asnumpy().astype(int)
    chosen = np.take_along_axis(predict(symbol, arg_params, words), labels[..., None], 2)
    assert found.evaluate(held_out[:1])["perplexity"] == pytest.approx(np.exp(-np.log(chosen).mean()), rel=2e-3)


def test_each_length_is_a_bucket():
    found, batches, _ = learner("module")
    for batch in batches[:8]:
        found.step(batch)
    taken = {batch.words.shape[1] for batch in batches[:8]}
    assert len(taken) > 2
    assert set(found._module._buckets) == taken | {6}  # 6 is the longest, which is bound at the start


# The scripts.


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("gluon", "O0"),
        ("gluon", "O1"),
        ("gluon", "O2"),
        pytest.param("gluon", "mixed_bfloat16", marks=pytest.mark.bfloat16),
        ("module", "O2"),
        pytest.param("module", "mixed_bfloat16", marks=pytest.mark.bfloat16),
    ],
)
def test_a_run_learns_a_text_and_gives_table_and_plot(tmp_path, file, kind, policy):
    # A model without states has a perplexity of 1.5 at best: what follows 'a' depends on the words before.
    file.write_text(" ".join(4 * WORDS))
    args = ["--epochs", 3, "--learning-rate", 0.1, "--dropout", 0, "--clip", 5]
    done = call(kind, "--policy", policy, *args, "--text", file, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "test perplexity" in done.output
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert history(tmp_path)[1][-1]["perplexity"] < 1.3


def test_an_untied_model_has_a_weight_more(tmp_path, file):
    sizes = []
    for tied in ("--tied", "--untied"):
        args = ["--text", file, tied, "--epochs", 1, "--batches", 1, "--policy", "O0"]
        done = call("module", *args, "--output", tmp_path / tied)
        assert done.exit_code == 0, done.output
        sizes.append(len(mx.nd.load(str(tmp_path / tied / "model-0000.params"))))
    assert sizes[1] == sizes[0] + 1


@kinds
def test_an_interrupted_run_resumes_to_the_bit(tmp_path, monkeypatch, file, kind):
    args = ["--epochs", 2, "--batches", 4, "--policy", "O2", "--text", file]
    assert call(kind, *args, "--output", tmp_path / "unbroken").exit_code == 0
    step, seen = LEARNERS[kind].step, []

    def interrupted(self, batch):
        seen.append(batch.first)
        if len(seen) == 6:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(LEARNERS[kind], "step", interrupted)
    broken = call(kind, *args, "--output", tmp_path / "broken")
    assert broken.exit_code == 130 and "interrupted after step 6" in broken.output
    done = call(kind, *args, "--output", tmp_path / "broken", "--resume")
    assert done.exit_code == 0, done.output
    assert seen == [True, False, False, False] * 2
    assert history(tmp_path / "broken") == history(tmp_path / "unbroken")
    first, second = (mx.nd.load(str(tmp_path / name / "model-0000.params")) for name in ("unbroken", "broken"))
    assert set(first) == set(second) and {"state:0", "state:1"} <= set(first)
    assert all((first[name] == second[name]).min().asscalar() == 1 for name in first)


def test_a_checkpoint_of_another_text_or_script_is_refused(tmp_path, file):
    args = ["--epochs", 1, "--batches", 1, "--policy", "O0", "--text", file, "--output", tmp_path / "run"]
    assert call("gluon", *args).exit_code == 0
    done = call("module", *args, "--resume")
    assert done.exit_code == 1
    assert "a checkpoint with script word_lm_gluon, not word_lm_module" in done.output
    file.write_text(" ".join(WORDS[::-1]))
    done = call("gluon", *args, "--resume")
    assert done.exit_code == 1
    assert "a checkpoint with text " in done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"\xff\xfe\x00", "not a text in UTF-8: invalid start byte at byte 0"),
        (b"two words", "there are 2 words; expected a text to learn from"),
        (b"word " * 40, "5 words are held out, fewer than 2 in each of 4 rows"),
        (b"word " * 20 * 4, "10 words are held out, fewer"),
    ],
    ids=["missing", "binary", "words", "rows", "batches"],
)
def test_a_text_that_cannot_be_used_ends_in_one_line(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    rows = ["--batch-size", "8"] if message.startswith("10") else []
    done = call("gluon", "--text", path, "--output", tmp_path / "run", *rows)
    assert done.exit_code in (1, 2)
    assert message in done.output.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vocabulary", "1"], "1 is not in the range x>=2"),
        (["--dropout", "1"], "1.0 is not in the range 0<=x<1"),
        (["--clip", "0"], "0.0 is not in the range x>0"),
        (["--policy", "O9"], "unknown policy 'O9'"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_bad_options_end_in_one_line(tmp_path, args, message):
    done = call("module", "--output", tmp_path, *args)
    assert done.exit_code == 2
    assert message in done.output.splitlines()[-1]
