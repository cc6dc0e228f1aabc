"""``mxmp inspect``: what a policy decides about a network, or what a converted one contains, as a report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import click

from ... import dtypes
from ...checkpoint import checkpoint_files, describe_epochs, params_file_of, saved_epochs
from ...devices import amx
from ...diagnose.tensor_cores import BATCH, MULTIPLE, Uneven, uneven_layers
from ...display import terminal
from ...files import manifest_of, require_set
from ...graph import Graph
from ...passes import Facts, is_converted
from ...policy import Policy
from ...report import Report, operator_counts, operator_table, report_converted, variable_bytes
from ...symbol import Converted, convert_graph, convert_model, infer_facts, load_params, load_symbol, to_graph
from ...symbol.arguments import blaming_params, check_params, make_model, params_and_inputs
from ...symbol.checkpoint import naming_files
from ...symbol.inference import Dtypes, Shapes
from ...symbol.params import Change, require_matches, total_bytes, widened
from .output import NARROW, pairs_table, progress, rounded_lines, stdout, value_lines

_FEW = 3  # names in a line of a summary

_UNEVEN = f"no multiple of {MULTIPLE}"

Params = Optional[Tuple[Dict[str, Any], Dict[str, Any]]]
"""Arguments and auxiliary states."""


@dataclass(frozen=True)
class Inspection:
    """What there is to show about a network: the fields of a `ConvertedModel`, and layers that waste tensor cores."""

    report: Report
    changes: Tuple[Change, ...] = ()
    out_of_range: Tuple[str, ...] = ()
    uneven: Tuple[Uneven, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)


def inspect_policy(symbol: Any, params: Params, policy: Policy, shapes: Shapes, types: Dtypes) -> Inspection:
    """Return what a policy decides about a network."""
    model = None if params is None else convert_model(symbol, *params, policy, shapes, types)
    known = _known(symbol, params, shapes, types)
    before = convert_graph(symbol, Policy(), *known)
    if model is not None:
        report = replace(model.report, param_bytes=model.param_bytes)
        return Inspection(report, model.changes, model.out_of_range, _uneven(report, before, params), model.widened)
    found = convert_graph(symbol, policy, *known, final=True, inputs=params_and_inputs(symbol, known[0])[1])
    require_matches(policy, [found])
    sizes = _param_bytes(symbol, known[-1], (before.graph, before.facts), (found.graph, found.facts))
    report = replace(found.report, param_bytes=sizes)
    return Inspection(report, uneven=_uneven(report, before, params))


def inspect_converted(symbol: Any, params: Params, shapes: Shapes, types: Dtypes) -> Inspection:
    """Return the precisions and casts of a network that was converted before."""
    known = _known(symbol, params, shapes, types)
    with blaming_params(symbol, {**params[0], **params[1]} if params else {}, shapes):
        before = convert_graph(symbol, Policy(), *known)  # in float32, which takes out the casts
    graph = to_graph(symbol)
    declared = {node.name for node in graph.nodes if node.declares_dtype}
    found = before.facts.variable_dtypes(before.graph)  # the dtypes left to be inferred are the same as without casts
    undeclared = {name: dtype for name, dtype in found.items() if name not in declared}
    facts = infer_facts(symbol, graph, known[0], undeclared, known[-1])
    views = (before.graph, before.facts), (graph, facts)
    if params is None:
        sizes = _param_bytes(symbol, known[-1], *views)
    else:
        args, aux = params
        sizes = total_bytes({**widened(symbol, args), **aux}), total_bytes({**args, **aux})
    report = replace(report_converted(*views[0], *views[1]), param_bytes=sizes)
    return Inspection(report, uneven=_uneven(report, before, params))


def _uneven(report: Report, before: Converted, params: Params) -> Tuple[Uneven, ...]:
    """Return the layers to name, from a network's report, its graph without casts and what is stored."""
    layers = {(row.name, row.op) for row in report.rows if row.precision == dtypes.FLOAT16}
    arrays = {} if params is None else {**params[0], **params[1]}
    nodes = enumerate(before.graph.nodes)
    stored = {(i, 0): tuple(arrays[n.name].shape) for i, n in nodes if n.is_variable and n.name in arrays}
    facts = replace(before.facts, shapes={**before.facts.shapes, **stored})
    return uneven_layers(before.graph, facts, layers)


def _known(symbol: Any, params: Params, shapes: Shapes, types: Dtypes) -> Tuple[Shapes, Dtypes, FrozenSet[str]]:
    """Return a network's shapes, dtypes and names of parameters once casts are taken out, as ``convert_graph`` does."""
    model = make_model(symbol, shapes, types)
    if params is None:
        return model.shapes, model.dtypes, params_and_inputs(symbol, model.shapes)[0]
    args, aux = widened(symbol, params[0]), params[1]
    check_params(symbol, args, aux, model.shapes)
    return (*model.known(args, aux), frozenset(args))


def _param_bytes(
    symbol: Any, params: FrozenSet[str], before: Tuple[Graph, Facts], after: Tuple[Graph, Facts]
) -> Optional[Tuple[int, int]]:
    names = params | frozenset(symbol.list_auxiliary_states())
    old, new = variable_bytes(*before, names), variable_bytes(*after, names)
    return None if old is None or new is None else (old, new)


def run(
    prefix: str,
    epoch: Optional[int],
    policy: Policy,
    asked: bool,
    shapes: Shapes,
    types: Dtypes,
    as_json: bool,
    summary: bool,
) -> None:
    """Print what a policy decides about the network of a prefix, or what it holds.

    A converted network is shown as it is unless a policy was asked for. Without an epoch the parameters are those
    of the only one there. A summary has a row per kind of operator.
    """
    with progress(2) as begin:
        begin("load")
        symbol_file, _ = checkpoint_files(prefix, 0)
        symbol = load_symbol(symbol_file)
        epochs = saved_epochs(prefix) if epoch is None else [epoch]
        file = params_file_of(prefix, epochs[0]) if len(epochs) == 1 else None  # not clear which to count
        params = None if file is None else load_params(file)
        if file is not None:
            require_set(manifest_of(file), symbol_file, file)
        begin("inspect")
        with naming_files(symbol_file, file):
            if is_converted(to_graph(symbol)) and not asked:
                found = inspect_converted(symbol, params, shapes, types)
            else:
                found = inspect_policy(symbol, params, policy, shapes, types)
    if as_json:
        values = {"changes": [asdict(change) for change in found.changes], "unfit": found.out_of_range}
        uneven = [layer._asdict() for layer in found.uneven]
        report = _summary(found.report) if summary else found.report.to_dict()
        click.echo(json.dumps({**report, **values, "uneven": uneven}, indent=2))
    else:
        _print(found, policy.compute_dtype, prefix, summary)


def _print(found: Inspection, dtype: str, prefix: str, summary: bool) -> None:
    console = stdout()
    table = terminal.table(operator_table(found.report)) if summary else found.report.table(console.width < NARROW)
    console.print(table)
    pairs = found.report.totals + value_lines(found.changes, found.out_of_range, dtype)
    if found.report.param_bytes is None:
        several = describe_epochs(prefix)
        pairs.append(
            ("parameters", f"bytes unknown; {several}{several and '; '}--epoch or --shape of every input tells them")
        )
    if found.report.activation_bytes is None:
        pairs.append(("activations", "bytes unknown; --shape of every input tells them"))
    pairs += _uneven_lines(found.uneven, _FEW if summary else None) + rounded_lines(found.widened)
    notes = [*found.report.warnings, *amx.notes(found.report.count)]
    pairs += [("note", note) for note in notes]
    console.print(pairs_table(_first(pairs) if summary else pairs))


def _summary(report: Report) -> Dict[str, Any]:
    """Return the counts of a report as plain values."""
    counts = operator_counts(report)
    values = {name: value for name, value in report.to_dict().items() if name not in ("rows", "widely_read")}
    operators = {op: precisions for op, (precisions, _) in counts.items()}
    casts = {op: casts for op, (_, casts) in counts.items() if casts}
    more = {"operators": operators, "casts_read": casts, "precisions": report.count, "warnings": report.warnings}
    return {**values, **more}


def _first(pairs: Sequence[Tuple[str, str]], most: int = 3) -> List[Tuple[str, str]]:
    """Return pairs of a name and a text, a few of each name and how many more there are."""
    texts: Dict[str, List[str]] = {}
    for name, text in pairs:
        texts.setdefault(name, []).append(text)
    for lines in texts.values():
        lines[most:] = [f"and {len(lines) - most:,} more"] if len(lines) > most else []
    return [(name, line) for name, lines in texts.items() for line in lines]


def _uneven_lines(layers: Sequence[Uneven], most: Optional[int]) -> List[Tuple[str, str]]:
    """Return a line for each layer that does not fill tensor cores, and one for all with the same batch."""
    lines = []
    batches: Dict[int, List[str]] = {}
    for layer in layers:
        rest = ", ".join(f"{what} {size}" for what, size in layer.sizes.items() if what != BATCH)
        if rest:
            lines.append((_UNEVEN, f"{layer.name}: {rest}" + ("; cuDNN pads it, by a copy" if layer.padded else "")))
        if BATCH in layer.sizes:
            batches.setdefault(layer.sizes[BATCH], []).append(layer.name)
    return lines + [(_UNEVEN, f"batch {batch}: {_listed(names, most)}") for batch, names in batches.items()]


def _listed(names: Sequence[str], most: Optional[int]) -> str:
    more = 0 if most is None else len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more:,} more"
