"""How large the values of a network become: a calibration for low precision."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Union

import mxnet as mx
import numpy as np

from ..errors import ConvertError
from ..symbol.arguments import check_params, known_shapes, require_symbol

Batches = Union[Iterable[Mapping[str, Any]], mx.io.DataIter]
"""Batches of inputs: dicts of NDArrays by name, or one of MXNet's iterators."""


def measure_ranges(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, float]:
    """Run a float32 network on batches of data and return the largest magnitude of each tensor.

    What it returns is for the ``ranges`` of ``mxmp.symbol.convert_model``: an activation that is
    scaled by 1000 and leaves float16's range is thereby found, and kept in float32.

    Args:
        sym: The network, in inference; the bodies of its loops are not looked into.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: Batches of its inputs, labels apart: dicts of NDArrays by name, or a DataIter, which
            is read to its end.
        ctx: Where to run; the CPU unless given.

    Returns:
        By the name of an output ('conv0_output') or input, parameters left out: the largest magnitude
        among its finite values, 0 if there is none. An attention mask's -inf is none: float16 has it.

    Raises:
        ConvertError: If the parameters do not fit, there is no batch, or one lacks an input.
    """
    internals = require_symbol(sym).get_internals()
    params = {**arg_params, **aux_params}
    names = dict.fromkeys(name for name in internals.list_outputs() if name not in params)
    watched = mx.sym.Group([internals[name] for name in names])
    run = mx.nd.CachedOp(watched)  # an executor would fuse operators with oneDNN, and hide what they give
    found: Dict[str, float] = {}
    for batch in _dicts(batches):
        values = _inputs(sym, {**params, **batch}, known_shapes(sym, {name: a.shape for name, a in batch.items()}))
        outputs = run(*[values[name].as_in_context(ctx or mx.cpu()) for name in watched.list_inputs()])
        for name, output in zip(names, outputs):
            found[name] = max(found.get(name, 0.0), _largest(output))
    if not found:
        raise ConvertError("batches is empty; give one batch at least.")
    return found


def _dicts(batches: Batches) -> Iterator[Mapping[str, Any]]:
    if not isinstance(batches, mx.io.DataIter):
        yield from batches
        return
    names = [description[0] for description in batches.provide_data]
    for batch in batches:
        yield dict(zip(names, batch.data))


def _inputs(sym: Any, given: Mapping[str, Any], shapes: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the values of all inputs, zeros for labels; MXNet's inference checks their shapes."""
    states = sym.list_auxiliary_states()
    args = {name: array for name, array in given.items() if name not in states}
    check_params(sym, args, {name: given[name] for name in states if name in given}, shapes)
    try:
        sizes, _, _ = sym.infer_shape(**{n: given[n].shape for n in sym.list_inputs() if n in given})
    except mx.MXNetError as e:
        raise ConvertError(f"batches: inputs of shapes {dict(shapes)} do not fit: {str(e).splitlines()[-1]}") from e
    labels = {name: mx.nd.zeros(size) for name, size in zip(sym.list_arguments(), sizes) if name not in given}
    return {**given, **labels}


def _largest(array: Any) -> float:
    values = np.abs(array.asnumpy().astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
