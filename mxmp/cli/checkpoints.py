"""``mxmp convert`` and ``mxmp inspect``: a checkpoint, converted, and the decisions about it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import click

from .. import dtypes
from ..checkpoint import (
    check_out_prefix,
    checkpoint_files,
    describe_epochs,
    params_file_of,
    require_checkpoint,
    saved_epochs,
)
from ..policy import Policy
from .options import (
    DEFAULT_POLICY,
    Pairs,
    check_prefix,
    checkpoint_arguments,
    console,
    conversion_options,
    give,
    input_options,
    make_policy,
    print_pairs,
    read_epoch,
    read_shapes,
    require_new,
    result_options,
    value_pairs,
)

_FEW = 3  # The names in a line of a summary.


@click.command()
@checkpoint_arguments
@click.option("-o", "--out", metavar="OUT", callback=check_prefix, required=True, help="The prefix of the new files.")
@click.option(
    "--policy",
    "text",
    default=DEFAULT_POLICY,
    show_default=True,
    help="The policy: O1, O2, mixed_bfloat16, or auto for the fastest on this machine.",
)
@click.option(
    "--for-inference",
    is_flag=True,
    help="The model will only infer: fold BatchNorm into the layer before it, and leave out dropout.",
)
@input_options
@conversion_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def convert(
    prefix: str,
    epoch: Optional[int],
    out: str,
    text: str,
    for_inference: bool,
    data: Optional[str],
    shapes: Any,
    types: Any,
    force: bool,
    **options: Any,
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH. Writes the same two files under the prefix OUT, which plain
    MXNet loads. EPOCH can be left out if there is only one. With the shapes of all inputs, casts are placed where they
    move the fewest bytes.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    # MXNet takes seconds to import. All checks that do not need it come first.
    policy = make_policy(text, **options)
    check_out_prefix(prefix, out, "-o ")
    epoch = read_epoch(prefix, epoch)
    files = checkpoint_files(out, epoch)
    require_new(*files, force=force)
    shapes = read_shapes(shapes, data)
    from ..display.terminal import showing_progress
    from ..symbol import convert_checkpoint

    with showing_progress(sys.stderr.isatty()) as show:
        model = convert_checkpoint(
            prefix,
            epoch,
            out,
            policy,
            shapes,
            types,
            on_stage=lambda stage: show(stage, None),
            for_inference=for_inference,
        )
    report = replace(model.report, param_bytes=model.param_bytes)
    pairs = [("policy", report.policy_name), *_machine(policy), *report.totals]
    notes = [*report.warnings, *report.notes, *_unchanged(policy, report, checkpoint_files(prefix, epoch), files)]
    pairs += [("note", note) for note in (*notes, *_surprises(policy, report, for_inference))]
    pairs += value_pairs(model.changes, model.out_of_range, model.widened, policy.compute_dtype)
    print_pairs(pairs + [("written", file) for file in files])


def _machine(policy: Policy) -> Pairs:
    """Return this machine, if 'auto' has chosen a policy for it."""
    from ..devices.check import read_gpus
    from ..devices.speed import read_machine

    return [("machine", "; ".join([str(read_machine()), *(gpu.name for gpu in read_gpus())]))] if policy.chosen else []


def _unchanged(policy: Policy, report: Any, old: Sequence[str], new: Sequence[str]) -> List[str]:
    """Return a note if the files that were written hold the same network as those that were read."""
    from ..symbol import load_symbol, to_graph

    if to_graph(load_symbol(old[0])) != to_graph(load_symbol(new[0])):
        return []
    if os.path.getsize(old[1]) != os.path.getsize(new[1]):  # parameters in another dtype have another size
        return []
    already = sum(row.reason.endswith(f" is {policy.compute_dtype} already") for row in report.rows)
    if policy.compute_dtype == dtypes.FLOAT32:
        why = "the network is float32 already"
    elif report.casts or policy.compute_dtype in report.count:
        why = "it was converted by this policy before"
    elif already:
        why = f"{already} operators have {policy.compute_dtype} inputs already, by the network's own casts and dtypes"
    else:
        why = f"no operator of it can run in {policy.compute_dtype} under this policy"
    return [f"nothing is changed: the new files hold the same network, because {why}"]


def _surprises(policy: Policy, report: Any, for_inference: bool) -> List[str]:
    """Return a note on each surprise for who runs a converted checkpoint on this machine, or reads it in numpy."""
    from ..devices.check import not_for_this_machine

    # The files may be meant for another machine, so this is no warning.
    unfit = not_for_this_machine(policy, report)
    notes = [unfit] if unfit else []
    if for_inference and policy.compute_dtype in report.count and policy.param_dtype != policy.compute_dtype:
        field = f"param={policy.compute_dtype}"
        notes.append(f"weights are stored in float32 and cast at each call, which is slow; add {field} to the policy")
    if policy.output_dtype == dtypes.BFLOAT16:
        notes.append("outputs are bfloat16: integers in numpy; --output-dtype float32 makes them numbers")
    return notes


# ---------------------------------------------------------------------- inspect


@click.command()
@checkpoint_arguments
@click.option("--policy", "text", help=f"The policy; {DEFAULT_POLICY} unless the network is converted.")
@input_options
@conversion_options
@click.option("--summary", is_flag=True, help="Print a row for each kind of operator instead of each operator.")
@result_options
def inspect(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    data: Optional[str],
    shapes: Any,
    types: Any,
    summary: bool,
    out: Optional[str],
    force: bool,
    as_json: bool,
    **changes: Any,
) -> None:
    """Show each operator's precision, the reason and the casts.

    For a float32 network this is the decision of `mxmp convert`; nothing is written. A network that mxmp converted is
    shown as it is, unless a policy is given. PREFIX-symbol.json is enough; with the parameters their bytes are counted.
    Layers in float16 with sizes that are no multiples of 8, which tensor cores want, are named.

    \b
    Example:
      mxmp inspect resnet50 --policy mixed_bfloat16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    is_asked = text is not None or any(changes.values())
    policy = make_policy(text or DEFAULT_POLICY, **changes)
    if out is not None:
        require_new(out, force=force)
    require_checkpoint(prefix, epoch)
    shapes = read_shapes(shapes, data)
    from .. import files, passes, symbol
    from ..display.terminal import showing_progress

    with showing_progress(sys.stderr.isatty()) as show:
        show("load", None)
        symbol_file, _ = checkpoint_files(prefix, 0)
        network = symbol.load_symbol(symbol_file)
        epochs = saved_epochs(prefix) if epoch is None else [epoch]
        file = params_file_of(prefix, epochs[0]) if len(epochs) == 1 else None  # None if it is not clear which epoch.
        params = None if file is None else symbol.load_params(file)
        if file is not None:
            files.require_set(files.manifest_of(file), symbol_file, file)
        show("inspect", None)
        with symbol.checkpoint.naming_files(symbol_file, file):
            as_it_is = passes.is_converted(symbol.to_graph(network)) and not is_asked
            report, model, uneven = inspected(network, params, None if as_it_is else policy, shapes, types)
    changed, unfit, widened = (model.changes, model.out_of_range, model.widened) if model else ((), (), {})

    def print_report() -> None:
        from ..devices.check import amx_notes
        from ..display import terminal
        from ..report import operator_table

        to = console()
        to.print(terminal.table(operator_table(report), to.width) if summary else report.table(to.width))
        pairs = report.totals + value_pairs(changed, unfit, widened, policy.compute_dtype)
        # An unknown size is named with the argument that tells it; the totals leave it out.
        if report.param_bytes is None:
            several = describe_epochs(prefix)
            text = f"bytes unknown; {several}{several and '; '}EPOCH or --shape of every input tells them"
            pairs.append(("parameters", text))
        if report.activation_bytes is None:
            pairs.append(("activations", "bytes unknown; --shape of every input tells them"))
        pairs += _uneven_pairs(uneven, _FEW if summary else None)
        pairs += [("note", note) for note in [*report.warnings, *report.notes, *amx_notes(report.count)]]
        print_pairs(_first(pairs) if summary else pairs)

    more = {"changes": [asdict(change) for change in changed], "unfit": unfit}
    give(report, out, as_json, print_report, **more, uneven=[layer._asdict() for layer in uneven])


def _first(pairs: Pairs, most: int = _FEW) -> Pairs:
    """Return pairs of a name and a text: a few of each name, and how many more there are."""
    texts: Dict[str, List[str]] = {}
    for name, text in pairs:
        texts.setdefault(name, []).append(text)
    more = {name: [f"and {len(lines) - most:,} more"] if len(lines) > most else [] for name, lines in texts.items()}
    return [(name, text) for name, lines in texts.items() for text in lines[:most] + more[name]]


def inspected(symbol: Any, params: Any, policy: Any, shapes: Any, types: Any) -> Tuple[Any, Any, Sequence[Any]]:
    """Return the report on a network: the decisions of a policy, or without one the precisions that it has.

    Args:
        symbol: The network.
        params: Its arguments and auxiliary states by name; None if they are not known.
        policy: The policy; None for the network as it is.
        shapes: The shapes of inputs, by name.
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
    with blaming_params(symbol, values, shapes):  # Without a policy this takes out the casts.
        converted = convert_graph(symbol, policy or Policy(), *facts, names, final=True, inputs=inputs)
    decisions, report, after = converted.decisions, converted.report, (converted.graph, converted.facts)
    if policy is None:
        graph, before = to_graph(symbol), decisions.before
        declared = {node.name for node in graph.nodes if node.declares_dtype}
        inferred = decisions.facts.variable_dtypes(before)  # Inferred dtypes are the same without casts.
        undeclared = {name: dtype for name, dtype in inferred.items() if name not in declared}
        after = graph, infer_facts(symbol, graph, facts[0], undeclared, names)
        report = report_converted(before, decisions.facts, *after)
    else:
        require_matches(policy, [converted])
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
    # Nearly all layers have the same batch, which is one line.
    for batch, names in batches.items():
        more = f" and {len(names) - most:,} more" if most is not None and len(names) > most else ""
        pairs.append((name, f"batch {batch}: {', '.join(names[:most])}{more}"))
    return pairs
