"""``mxmp convert``: converts a checkpoint and prints what was done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Optional, Tuple

from ... import dtypes
from ...checkpoint import checkpoint_files
from ...errors import TuneError
from ...policy import Policy
from ...symbol import convert_checkpoint, load_symbol
from ...tune import load
from .output import pairs_table, progress, rounded_lines, stdout, value_lines


def run(
    prefix: str,
    epoch: int,
    out: str,
    policy: Policy,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    for_inference: bool,
    tuned: Optional[str] = None,
) -> None:
    """Convert the checkpoint of a prefix and an epoch, write it to another prefix and print what was done.

    What a tuned plan in a file says stands in place of the policy, and of shapes and dtypes where none are given.
    """
    if tuned is not None:
        policy, shapes, types, for_inference = _planned(tuned, prefix, shapes, types, for_inference)
    with progress(3) as begin:
        model = convert_checkpoint(
            prefix, epoch, out, policy, shapes, types, on_stage=begin, for_inference=for_inference
        )
    pairs = [("policy", str(policy)), *replace(model.report, param_bytes=model.param_bytes).totals]
    pairs += value_lines(model.changes, model.out_of_range, policy.compute_dtype)
    pairs += [("note", warning) for warning in model.report.warnings]
    pairs += rounded_lines(model.widened)
    pairs += [("written", file) for file in checkpoint_files(out, epoch)]
    stdout().print(pairs_table(pairs))


def _planned(
    file: str, prefix: str, shapes: Mapping[str, Any], types: Mapping[str, str], for_inference: bool
) -> Tuple[Policy, Mapping[str, Any], Mapping[str, str], bool]:
    """Return policy, shapes, dtypes and whether BatchNorm is folded, as a tuned plan has them; TuneError if it differs.

    Shapes and dtypes that are given have to be those of the plan; those of labels are left out there.
    """
    plan = load(file, load_symbol(checkpoint_files(prefix, 0)[0]), shapes=shapes or None, dtypes=types or None)
    if for_inference and not plan.for_inference:
        raise TuneError(f"{file}: the plan was tuned without --for-inference; tune with it, or leave it out here.")
    others = {name: dtype for name, dtype in (plan.holds_for.dtypes or {}).items() if dtype != dtypes.FLOAT32}
    return plan.policy, shapes or plan.holds_for.shapes, {**others, **types}, plan.for_inference
