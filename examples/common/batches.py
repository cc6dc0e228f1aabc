"""Batches that are smaller than the others."""

from __future__ import annotations

from typing import Any

import mxnet as mx


def fill(batch: Any, least: int) -> Any:
    """Return a batch with so many examples at least: the last one is repeated. A module gives each context one.

    Args:
        batch: A NamedTuple of NDArrays (N, ...).
        least: The number.
    """
    missing = least - len(batch[0])
    return batch if missing <= 0 else batch._make(mx.nd.concat(each, *[each[-1:]] * missing, dim=0) for each in batch)
