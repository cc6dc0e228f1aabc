"""``mxmp inspect``, ``compare``, ``ranges`` and ``report``: looks at a network, and at a run."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import click

from .. import dtypes
from ..checkpoint import checkpoint_files, describe_epochs, params_file_of, require_checkpoint, saved_epochs
from ..policy import Policy, pattern_of
from .options import (
    NARROW,
    RANDOM,
    Pairs,
    batch_option,
    check_prefix,
    input_options,
    load_network,
    make_policy,
    model_options,
    out_option,
    print_json,
    print_pairs,
    require_new,
    stdout,
    value_pairs,
    working,
)

_FEW = 3  # names in a line of a summary
_MOST = 20  # tensors of a table unless all are wanted
_LIMIT = dtypes.limits(dtypes.FLOAT16).max


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the parameters; the only one there unless given.")
@click.option("--policy", "text", help="The policy; O2 unless given, or what a converted network has.")
@model_options
@click.option("--summary", is_flag=True, help="Count by kind of operator instead of a row for each; --json prints all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    shapes: Any,
    types: Any,
    as_json: bool,
    summary: bool,
    **changes: Any,
) -> None:
    """Show each operator's precision, the reason and the casts.

    PREFIX-symbol.json may be a float32 network: then this is what a conversion would decide. A
    network that mxmp converted is shown as it is, unless a policy is given. Layers in float16 with a
    batch, channels or other sizes that are no multiples of 8, which tensor cores want, are named; give
    the shapes of inputs for the batch. A long network fits on a page with --summary.

    \b
    Example:
      mxmp inspect resnet50 --policy mixed_bfloat16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = text is not None or any(changes.values())
    policy = make_policy(text or "O2", **changes, takes_auto=True)
    require_checkpoint(prefix, epoch)
    from .. import files, passes, symbol
    from ..diagnose.progress import showing_progress

    with working():
        with showing_progress(sys.stderr.isatty()) as show:
            show("load", None)
            symbol_file, _ = checkpoint_files(prefix, 0)
            network = symbol.load_symbol(symbol_file)
            epochs = saved_epochs(prefix) if epoch is None else [epoch]
            file = params_file_of(prefix, epochs[0]) if len(epochs) == 1 else None  # not clear which to count
            params = None if file is None else symbol.load_params(file)
            if file is not None:
                files.require_set(files.manifest_of(file), symbol_file, file)
            # A converted network says what was decided; a policy that is asked for decides anew.
            show("inspect", None)
            with symbol.checkpoint.naming_files(symbol_file, file):
                as_it_is = passes.is_converted(symbol.to_graph(network)) and not asked
                found = inspected(network, params, None if as_it_is else policy, shapes, types)
        _print_inspected(*found, policy.compute_dtype, describe_epochs(prefix), summary, as_json)


def _print_inspected(
    report: Any, model: Any, uneven: Sequence[Any], dtype: str, several: str, summary: bool, as_json: bool
) -> None:
    """Print what `inspected` returns; ``several`` says which epochs there are."""
    from ..devices.check import amx_notes
    from ..display import terminal
    from ..report import operator_table

    changes, unfit, widened = (model.changes, model.out_of_range, model.widened) if model else ((), (), {})
    if as_json:
        more = {"changes": [asdict(change) for change in changes], "unfit": unfit}
        print_json({**report.to_dict(), **more, "uneven": [layer._asdict() for layer in uneven]})
        return
    console = stdout()
    console.print(terminal.table(operator_table(report)) if summary else report.table(console.width < NARROW))
    pairs = report.totals + value_pairs(changes, unfit, widened, dtype)
    # What is not known is said with what tells it; the totals leave it out.
    if report.param_bytes is None:
        text = f"bytes unknown; {several}{several and '; '}--epoch or --shape of every input tells them"
        pairs.append(("parameters", text))
    if report.activation_bytes is None:
        pairs.append(("activations", "bytes unknown; --shape of every input tells them"))
    pairs += _uneven_pairs(uneven, _FEW if summary else None)
    pairs += [("note", note) for note in [*report.warnings, *report.notes, *amx_notes(report.count)]]
    print_pairs(_first(pairs) if summary else pairs)


def _first(pairs: Pairs, most: int = _FEW) -> Pairs:
    """Return pairs of a name and a text, a few of each name and how many more there are."""
    texts: Dict[str, List[str]] = {}
    for name, text in pairs:
        texts.setdefault(name, []).append(text)
    more = {name: [f"and {len(lines) - most:,} more"] if len(lines) > most else [] for name, lines in texts.items()}
    return [(name, text) for name, lines in texts.items() for text in lines[:most] + more[name]]


def inspected(symbol: Any, params: Any, policy: Any, shapes: Any, types: Any) -> Tuple[Any, Any, Sequence[Any]]:
    """Return what a policy decides about a network, or without one what a converted network holds.

    Args:
        symbol: The network.
        params: Its arguments and auxiliary states by name; None if they are not known.
        policy: The policy; None for what the network holds.
        shapes: Of inputs, by name.
        types: Dtypes of inputs that are not float32.

    Returns:
        The report; the `ConvertedModel`, None without parameters or without a policy; and the layers in float16 whose
        sizes are no multiples of 8.
    """
    from ..diagnose.tensor_cores import uneven_layers
    from ..symbol import convert_model

    values = {} if params is None else {**params[0], **params[1]}
    if policy is not None and params is not None:
        model = convert_model(symbol, params[0], params[1], policy, shapes, types)
        decisions, report, sizes = model.decisions, model.report, model.param_bytes
    else:
        model = None
        decisions, report, sizes = _inspected_graph(symbol, params, policy, shapes, types)
    # Without --shape inference knows no shape of a parameter, but the file does.
    nodes = enumerate(decisions.before.nodes)
    stored = {(i, 0): tuple(values[n.name].shape) for i, n in nodes if n.is_variable and n.name in values}
    with_stored = replace(decisions.facts, shapes={**decisions.facts.shapes, **stored})
    low = {(row.name, row.op) for row in report.rows if row.precision == dtypes.FLOAT16}
    return replace(report, param_bytes=sizes), model, uneven_layers(decisions.before, with_stored, low)


def _inspected_graph(symbol: Any, params: Any, policy: Any, shapes: Any, types: Any) -> Tuple[Any, Any, Any]:
    """Return decisions, report and bytes of parameters of a network without a policy, or without its parameters."""
    from ..report import report_converted, variable_bytes
    from ..symbol import convert_graph, infer_facts, to_graph
    from ..symbol.arguments import blaming_params, check_params, make_model, params_and_inputs
    from ..symbol.params import require_matches, total_bytes, widened

    network, values = make_model(symbol, shapes, types), {}
    sizes: Any = None
    facts, (names, inputs) = (network.shapes, network.dtypes), params_and_inputs(symbol, network.shapes)
    if params is not None:
        values, args = {**params[0], **params[1]}, widened(symbol, params[0])
        check_params(symbol, args, params[1], network.shapes)
        facts, names = network.known(args, params[1]), frozenset(args)
        sizes = total_bytes({**args, **params[1]}), total_bytes(values)
    with blaming_params(symbol, values, shapes):  # without a policy in float32, which takes out the casts
        converted = convert_graph(symbol, policy or Policy(), *facts, names, final=True, inputs=inputs)
    decisions, report, after = converted.decisions, converted.report, (converted.graph, converted.facts)
    if policy is None:
        graph, before = to_graph(symbol), decisions.before
        declared = {node.name for node in graph.nodes if node.declares_dtype}
        inferred = decisions.facts.variable_dtypes(before)  # those left to be inferred are the same without casts
        undeclared = {name: dtype for name, dtype in inferred.items() if name not in declared}
        after = graph, infer_facts(symbol, graph, facts[0], undeclared, names)
        report = report_converted(before, decisions.facts, *after)
    else:
        require_matches(policy, converted)
    if params is None:
        variables = names | frozenset(symbol.list_auxiliary_states())
        both = [variable_bytes(*view, variables) for view in ((decisions.before, decisions.facts), after)]
        sizes = None if None in both else tuple(both)
    return decisions, report, sizes


def _uneven_pairs(layers: Sequence[Any], most: Optional[int]) -> Pairs:
    """Return a line for each layer that does not fill tensor cores, and one for all with the same batch."""
    from ..diagnose.tensor_cores import BATCH, MULTIPLE

    name, pairs = f"no multiple of {MULTIPLE}", []
    batches: Dict[int, List[str]] = {}
    for layer in layers:
        rest = ", ".join(f"{axis} {size}" for axis, size in layer.sizes.items() if axis != BATCH)
        if rest:
            pairs.append((name, f"{layer.name}: {rest}" + ("; cuDNN pads it, by a copy" if layer.padded else "")))
        if BATCH in layer.sizes:
            batches.setdefault(layer.sizes[BATCH], []).append(layer.name)
    # The batch is the same for nearly all layers, and is one line.
    for batch, names in batches.items():
        more = f" and {len(names) - most:,} more" if most is not None and len(names) > most else ""
        pairs.append((name, f"batch {batch}: {', '.join(names[:most])}{more}"))
    return pairs


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("--policy", "text", help="The policy; O1 unless given, which a checkpoint that is converted needs.")
@batch_option("With labels, gradients are compared too.")
@click.option("--worst", type=click.IntRange(min=1), default=20, show_default=True, help="How many operators to list.")
@model_options
@out_option("Write all of it as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: int,
    text: Optional[str],
    data: Optional[str],
    worst: int,
    shapes: Any,
    types: Any,
    out: Optional[str],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a checkpoint's network in float32 and in low precision side by side, and show where accuracy is lost.

    Of each operator: its own error, on float32's inputs; the error carried there; and what it contributes to the error
    of the outputs, the worst first. float16 is emulated on this processor. Inputs are those of --data, or random
    numbers of the shapes given.

    \b
    Example:
      mxmp compare resnet50 12 --shape data:1,3,224,224 --worst 10
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not shapes and data is None:
        raise click.UsageError("give --data, or --shape of every input, such as data:1,3,224,224.", ctx)
    if data is not None and shapes:
        raise click.UsageError("--data has shapes; leave --shape out.", ctx)
    asked = text is not None or any(options.values())
    policy = make_policy(text or "O1", **options) if asked else None
    if out is not None:
        require_new(out, force=force)
    require_checkpoint(prefix, epoch)
    from .. import diagnose
    from ..display import terminal

    with working():
        model, batch, naming_files = load_network(prefix, epoch, shapes, types, data)
        with naming_files():
            found = diagnose.compare(tuple(model), batch, policy)
        if out is not None:
            found.save(out)
        if as_json:
            click.echo(found.to_json())
            return
        console = stdout()
        # Sentences are left to the terminal to wrap: one that is broken here cannot be searched for.
        for part in terminal.parts("Low precision beside float32", found.sections(worst=worst), width=console.width):
            console.print(part, soft_wrap=True)
        pairs = [("inputs", data or f"{RANDOM}; give real ones with --data")]
        print_pairs(pairs + ([] if out is None else [("written", out)]))


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@input_options
@batch_option()
@click.option("--gradients", is_flag=True, help="Run backward too, and count the gradients by magnitude.")
@click.option("--all", "list_all", is_flag=True, help="List all tensors, not only the worst.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def ranges(
    ctx: click.Context,
    prefix: str,
    epoch: int,
    shapes: Any,
    types: Any,
    data: Optional[str],
    gradients: bool,
    list_all: bool,
    as_json: bool,
) -> None:
    """Show how large the tensors of a checkpoint's network are, beside float16's range.

    The network runs in float32, on one batch. Its tensors are listed with their largest magnitudes, the worst first.
    What is beyond half of float16's range stays in float32 if a conversion is given the ranges, for a batch does not
    have the largest value of all; the options that have `mxmp convert` do that are printed. With --gradients:
    which share of each activation's gradient becomes 0 in float16 without a loss scale, and the largest scale
    that keeps it finite; and the share of all gradients in each power of two. Labels that are not given are zeros: what
    loss heads alone read beside their data, and inputs whose names end in 'label'.

    \b
    Example:
      mxmp ranges resnet50 12 --data batch.npz
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not shapes and data is None:
        raise click.UsageError("give --shape of every input, such as data:1,3,224,224, or --data.", ctx)
    require_checkpoint(prefix, epoch)
    from .. import diagnose, symbol
    from ..diagnose.batches import fill_inputs

    with working():
        model, batch, naming_files = load_network(prefix, epoch, shapes, types, data, complete=True)
        with naming_files():
            network, args, aux = model
            largest, counted = diagnose.measure_ranges(network, args, aux, [batch]), None
            if gradients:  # with zeros for labels that are missing
                plain = symbol.convert_model(network, args, aux, "O0")
                held = {**plain.arg_params, **plain.aux_params}
                filled = {name: array for name, array in fill_inputs(plain, batch).items() if name not in held}
                counted = diagnose.measure_gradients(network, args, aux, [filled])
            inputs = {name: array.shape for name, array in batch.items()}
            kept = _kept_in_float32(model, inputs, types, largest)
        largest = dict(sorted(largest.items(), key=lambda pair: -pair[1]))
        if as_json:
            values = {"data": data or RANDOM, "largest_of_float16": _LIMIT, "ranges": largest, "keep_float32": kept}
            print_json({**values, **({"gradients": _magnitudes(counted)} if counted is not None else {})})
        else:
            _print_ranges(largest, counted, None if list_all else _MOST)
            # Quoted for a shell, to be copied to the end of a command.
            options = " ".join(f"--keep-float32 {shlex.quote(pattern)}" for pattern in kept)
            if not kept and any(value > _LIMIT for value in largest.values()):
                options = "nothing: what is beyond float16's range stays in float32 by itself"
            print_pairs([("inputs", data or RANDOM), *([("for mxmp convert", options)] if options else [])])


def _kept_in_float32(model: Any, shapes: Any, types: Any, ranges: Mapping[str, float]) -> List[str]:
    """Return patterns of the operators that a conversion keeps in float32 because of ranges, and else would not."""
    from ..symbol import convert_model

    # Its own decision says which: readers of a large value too, and what hands it on.
    network, args, aux = model
    both = [convert_model(network, args, aux, "O2", shapes, types, each) for each in ({}, ranges)]
    plain, ranged = (each.report.rows for each in both)
    pairs = zip(plain, ranged)
    names = [row.name for row, now in pairs if row.precision != now.precision == dtypes.FLOAT32]
    return list(dict.fromkeys(map(pattern_of, names)))


def _magnitudes(counted: Any) -> Dict[str, Any]:
    """Return the magnitudes of gradients as plain values."""
    values = {}
    for name, each in counted.items():
        counts = {"values": each.total, "zeros": each.zeros, "nonfinite": each.nonfinite, "largest": each.largest}
        found = {"share_lost": each.share_lost(), "largest_scale": each.largest_scale(), "counts": each.counts}
        values[name] = {**counts, **found}
    return values


def _print_ranges(largest: Mapping[str, float], counted: Any, most: Optional[int]) -> None:
    """Print a table of tensors, and what was counted of their gradients, None if nothing was."""
    from ..display import NUMBER, Column, Table, terminal
    from ..symbol.arguments import HEADROOM

    rows: List[Tuple[Any, ...]] = []
    for name, value in largest.items():
        # As a conversion decides: a batch does not have the largest value of all.
        near = "near its end: float32 if ranges are given" if value * HEADROOM > _LIMIT else ""
        rows.append((name, value, value / _LIMIT, "beyond float16" if value > _LIMIT else near))
    columns = [Column("tensor"), Column("largest", NUMBER), Column("of float16's largest", NUMBER), Column("note")]
    console = stdout()
    console.print(terminal.table(Table("Largest magnitudes", columns, rows, "tensors; --all lists more", most)))
    for part in [] if counted is None else terminal.parts("Gradients", counted.sections(most), width=console.width):
        console.print(part)


@click.command()
@click.argument("run", type=click.Path())
@out_option("The HTML file to write.", required=True)
@click.option("--title", metavar="TEXT", help="The page's title; the name of RUN unless given.")
def report(run: str, out: str, title: Optional[str], force: bool) -> None:
    """Write what is known of a run as one HTML page.

    RUN is a folder with any of these files, or one of them: report.json (a report's to_json),
    gradients.json (measured ones), compare.json (errors by layer), steps.csv (loss and scale), explanation.json
    (why a step was not finite, of `explain` or a Watch). The page shows
    the network with its precisions and casts, tables that sort and filter, and charts. It is complete in
    itself: nothing is loaded from a network. Its explanation and warnings are printed too.

    \b
    Example:
      mxmp report runs/resnet50 -o resnet50.html
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_new(out, force=force)
    from ..report import read_run

    with working():
        found = read_run(run)
        found.to_html(out, title)
        pairs = [("written", out)] + ([("explanation", str(found.explanation))] if found.explanation else [])
        pairs += [("warning", each) for each in found.warnings]
        if found.missing and os.path.isdir(run):
            pairs.append(("not there", ", ".join(found.missing)))
        print_pairs(pairs)
