"""``mxmp compare``, ``ranges``, ``benchmark`` and ``report``: a checkpoint that is run, and the pages of results."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, List, Mapping, Optional, Sequence

import click

from .. import dtypes
from ..policy import Policy, pattern_of
from .options import (
    DEFAULT_POLICY,
    RANDOM,
    Number,
    WholeNumber,
    checkpoint_arguments,
    console,
    conversion_options,
    give,
    input_options,
    load_network,
    make_policy,
    out_options,
    print_pairs,
    read_epoch,
    require_inputs,
    require_new,
    result_options,
)

_ROWS = 20  # The rows of a table unless more are asked for.
_LIMIT = dtypes.limits(dtypes.FLOAT16).max


@click.command()
@checkpoint_arguments
@click.option("--policy", "text", help=f"The policy: {DEFAULT_POLICY} unless given. A converted network needs it.")
@input_options
@conversion_options
@click.option(
    "--worst",
    type=WholeNumber(min=1),
    metavar="N",
    default=_ROWS,
    show_default=True,
    help="How many operators to show.",
)
@result_options
def compare(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    data: Optional[str],
    shapes: Any,
    types: Any,
    worst: int,
    out: Optional[str],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare low precision with float32, operator by operator.

    Shows where accuracy is lost. Each operator has three errors: by itself, with all errors before it, and its part in
    the error of the outputs. The worst come first. With labels gradients are compared too. On a CPU float16 is
    emulated. Inputs are those of --data, or random numbers of the shapes given.

    \b
    Example:
      mxmp compare resnet50 12 --data batch.npz --worst 10
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_inputs(shapes, data)
    is_asked = text is not None or any(options.values())
    policy = make_policy(text or DEFAULT_POLICY, **options)
    if out is not None:
        require_new(out, force=force)
    epoch = read_epoch(prefix, epoch)
    from .. import diagnose, passes
    from ..display import terminal
    from ..symbol import to_graph

    model, batch, naming_files = load_network(prefix, epoch, shapes, types, data)
    is_plain = not passes.is_converted(to_graph(model.symbol))
    with naming_files():
        found = diagnose.compare(tuple(model), batch, policy if is_asked or is_plain else None)

    def print_comparison() -> None:
        to = console()
        # The terminal wraps sentences. A sentence that is broken here could not be searched for.
        for part in terminal.parts(found, width=to.width, most=worst):
            to.print(part, soft_wrap=True)
        print_pairs([("inputs", data or f"{RANDOM}; give real ones with --data")])

    give(found, out, as_json, print_comparison)


@click.command()
@checkpoint_arguments
@input_options
@click.option("--gradients", is_flag=True, help="Run backward too, and count the gradients by magnitude.")
@click.option("--all", "list_all", is_flag=True, help="List all tensors, not only the largest.")
@result_options
def ranges(
    prefix: str,
    epoch: Optional[int],
    data: Optional[str],
    shapes: Any,
    types: Any,
    gradients: bool,
    list_all: bool,
    out: Optional[str],
    force: bool,
    as_json: bool,
) -> None:
    """Show which tensors leave float16's range.

    The network runs in float32, on one batch. Its tensors are listed by their largest magnitudes. Those beyond half of
    float16's range should stay in float32, because one batch seldom has the largest value. The options of `mxmp
    convert` that keep them are printed. With --gradients the share of each gradient that becomes 0 in float16 is shown,
    and the largest loss scale that keeps all gradients finite. Labels that are not given are zeros.

    \b
    Example:
      mxmp ranges resnet50 12 --data batch.npz
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_inputs(shapes, data)
    if out is not None:
        require_new(out, force=force)
    epoch = read_epoch(prefix, epoch)
    from .. import diagnose, symbol
    from ..diagnose.batches import fill_inputs
    from ..display import terminal

    model, batch, naming_files = load_network(prefix, epoch, shapes, types, data)
    with naming_files():
        network, args, aux = model
        found, counted = diagnose.measure_ranges(tuple(model), batch), None
        if gradients:  # Missing labels are zeros.
            plain = symbol.convert_model(network, args, aux, "O0")
            held = {**plain.arg_params, **plain.aux_params}
            filled = {name: array for name, array in fill_inputs(plain, batch)[0].items() if name not in held}
            counted = diagnose.measure_gradients(tuple(model), filled)
        inputs = {name: array.shape for name, array in batch.items()}
        kept = tuple(_kept_in_float32(model, inputs, types, found))
    found = replace(found, data=data or RANDOM, keep_float32=kept, gradients=counted)

    def print_ranges() -> None:
        to = console()
        for part in terminal.parts(found, width=to.width, most=len(found) if list_all else _ROWS):
            to.print(part)
        # Quoted for a shell, so that the user can copy the options.
        options = " ".join(f"--keep-float32 {shlex.quote(pattern)}" for pattern in kept)
        if not kept and any(value > _LIMIT for value in found.values()):
            options = "nothing: tensors beyond float16's range stay in float32 without an option"
        pairs = [("inputs", found.data), *([("for mxmp convert", options)] if options else [])]
        print_pairs(pairs if list_all or len(found) <= _ROWS else [*pairs, ("--all", "lists all tensors")])

    give(found, out, as_json, print_ranges)


def _kept_in_float32(model: Any, shapes: Any, types: Any, ranges: Mapping[str, float]) -> List[str]:
    """Return patterns of the operators that a conversion keeps in float32 only because of ranges."""
    from ..symbol import convert_model

    # Two conversions tell: also readers of a large value change, and operators that hand it on.
    network, args, aux = model
    both = [convert_model(network, args, aux, DEFAULT_POLICY, shapes, types, each) for each in ({}, ranges)]
    plain, ranged = (each.report.rows for each in both)
    pairs = zip(plain, ranged)
    names = [row.name for row, now in pairs if row.precision != now.precision == dtypes.FLOAT32]
    return list(dict.fromkeys(map(pattern_of, names)))


@click.command()
@checkpoint_arguments
@click.option(
    "--policy",
    "texts",
    multiple=True,
    help="A policy to time; the others are compared with the first one. Unless given: float32, and the policies that "
    "the device runs in hardware. Repeatable.",
)
@input_options
@conversion_options
@click.option("--training", is_flag=True, help="Time whole training steps; the network needs a loss head.")
@click.option(
    "--seconds",
    type=Number(min=0, min_open=True),
    default=30,
    show_default=True,
    help="About how long to measure; there are at least five rounds.",
)
@click.option("--gpu", type=WholeNumber(min=0), metavar="N", help="Run on GPU N instead of the processor.")
@result_options
def benchmark(
    prefix: str,
    epoch: Optional[int],
    texts: Sequence[str],
    data: Optional[str],
    shapes: Any,
    types: Any,
    training: bool,
    seconds: float,
    gpu: Optional[int],
    out: Optional[str],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a checkpoint's network under several policies.

    The policies take turns, round by round. Printed are the median times, each also as a share of the first policy's
    time, and whether the difference is more than noise. Inference is timed, as after `mxmp convert --for-inference`,
    unless --training is given.
    Inputs are those of --data, or random numbers of the shapes given. On a CPU float16 is emulated, and timed only if
    it is asked for. Set the number of threads as in production (OMP_NUM_THREADS), and let nothing else run.

    \b
    Example:
      mxmp benchmark resnet50 12 --shape data:8,3,224,224 --policy float32 --policy auto
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_inputs(shapes, data)
    if any(options.values()) and not texts:
        text = "--keep-float32 and its like change a policy; give --policy too."
        raise click.UsageError(text, click.get_current_context())
    # A policy that no option changes keeps its name, which the table shows.
    parsed = {text: make_policy(text, **options) for text in texts}
    policies = [policy if any(options.values()) else text for text, policy in parsed.items()]
    if out is not None:
        require_new(out, force=force)
    epoch = read_epoch(prefix, epoch)
    from ..symbol import convert_model
    from ..tune.speed import compare_speed, context_of

    context = context_of(gpu)
    model, batch, naming_files = load_network(prefix, epoch, shapes, types, data)
    with naming_files():  # in float32, also if the checkpoint is converted
        symbol, args, aux = model
        model = tuple(convert_model(symbol, args, aux, Policy(), shapes, types))
    # The network runs on the device that holds its batch.
    batch = {name: array.as_in_context(context) for name, array in batch.items()}
    found = compare_speed(model, [batch], policies or None, True if training else None, seconds=seconds)
    give(found, out, as_json, lambda: console().print(found))


@click.command()
@click.argument("run", type=click.Path())
@out_options("The HTML file to write.", required=True)
@click.option("--title", metavar="TEXT", help="The page's title; the name of RUN unless given.")
def report(run: str, out: str, title: Optional[str], force: bool) -> None:
    """Show the results of a run as one HTML page.

    RUN is a folder, or one file: any JSON that mxmp has written (by `save`, -o or --json), or the steps.csv of a
    CSVLogger. Other files in the folder are passed over. The page shows the network with its precisions and casts,
    charts, and tables that sort and filter. It is one file and loads nothing. Warnings and explanations are printed
    too.

    \b
    Example:
      mxmp report runs/resnet50 -o resnet50.html
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_new(out, force=force)
    from ..report import read_run

    found = read_run(run)
    found.to_html(out, title)
    print_pairs([("written", out), ("shown", ", ".join(found.records)), *found.remarks])
