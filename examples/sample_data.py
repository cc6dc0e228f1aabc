"""Data for the scripts in this folder, which read it if they are given none.

Gluon's script and Module's share the arrays of each function. The iterators are their own.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import mxmp  # noqa: F401 - before mxnet
import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Pair = Tuple[Any, Any]


def digits(size: int, channels: int = 1) -> Tuple[Pair, Pair]:
    """Return 1200 handwritten digits to train on and 597 held out, each as images and labels.

    Images are (N, channels, size, size), from 0 to 1.
    """
    found = load_digits()
    images = mx.nd.array(found.images[:, None].repeat(channels, axis=1) / 16)
    images = mx.nd.contrib.BilinearResize2D(images, height=size, width=size).asnumpy()
    parts = train_test_split(images, found.target, test_size=597, stratify=found.target, random_state=0)
    return (parts[0], parts[2]), (parts[1], parts[3])


def scenes(size: int, count: int) -> Iterator[Pair]:
    """Yield scenes to train on and a quarter as many held out, each as images and boxes.

    Images are (N, 3, size, size) with two digits on noise. Boxes are (N, 2, 5): left, top, right, bottom in pixels, and
    the class.
    """
    found, half, edge = load_digits(), size // 2, 24
    for part, number in (slice(1200), count), (slice(1200, None), count // 4):
        shapes, labels = found.images[part], found.target[part]
        images = np.random.uniform(-0.5, 0.5, (number, 3, size, size))
        boxes = np.zeros((number, 2, 5))
        for image, rows in zip(images, boxes):
            for place, row in enumerate(rows):  # one digit in the left half, one in the right half
                chosen = np.random.randint(len(shapes))
                left, top = place * half + np.random.randint(half - edge + 1), np.random.randint(size - edge + 1)
                image[:, top : top + edge, left : left + edge] += np.kron(shapes[chosen], np.ones((3, 3))) / 8
                row[:] = left, top, left + edge, top + edge, labels[chosen]
        yield images.astype("float32"), boxes.astype("float32")


def lines(file: Optional[str] = None) -> List[List[str]]:
    """Return the words of each line of a text in UTF-8; without one, of the modules of Python's standard library."""
    files = [file] if file else sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    found = []
    for each in files:
        with open(each, encoding="utf-8") as text:
            found += [re.findall(r"\w+|[^\w\s]", line) for line in text]
    return found


def numbers(words: Iterable[str], size: int, first: int) -> Dict[str, int]:
    """Return the numbers of the most frequent words, from ``first`` to ``size - 1``; the caller has those below."""
    frequent = Counter(words).most_common(size - first)
    return {word: number for number, (word, _) in enumerate(frequent, first)}
