"""Which examples make up a batch."""

from __future__ import annotations

from typing import Any, Iterator

import mxnet as mx
import numpy as np


def shuffled(count: int, batch_size: int, rng: np.random.RandomState) -> Iterator[np.ndarray]:
    """Return the indices of each whole batch of an epoch, in an order that is drawn at once."""
    order = rng.permutation(count)
    return (order[start : start + batch_size] for start in range(0, count - batch_size + 1, batch_size))


def in_order(count: int, batch_size: int) -> Iterator[range]:
    """Return the indices of each batch; the last one may be smaller."""
    return (range(start, min(start + batch_size, count)) for start in range(0, count, batch_size))


def fill(batch: Any, least: int) -> Any:
    """Return a NamedTuple of arrays with so many examples at least, the last one repeated: one for each context."""
    missing = least - len(batch[0])
    return batch if missing <= 0 else batch._make(mx.nd.concat(each, *[each[-1:]] * missing, dim=0) for each in batch)
