"""A batch for a checkpoint of which only the shapes of inputs are known."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import mxnet as mx
import numpy as np

from ... import dtypes
from ...errors import TuneError, did_you_mean
from ...symbol import Checkpoint
from ...symbol.arguments import label_names


def make_batch(model: Checkpoint, shapes: Mapping[str, Any], types: Mapping[str, str]) -> Dict[str, mx.nd.NDArray]:
    """Return inputs of the shapes given: random numbers from 0 to 1, integers 0 or 1, labels 0.

    Args:
        model: A symbol and its parameters; its inputs are what has no values there.
        shapes: Shapes of all inputs but labels, by name.
        types: Dtypes of those that are neither float32 nor declare theirs.

    Raises:
        TuneError: If an input has no shape, or there is none of a name that is given.
    """
    inputs = [name for name in model.symbol.list_inputs() if name not in {**model.arg_params, **model.aux_params}]
    for name in (*shapes, *types):
        if name not in inputs:
            raise TuneError(f"the network has no input {name!r}{did_you_mean(name, inputs)}.")
    labels = label_names(model.symbol)
    for name in inputs:
        if name not in shapes and name not in labels:
            raise TuneError(f"input {name!r} has no shape; give --shape {name}:SIZES.")
    random = np.random.RandomState(0)
    declared = model.symbol.attr_dict()
    found = {name: types.get(name) or _declared(declared.get(name, {})) for name in shapes}
    return {
        name: mx.nd.zeros(shapes[name], dtype=dtype) if name in labels else _values(shapes[name], dtype, random)
        for name, dtype in found.items()
    }


def _values(shape: Any, dtype: str, random: np.random.RandomState) -> mx.nd.NDArray:
    values = random.uniform(size=shape) if "float" in dtype else random.randint(0, 2, shape)
    return mx.nd.array(values).astype(dtype)


def _declared(attrs: Mapping[str, str]) -> str:
    """Return the dtype that a variable's attributes declare, float32 if none."""
    return dtypes.from_flag(attrs.get("__dtype__", "")) or dtypes.FLOAT32
