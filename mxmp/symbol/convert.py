"""convert_symbol, convert_model and convert_buckets: what users of the Symbolic API call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .. import dtypes as dtypes_
from ..errors import ConvertError, ParamsError
from ..graph import Entry
from ..policy import Policy, check_matches
from ..report import Report
from . import params as values
from .arguments import (
    Model,
    blaming_params,
    check_params,
    known_dtypes,
    known_ranges,
    known_shapes,
    param_names,
    require_symbol,
)
from .facts import infer_facts, to_graph
from .rewrite import Converted, convert_graph, emulated, input_dtypes

PolicyLike = Union[str, Policy]
"""A policy, or the text of one."""


@dataclass(frozen=True)
class ConvertedModel:
    """A converted model; unpacks as ``symbol, arg_params, aux_params``.

    Attributes:
        symbol: The converted symbol, which plain MXNet runs.
        arg_params: Its arguments, in the dtypes that it wants.
        aux_params: Its auxiliary states.
        report: What was decided about each operator.
        changes: The parameters whose values the low precision dtype could not hold: how many were
            clamped or became zero.
        unfit: Names of the parameters with values beyond its range whose readers stay in float32,
            because the policy says so or because they read the same values in float32 too.
        param_bytes: Bytes of all parameters, (before, after).
    """

    symbol: Any
    arg_params: Dict[str, Any]
    aux_params: Dict[str, Any]
    report: Report
    changes: Tuple[values.Change, ...]
    unfit: Tuple[str, ...]
    param_bytes: Tuple[int, int]

    def __iter__(self) -> Iterator[Any]:
        """Unpack as MXNet's own functions return a model."""
        return iter((self.symbol, self.arg_params, self.aux_params))

    def __repr__(self) -> str:
        """Return what it is, without the values of the parameters."""
        counts = f"arguments={len(self.arg_params)}, auxiliary_states={len(self.aux_params)}"
        return f"{type(self).__name__}({self.symbol!r}, {counts}, policy={self.report.policy!r})"


def convert_symbol(
    sym: Any,
    policy: PolicyLike = "O1",
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    data_names: Optional[Sequence[str]] = None,
    ranges: Optional[Mapping[str, float]] = None,
    **changes: Any,
) -> Any:
    """Return a symbol converted to mixed precision; the given one is not changed.

    Args:
        sym: A float32 network, or one that mxmp converted before, to which the new policy then
            applies in place of the old one.
        policy: A policy or its text, such as 'O1', 'mixed_bfloat16' or 'O2,name:fc*=float32'.
        shapes: Shapes of inputs, a dict or pairs as in ``Module.data_shapes``. With them casts are
            placed where they move the fewest bytes; without, where there are the fewest, and what sums
            in low precision is float32, because it may sum too many terms.
        dtypes: Dtypes of inputs that are not float32 and do not declare theirs.
        data_names: Names of the inputs. All other variables are parameters, which a policy such as
            'O2' declares in low precision. Unless given, inputs are those that ``shapes`` names and
            labels; without shapes parameters are known by their names ('weight', 'bias', ...).
        ranges: Largest magnitudes of outputs by name, as ``mxmp.diagnose.measure_ranges`` has them. What
            gives and what reads values near the end of the dtype's range, or beyond it, stays in
            float32.
        **changes: Fields of the policy that overrule it, such as ``output_dtype='float16'``.

    Returns:
        A symbol of the same inputs and outputs, their names, order and dtypes included.

    Raises:
        ConvertError: If ``sym`` is no symbol, or the conversion does not type-check.
        InferenceError: If the network does not by itself; the message names the node.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    model = _model(sym, shapes, dtypes, ranges)
    parsed = Policy.parse(policy, **changes)
    params = param_names(sym, model.shapes, data_names)
    unfit = model.beyond_range(parsed)
    found = convert_graph(sym, parsed, model.shapes, model.dtypes, params, unfit=unfit, final=True)
    _check_overrides(parsed, [found])
    return found.symbol


def convert_model(
    sym: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    policy: PolicyLike = "O1",
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    ranges: Optional[Mapping[str, float]] = None,
    **changes: Any,
) -> ConvertedModel:
    """Return a model converted to mixed precision: its symbol, and its parameters to go with it.

    Where the policy stores parameters in low precision ('O2', 'float16'), those that only low
    precision operators read are rounded to nearest even. Values beyond the dtype's range are
    clamped, or their readers stay in float32, as the policy's ``out_of_range`` says; values that
    become zero are counted. The dicts and arrays given are not changed.

    Args:
        sym: The symbol.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        policy: A policy or its text.
        shapes: Shapes of inputs, as for ``convert_symbol``.
        dtypes: Dtypes of inputs, likewise.
        ranges: Largest magnitudes of outputs by name, likewise.
        **changes: Fields of the policy that overrule it.

    Raises:
        ConvertError: If the parameters do not fit the symbol; the message names them.
        InferenceError: If the network does not type-check by itself.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    parsed = Policy.parse(policy, **changes)
    model = _model(sym, shapes, dtypes, ranges)
    check_params(sym, arg_params, aux_params, model.shapes)
    args, aux = values.widened(sym, arg_params), dict(aux_params)
    (found,), unfit = _convert_all([model], args, aux, parsed)
    stored, changed = _store(parsed, [found], args)
    before, after = (values.total_bytes(params) + values.total_bytes(aux) for params in (args, stored))
    return ConvertedModel(found.symbol, stored, aux, found.report, changed, unfit, (before, after))


def on_cpu(sym: Any, dtypes: Optional[Mapping[str, Any]] = None) -> Any:
    """Return a symbol that computes on a CPU, which has no float16 products, what another computes on a GPU.

    It has the same inputs, parameters in float16 included, outputs and names: float32 arithmetic
    with every result rounded to float16. It is for running, not for saving. For training take
    ``mxmp.module.Module``, which does this by itself.

    Args:
        sym: A converted symbol; it is not changed.
        dtypes: Dtypes of inputs that are not float32 and do not declare theirs.

    Raises:
        ConvertError: If ``sym`` is no symbol; InferenceError if it does not type-check.
    """
    types, graph = known_dtypes(require_symbol(sym), dtypes), to_graph(sym)
    types = input_dtypes(sym, graph, {}, types, frozenset())
    return emulated(sym, graph, infer_facts(sym, graph, {}, types, frozenset()))


@dataclass(frozen=True)
class ConvertedBuckets:
    """The symbols of a BucketingModule, converted, with one set of parameters.

    Attributes:
        models: (symbol, data_names, label_names) by bucket.
        arg_params: Arguments of all of them, in the dtypes that they want.
        aux_params: Auxiliary states.
        reports: What was decided, by bucket.
        changes: As ``ConvertedModel.changes``.
        unfit: As ``ConvertedModel.unfit``.
    """

    models: Dict[Any, Tuple[Any, Any, Any]]
    arg_params: Dict[str, Any]
    aux_params: Dict[str, Any]
    reports: Dict[Any, Report]
    changes: Tuple[values.Change, ...]
    unfit: Tuple[str, ...]

    def sym_gen(self, bucket_key: Any) -> Tuple[Any, Any, Any]:
        """Return a bucket's symbol and names, as BucketingModule asks for them.

        Raises:
            ConvertError: If the bucket was not converted.
        """
        if bucket_key not in self.models:
            raise ConvertError(f"bucket {bucket_key!r} was not converted; known: {list(self.models)}.")
        return self.models[bucket_key]


def convert_buckets(
    sym_gen: Callable[[Any], Tuple[Any, Any, Any]],
    buckets: Iterable[Any],
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    policy: PolicyLike = "O1",
    shapes: Optional[Mapping[Any, Any]] = None,
    **changes: Any,
) -> ConvertedBuckets:
    """Convert all buckets of a BucketingModule, with one set of parameters.

    A parameter is stored in low precision only if every bucket that has it wants it so.

    Args:
        sym_gen: The module's: from a bucket's key to (symbol, data_names, label_names).
        buckets: The keys of all buckets.
        arg_params: Arguments of all buckets, NDArrays by name.
        aux_params: Auxiliary states, likewise.
        policy: A policy or its text.
        shapes: Shapes of inputs by bucket.
        **changes: Fields of the policy that overrule it.

    Raises:
        ConvertError: If there is no bucket, or the parameters do not fit.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    keys = list(buckets)
    if not keys:
        raise ConvertError("buckets is empty; give the key of every bucket.")
    parsed = Policy.parse(policy, **changes)
    generated = {key: sym_gen(key) for key in keys}
    models = []
    for key, (symbol, _, _) in generated.items():
        models.append(_model(symbol, (shapes or {}).get(key), None, None))
        check_params(symbol, arg_params, aux_params, models[-1].shapes)
    args, aux = dict(arg_params), dict(aux_params)
    for model in models:
        args = values.widened(model.symbol, args)
    found, unfit = _convert_all(models, args, aux, parsed)
    stored, changed = _store(parsed, found, args)
    return ConvertedBuckets(
        {key: (each.symbol, *generated[key][1:]) for key, each in zip(keys, found)},
        stored,
        aux,
        {key: each.report for key, each in zip(keys, found)},
        changed,
        unfit,
    )


def _model(sym: Any, shapes: Any, dtypes: Any, ranges: Any) -> Model:
    """Return what a user gave, checked."""
    return Model(require_symbol(sym), known_shapes(sym, shapes), known_dtypes(sym, dtypes), known_ranges(sym, ranges))


def _check_overrides(policy: Policy, found: Sequence[Converted]) -> None:
    check_matches(policy, [(row.op, row.name) for each in found for row in each.report.rows])


def _convert_all(
    models: Sequence[Model], args: Mapping[str, Any], aux: Mapping[str, Any], policy: Policy
) -> Tuple[List[Converted], Tuple[str, ...]]:
    """Convert symbols that share parameters, until all agree on what is stored in low precision."""
    allowed = frozenset(args)
    unfit: FrozenSet[str] = frozenset()
    while True:
        found = [_convert(model, args, aux, policy, allowed, unfit) for model in models]
        more = _unfit(policy, found, args) - unfit
        refused = _refused(found)
        if not more and not refused:
            _check_overrides(policy, found)
            return found, tuple(sorted(unfit))
        unfit, allowed = unfit | more, allowed - refused


def _convert(
    model: Model,
    args: Mapping[str, Any],
    aux: Mapping[str, Any],
    policy: Policy,
    allowed: FrozenSet[str],
    unfit: FrozenSet[str],
) -> Converted:
    shapes, types = model.known(args, aux)
    unfit |= model.beyond_range(policy)
    with blaming_params(model.symbol, {**args, **aux}, model.shapes):
        found = convert_graph(model.symbol, policy, shapes, types, allowed, unfit=unfit, final=True)
    _check_shapes(found, shapes)
    return found


def _check_shapes(found: Converted, shapes: Mapping[str, Tuple[int, ...]]) -> None:
    """Check shapes that MXNet's inference overwrites, those of BatchNorm's parameters for example."""
    for position, node in enumerate(found.graph.nodes):
        wanted = found.facts.shape(Entry(position)) if node.is_variable else None
        if wanted is not None and shapes.get(node.name, wanted) != wanted:
            raise ParamsError(
                f"'{node.name}' has shape {shapes[node.name]}, not {wanted}, as the symbol wants: "
                f"the parameters are another network's, or an input has another shape."
            )


def _unfit(policy: Policy, found: Sequence[Converted], args: Mapping[str, Any]) -> FrozenSet[str]:
    """Return the parameters beyond the low precision dtype's range whose readers must stay in float32."""
    if not policy.is_mixed:
        return frozenset()
    low = frozenset().union(*(each.low_params | each.cast_params for each in found))
    candidates = low
    if policy.out_of_range == "clamp":
        candidates = low & frozenset().union(*(values.read_exactly(each.graph) for each in found))
        candidates -= frozenset().union(*(each.low_params for each in found))
    return values.beyond_range({name: args[name] for name in candidates & set(args)}, policy.compute_dtype)


def _refused(found: Sequence[Converted]) -> FrozenSet[str]:
    """Return the parameters that some symbols want in low precision and others do not."""
    refused = set()
    for name in frozenset().union(*(each.low_params for each in found)):
        if any(name not in each.low_params and name in each.symbol.list_arguments() for each in found):
            refused.add(name)
    return frozenset(refused)


def _store(
    policy: Policy, found: Sequence[Converted], args: Mapping[str, Any]
) -> Tuple[Dict[str, Any], Tuple[values.Change, ...]]:
    """Return the parameters in the dtypes that converted symbols want, and what became of their values."""
    stored, changes = dict(args), []
    low = frozenset().union(*(each.low_params for each in found))
    cast = frozenset().union(*(each.cast_params for each in found)) if policy.is_mixed else frozenset()
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
