"""``mxmp convert``: one checkpoint to another."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Sequence, Tuple

import click

from ..errors import CheckpointError
from ..policy import Policy
from ..symbol import ConvertedModel, convert_model, load_checkpoint, save_checkpoint
from ..symbol.checkpoint import check_out_prefix, checkpoint_files
from .options import Prefix, make_policy, model_options
from .output import pairs_table, progress, stdout, value_lines


@click.command()
@click.argument("prefix", type=Prefix())
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", type=Prefix(), required=True, help="Prefix of the files to write.")
@click.option("--policy", "text", default="O2", show_default=True, help="The policy; O2 stores weights in float16.")
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def convert(
    prefix: str,
    epoch: int,
    out: str,
    text: str,
    shapes: Dict[str, Any],
    types: Dict[str, str],
    force: bool,
    **changes: Any,
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    policy = make_policy(text, **changes)
    check_out_prefix(prefix, out)
    files = checkpoint_files(out, epoch)
    _check_new(files, force)
    with progress(3) as begin:
        begin("load")
        source = load_checkpoint(prefix, epoch)
        begin("convert")
        model = convert_model(*source, policy, shapes, types)
        begin("write")
        save_checkpoint(out, epoch, *model)
    _print_summary(policy, model, files)


def _check_new(files: Sequence[str], force: bool) -> None:
    for file in files:
        if os.path.lexists(file) and not force:
            raise CheckpointError(f"{file}: it exists; give another prefix to -o, or --force to overwrite it.")


def _print_summary(policy: Policy, model: ConvertedModel, files: Tuple[str, str]) -> None:
    pairs = [("policy", str(policy)), *replace(model.report, param_bytes=model.param_bytes).totals]
    pairs += value_lines(model.changes, model.unfit, policy.compute_dtype)
    pairs += [("note", warning) for warning in model.report.warnings]
    pairs += [("written", file) for file in files]
    stdout().print(pairs_table(pairs))
