"""Converts symbols that share one set of parameters: one of a model, or one for each bucket."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Sequence, Tuple

from .. import dtypes as dtypes_
from ..errors import ParamsError
from ..graph import Entry
from ..policy import Policy, check_matches
from . import params as values
from .arguments import Model, blaming_params
from .rewrite import Converted, convert_graph

Shape = Tuple[int, ...]


class SharedConversion(NamedTuple):
    """Converted symbols and the parameters that they share.

    Attributes:
        symbols: The converted symbols.
        arg_params: Their arguments, in the dtypes that they want.
        changes: The parameters whose values the low precision dtype could not hold.
        out_of_range: Names of the parameters with values beyond its range whose readers stay in float32.
    """

    symbols: Sequence[Converted]
    arg_params: Dict[str, Any]
    changes: Tuple[values.Change, ...]
    out_of_range: Tuple[str, ...]


def convert_sharing(
    models: Sequence[Model], args: Mapping[str, Any], aux: Mapping[str, Any], policy: Policy
) -> SharedConversion:
    """Convert symbols and store their parameters in the dtypes that all of them want.

    A symbol that needs a parameter in float32 decides for all: they are converted again until they agree.

    Args:
        models: The symbols, with what is known about their inputs.
        args: Their arguments in float32, as ``widened`` gives them.
        aux: Their auxiliary states.
        policy: The policy.

    Raises:
        ConvertError: If the parameters do not fit, or a symbol cannot be converted.
        PolicyError: If a pattern of the policy matches nothing.
    """
    allowed = frozenset(args)
    out_of_range: FrozenSet[str] = frozenset()
    while True:
        found = [_convert(model, args, aux, policy, allowed, out_of_range) for model in models]
        more = _find_out_of_range(policy, found, args) - out_of_range
        refused = _wanted_in_float32(found)
        if not more and not refused:
            require_matches(policy, found)
            return SharedConversion(found, *_store(policy, found, args), tuple(sorted(out_of_range)))
        out_of_range, allowed = out_of_range | more, allowed - refused


def require_matches(policy: Policy, found: Sequence[Converted]) -> None:
    """Raise a PolicyError if one of the policy's patterns matches no operator of the symbols."""
    check_matches(policy, [(row.op, row.name) for each in found for row in each.report.rows])


def _convert(
    model: Model,
    args: Mapping[str, Any],
    aux: Mapping[str, Any],
    policy: Policy,
    allowed: FrozenSet[str],
    out_of_range: FrozenSet[str],
) -> Converted:
    shapes, types = model.known(args, aux)
    out_of_range |= model.beyond_range(policy)
    with blaming_params(model.symbol, {**args, **aux}, model.shapes):
        found = convert_graph(model.symbol, policy, shapes, types, allowed, out_of_range=out_of_range, final=True)
    _check_shapes(found, shapes)
    return found


def _check_shapes(found: Converted, shapes: Mapping[str, Shape]) -> None:
    """Check shapes that MXNet's inference overwrites, those of BatchNorm's parameters for example."""
    for position, node in enumerate(found.graph.nodes):
        wanted = found.facts.shape(Entry(position)) if node.is_variable else None
        if wanted is not None and shapes.get(node.name, wanted) != wanted:
            raise ParamsError(
                f"'{node.name}' has shape {shapes[node.name]}, not {wanted}, as the symbol wants: "
                f"the parameters are another network's, or an input has another shape."
            )


def _find_out_of_range(policy: Policy, found: Sequence[Converted], args: Mapping[str, Any]) -> FrozenSet[str]:
    """Return the parameters beyond the low precision dtype's range whose readers must stay in float32."""
    if not policy.is_mixed:
        return frozenset()
    stored_low = _union(each.low_params for each in found)
    candidates = stored_low | _union(each.cast_params for each in found)
    if policy.out_of_range == "clamp":
        candidates = (candidates & _union(values.read_exactly(each.graph) for each in found)) - stored_low
    return values.beyond_range({name: args[name] for name in candidates & set(args)}, policy.compute_dtype)


def _wanted_in_float32(found: Sequence[Converted]) -> FrozenSet[str]:
    """Return the parameters that some symbols want in low precision and others in float32."""
    return frozenset(
        name
        for name in _union(each.low_params for each in found)
        if any(name not in each.low_params and name in each.symbol.list_arguments() for each in found)
    )


def _store(
    policy: Policy, found: Sequence[Converted], args: Mapping[str, Any]
) -> Tuple[Dict[str, Any], Tuple[values.Change, ...]]:
    """Return the parameters in the dtypes that converted symbols want, and what became of their values."""
    stored, changes = dict(args), []
    low = _union(each.low_params for each in found)
    cast = _union(each.cast_params for each in found) if policy.is_mixed else frozenset()
    for name, array in args.items():
        if name in low:
            stored[name], change = values.store_low(name, array, policy.param_dtype)
        elif name in cast and dtypes_.canonical(array.dtype) == dtypes_.FLOAT32:
            stored[name], change = values.clamp_float32(name, array, policy.compute_dtype)
        else:
            continue
        if change.clamped or change.underflowed:
            changes.append(change)
    return stored, tuple(changes)


def _union(sets: Any) -> FrozenSet[str]:
    return frozenset().union(*sets)
