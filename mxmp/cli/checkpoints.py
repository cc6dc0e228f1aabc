"""``mxmp convert``, ``mxmp tune`` and ``mxmp benchmark``: what is made of a checkpoint, and how fast it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any, List, Optional, Sequence

import click

from .. import dtypes
from ..checkpoint import check_out_prefix, checkpoint_files, describe_epochs, require_checkpoint, saved_epochs
from ..errors import CheckpointError, TuneError
from ..policy import Policy
from .options import (
    Pairs,
    check_prefix,
    load_network,
    make_policy,
    model_options,
    out_option,
    print_pairs,
    refuse_beside,
    require_new,
    require_timed,
    stdout,
    timing_options,
    value_pairs,
    working,
)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", callback=check_prefix, required=True, help="Prefix of the files to write.")
@click.option(
    "--policy",
    "text",
    default="O2",
    show_default=True,
    help="The policy; O2 stores weights in float16, auto is the fastest here.",
)
@click.option(
    "--tuned",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Take policy, shapes and --for-inference from what `mxmp tune -o` wrote, if it holds here.",
)
@click.option(
    "--for-inference",
    is_flag=True,
    help="The model will only infer: fold BatchNorm into the layers before it, in float32, and leave out dropout.",
)
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: int,
    out: str,
    text: str,
    tuned: Optional[str],
    for_inference: bool,
    shapes: Any,
    types: Any,
    force: bool,
    **options: Any,
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads. A plan of `mxmp tune` is refused where it does not hold: on another machine, for another
    network or other shapes.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    # All that can be refused without MXNet is refused before it is imported, which takes seconds.
    if tuned is not None:
        refuse_beside(ctx, "--tuned", "text", *options)
    policy = make_policy(text, **options, takes_auto=True)
    check_out_prefix(prefix, out, "-o ")
    require_new(*checkpoint_files(out, epoch), force=force)
    require_checkpoint(prefix, epoch)
    from ..diagnose.progress import showing_progress
    from ..symbol import convert_checkpoint, load_symbol
    from ..tune import load

    with working():
        if tuned is not None:
            # The symbol is enough: a plan holds for operators and names, whatever the values of parameters are.
            plan = load(tuned, load_symbol(checkpoint_files(prefix, 0)[0]), shapes=shapes or None, dtypes=types or None)
            # The other way round the plan decides: it was timed with BatchNorm folded.
            if for_inference and not plan.for_inference:
                text = "the plan was tuned without --for-inference; tune with it, or leave it out here"
                raise TuneError(f"{tuned}: {text}.")
            # A plan lists the dtypes of all inputs; float32 is what is taken where none is given.
            others = {name: dtype for name, dtype in (plan.holds_for.dtypes or {}).items() if dtype != dtypes.FLOAT32}
            policy, shapes, types = plan.policy, shapes or plan.holds_for.shapes, {**others, **types}
            for_inference = plan.for_inference
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
        pairs = [("policy", str(policy)), *_machine(policy), *report.totals]
        pairs += [("note", note) for note in (*report.warnings, *report.notes, *_not_here(policy, report))]
        pairs += value_pairs(model.changes, model.out_of_range, model.widened, policy.compute_dtype)
        print_pairs(pairs + [("written", file) for file in checkpoint_files(out, epoch)])


def _machine(policy: Policy) -> Pairs:
    """Return this machine, where 'auto' has chosen a policy for it."""
    from ..devices.check import read_gpus
    from ..devices.speed import read_machine

    return [("machine", "; ".join([str(read_machine()), *(gpu.name for gpu in read_gpus())]))] if policy.chosen else []


def _unchanged(policy: Policy, report: Any) -> List[str]:
    """Return a note that nothing is converted, where a network in low precision of its own leaves nothing to do."""
    already = sum(row.reason.endswith(f" is {policy.compute_dtype} already") for row in report.rows)
    if not already or report.casts or policy.compute_dtype in report.count:
        return []
    text = f"{already} operators have {policy.compute_dtype} inputs already, by the network's own casts and dtypes"
    return [f"nothing is changed: {text}, and no other one can run in it"]


def _not_here(policy: Policy, report: Any) -> List[str]:
    """Return what surprises who runs a converted checkpoint by plain MXNet, on this machine and in numpy."""
    from ..devices.check import check_devices

    # The files may be meant for another machine, so that this is no warning. What is float32 throughout runs anywhere.
    notes, findings = _unchanged(policy, report), check_devices(policy)
    if policy.compute_dtype in report.count and policy.is_mixed and all(finding.ok is False for finding in findings):
        # The last finding is the processor's, which says what bfloat16 lacks; there may be several GPUs, or none.
        is_float16 = policy.compute_dtype == dtypes.FLOAT16
        lacks = "float16 needs a GPU" if is_float16 else f"{findings[-1].message} {findings[-1].advice}"
        notes.append(f"not for this machine: {lacks}")
    if policy.output_dtype == dtypes.BFLOAT16:
        notes.append("outputs are bfloat16: integers in numpy; --output-dtype float32 makes them numbers")
    return notes


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("--policy", "text", default="mixed_bfloat16", show_default=True, help="The policy to begin with.")
@timing_options(40, "About how long it may take.")
@model_options
@out_option("Write the plan, for `mxmp convert --tuned FILE`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: int,
    text: str,
    objective: Optional[str],
    for_inference: bool,
    seconds: float,
    shapes: Any,
    types: Any,
    out: Optional[str],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the policy with which a checkpoint's network is fastest on this machine's processor, by running it.

    Plans of different kinds take turns on the clock. What is found is measured once more, beside float32 and
    the policy as given; float32 is the answer unless another is faster by more than the noise. Inputs are random
    numbers of the shapes given, labels zeros. Nothing of the checkpoint is changed. Ctrl-C ends the search, and what
    was found is measured and printed; pressed again, it is printed unmeasured. Give the threads of the real
    work (OMP_NUM_THREADS), and let nothing else run.

    \b
    Example:
      mxmp tune resnet50 12 --shape data:8,3,224,224 --objective inference -o resnet50-plan.json
      mxmp convert resnet50 12 -o resnet50-fast --tuned resnet50-plan.json
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    objective = require_timed(ctx, objective, for_inference, shapes)
    policy = make_policy(text, **options)
    # The time that it takes must not be lost to a name that is taken.
    if out is not None:
        require_new(out, force=force)
    require_checkpoint(prefix, epoch)
    from .. import tune as tuning

    with working():
        model, batch, naming_files = load_network(prefix, epoch, shapes, types)
        with naming_files():
            model = _float32(model, shapes, types)
        result = tuning.tune(model, [batch], policy, objective, seconds=seconds, for_inference=for_inference)
        if out is not None:
            result.save(out)
        _print(result, [] if out is None else [("written", out)], as_json)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0), required=False)
@click.option(
    "--policy",
    "texts",
    multiple=True,
    help="A policy to measure beside float32; those that the device runs by itself unless given. Repeatable.",
)
@timing_options(30, "About how long the rounds may take, of which there are at least five.")
@click.option("--gpu", type=click.IntRange(min=0), help="Run on this GPU instead of the processor.")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def benchmark(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: Optional[int],
    texts: Sequence[str],
    objective: Optional[str],
    for_inference: bool,
    seconds: float,
    gpu: Optional[int],
    shapes: Any,
    types: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a checkpoint's network under several policies, and compare its outputs with float32's.

    The policies take turns, round by round; printed are the medians, the time relative to float32 and whether the
    difference is more than noise. Inputs are random numbers of the shapes given, labels zeros. Nothing of the
    checkpoint is changed. Float16 is emulated on a CPU and measured only if asked for. Give the threads of the real
    work (OMP_NUM_THREADS), and let nothing else run. EPOCH may be left out if there are parameters of one alone.

    \b
    Example:
      mxmp benchmark resnet50 12 --shape data:8,3,224,224 --objective inference
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    objective = require_timed(ctx, objective, for_inference, shapes)
    if any(options.values()) and not texts:
        raise click.UsageError("--keep-float32 and its like change a policy; give --policy too.", ctx)
    # Under the texts as they were given, which name the rows.
    policies = {text: make_policy(text, **options) for text in texts}
    require_checkpoint(prefix)
    epochs = saved_epochs(prefix) if epoch is None else [epoch]
    if len(epochs) != 1:
        there = describe_epochs(prefix) or "there are none"
        raise CheckpointError(f"{prefix}: give the EPOCH of its parameters; {there}.")
    require_checkpoint(prefix, epochs[0])
    from ..tune import benchmark as timing

    with working():
        context = timing.context_of(gpu)
        model, batch, naming_files = load_network(prefix, epochs[0], shapes, types)
        with naming_files():
            model = _float32(model, shapes, types)
        # Where its batch lies is where the network runs.
        batch = {name: array.as_in_context(context) for name, array in batch.items()}
        chosen = policies or timing.default_policies(gpu is not None)
        found = timing.benchmark(model, batch, chosen, objective, for_inference, seconds, sys.stderr.isatty())
        text = "MXNet runs no bfloat16 here; --policy O2 emulates float16, for its error"
        _print(found, [] if chosen else [("note", text)], as_json)


def _float32(model: Any, shapes: Any, types: Any) -> Any:
    """Return a model in float32, a converted one as it was: times are relative to that."""
    from ..symbol import convert_model

    symbol, args, aux = model
    return tuple(convert_model(symbol, args, aux, Policy(), shapes, types))


def _print(found: Any, more: Pairs, as_json: bool) -> None:
    """Print times."""
    # JSON is for programs: nothing else may stand beside it.
    if as_json:
        click.echo(found.to_json())
    else:
        stdout().print(found)
        print_pairs(more)
