"""Converts symbols that share one set of parameters, and stores these in the dtypes that all of them want.

It is one symbol of a model, or one for each bucket. The values that low precision changes are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import amp_cast, view
from ..errors import ParamsError
from ..graph import Entry, Graph
from ..passes.attributes import BEFORE_ATTR, MARK_ATTR, original
from ..policy import Policy, check_matches
from .arguments import Model, blaming_params
from .inference import to_graph
from .rewrite import Converted, convert_graph, own_low_dtypes

Arrays = Mapping[str, Any]

_BLOCK = 1 << 18
"""Values that are looked at together: few enough to stay in a cache, so many that calls of numpy take no time."""


@dataclass(frozen=True)
class Change:
    """What storing one parameter in low precision did to its values.

    Attributes:
        name: The parameter.
        clamped: Number of values beyond the dtype's range, which became its largest value with
            their sign.
        largest: Largest magnitude before.
        underflowed: Number of values that became zero.
    """

    name: str
    clamped: int = 0
    largest: float = 0.0
    underflowed: int = 0


class SharedConversion(NamedTuple):
    """Converted symbols and the parameters that they share; `ConvertedModel` says what the fields are."""

    symbols: Sequence[Converted]
    arg_params: Dict[str, Any]
    changes: Tuple[Change, ...]
    out_of_range: Tuple[str, ...]


def convert_sharing(
    models: Sequence[Model], args: Arrays, aux: Arrays, policy: Policy, must_match: bool = True
) -> SharedConversion:
    """Convert symbols and store their parameters, given in float32, in the dtypes that all of them want.

    A symbol that needs a parameter in float32 decides for all: they are converted again until they agree. With
    ``must_match`` a pattern of the policy that matches no operator is a PolicyError.
    """
    allowed = frozenset(args)
    out_of_range: FrozenSet[str] = frozenset()
    while True:
        found = [_convert(model, args, aux, policy, allowed, out_of_range) for model in models]
        more = _find_out_of_range(policy, found, args) - out_of_range
        refused = _wanted_in_float32(found)
        if not more and not refused:
            if must_match:
                require_matches(policy, found)
            return SharedConversion(found, *_store(policy, found, args), tuple(sorted(out_of_range)))
        out_of_range, allowed = out_of_range | more, allowed - refused


def require_matches(policy: Policy, found: Sequence[Converted]) -> None:
    """Raise a PolicyError if one of the policy's patterns matches no operator of the symbols."""
    if policy.has_overrides:
        check_matches(policy, [(row.op, row.name) for each in found for row in each.report.rows])


def _convert(
    model: Model, args: Arrays, aux: Arrays, policy: Policy, allowed: FrozenSet[str], out_of_range: FrozenSet[str]
) -> Converted:
    shapes, types = model.known(args, aux)
    out_of_range |= model.beyond_range(policy)
    with blaming_params(model.symbol, {**args, **aux}, model.shapes):
        found = convert_graph(
            model.symbol,
            policy,
            shapes,
            types,
            allowed,
            out_of_range=out_of_range,
            final=True,
            inputs=frozenset(model.symbol.list_arguments()) - set(args),
        )
    _check_shapes(found, shapes)
    return found.noting(model.removed)


def _check_shapes(found: Converted, shapes: Mapping[str, Tuple[int, ...]]) -> None:
    """Check shapes that MXNet's inference overwrites, those of BatchNorm's parameters for example."""
    for position, node in enumerate(found.graph.nodes):
        wanted = found.facts.shape(Entry(position)) if node.is_variable else None
        if wanted is not None and shapes.get(node.name, wanted) != wanted:
            raise ParamsError(
                f"'{node.name}' has shape {shapes[node.name]}, not {wanted}, as the symbol wants: "
                f"the parameters are another network's, or an input has another shape."
            )


def _find_out_of_range(policy: Policy, found: Sequence[Converted], args: Arrays) -> FrozenSet[str]:
    """Return the parameters beyond the low precision dtype's range whose readers must stay in float32."""
    if not policy.is_mixed:
        return frozenset()
    stored_low = _union(each.low_params for each in found)
    candidates = stored_low | _union(each.cast_params for each in found)
    if policy.out_of_range == "clamp":
        candidates = (candidates & _union(_read_exactly(each.graph) for each in found)) - stored_low
    names, block = candidates & set(args), _new_block()
    return frozenset(name for name in names if _survey(name, view(args[name]), policy.compute_dtype, block).clamped)


def _wanted_in_float32(found: Sequence[Converted]) -> FrozenSet[str]:
    """Return the parameters that some symbols want in low precision and others in float32."""
    return frozenset(
        name
        for name in _union(each.low_params for each in found)
        if any(name not in each.low_params and name in each.symbol.list_arguments() for each in found)
    )


def _store(policy: Policy, found: Sequence[Converted], args: Arrays) -> Tuple[Dict[str, Any], Tuple[Change, ...]]:
    """Return the parameters in the dtypes that converted symbols want, and what became of their values."""
    stored, changes, block = dict(args), [], _new_block()
    low = _union(each.low_params for each in found)
    cast = _union(each.cast_params for each in found) if policy.is_mixed else frozenset()
    for name, array in args.items():
        is_cast = name in cast and dtypes.canonical(array.dtype) == dtypes.FLOAT32
        if name not in low and not is_cast:
            continue
        dtype = policy.param_dtype if name in low else policy.compute_dtype
        change = _survey(name, view(array), dtype, block)
        if change.clamped:
            array = _clamp(array, dtype)
        elif name not in low and dtype == dtypes.BFLOAT16 and array.ndim > 2:
            array = array.copy()  # out of a layout of oneDNN's, which a cast to bfloat16 cannot read
        stored[name] = round_to(array, dtype) if name in low else array
        if change.clamped or change.underflowed:
            changes.append(change)
    return stored, tuple(changes)


def _union(sets: Any) -> FrozenSet[str]:
    return frozenset().union(*sets)


def _read_exactly(graph: Graph) -> FrozenSet[str]:
    """Return the variables that something else than a cast of mxmp reads, or that are outputs."""
    readers = [node for node in graph.nodes if node.get(MARK_ATTR) is None]
    entries = [entry for node in readers for entry in node.inputs] + list(graph.heads)
    return frozenset(graph.nodes[entry.node].name for entry in entries if graph.nodes[entry.node].is_variable)


def _clamp(array: Any, dtype: str) -> Any:
    """Return an array with finite values beyond a dtype's range replaced by its largest, with their sign."""
    values = array.asnumpy()
    limit = dtypes.limits(dtype).max
    inside = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return mx.nd.array(inside, ctx=array.ctx, dtype=values.dtype)


def round_to(array: Any, dtype: str) -> Any:
    """Return an array in another floating point dtype, rounded to nearest even."""
    if dtypes.BFLOAT16 in (dtype, dtypes.canonical(array.dtype)):
        return amp_cast(array, dtypes.to_numpy(dtype))  # Cast truncates to bfloat16
    return array.astype(dtype)


def total_bytes(arrays: Arrays) -> int:
    """Return the bytes that arrays take."""
    return sum(array.size * dtypes.ITEM_BYTES[dtypes.canonical(array.dtype)] for array in arrays.values())


def growth(before: Arrays, after: Arrays) -> int:
    """Return how many bytes more arrays take than others, most of which they share; MXNet is slow to tell sizes."""
    old = {name: array for name, array in before.items() if after.get(name) is not array}
    new = {name: array for name, array in after.items() if before.get(name) is not array}
    return total_bytes(new) - total_bytes(old)


def _new_block() -> np.ndarray[Any, Any]:
    """Return memory for `_survey`, for all arrays: fresh memory takes longer than what is done in it."""
    return np.empty(_BLOCK, np.float32)


def _survey(name: str, values: np.ndarray[Any, Any], dtype: str, block: np.ndarray[Any, Any]) -> Change:
    """Return how many values a low precision dtype would clamp or turn to zero; ``block`` is overwritten."""
    limits = dtypes.limits(dtype)
    vanishing = limits.smallest_subnormal / 2  # half way goes to even, to zero
    largest, clamped, underflowed = 0.0, 0, 0
    flat = values.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        magnitudes = np.abs(part, out=block[: part.size] if part.dtype == block.dtype else None)
        top = float(magnitudes.max())
        if not math.isfinite(top):
            magnitudes = magnitudes[np.isfinite(magnitudes)]
            top = float(magnitudes.max(initial=0.0))
        if top > limits.max:
            clamped += int(np.count_nonzero(magnitudes > limits.max))
        if magnitudes.min(initial=1.0) <= vanishing:
            underflowed += int(np.count_nonzero((magnitudes <= vanishing) & (magnitudes != 0)))
        largest = max(largest, top)
    return Change(name, clamped, largest, underflowed)


def stored_low_before(before: Arrays, after: Arrays) -> Dict[str, str]:
    """Return by name the low precision dtypes of the parameters that are stored in a wider one afterwards."""
    replaced = ((name, array) for name, array in before.items() if after.get(name, array) is not array)
    old = {name: dtypes.canonical(array.dtype) for name, array in replaced}
    low = dtypes.LOW_PRECISION
    return {n: dtype for n, dtype in old.items() if dtype in low and dtypes.canonical(after[n].dtype) not in low}


def widened(symbol: Any, arrays: Arrays) -> Dict[str, Any]:
    """Return a symbol's parameters as they were before mxmp stored some in low precision, but for the rounding.

    The symbol's variables say which were stored. Those that the network's own casts have it read in low precision are
    rounded to it: a Module keeps them in float32, and so do its checkpoints.
    """
    low = [name for name, array in arrays.items() if dtypes.canonical(array.dtype) in dtypes.LOW_PRECISION]
    nodes = to_graph(symbol).nodes if low else ()
    declared = {node.name: original(node) for node in nodes if node.is_variable and node.get(BEFORE_ATTR) is not None}
    found = dict(arrays)
    for name in low:
        if name in declared:
            dtype = dtypes.from_flag(declared[name].get("__dtype__") or "")
            found[name] = round_to(found[name], dtype or dtypes.FLOAT32)
    for name, dtype in own_low_dtypes(symbol).items():
        if name in found and dtypes.canonical(found[name].dtype) == dtypes.FLOAT32:
            found[name] = round_to(found[name], dtype)
    return found
