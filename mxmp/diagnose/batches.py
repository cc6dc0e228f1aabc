"""Batches of inputs for the measurements: read from dicts or a DataIter, completed with parameters."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Union

import mxnet as mx

from ..errors import ConvertError, mxnet_reason
from ..symbol import ConvertedModel
from ..symbol.arguments import known_shapes

Batches = Union[Iterable[Mapping[str, Any]], mx.io.DataIter]
"""Batches of inputs: dicts of NDArrays by name, or one of MXNet's iterators."""


def read_batches(batches: Batches, labels: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield batches as dicts of NDArrays by name; a DataIter is reset and read to its end.

    Args:
        batches: The batches.
        labels: Whether an iterator's labels are wanted too.

    Raises:
        ConvertError: If one is no dict.
    """
    if isinstance(batches, mx.io.DataIter):
        batches.reset()
        names = [each[0] for each in [*batches.provide_data, *(batches.provide_label if labels else ())]]
        yield from (dict(zip(names, [*batch.data, *(batch.label or ())])) for batch in batches)
        return
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise ConvertError(
                f"batches holds a {type(batch).__name__}; expected dicts of NDArrays by input, or a DataIter."
            )
        yield batch


def fill_inputs(model: ConvertedModel, batch: Mapping[str, Any], labels: bool = False) -> Dict[str, Any]:
    """Return the values of all inputs of a network by name: parameters, a batch, zeros for missing labels.

    Args:
        model: The network with its parameters.
        batch: The values of the other inputs.
        labels: Whether labels must be among them; zeros stand for them else.

    Raises:
        ConvertError: If an input is missing, or does not fit.
    """
    sym, params = model.symbol, {**model.arg_params, **model.aux_params}
    shapes = known_shapes(sym, {name: array.shape for name, array in batch.items()})
    given = {**params, **batch}
    try:
        sizes, _, _ = sym.infer_shape_partial(**{n: given[n].shape for n in sym.list_inputs() if n in given})
    except mx.MXNetError as e:
        raise ConvertError(f"batches: inputs of shapes {shapes} do not fit: {mxnet_reason(e)}") from e
    missing = {name: size for name, size in zip(sym.list_arguments(), sizes or ()) if name not in given}
    for name, size in missing.items():
        if labels or not name.endswith("label") or not size or 0 in size:
            raise ConvertError(f"batches: a batch lacks the input '{name}'; give it, also if it is a label.")
    return {**given, **{name: mx.nd.zeros(size) for name, size in missing.items()}}
