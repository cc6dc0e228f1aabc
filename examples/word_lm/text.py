"""Text as rows of word indices: Python's own standard library, or any file."""

from __future__ import annotations

import os
import re
import tokenize
import zlib
from collections import Counter
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import click
import mxnet as mx
import numpy as np

from examples.common.loop import Data

UNKNOWN = "<unk>"
LIBRARY_CHARACTERS = 1_000_000
LONGEST_MODULE = 60_000  # characters; so that no single module makes up much of the text held out
HELD_OUT = 8  # one module, or word, in so many
BUCKETS = ((1 / 2, 0.05), (4 / 5, 0.3), (1, 0.35), (6 / 5, 0.3))
"""Lengths of training batches as fractions of the usual one, and how often each comes.

The paper below draws half of the length for one batch in twenty, and around both with a deviation of
5 words; here the lengths are few, and of 35 words the deviation is 6.

References:
    Merity et al., "Regularizing and Optimizing LSTM Language Models", 2017, section 4.1,
    https://arxiv.org/abs/1708.02182
"""

_WORD = re.compile(r"\w+|[^\w\s]|\n")


class Batch(NamedTuple):
    """Words (N, T), the words that follow them (N, T), both float32 indices on the CPU, and whether a text begins."""

    words: mx.nd.NDArray
    following: mx.nd.NDArray
    first: bool


class Text(Data):
    """Words to train on and words held out, which do not overlap.

    The text is cut into as many rows as a batch has, and each batch goes on in every row where the one
    before it ended, so that an LSTM's state can be handed on. The lengths of the batches vary, so that
    batches of different epochs end at different words; each epoch has the same lengths in another order.

    Args:
        training: The words to train on, in order.
        held_out: The words to test on.
        vocabulary: Words told apart, the most frequent of the training text; all others are one word.
        length: T, words that a batch usually has of each row; that of all batches held out.

    Attributes:
        words: The vocabulary; a word's index is its place.
        lengths: Those that batches to train on may have, the longest one last.
        checksum: Tells this text from others.
    """

    def __init__(self, training: Sequence[str], held_out: Sequence[str], vocabulary: int, length: int) -> None:
        self.words = make_vocabulary(training, vocabulary)
        self._length = length
        self.lengths = [max(round(fraction * length), 1) for fraction, _ in BUCKETS]
        index = {word: number for number, word in enumerate(self.words)}
        self._training, self._held_out = _indices(training, index), _indices(held_out, index)
        self.checksum = zlib.crc32(self._held_out.tobytes(), zlib.crc32(self._training.tobytes()))

    @property
    def sizes(self) -> Tuple[int, int]:
        """Words to train on and held out."""
        return len(self._training), len(self._held_out)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return len(self._lengths(batch_size))

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, in order."""
        lengths = np.random.RandomState([seed, epoch]).permutation(self._lengths(batch_size))
        return _batches(self._training, batch_size, lengths)

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out; the last one may be shorter."""
        steps = max(-(-(len(self._held_out) // batch_size - 1) // self._length), 0)
        if not steps:
            raise click.BadParameter(
                f"{len(self._held_out)} words are held out, fewer than 2 in each of {batch_size} rows.",
                param_hint="--batch-size",
            )
        return _batches(self._held_out, batch_size, [self._length] * steps)

    def _lengths(self, batch_size: int) -> List[int]:
        """Return the lengths of an epoch's batches, which neither epoch nor seed decide on."""
        found: List[int] = []
        rng, left = np.random.RandomState(0), len(self._training) // batch_size - 1
        while left >= 0:
            found.append(rng.choice(self.lengths, p=[frequency for _, frequency in BUCKETS]))
            left -= found[-1]
        return found[:-1]


def make_vocabulary(words: Sequence[str], size: int) -> List[str]:
    """Return the most frequent words, at most ``size`` with `UNKNOWN`, which comes first."""
    counts = Counter(words)
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]]


def read(path: Optional[Path]) -> Tuple[List[str], List[str]]:
    """Return the words to train on and those held out.

    Args:
        path: A text in UTF-8, whose last eighth is held out; None for modules of Python's standard
            library, of which every eighth is. That text differs between versions of Python.
    """
    if path is None:
        training: List[str] = []
        held_out: List[str] = []
        for number, module in enumerate(_library()):
            (training if number % HELD_OUT else held_out).extend(split(module))
        return training, held_out
    try:
        words = split(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as e:
        raise click.ClickException(f"{path}: not a text in UTF-8: {e.reason} at byte {e.start}.") from e
    if len(words) < HELD_OUT:
        raise click.ClickException(f"{path}: there are {len(words)} words; expected a text to learn from.")
    end = len(words) - len(words) // HELD_OUT
    return words[:end], words[end:]


def split(text: str) -> List[str]:
    """Return words, marks and ends of lines, each as an item."""
    return _WORD.findall(text)


def _library() -> Iterator[str]:
    """Yield the source of some modules, the same ones in every process with this Python."""
    paths = Path(os.__file__).parent.glob("*.py")
    total = 0
    for path in sorted(paths, key=lambda path: (zlib.crc32(path.name.encode()), path.name)):
        with tokenize.open(path) as file:
            text = file.read()
        if len(text) <= LONGEST_MODULE and total < LIBRARY_CHARACTERS:
            total += len(text)
            yield text


def _indices(words: Sequence[str], index: Dict[str, int]) -> np.ndarray:
    return np.array([index.get(word, 0) for word in words], dtype=np.int32)


def _batches(indices: np.ndarray, batch_size: int, lengths: Iterable[int]) -> Iterator[Batch]:
    columns = len(indices) // batch_size
    rows = indices[: batch_size * columns].reshape(batch_size, columns)
    start = 0
    for length in lengths:
        stop = min(start + length, columns - 1)
        yield Batch(mx.nd.array(rows[:, start:stop]), mx.nd.array(rows[:, start + 1 : stop + 1]), start == 0)
        start = stop
