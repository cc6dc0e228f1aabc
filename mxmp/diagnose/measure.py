"""Measure the values of a network and the gradients of its activations, as a calibration for low precision."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, overload

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError
from ..probe.largest_values import LargestValues
from ..probe.watched_gradients import WatchedGradients
from ..symbol import convert_model
from . import measure_net
from .batches import Batches, fill_inputs, inputs_of, read_loader
from .magnitudes import GradientCounts, Magnitudes
from .progress import shown
from .warn import warn_of_nans, warn_of_nonfinite


@overload
def measure_ranges(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, float]: ...


@overload
def measure_ranges(net: gluon.Block, loader: Any, *, batches: Optional[int] = None) -> Dict[str, float]: ...


def measure_ranges(*args: Any, **kwargs: Any) -> Dict[str, float]:  # noqa: D417 - the overloads have them
    """Run a float32 network on batches of data and return the largest magnitude of each tensor.

    Called as ``measure_ranges(net, loader)`` for a Gluon net, or as ``measure_ranges(sym, arg_params, aux_params,
    batches)``. What it returns is for the ``ranges`` of ``mxmp.gluon.convert`` and ``mxmp.symbol.convert_model``: an
    activation that is scaled by 1000 and leaves float16's range is thereby found, and kept in float32. Every tensor
    is reduced to a number where it is computed; a terminal shows a bar on stderr.

    Args:
        net: A Gluon net whose parameters have values, converted or not; it runs in float32, in inference, and is
            left as it was. Of a Block with several HybridBlocks in it the values of each are measured.
        loader: A DataLoader, a list or any other iterable of batches, or a DataIter, which is reset; of one batch a
            list, ``[(data, label)]``. A batch is an NDArray of data, a list or tuple whose last item is the label (None
            for none) and whose others are the net's inputs, or a DataBatch.
        sym: The network, in inference; the bodies of its loops are not looked into. It runs in float32 where casts of
            its own ask for low precision.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: For a net how many batches are read, all unless given. For a symbol batches of its inputs: dicts of
            NDArrays by name, or a DataIter, which is reset and read to its end. Labels
            may be left out as for `compare`; every other input must be there.
        ctx: Where a symbol runs; the CPU unless given. A net runs on the first of its contexts.

    Returns:
        By the name of an output ('conv0_output') or input, parameters left out: the largest magnitude
        among its finite values, 0 if there is none. An attention mask's -inf is none: float16 has it. A warning
        of the log counts what is NaN.

    Raises:
        ConvertError: If the parameters do not fit or have no values; if there is no batch, one lacks an input or
            does not fit; or if the net cannot be traced.
    """
    return (measure_net.measure_ranges if _is_of_net(args, kwargs) else _ranges)(*args, **kwargs)


@overload
def measure_gradients(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, Magnitudes]: ...


@overload
def measure_gradients(
    net: gluon.Block, loss: Any, loader: Any, *, batches: Optional[int] = None
) -> Dict[str, Magnitudes]: ...


def measure_gradients(*args: Any, **kwargs: Any) -> Dict[str, Magnitudes]:  # noqa: D417 - the overloads have them
    """Run a float32 network forward and backward and count the gradients of its activations by magnitude.

    Called as ``measure_gradients(net, loss, loader)`` for a Gluon net, or as ``measure_gradients(sym, arg_params,
    aux_params, batches)``. They are what a loss scale is chosen for: without one, many become 0 in float16. Nothing
    is trained; dropout drops and BatchNorm takes the batch's statistics as in training, and its running ones stay as
    they are. One gradient after the other is counted on the host while backward runs, and none is kept.

    Args:
        net: A Gluon net as for `measure_ranges`; gradients that it holds stay as they are.
        loss: Called with what the net returns and the label; a Gluon loss, for example. What it returns, an NDArray
            or a list of them, is summed, as ``backward`` does.
        loader: As for `measure_ranges`, with labels.
        sym: The network with its loss heads, or with losses as outputs; bodies of its loops are not looked into.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: For a net how many batches are read, all unless given. For a symbol batches of its inputs with
            labels: dicts of NDArrays by name, or a DataIter, which is reset and read to its end. None may be left out.
        ctx: Where a symbol runs; the CPU unless given.

    Returns:
        By the name of an output ('conv0_output'): the magnitudes of its gradient over all batches. Left out is what
        has no gradient in training, or 0 everywhere: outputs that nothing reads, those of loss heads, and those that
        depend on no parameter that is trained.

    Raises:
        ConvertError: If the parameters do not fit or have no values; if there is no batch, one lacks an input or
            does not fit; if ``loss`` gives no NDArray; or if the network has no activation to measure or no parameter
            to train.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """
    if not _is_of_net(args, kwargs):
        return _gradients(*args, **kwargs)
    if len(args) + len({"net", "loss", "loader"} & kwargs.keys()) < 3:
        raise ConvertError(
            "measure_gradients: the loss or the loader of a Gluon net is missing; call measure_gradients(net, loss, "
            "loader), with a loss such as mx.gluon.loss.L2Loss()."
        )
    return measure_net.measure_gradients(*args, **kwargs)


def _is_of_net(args: Any, kwargs: Mapping[str, Any]) -> bool:
    first = args[0] if args else kwargs.get("net", kwargs.get("sym"))
    if isinstance(first, mx.mod.BaseModule):
        raise ConvertError(
            f"expected a Gluon net, or a symbol with its parameters, found a {type(first).__name__}; give "
            f"module.symbol and *module.get_params()."
        )
    return "net" in kwargs or isinstance(first, gluon.Block)


def _ranges(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, float]:
    model = convert_model(sym, arg_params, aux_params, "O0")  # without casts, should it be converted
    held = {**model.arg_params, **model.aux_params}
    run, inputs = LargestValues(model.symbol, held), inputs_of(model.symbol, held)
    for batch in shown("measuring ranges", read_loader(batches, name="batches"), batches):
        values = fill_inputs(model, batch.by_name(inputs))
        run({name: values[name].as_in_context(ctx or mx.cpu()) for name in run.inputs})
    warn_of_nans([run])
    return run.found


def _gradients(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, Magnitudes]:
    model = convert_model(sym, arg_params, aux_params, "O0")  # without casts, should it be converted
    ctx = ctx or mx.cpu()
    held = {**model.arg_params, **model.aux_params}
    params = {name: array.copyto(ctx) for name, array in held.items()}  # BatchNorm writes its statistics
    for name in model.arg_params:
        if dtypes.canonical(params[name].dtype) in dtypes.PRECISIONS:
            params[name].attach_grad()
    counts, inputs = GradientCounts(), inputs_of(model.symbol, held)
    runs: Dict[Any, WatchedGradients] = {}
    for batch in shown("measuring gradients", read_loader(batches, name="batches"), batches):
        given = fill_inputs(model, batch.by_name(inputs), labels=True)
        types = tuple((name, dtypes.canonical(array.dtype)) for name, array in given.items())
        if types not in runs:  # one graph for all shapes
            runs[types] = WatchedGradients(model.symbol, dict(types), False, counts.add)
            _require_gradients(runs[types], params)
        values = {name: params.get(name, array).as_in_context(ctx) for name, array in given.items()}
        with autograd.record():
            outputs = runs[types](values)
        autograd.backward(outputs)
        runs[types].raise_errors()
    found = counts.found([name for run in runs.values() for name in run.outputs])
    warn_of_nonfinite(found)
    return found


def _require_gradients(run: WatchedGradients, params: Mapping[str, Any]) -> None:
    if not run.outputs:
        raise ConvertError("sym has no output in floating point that an operator reads: there is nothing to measure.")
    if not any(params[name].grad is not None for name in run.inputs if name in params):
        raise ConvertError("sym reads no argument of arg_params in floating point, so there is nothing to train.")
