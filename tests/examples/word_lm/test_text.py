"""Texts, their words and their batches."""

from __future__ import annotations

import numpy as np
import pytest

from examples.word_lm import text as texts
from examples.word_lm.text import UNKNOWN, Text, make_vocabulary, split
from tests.examples.scripts import WORDS


def lengths(text, epoch, seed):
    return [batch.words.shape[1] for batch in text.train(3, epoch, seed)]


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
    assert 79 - 8 <= words.shape[1] <= 79  # the longest batch has 8: less than one of them is left over
    np.testing.assert_array_equal(words, rows[:, : words.shape[1]])
    np.testing.assert_array_equal(following, rows[:, 1 : words.shape[1] + 1])


def test_each_epoch_has_batches_of_the_same_lengths_in_another_order():
    text = Text(40 * WORDS, WORDS, 6, 10)
    assert text.lengths == [5, 8, 10, 12]
    first, others = lengths(text, 0, 0), [lengths(text, 1, 0), lengths(text, 0, 1)]
    assert first == lengths(text, 0, 0)
    assert all(first != other and sorted(first) == sorted(other) for other in others)
    assert text.steps(3) == len(first)
    counts = [first.count(length) / len(first) for length in text.lengths]
    assert counts == pytest.approx([0.05, 0.3, 0.35, 0.3], abs=0.08)  # some 300 draws: three deviations


@pytest.mark.parametrize("length", [1, 2])
def test_a_length_is_a_word_at_least(length):
    assert min(Text(WORDS, WORDS, 6, length).lengths) == 1


def test_a_text_shorter_than_a_batch_has_none():
    assert Text(WORDS[:9], WORDS, 6, 35).steps(3) == 0


def test_all_words_held_out_are_tested():
    batches = list(Text(WORDS, WORDS, 6, 7).test(3))
    assert [batch.words.shape[1] for batch in batches] == [7] * 11 + [2]


def test_a_word_that_the_training_text_lacks_is_unknown():
    (batch, *_) = Text(WORDS, ["a", "zebra", "a", "b"], 6, 3).test(1)
    assert batch.words.asnumpy().tolist() == [[1, 0, 1]]


def test_the_last_eighth_of_a_file_is_held_out(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS))
    training, held_out = texts.read(path)
    assert training + held_out == WORDS
    assert len(held_out) == 30


def test_the_library_is_bounded_and_the_same_every_time():
    training, held_out = texts.read(None)
    assert (training, held_out) == texts.read(None)
    assert 50_000 < len(training) < texts.LIBRARY_CHARACTERS
    assert 0.03 < len(held_out) / len(training) < 0.3
    assert "self" in training and "self" in held_out
