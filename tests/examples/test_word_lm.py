"""The language model script, run small."""

from __future__ import annotations

import json
import signal

import mxnet as mx
import numpy as np
import pytest
from click.testing import CliRunner
from mxnet import autograd, gluon

import mxmp
from examples.common.options import Options
from examples.word_lm import text as texts
from examples.word_lm import train
from examples.word_lm.model import LanguageModel, RecurrentPart
from examples.word_lm.text import UNKNOWN, Text, make_vocabulary, split

WORDS = ["a", "b", "c", "a", "d", "a", "b", "e"] * 30
CPU = (mx.cpu(),)
SMALL = ["--hidden", "8", "--layers", "1", "--length", "5", "--batch-size", "4"]


def call(*args):
    return CliRunner().invoke(train.main, [*SMALL, *map(str, args)], env={"COLUMNS": "160"})


def history(folder):
    record = json.loads((folder / "run.json").read_text())["history"]
    return {name: series for name, series in record["steps"].items() if name != "seconds"}, record["epochs"]


def learner(policy="O0", loss_scale=None, ctx=CPU, clip=1e6, dropout=0.0):
    policy, scale = mxmp.Policy.parse(policy), mxmp.loss_scale.parse(loss_scale)
    options = Options(policy, scale, ctx, 1, None, 4, 0, False, False, None)
    data = Text(WORDS, WORDS, 6, 5)
    found = train.WordLearner(LanguageModel(len(data.words), 8, 2, dropout, tied=True), data, options, 0.01, clip)
    return found, list(data.train(4, 0, 0)), list(data.test(4))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS))
    return path


# The text.


def test_a_text_is_split_into_words_marks_and_lines():
    assert split("def f(x_1):\n    return -x_1 # é\n") == [
        *["def", "f", "(", "x_1", ")", ":", "\n"],
        *["return", "-", "x_1", "#", "é", "\n"],
    ]


def test_the_vocabulary_has_the_most_frequent_words():
    assert make_vocabulary(["b", "b", "c", "a", "a", "a", "d"], 4) == [UNKNOWN, "a", "b", "c"]


def test_batches_go_on_in_every_row_where_the_last_one_ended():
    batches = list(Text(WORDS, WORDS, 6, 7).train(3, 0, 0))
    assert [batch.first for batch in batches] == [True] + [False] * (len(batches) - 1)
    index = {word: number for number, word in enumerate(make_vocabulary(WORDS, 6))}
    rows = np.array([index[word] for word in WORDS]).reshape(3, 80)
    words, following = (
        np.concatenate([getattr(b, name).asnumpy() for b in batches], axis=1) for name in ("words", "following")
    )
    assert words.shape == (3, 77)
    np.testing.assert_array_equal(words, rows[:, :77])
    np.testing.assert_array_equal(following, rows[:, 1:78])


def test_all_words_held_out_are_tested():
    batches = list(Text(WORDS, WORDS, 6, 7).test(3))
    assert [batch.words.shape[1] for batch in batches] == [7] * 11 + [2]


def test_a_word_that_the_training_text_lacks_is_unknown():
    (batch, *_) = Text(WORDS, ["a", "zebra", "a", "b"], 6, 3).test(1)
    assert batch.words.asnumpy().tolist() == [[1, 0, 1]]


def test_the_last_eighth_of_a_file_is_held_out(file):
    training, held_out = texts.read(file)
    assert training + held_out == WORDS
    assert len(held_out) == 30


def test_the_library_is_bounded_and_the_same_every_time():
    training, held_out = texts.read(None)
    assert (training, held_out) == texts.read(None)
    assert 50_000 < len(training) < texts.LIBRARY_CHARACTERS
    assert 0.03 < len(held_out) / len(training) < 0.3
    assert "self" in training and "self" in held_out


# The model.


def test_states_handed_on_give_what_one_long_text_gives():
    found, _, batches = learner()
    figures = found.evaluate(batches)
    words, labels = (
        np.concatenate([getattr(b, name).asnumpy() for b in batches], axis=1) for name in ("words", "following")
    )
    logits = found._net(mx.nd.array(words), *found._net.begin(4, mx.cpu()))[0].asnumpy().astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=2)) - np.take_along_axis(logits, labels.astype(int)[..., None], 2)[..., 0]
    assert figures["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    assert figures["accuracy"] == pytest.approx((logits.argmax(axis=2) == labels).mean())


def gradients(net, batch, states):
    """Return the gradients of one batch's summed loss by MXNet alone, with states from before it."""
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(batch.words, *states)[0], batch.following)
    loss.backward()
    return {name: param.grad().asnumpy() for name, param in net.collect_params().items()}


def test_gradients_are_those_of_mxnet_and_end_at_the_batch():
    found, (first, second, *_), _ = learner(loss_scale=1024.0)
    found.step(first)
    plain = LanguageModel(6, 8, 2, 0.0, tied=True)
    plain.initialize()
    for param, other in zip(plain.collect_params().values(), found._net.collect_params().values()):
        param.set_data(other.data())
    states = [state.copy() for state in found._part.states[0]]
    assert any(abs(state).sum() > 0 for state in states)
    found.step(second)
    for name, expected in gradients(plain, second, states).items():
        grad = found._net.collect_params()[name].grad().asnumpy()
        # The trainer leaves gradients as clip_global_norm does, unscaled.
        np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_gradients_are_clipped_after_they_are_unscaled():
    found, (batch, *_), _ = learner(loss_scale=1024.0, clip=0.01)
    found.step(batch)
    grads = [param.grad().asnumpy().ravel() for param in found._net.collect_params().values()]
    assert np.linalg.norm(np.concatenate(grads)) / len(batch.words) == pytest.approx(0.01, rel=1e-4)


def test_two_contexts_learn_what_one_does():
    (one, batches, _), (two, _, _) = learner(), learner(ctx=(mx.cpu(0), mx.cpu(1)))
    for batch in batches[:3]:
        assert one.step(batch) == pytest.approx(two.step(batch), rel=1e-4)


def test_states_are_saved_and_split_over_the_contexts_of_a_resumed_run(tmp_path):
    one, batches, _ = learner()
    one.step(batches[0])
    two, _, _ = learner(ctx=(mx.cpu(0), mx.cpu(1)))
    one._part.save_params(str(tmp_path / "model-0000.params"))
    two._part.load_params(str(tmp_path / "model-0000.params"))
    for whole, parts in zip(one._part.states[0], zip(*two._part.states)):
        assert [part.context for part in parts] == [mx.cpu(0), mx.cpu(1)]
        np.testing.assert_array_equal(np.concatenate([p.asnumpy() for p in parts], axis=1), whole.asnumpy())


def test_a_checkpoint_before_the_first_batch_has_no_states(tmp_path):
    found, _, _ = learner()
    found._part.save_params(str(tmp_path / "params"))
    found._part.load_params(str(tmp_path / "params"))
    assert found._part.states == []


def test_a_checkpoint_loads_in_plain_mxnet(tmp_path):
    found, (batch, *_), _ = learner("O2", 128.0)
    found.step(batch)
    part: RecurrentPart = found.parts["model"]
    part.symbol.save(str(tmp_path / "model-symbol.json"))
    part.save_params(str(tmp_path / "model-0000.params"))
    symbol, arg_params, aux_params = mx.model.load_checkpoint(str(tmp_path / "model"), 0)
    assert not aux_params and {array.dtype for array in arg_params.values()} == {np.float32}
    states = dict(zip(("hidden", "cell"), found._net.begin(4, mx.cpu())))
    executor = symbol.bind(mx.cpu(), {**arg_params, **states, "data": batch.words}, grad_req="null")
    expected = found._net(batch.words, *states.values())[0].asnumpy()
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), expected, atol=2e-3)


# The script.


@pytest.mark.parametrize("policy", ["O0", "O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_learns_a_text_and_gives_table_and_plot(tmp_path, file, policy):
    # A model without states has a perplexity of 1.5 at best: what follows 'a' depends on the words before.
    file.write_text(" ".join(4 * WORDS))
    args = ["--epochs", 2, "--learning-rate", 0.1, "--dropout", 0, "--clip", 5]
    done = call("--policy", policy, *args, "--text", file, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "test perplexity" in done.output
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    last = history(tmp_path)[1][-1]
    assert last["perplexity"] < 1.3 and last["accuracy"] > 0.9


def test_an_untied_model_has_a_weight_more(tmp_path, file):
    sizes = []
    for tied in ("--tied", "--untied"):
        done = call("--text", file, tied, "--epochs", 1, "--batches", 1, "--policy", "O0", "--output", tmp_path / tied)
        assert done.exit_code == 0, done.output
        sizes.append(len(mx.nd.load(str(tmp_path / tied / "model-0000.params"))))
    assert sizes[1] == sizes[0] + 1


def test_an_interrupted_run_resumes_to_the_bit(tmp_path, monkeypatch, file):
    args = ["--epochs", 2, "--batches", 4, "--policy", "O2", "--text", file]
    assert call(*args, "--output", tmp_path / "unbroken").exit_code == 0
    step, seen = train.WordLearner.step, []

    def interrupted(self, batch):
        seen.append(batch.first)
        if len(seen) == 6:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(train.WordLearner, "step", interrupted)
    broken = call(*args, "--output", tmp_path / "broken")
    assert broken.exit_code == 130 and "interrupted after step 6" in broken.output
    done = call(*args, "--output", tmp_path / "broken", "--resume")
    assert done.exit_code == 0, done.output
    assert seen == [True, False, False, False] * 2
    assert history(tmp_path / "broken") == history(tmp_path / "unbroken")


def test_a_checkpoint_of_another_text_is_refused(tmp_path, file):
    args = ["--epochs", 1, "--batches", 1, "--policy", "O0", "--text", file, "--output", tmp_path / "run"]
    assert call(*args).exit_code == 0
    file.write_text(" ".join(WORDS[::-1]))
    done = call(*args, "--resume")
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
    done = call("--text", path, "--output", tmp_path / "run", *rows)
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
    done = call("--output", tmp_path, *args)
    assert done.exit_code == 2
    assert message in done.output.splitlines()[-1]
