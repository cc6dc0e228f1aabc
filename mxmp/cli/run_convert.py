"""The work of ``mxmp convert``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Mapping, Sequence, Tuple

from ..errors import CheckpointError
from ..policy import Policy
from ..symbol import ConvertedModel, convert_model, load_checkpoint, save_checkpoint
from ..symbol.checkpoint import check_out_prefix, checkpoint_files, naming_files
from .epochs import check_epoch
from .output import pairs_table, progress, rounded_lines, stdout, value_lines


def run(
    prefix: str, epoch: int, out: str, policy: Policy, shapes: Mapping[str, Any], types: Mapping[str, str], force: bool
) -> None:
    """Convert the checkpoint of a prefix and an epoch, write it to another prefix and print what was done."""
    check_out_prefix(prefix, out)
    check_epoch(prefix, epoch)
    files = checkpoint_files(out, epoch)
    _check_new(files, force)
    with progress(3) as begin:
        begin("load")
        source = load_checkpoint(prefix, epoch)
        begin("convert")
        with naming_files(*checkpoint_files(prefix, epoch)):
            model = convert_model(*source, policy, shapes, types)
        begin("write")
        save_checkpoint(out, epoch, *model)
    _print_summary(policy, model, files, rounded_lines(source.arg_params, model.arg_params))


def _check_new(files: Sequence[str], force: bool) -> None:
    for file in files:
        if os.path.lexists(file) and not force:
            raise CheckpointError(f"{file}: it exists; give another prefix to -o, or --force to overwrite it.")


def _print_summary(
    policy: Policy, model: ConvertedModel, files: Tuple[str, str], rounded: Sequence[Tuple[str, str]]
) -> None:
    pairs = [("policy", str(policy)), *replace(model.report, param_bytes=model.param_bytes).totals]
    pairs += value_lines(model.changes, model.unfit, policy.compute_dtype)
    pairs += [("note", warning) for warning in model.report.warnings]
    pairs += rounded
    pairs += [("written", file) for file in files]
    stdout().print(pairs_table(pairs))
