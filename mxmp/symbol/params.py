"""Converts a symbol by the values of its parameters, and stores these in the dtypes that it wants.

The values that low precision changes are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Container, Dict, FrozenSet, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import amp_cast, view, wait_until_readable
from ..graph import Graph
from ..passes.base import DTYPE_ATTR, is_inserted
from ..policy import Policy, check_matches
from .arguments import Model, beyond_range, blaming_params, require_fit
from .inference import to_graph
from .rewrite import Converted, convert_graph, own_low_dtypes

Arrays = Mapping[str, Any]

_BLOCK = 1 << 18
"""Values that are looked at together: few enough to stay in a cache, so many that calls of numpy take no time."""


@dataclass(frozen=True)
class Change:
    """The effect of storing one parameter in low precision on its values.

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


def convert_with_params(
    model: Model, args: Arrays, aux: Arrays, policy: Policy
) -> Tuple[Converted, FrozenSet[str]]:
    """Return a converted symbol, and the names of the parameters with values beyond the low precision dtype's range.

    Readers of such a parameter stay in float32, which may have another one be read so: it is converted until none is.
    """
    out_of_range: FrozenSet[str] = frozenset()
    while True:
        converted = _convert(model, args, aux, policy, out_of_range)
        more = _find_out_of_range(policy, converted, args) - out_of_range
        if not more:
            return converted, out_of_range
        out_of_range |= more


def require_matches(
    policy: Policy, parts: Sequence[Converted], blocks: Sequence[str] = (), marked: Container[str] = ()
) -> None:
    """Raise a PolicyError if one of the policy's patterns matches no operator of the converted parts of a network.

    ``blocks`` and ``marked`` are as for `check_matches`, of the net that they are from.
    """
    if policy.has_overrides:
        check_matches(policy, [(row.op, row.name) for each in parts for row in each.report.rows], blocks, marked)


def _convert(
    model: Model, args: Arrays, aux: Arrays, policy: Policy, out_of_range: FrozenSet[str]
) -> Converted:
    shapes, types = model.known(args, aux)
    with blaming_params(model.symbol, {**args, **aux}, model.shapes):
        converted = convert_graph(
            model.symbol,
            policy,
            shapes,
            types,
            frozenset(args),
            out_of_range=out_of_range | beyond_range(model.ranges, policy),
            final=True,
            inputs=frozenset(model.symbol.list_arguments()).difference(args) | model.constants,
            removed=model.removed,
        )
    require_fit(converted.decisions.before, converted.decisions.facts, shapes, model.shapes)
    return converted


def _find_out_of_range(policy: Policy, converted: Converted, args: Arrays) -> FrozenSet[str]:
    """Return the parameters beyond the low precision dtype's range whose readers must stay in float32."""
    if not policy.is_mixed:
        return frozenset()
    candidates = converted.low_params | converted.cast_params
    if policy.out_of_range == "clamp":
        candidates = (candidates & _read_exactly(converted.graph)) - converted.low_params
    block = _new_block()
    values = ((name, view(wait_until_readable(args[name]))) for name in candidates & set(args))
    return frozenset(name for name, value in values if _survey(name, value, policy.compute_dtype, block).clamped)


def store(policy: Policy, converted: Converted, args: Arrays) -> Tuple[Dict[str, Any], Tuple[Change, ...]]:
    """Return float32 parameters in the dtypes that a converted symbol wants, and the changes of their values."""
    stored, changes, block = dict(args), [], _new_block()
    low, cast = converted.low_params, converted.cast_params if policy.is_mixed else frozenset()
    for name, array in args.items():
        is_cast = name in cast and dtypes.canonical(array.dtype) == dtypes.FLOAT32
        if name not in low and not is_cast:
            continue
        dtype = policy.param_dtype if name in low else policy.compute_dtype
        change = _survey(name, view(wait_until_readable(array)), dtype, block)
        if change.clamped:
            array = _clamp(array, dtype)
        elif name not in low and dtype == dtypes.BFLOAT16 and array.ndim > 2:
            array = array.copy()  # out of a layout of oneDNN's, which a cast to bfloat16 cannot read
        stored[name] = round_to(array, dtype) if name in low else array
        if change.clamped or change.underflowed:
            changes.append(change)
    return stored, tuple(changes)


def _read_exactly(graph: Graph) -> FrozenSet[str]:
    """Return the variables that are outputs, or that an operator reads without a cast of mxmp."""
    readers = [node for node in graph.nodes if not is_inserted(node)]
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


def low_dtypes(arrays: Arrays) -> Dict[str, str]:
    """Return the dtypes of the arrays in low precision, by name."""
    types = {name: dtypes.canonical(array.dtype) for name, array in arrays.items()}
    return {name: dtype for name, dtype in types.items() if dtype in dtypes.LOW_PRECISION}


def _new_block() -> np.ndarray[Any, Any]:
    """Return memory for `_survey` of all arrays; fresh memory for each would take longer than the survey."""
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


def widened(symbol: Any, arrays: Arrays) -> Dict[str, Any]:
    """Return a symbol's parameters in the dtypes that they had before mxmp stored some in low precision.

    The symbol's variables say which were stored. Parameters that the network's own casts read in low precision are
    rounded to it. A Module and its checkpoints keep these in float32.
    """
    low = low_dtypes(arrays)
    wanted: Dict[str, str] = {}
    for node in to_graph(symbol).nodes if low else ():
        declared = node.get(DTYPE_ATTR)
        if node.name in low and declared is not None:
            wanted[node.name] = dtypes.from_flag(declared) or dtypes.FLOAT32
    for name, dtype in own_low_dtypes(symbol).items():
        if name not in arrays:
            continue
        if wanted.get(name, dtypes.canonical(arrays[name].dtype)) == dtypes.FLOAT32:
            wanted[name] = dtype
    return {**arrays, **{name: round_to(arrays[name], dtype) for name, dtype in wanted.items()}}
