"""Batches of a Gluon net as loaders give them: what the net is called with, and the label."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from ..errors import ConvertError

_EXPECTED = "expected an NDArray, a tuple or list (data, label), or a DataBatch"


class Example(NamedTuple):
    """A batch: what the net is called with, and the label for the loss, which may be None."""

    inputs: Tuple[Any, ...]
    label: Any
    has_label: bool


def read_loader(loader: Any, count: Optional[int], labels: bool, ctx: mx.Context) -> Iterator[Example]:
    """Yield a loader's batches, at most ``count``, on a context; ConvertError if there is none, or one is none."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConvertError(f"batches is {count!r}; expected how many batches to read, 1 or more.")
    unfit = (mx.nd.NDArray, Mapping, gluon.Block, mx.sym.Symbol, str)
    if isinstance(loader, unfit) or not isinstance(loader, (Iterable, Sequence, mx.io.DataIter, gluon.data.DataLoader)):
        raise ConvertError(
            f"loader is a {type(loader).__name__}; expected a DataLoader, a list of batches or a DataIter."
        )
    if isinstance(loader, mx.io.DataIter):
        loader.reset()
    empty = True
    for batch in itertools.islice(loader, count):
        empty = False
        example = _example(batch)
        if labels and not example.has_label:
            raise ConvertError("loader: a batch has no label; give (data, label), with None for a loss without labels.")
        yield Example(_moved(example.inputs, ctx), _moved(example.label, ctx), example.has_label)
    if empty:
        raise ConvertError("loader is empty; give one batch at least.")


def _example(batch: Any) -> Example:
    if isinstance(batch, mx.nd.NDArray):
        return Example((batch,), None, False)
    if isinstance(batch, mx.io.DataBatch):
        label: List[Any] = list(batch.label or ())
        return Example(tuple(batch.data), label[0] if len(label) == 1 else label or None, bool(label))
    if not isinstance(batch, (list, tuple)) or not batch:
        raise ConvertError(f"loader holds a {type(batch).__name__}; {_EXPECTED}.")
    if len(batch) == 1:
        return Example(tuple(batch), None, False)
    return Example(tuple(batch[:-1]), batch[-1], True)


def _moved(value: Any, ctx: mx.Context) -> Any:
    """Return an array, or nested arrays, on a context."""
    if isinstance(value, mx.nd.NDArray):
        return value.as_in_context(ctx)
    if isinstance(value, (list, tuple)):
        return type(value)([_moved(each, ctx) for each in value])
    if value is None:
        return None
    raise ConvertError(f"loader: a batch holds a {type(value).__name__}; {_EXPECTED}, all of NDArrays.")
