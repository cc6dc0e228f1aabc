"""Text as rows of word indices: Python's own standard library, or any file."""

from __future__ import annotations

import os
import re
import tokenize
import zlib
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import click
import mxnet as mx
import numpy as np

from examples.common.loop import Data

UNKNOWN = "<unk>"
LIBRARY_CHARACTERS = 1_000_000
LONGEST_MODULE = 60_000  # characters; so that no single module makes up much of the text held out
HELD_OUT = 8  # one module, or word, in so many

_WORD = re.compile(r"\w+|[^\w\s]|\n")


class Batch(NamedTuple):
    """Words (N, T), the words that follow them (N, T), both float32 indices on the CPU, and whether a text begins."""

    words: mx.nd.NDArray
    following: mx.nd.NDArray
    first: bool


class Text(Data):
    """Words to train on and words held out, which do not overlap.

    The text is cut into as many rows as a batch has, and each batch goes on in every row where the one
    before it ended, so that an LSTM's state can be handed on.

    Args:
        training: The words to train on, in order.
        held_out: The words to test on.
        vocabulary: Words told apart, the most frequent of the training text; all others are one word.
        length: T, words that a batch has of each row.

    Attributes:
        words: The vocabulary; a word's index is its place.
        checksum: Tells this text from others.
    """

    def __init__(self, training: Sequence[str], held_out: Sequence[str], vocabulary: int, length: int) -> None:
        self.words = make_vocabulary(training, vocabulary)
        self._length = length
        index = {word: number for number, word in enumerate(self.words)}
        self._training, self._held_out = _indices(training, index), _indices(held_out, index)
        self.checksum = zlib.crc32(self._held_out.tobytes(), zlib.crc32(self._training.tobytes()))

    @property
    def sizes(self) -> Tuple[int, int]:
        """Words to train on and held out."""
        return len(self._training), len(self._held_out)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return max(len(self._training) // batch_size - 1, 0) // self._length

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, in order."""
        return _batches(self._training, batch_size, self._length, self.steps(batch_size))

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out; the last one may be shorter."""
        steps = max(-(-(len(self._held_out) // batch_size - 1) // self._length), 0)
        if not steps:
            raise click.BadParameter(
                f"{len(self._held_out)} words are held out, fewer than 2 in each of {batch_size} rows.",
                param_hint="--batch-size",
            )
        return _batches(self._held_out, batch_size, self._length, steps)


def make_vocabulary(words: Sequence[str], size: int) -> List[str]:
    """Return the most frequent words, at most ``size`` with `UNKNOWN`, which comes first."""
    counts = Counter(words)
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]]


def read(path: Optional[Path]) -> Tuple[List[str], List[str]]:
    """Return the words to train on and those held out.

    Args:
        path: A text in UTF-8, whose last eighth is held out; None for modules of Python's standard
            library, of which every eighth is. That text differs between versions of Python.

    Raises:
        click.ClickException: If the file is no text, or has next to none.
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


def _batches(indices: np.ndarray, batch_size: int, length: int, steps: int) -> Iterator[Batch]:
    columns = len(indices) // batch_size
    rows = indices[: batch_size * columns].reshape(batch_size, columns)
    for number in range(steps):
        start, stop = number * length, min((number + 1) * length, columns - 1)
        yield Batch(mx.nd.array(rows[:, start:stop]), mx.nd.array(rows[:, start + 1 : stop + 1]), number == 0)
