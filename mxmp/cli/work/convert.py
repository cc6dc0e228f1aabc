"""``mxmp convert``: converts a checkpoint and prints what was done."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Mapping

from ...errors import CheckpointError
from ...policy import Policy
from ...symbol import convert_checkpoint
from ...symbol.checkpoint import check_out_prefix, checkpoint_files
from .output import pairs_table, progress, rounded_lines, stdout, value_lines


def run(
    prefix: str,
    epoch: int,
    out: str,
    policy: Policy,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    for_inference: bool,
    force: bool,
) -> None:
    """Convert the checkpoint of a prefix and an epoch, write it to another prefix and print what was done."""
    check_out_prefix(prefix, out)
    files = checkpoint_files(out, epoch)
    for file in files:
        if os.path.lexists(file) and not force:
            raise CheckpointError(f"{file}: it exists; give another prefix to -o, or --force to overwrite it.")
    with progress(3) as begin:
        model = convert_checkpoint(
            prefix, epoch, out, policy, shapes, types, on_stage=begin, for_inference=for_inference
        )
    pairs = [("policy", str(policy)), *replace(model.report, param_bytes=model.param_bytes).totals]
    pairs += value_lines(model.changes, model.out_of_range, policy.compute_dtype)
    pairs += [("note", warning) for warning in model.report.warnings]
    pairs += rounded_lines(model.widened)
    pairs += [("written", file) for file in files]
    stdout().print(pairs_table(pairs))
