"""Batches of inputs as users give them, and the values of all inputs of a network for one of them."""

from __future__ import annotations

import zipfile
from typing import Any, Dict, Iterable, Iterator, Mapping, Union

import mxnet as mx
import numpy as np

from .. import dtypes
from ..errors import CheckpointError, ConvertError, mxnet_reason
from ..symbol import ConvertedModel
from ..symbol.arguments import known_shapes

Batches = Union[Iterable[Mapping[str, Any]], mx.io.DataIter]
"""Batches of inputs: dicts of NDArrays by name, or one of MXNet's iterators."""


def read_batches(batches: Batches, labels: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield batches as dicts of NDArrays by name, perhaps with a DataIter's labels; it is read to its end."""
    if isinstance(batches, mx.io.DataIter):
        batches.reset()
        names = [each[0] for each in [*batches.provide_data, *(batches.provide_label if labels else ())]]
        batches = (dict(zip(names, [*batch.data, *(batch.label or ())])) for batch in batches)
    if batches is None or isinstance(batches, (Mapping, int, float)):
        raise ConvertError(
            f"batches is a {type(batches).__name__}; expected a list of dicts of NDArrays, or a DataIter."
        )
    empty = True
    for batch in batches:
        empty = False
        if not isinstance(batch, Mapping):
            raise ConvertError(
                f"batches holds a {type(batch).__name__}; expected dicts of NDArrays by input, or a DataIter."
            )
        for name, array in batch.items():
            if not isinstance(array, mx.nd.NDArray):
                raise ConvertError(f"batches: input {name!r} is a {type(array).__name__}; expected an NDArray.")
        yield batch
    if empty:
        raise ConvertError("batches is empty; give one batch at least.")


def fill_inputs(model: ConvertedModel, batch: Mapping[str, Any], labels: bool = False) -> Dict[str, Any]:
    """Return the values of all inputs by name: parameters, a batch, and zeros for labels unless they are needed."""
    sym, given = model.symbol, {**model.arg_params, **model.aux_params, **batch}
    shapes = known_shapes(sym, {name: array.shape for name, array in batch.items()})
    try:
        sizes, _, _ = sym.infer_shape_partial(**{n: given[n].shape for n in sym.list_inputs() if n in given})
    except mx.MXNetError as e:
        raise ConvertError(f"batches: inputs of shapes {shapes} do not fit: {mxnet_reason(e)}") from e
    missing = {name: size for name, size in zip(sym.list_arguments(), sizes or ()) if name not in given}
    for name, size in missing.items():
        if labels or not name.endswith("label") or not size or 0 in size:
            raise ConvertError(f"batches: a batch lacks the input '{name}'; give it, also if it is a label.")
    return {**given, **{name: mx.nd.zeros(size) for name, size in missing.items()}}


def load_batch(path: str, symbol: Any, types: Mapping[str, str]) -> Dict[str, mx.nd.NDArray]:
    """Return the arrays of a .npz file by name, in the dtypes that are given, that a symbol declares, or float32.

    Raises:
        CheckpointError: If the file cannot be read, or has no arrays.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {name: loaded[name] for name in getattr(loaded, "files", ())}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as e:
        raise CheckpointError(f"{path}: it cannot be read as a .npz file: {e}") from e
    if not arrays:
        raise CheckpointError(f"{path}: it is no .npz file with an array for each input; write one with numpy.savez.")
    attributes = symbol.attr_dict()
    declared = {name: dtypes.from_flag(attributes.get(name, {}).get("__dtype__", "")) for name in arrays}
    wanted = {name: types.get(name) or declared[name] or dtypes.FLOAT32 for name in arrays}
    return {name: mx.nd.array(array, dtype=wanted[name]) for name, array in arrays.items()}
