"""Measure the values of a network and the gradients of its activations, as a calibration for low precision."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping

import mxnet as mx
import numpy as np
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError, LossScaleError
from ..probe.gradient_probes import add_probes
from ..symbol import ConvertedModel, convert_model
from ..symbol.inference import from_graph, infer_facts, to_graph
from .batches import Batches, fill_inputs, read_batches


class Magnitudes:
    """A histogram of log2 of absolute values.

    Attributes:
        counts: By exponent e: how many values are above 2**(e - 1) and at most 2**e.
        zeros: How many are 0.
        nonfinite: How many are infinite or NaN.
        largest: The largest finite absolute value, 0 if there is none.
    """

    def __init__(self) -> None:
        self.counts: Dict[int, int] = {}
        self.zeros = self.nonfinite = 0
        self.largest = 0.0

    @property
    def total(self) -> int:
        """How many values there are, but for those that are 0, infinite or NaN."""
        return sum(self.counts.values())

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Add the values of an array of any shape and floating point dtype."""
        values = np.abs(values.astype(np.float64))
        finite = values[np.isfinite(values)]
        nonzero = finite[finite > 0]
        self.nonfinite += values.size - finite.size
        self.zeros += finite.size - nonzero.size
        self.largest = max(self.largest, float(finite.max(initial=0.0)))
        mantissas, exponents = np.frexp(nonzero)  # mantissas from 0.5, excluding 1
        for exponent, count in zip(*np.unique(exponents - (mantissas == 0.5), return_counts=True)):
            self.counts[int(exponent)] = self.counts.get(int(exponent), 0) + int(count)

    def merge(self, other: Magnitudes) -> None:
        """Add the values that another one counted."""
        for exponent, count in other.counts.items():
            self.counts[exponent] = self.counts.get(exponent, 0) + count
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        self.largest = max(self.largest, other.largest)

    def share_lost(self, scale: float = 1.0, dtype: str = "float16") -> float:
        """Return the share of `total` that becomes 0 in low precision, from 0 to 1.

        Args:
            scale: What the values are multiplied by before; a power of two, for the counts tell no more.
            dtype: 'float16' or 'bfloat16'.

        Raises:
            LossScaleError: If the scale is no power of two.
        """
        shift = _log2(scale)
        least = _log2(dtypes.limits(dtypes.canonical(dtype)).smallest_subnormal)
        # Half of the least number, and all below, is rounded to 0: ties go to even.
        lost = sum(count for exponent, count in self.counts.items() if exponent + shift <= least - 1)
        return lost / self.total if self.total else 0.0

    def largest_scale(self, dtype: str = "float16") -> float:
        """Return the largest power of two that leaves all values finite in low precision; 1 if there is no value."""
        if not self.largest:
            return 1.0
        return 2.0 ** math.floor(math.log2(dtypes.limits(dtypes.canonical(dtype)).max / self.largest))


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
    return found


def measure_gradients(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, Magnitudes]:
    """Run a float32 network forward and backward and count the gradients of its activations by magnitude.

    They are what a loss scale is chosen for: without one, many become 0 in float16. Nothing is trained; dropout
    drops and BatchNorm takes the batch's statistics as in training, and its running ones stay as they are.

    Args:
        sym: The network with its loss heads, or with losses as outputs; bodies of its loops are not looked into.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: Batches of its inputs with labels: dicts of NDArrays by name, or a DataIter, which is reset and
            read to its end.
        ctx: Where to run; the CPU unless given.

    Returns:
        By the name of an output ('conv0_output'): the magnitudes of its gradient over all batches. Outputs that no
        operator reads, those of loss heads, and those whose gradient is 0 everywhere are left out.

    Raises:
        ConvertError: If the parameters do not fit, there is no batch, one lacks an input, or the network has no
            activation in float32.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """
    model = convert_model(sym, arg_params, aux_params, "O0")  # without casts, should it be converted
    found: Dict[str, Magnitudes] = {}
    for batch in read_batches(batches, labels=True):
        for name, gradient in _gradients(model, fill_inputs(model, batch, labels=True), ctx or mx.cpu()).items():
            found.setdefault(name, Magnitudes()).add(gradient.asnumpy())
    return {name: magnitudes for name, magnitudes in found.items() if magnitudes.total or magnitudes.nonfinite}


def _largest(array: Any) -> float:
    values = np.abs(array.asnumpy().astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _gradients(model: ConvertedModel, values: Dict[str, Any], ctx: Any) -> Dict[str, Any]:
    """Return the gradients of all activations, by their names."""
    graph = to_graph(model.symbol)
    shapes = {name: array.shape for name, array in values.items()}
    types = {name: dtypes.canonical(array.dtype) for name, array in values.items()}
    probed = add_probes(graph, infer_facts(model.symbol, graph, shapes, types, frozenset()))
    if not probed.probes:
        raise ConvertError("sym has no float32 output that an operator reads; give the network in float32.")
    symbol = from_graph(probed.graph, model.symbol)
    zeros = {name: mx.nd.zeros(each.shape, ctx=ctx) for name, each in probed.probes.items()}
    for array in zeros.values():
        array.attach_grad()
    given = {**{name: array.copyto(ctx) for name, array in values.items()}, **zeros}  # BatchNorm writes statistics
    run = mx.nd.CachedOp(symbol)
    with autograd.record():
        outputs = run(*[given[name] for name in symbol.list_inputs()])
    autograd.backward(outputs if isinstance(outputs, list) else [outputs])
    return {probed.probes[name].output: array.grad for name, array in zeros.items()}


def _log2(scale: float) -> int:
    mantissa, exponent = math.frexp(scale) if scale > 0 and math.isfinite(scale) else (0.0, 0)
    if mantissa != 0.5:
        raise LossScaleError(f"scale is {scale!r}; expected a power of two.")
    return exponent - 1
