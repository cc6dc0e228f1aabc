"""Measures how large the values of a network become, as a calibration for low precision."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import mxnet as mx
import numpy as np

from ..errors import ConvertError
from ..symbol import convert_model
from .batches import Batches, fill_inputs, read_batches


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
        batches: Batches of its inputs: dicts of NDArrays by name, or a DataIter, which is reset and
            read to its end. Labels may be left out where MXNet infers their shapes.
        ctx: Where to run; the CPU unless given.

    Returns:
        By the name of an output ('conv0_output') or input, parameters left out: the largest magnitude
        among its finite values, 0 if there is none. An attention mask's -inf is none: float16 has it.

    Raises:
        ConvertError: If the parameters do not fit, there is no batch, or one lacks an input.
    """
    model = convert_model(sym, arg_params, aux_params, "O0")  # without casts, should it be converted
    internals, params = model.symbol.get_internals(), {**model.arg_params, **model.aux_params}
    outputs = internals.list_outputs()
    watched = [number for number, name in enumerate(outputs) if name not in params]
    group = mx.sym.Group([internals[number] for number in watched])
    run = mx.nd.CachedOp(group)  # an executor would fuse operators with oneDNN, and hide what they give
    found: Dict[str, float] = {}
    for batch in read_batches(batches):
        values = fill_inputs(model, batch)
        results = run(*[values[name].as_in_context(ctx or mx.cpu()) for name in group.list_inputs()])
        for number, result in zip(watched, results):
            found[outputs[number]] = max(found.get(outputs[number], 0.0), _largest(result))
    if not found:
        raise ConvertError("batches is empty; give one batch at least.")
    return found


def _largest(array: Any) -> float:
    values = np.abs(array.asnumpy().astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
