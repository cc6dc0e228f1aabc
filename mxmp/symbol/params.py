"""Stores parameters in the dtypes of a converted graph, and counts the values that this changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, Set, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays.casts import amp_cast
from ..graph import Graph
from ..passes.attributes import DECLARED_ATTR, MARK_ATTR
from ..passes.control_flow import bodies_of
from ..rules import CLEAR, RULES

Arrays = Mapping[str, Any]


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


def beyond_range(arrays: Arrays, dtype: str) -> FrozenSet[str]:
    """Return the names of float32 arrays with finite values beyond a dtype's range. Waits for them."""
    return frozenset(name for name, array in arrays.items() if _survey(name, array.asnumpy(), dtype).clamped)


def read_low(graph: Graph) -> FrozenSet[str]:
    """Return the variables whose values reach a cast to low precision, at once or through clear operators."""
    carried: Dict[int, FrozenSet[str]] = {}
    found: Set[str] = set()
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            carried[position] = frozenset([node.name])
            continue
        names = frozenset().union(*(carried.get(entry.node, frozenset()) for entry in node.inputs))
        if node.get(MARK_ATTR) is not None and node.get("dtype") in dtypes.LOW_PRECISION:
            found |= names
        for body in bodies_of(node):
            inside = read_low(body.graph)
            for variable, port in zip(body.variables(), body.ports):
                if body.graph.nodes[variable].name in inside:
                    found |= carried.get(node.inputs[port].node, frozenset())
        rule = RULES.find(node.op, dict(node.attrs))
        if rule is not None and rule.category == CLEAR:
            carried[position] = names
    return frozenset(found)


def read_exactly(graph: Graph) -> FrozenSet[str]:
    """Return the variables that something else than a cast of mxmp reads, or that are outputs."""
    readers = [node for node in graph.nodes if node.get(MARK_ATTR) is None]
    entries = [entry for node in readers for entry in node.inputs] + list(graph.heads)
    return frozenset(graph.nodes[entry.node].name for entry in entries if graph.nodes[entry.node].is_variable)


def store_low(name: str, array: Any, dtype: str) -> Tuple[Any, Change]:
    """Return a float32 array in low precision, rounded to nearest even, and the values that changed beyond that."""
    change = _survey(name, array.asnumpy(), dtype)
    return round_to(clamp(array, dtype) if change.clamped else array, dtype), change


def clamp_float32(name: str, array: Any, dtype: str) -> Tuple[Any, Change]:
    """Return a float32 array with its values in the range of a low precision dtype, and what casts do to them.

    A weight that oneDNN may have given a layout of its own, which a cast to bfloat16 cannot read, is copied into
    the default one.
    """
    change = _survey(name, array.asnumpy(), dtype)
    if change.clamped:
        return clamp(array, dtype), change
    return (array.copy() if dtype == dtypes.BFLOAT16 and array.ndim > 2 else array), change


def clamp(array: Any, dtype: str) -> Any:
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


def _survey(name: str, values: np.ndarray[Any, Any], dtype: str) -> Change:
    """Return how many values a low precision dtype would clamp or turn to zero."""
    limits = dtypes.limits(dtype)
    magnitudes = np.abs(values)
    largest = float(magnitudes.max(initial=0.0))
    if not math.isfinite(largest):
        magnitudes = magnitudes[np.isfinite(magnitudes)]
        largest = float(magnitudes.max(initial=0.0))
    clamped = int(np.count_nonzero(magnitudes > limits.max)) if largest > limits.max else 0
    small = int(np.count_nonzero(magnitudes <= limits.smallest_subnormal / 2))  # half way goes to even, to zero
    underflowed = small - int(np.count_nonzero(magnitudes == 0)) if small else 0
    return Change(name, clamped, largest, underflowed)


def stored_low_before(before: Arrays, after: Arrays) -> Dict[str, str]:
    """Return by name the low precision dtypes of the parameters that are stored in a wider one afterwards."""
    old, new = ({name: dtypes.canonical(array.dtype) for name, array in arrays.items()} for arrays in (before, after))
    low = dtypes.LOW_PRECISION
    return {name: dtype for name, dtype in old.items() if dtype in low and new.get(name, dtype) not in low}


def widened(symbol: Any, arrays: Arrays) -> Dict[str, Any]:
    """Return parameters as they were before mxmp stored some in low precision, but for the rounding.

    Args:
        symbol: What they belong to; its variables say which were stored.
        arrays: The parameters by name.
    """
    low = [name for name, array in arrays.items() if dtypes.canonical(array.dtype) in dtypes.LOW_PRECISION]
    declared = {name: attrs.get(DECLARED_ATTR) for name, attrs in symbol.attr_dict().items()} if low else {}
    found = dict(arrays)
    for name in low:
        if declared.get(name) is not None:
            found[name] = round_to(found[name], declared[name] or dtypes.FLOAT32)
    return found
