"""``mxmp convert`` and ``mxmp benchmark``: checkpoints, converted and timed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any, List, Optional, Sequence

import click

from .. import dtypes
from ..checkpoint import check_out_prefix, checkpoint_files, describe_epochs, require_checkpoint, saved_epochs
from ..errors import CheckpointError
from ..policy import Policy
from .options import (
    Pairs,
    check_prefix,
    load_network,
    make_policy,
    model_options,
    print_pairs,
    require_new,
    stdout,
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
    "--for-inference",
    is_flag=True,
    help="The model will only infer: fold BatchNorm into the layers before it, in float32, and leave out dropout.",
)
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def convert(
    prefix: str,
    epoch: int,
    out: str,
    text: str,
    for_inference: bool,
    shapes: Any,
    types: Any,
    force: bool,
    **options: Any,
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    # All that can be refused without MXNet is refused before it is imported, which takes seconds.
    policy = make_policy(text, **options, takes_auto=True)
    check_out_prefix(prefix, out, "-o ")
    require_new(*checkpoint_files(out, epoch), force=force)
    require_checkpoint(prefix, epoch)
    from ..diagnose.progress import showing_progress
    from ..symbol import convert_checkpoint

    with working():
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
@click.argument("epoch", type=click.IntRange(min=0), required=False)
@click.option(
    "--policy",
    "texts",
    multiple=True,
    help="A policy to time, the first of which the others are compared with. Unless given float32, and those that the "
    "device runs by itself. Repeatable.",
)
@click.option("--training", is_flag=True, help="Time whole training steps; the network needs a loss head.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30,
    show_default=True,
    help="About how long the rounds may take, of which there are at least five.",
)
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
    training: bool,
    seconds: float,
    gpu: Optional[int],
    shapes: Any,
    types: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a checkpoint's network under several policies.

    The policies take turns, round by round; printed are the medians, the time relative to the first policy's and
    whether the difference is more than noise. Inference is timed, with BatchNorm folded, or whole training steps.
    Inputs are random numbers of the shapes given, labels zeros. Nothing of the checkpoint is changed. Float16 is
    emulated on a CPU and timed only if asked for. Give the threads of the real work (OMP_NUM_THREADS), and let nothing
    else run. EPOCH may be left out if there are parameters of one alone.

    \b
    Example:
      mxmp benchmark resnet50 12 --shape data:8,3,224,224 --policy float32 --policy auto
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not shapes:
        raise click.UsageError("give --shape of every input, such as data:8,3,224,224.", ctx)
    if any(options.values()) and not texts:
        raise click.UsageError("--keep-float32 and its like change a policy; give --policy too.", ctx)
    # A policy that no option changes keeps its name, which a table shows.
    parsed = {text: make_policy(text, **options, takes_auto=True) for text in texts}
    policies = [policy if any(options.values()) else text for text, policy in parsed.items()]
    require_checkpoint(prefix)
    epochs = saved_epochs(prefix) if epoch is None else [epoch]
    if len(epochs) != 1:
        there = describe_epochs(prefix) or "there are none"
        raise CheckpointError(f"{prefix}: give the EPOCH of its parameters; {there}.")
    require_checkpoint(prefix, epochs[0])
    from ..symbol import convert_model
    from ..tune.speed import compare_speed, context_of

    with working():
        context = context_of(gpu)
        model, batch, naming_files = load_network(prefix, epochs[0], shapes, types)
        with naming_files():  # in float32, a converted one as it was
            symbol, args, aux = model
            model = tuple(convert_model(symbol, args, aux, Policy(), shapes, types))
        # Where its batch lies is where the network runs.
        batch = {name: array.as_in_context(context) for name, array in batch.items()}
        found = compare_speed(model, [batch], policies or None, True if training else None, seconds=seconds)
        # JSON is for programs: nothing else may stand beside it.
        if as_json:
            click.echo(found.to_json())
        else:
            stdout().print(found)
