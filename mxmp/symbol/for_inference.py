"""Networks prepared for inference: without dropout, BatchNorm folded into the layers before it, in float32.

`prepare` rewrites a symbol without looking at values; `fold_params` computes the parameters that the new symbol wants
from those of the old one. `fold_model` does both for a model. Parameters are computed in float64 and rounded once, to
the weight's dtype. So a float32 network gets the float32 values nearest to the exact ones.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import wait_until_readable
from ..errors import ParamsError
from ..graph import Entry, Graph, in_written_order
from ..passes import DropDropout, EraseCasts, FoldBatchNorm, Sequential
from ..passes.cpu.fit import Fit
from ..passes.cpu.frozen import Merged, Norm, write_norms
from ..passes.cpu.guards import GuardFusedSums, GuardSlices, OrderFusedSums
from ..passes.fold import Fold, Sources, activation_of, find_dropouts, find_folds
from ..report import DROPPED, FOLDED, Removed, Row
from ..rules.conditions import VECTOR
from .arguments import Model, blaming_params
from .inference import Dtypes, Shapes, from_graph, infer_network, to_graph
from .params import round_to

Arrays = Mapping[str, Any]

_Value = TypeVar("_Value")


class Prepared(NamedTuple):
    """A network prepared for inference.

    Attributes:
        symbol: Its symbol, in the precision of the one before: not converted.
        graph: Its graph.
        folds: The folds from which `fold_params` computes its new parameters.
        removed: The removed nodes, for ``Report.with_removed``.
        outputs: By the names of the outputs of layers that are another tensor now, the name that this had before, None
            if it had none.
    """

    symbol: Any
    graph: Graph
    folds: Tuple[Fold, ...]
    removed: Removed
    outputs: Mapping[str, Optional[str]]


def prepare(
    symbol: Any,
    params: FrozenSet[str],
    shapes: Optional[Shapes] = None,
    types: Optional[Dtypes] = None,
    left: FrozenSet[int] = frozenset(),
) -> Prepared:
    """Return a symbol prepared for inference; casts that mxmp inserted are taken out.

    Args:
        symbol: A network.
        params: Names of its parameters and auxiliary states.
        shapes: Shapes of its inputs and parameters, if known.
        types: Dtypes of its inputs and parameters, where they are not float32.
        left: BatchNorms that are to be left, as ``Fold.norm`` numbers them.

    Raises:
        InferenceError: If the network does not type-check; the message names the node.
    """
    given = to_graph(symbol)
    before = EraseCasts()(given).graph
    graph = in_written_order(DropDropout()(before).graph)
    source = symbol if graph == given else from_graph(graph, symbol)
    facts = infer_network(source, graph, shapes or {}, types or {}, params)
    folds = find_folds(graph, params, facts, left)
    folded = FoldBatchNorm(folds)(graph).graph
    shape_of = {(node.name, 0): facts.shape(Entry(i)) for i, node in enumerate(graph.nodes)}
    slices = GuardSlices({name: shape for name, shape in shape_of.items() if shape is not None})
    guards = Sequential((GuardFusedSums(), OrderFusedSums(), slices))
    after = in_written_order(guards(folded).graph)
    rows = [Row(node.name, node.op, DROPPED, "it does nothing in inference", ()) for node in find_dropouts(before)]
    outputs: Dict[str, Optional[str]] = {}
    for fold in folds:
        layer, norm = graph.nodes[fold.layer], graph.nodes[fold.norm]
        rows.append(Row(norm.name, norm.op, FOLDED, f"into the weight and bias of '{layer.name}'", ()))
        name = facts.output_name(graph, norm.inputs[0])
        outputs[name] = None if activation_of(norm) else facts.output_name(graph, Entry(fold.norm))
    return Prepared(from_graph(after, symbol), after, folds, Removed(tuple(rows), graph, facts), outputs)


def fold_params(folds: Iterable[Fold], params: Arrays) -> Tuple[Dict[str, Any], List[Fold]]:
    """Return the new parameters of layers by name, and the folds that must be left out.

    The parameters are on the devices and in the dtypes of the old weights. A fold is left out if it gives a value
    beyond the weight's dtype, or NaN, as with a negative variance.

    Raises:
        ParamsError: If parameters do not fit each other; the message names them.
    """
    folded: Dict[str, Any] = {}
    fits: Dict[str, bool] = {}
    for fold in folds:
        if fold.weight not in folded:  # layers may share it
            like = params[fold.sources.weight]
            weight, bias = _fold(fold.sources, params)
            folded[fold.weight], folded[fold.bias] = _array(weight, like), _array(bias, like)
            limit = sys.float_info.max
            if dtypes.canonical(like.dtype) == dtypes.BFLOAT16:  # computed in float32, whose range is larger
                limit = dtypes.limits(dtypes.BFLOAT16).max
            tops = [float(np.abs(each).max(initial=0.0)) for each in (weight, bias)]
            fits[fold.weight] = all(top <= limit for top in tops)  # NaN does not fit
    return folded, [fold for fold in folds if not fits[fold.weight]]


def _fold(sources: Sources, params: Arrays) -> Tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a layer's new weight and bias, in the dtype that numpy has for the old weight's.

    They are computed in float64, piece by piece, and rounded once; not finite where a value leaves its range.
    """
    norm = sources.norm
    beta, mean, var = (_per_channel(sources, name, params) for name in (norm.beta, norm.mean, norm.var))
    gamma = 1.0 if norm.gamma is None else _per_channel(sources, norm.gamma, params)
    bias = 0.0 if sources.bias is None else _per_channel(sources, sources.bias, params)
    weight = _values(params[sources.weight])
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(var + norm.eps)
        spread = _spread(factor, sources, weight.shape)
        new = np.multiply(weight, spread, dtype=np.float64, out=np.empty_like(weight), casting="same_kind")
        return new, (beta + (bias - mean) * factor).astype(weight.dtype)


def _spread(factor: np.ndarray[Any, Any], sources: Sources, shape: Tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the factors of output channels in a shape that broadcasts with the weight's."""
    sizes = [1] * len(shape)
    filters = sources.channels // sources.groups
    if shape[sources.axis] != filters or shape[0] % sources.groups:
        raise ParamsError(
            f"'{sources.weight}' has shape {shape}, which does not fit the {sources.channels} channels of "
            f"'{sources.norm.mean}': these parameters are another network's."
        )
    if sources.axis:
        factor = np.repeat(factor.reshape(sources.groups, filters), shape[0] // sources.groups, axis=0)
        sizes[0] = shape[0]
    sizes[sources.axis] = filters
    return factor.reshape(sizes)


def _per_channel(sources: Sources, name: str, params: Arrays) -> np.ndarray[Any, Any]:
    values = np.asarray(_values(params[name]), np.float64)
    if values.shape != (sources.channels,):
        raise ParamsError(
            f"'{name}' has shape {values.shape}, not ({sources.channels},), as the layer of '{sources.weight}' wants: "
            f"these parameters are another network's."
        )
    return values


def _values(array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of an array's values for numpy, which has no bfloat16.

    A view of a parameter that oneDNN keeps in a layout of its own counts as a write to it.
    """
    low = dtypes.canonical(array.dtype) == dtypes.BFLOAT16
    return wait_until_readable(round_to(array, dtypes.FLOAT32) if low else array).asnumpy()  # type: ignore[no-any-return]


def _array(values: np.ndarray[Any, Any], like: Any) -> Any:
    """Return an array of the dtype, the kind and the device of another."""
    array = mx.nd.array(values, ctx=like.ctx, dtype=values.dtype)
    if dtypes.canonical(like.dtype) == dtypes.BFLOAT16:
        array = round_to(array, dtypes.BFLOAT16)
    return array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array


def write_norms_of(
    model: Model, args: Arrays, aux: Arrays, norms: Iterable[Norm]
) -> Tuple[Model, Dict[str, Any], Dict[str, Any]]:
    """Return a prepared model with BatchNorm and relu as depthwise convolutions (`mxmp.passes.cpu.frozen`).

    A BatchNorm stays where its factors leave bfloat16's range, or its channels fill no vectors.
    """
    graph, params = to_graph(model.symbol), {**args, **aux}
    made: Dict[str, Any] = {}
    written: List[Norm] = []
    channels: Dict[str, int] = {}
    for norm in norms:
        stats = norm.statistics
        beta, mean, var = (_values(params[name]).astype(np.float64) for name in (stats.beta, stats.mean, stats.var))
        gamma = 1.0 if stats.gamma is None else _values(params[stats.gamma]).astype(np.float64)
        with np.errstate(all="ignore"):
            factor = gamma / np.sqrt(var + stats.eps)
            size = np.where(factor == 0, 1.0, np.abs(factor))
            shift = (beta - mean * factor) / size
        limit = dtypes.limits(dtypes.BFLOAT16).max
        is_float32 = all(dtypes.canonical(params[name].dtype) == dtypes.FLOAT32 for name in norm.weights)
        if len(beta) % VECTOR or not is_float32 or not all(np.abs(each).max() <= limit for each in (factor, shift)):
            continue
        written.append(norm)
        channels[norm.name] = len(beta)
        like = params[stats.beta]
        made[norm.sign] = _array(np.sign(factor).reshape(-1, 1, 1, 1).astype(np.float32), like)
        made[norm.shift] = _array(shift.astype(np.float32), like)
        for name in norm.weights:
            made[name] = _array((_values(params[name]) * size[:, None, None]).astype(np.float32), params[name])
    if not written:
        return model, dict(args), dict(aux)
    after = in_written_order(write_norms(graph, tuple(written), channels))
    symbol = from_graph(after, model.symbol)
    names = frozenset(symbol.list_inputs())
    why = "into a depthwise convolution and the weights behind it"
    rows = [Row(norm.name, "BatchNorm", FOLDED, why, ()) for norm in written]
    removed = model.removed._replace(rows=(*model.removed.rows, *rows))
    kept = {name: value for name, value in {**args, **made}.items() if name in names}
    return model._replace(symbol=symbol, removed=removed), kept, {n: v for n, v in aux.items() if n in names}


def merge_params(merged: Sequence[Merged], args: Arrays) -> Dict[str, Any]:
    """Return a model's arguments with those of merged convolutions in place of the old ones (`passes.cpu.frozen`)."""
    params = dict(args)
    for name, sources in merged:
        values = [_values(args[source]) for source in sources]
        windows = [np.pad(each, [(0, 0)] * 2 + [(1, 1)] * 2) if each.shape[2:] == (1, 1) else each for each in values]
        params[name] = _array(np.concatenate(windows), args[name])
    gone = {source for _, sources in merged for source in sources} - {each.name for each in merged}
    return {name: value for name, value in params.items() if name not in gone}


def fit_params(fit: Fit, args: Arrays) -> Dict[str, Any]:
    """Return a model's arguments with the channels of zeros that its graph has (`mxmp.passes.cpu.fit`)."""
    fitted = dict(args)
    for name, axis, indices in fit.params:
        like, kept = fitted[name], np.array(indices)
        values = np.take(_values(like), np.maximum(kept, 0), axis)
        np.moveaxis(values, axis, 0)[kept < 0] = 0
        fitted[name] = _array(values, like)
    return fitted


def fold_model(model: Model, args: Arrays, aux: Arrays) -> Tuple[Model, Dict[str, Any], Dict[str, Any]]:
    """Return a model prepared for inference, with its new arguments and auxiliary states.

    A BatchNorm is left where folding it would give values that the weight's dtype does not have.
    """
    params = {**args, **aux}
    shapes, types = model.known(args, aux)
    left: FrozenSet[int] = frozenset()
    while True:
        with blaming_params(model.symbol, params, model.shapes):
            prepared = prepare(model.symbol, frozenset(params), shapes, types, left)
        folded, beyond = fold_params(prepared.folds, params)
        if not beyond:
            break
        left |= {fold.norm for fold in beyond}
    names, old = frozenset(prepared.symbol.list_inputs()), frozenset(model.symbol.list_inputs())
    replaced = {*prepared.outputs, *folded}
    ranges = {name: value for name, value in model.ranges.items() if name not in replaced}
    for name, before in prepared.outputs.items():
        if before is not None and before in model.ranges:
            ranges[name] = model.ranges[before]

    def remaining(values: Mapping[str, _Value]) -> Dict[str, _Value]:
        return {name: value for name, value in values.items() if name in names or name not in old}

    sizes, types = remaining(model.shapes), remaining(model.dtypes)
    folded_model = Model(prepared.symbol, sizes, types, ranges, prepared.removed, model.constants)
    return folded_model, remaining({**args, **folded}), remaining(aux)
