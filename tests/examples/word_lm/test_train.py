"""Both language model scripts, run small."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.examples.scripts import SCRIPTS, WORDS, interrupt_in_step, start, train
from tests.examples.word_lm.small import (
    LEARNERS,
    LENGTH,
    ROWS,
    TWO,
    arrays,
    as_module,
    gradients,
    learner,
    plain,
    predict,
)

kinds = pytest.mark.parametrize("kind", list(LEARNERS))


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
def test_a_run_learns_a_text_and_gives_table_and_plot(tmp_path, kind, policy):
    # A model without states has a perplexity of 1.5 at best: what follows 'a' depends on the words before.
    file = tmp_path / "text.txt"
    file.write_text(" ".join(4 * WORDS))
    args = ["--epochs", 3, "--batches", 999, "--learning-rate", 0.1, "--dropout", 0, "--clip", 5, "--text", file]
    record, text = train(f"lm {kind}", tmp_path / "run", "--policy", policy, *args)
    assert "test perplexity" in text
    assert (tmp_path / "run" / "run.png").read_bytes().startswith(b"\x89PNG")
    assert record["history"]["epochs"][-1]["perplexity"] < 1.3


def test_an_untied_model_has_a_weight_more(tmp_path):
    sizes = []
    for tied in ("--tied", "--untied"):
        train("lm module", tmp_path / tied, tied, "--epochs", 1, "--batches", 1, "--policy", "O0")
        sizes.append(len(mx.nd.load(str(tmp_path / tied / "model-0000.params"))))
    assert sizes[1] == sizes[0] + 1


@kinds
def test_a_checkpoint_has_the_states_and_a_resumed_run_begins_no_text_again(kind, tmp_path, monkeypatch):
    name = f"lm {kind}"
    taken = interrupt_in_step(monkeypatch, SCRIPTS[name].learner, 6)
    assert start(name, tmp_path / "run", "--policy", "O0")[0] == 130
    assert {"state:0", "state:1"} <= set(mx.nd.load(str(tmp_path / "run" / "model-0000.params")))
    train(name, tmp_path / "run", "--policy", "O0", "--resume")
    assert [batch.first for batch in taken] == [True, False, False, False] * 2
