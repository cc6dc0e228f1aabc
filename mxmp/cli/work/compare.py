"""``mxmp compare``: runs a checkpoint's network beside float32 and prints the error of each operator."""

from __future__ import annotations

import os
import zipfile
from typing import Any, Dict, Mapping, Optional

import click
import mxnet as mx
import numpy as np

from ... import dtypes
from ...diagnose import compare
from ...errors import CheckpointError
from ...files import require_folder
from ...policy import Policy
from ...symbol import Checkpoint, load_checkpoint
from ...symbol.checkpoint import checkpoint_files, naming_files
from ...tune.speed.inputs import make_batch
from .output import NARROW, pairs_table, stdout


def run(
    prefix: str,
    epoch: int,
    policy: Policy,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    data: Optional[str],
    worst: int,
    out: Optional[str],
    force: bool,
    as_json: bool,
) -> None:
    """Compare the checkpoint of a prefix and an epoch with float32, print what was found, and write it if asked to."""
    if out is not None:
        require_folder(out)
        if os.path.lexists(out) and not force:
            raise CheckpointError(f"{out}: it exists; give another file to -o, or --force to overwrite it.")
    model = load_checkpoint(prefix, epoch)
    batch = make_batch(model, shapes, types) if data is None else _read_batch(data, model, types)
    with naming_files(*checkpoint_files(prefix, epoch)):
        found = compare(tuple(model), batch, policy)
    if out is not None:
        found.save(out)
    if as_json:
        click.echo(found.to_json())
        return
    console = stdout()
    console.print(found.table(narrow=console.width < NARROW, worst=worst))
    for line in found.summary:
        console.print(line)
    inputs = "random numbers from 0 to 1; give real ones with --data" if data is None else data
    shown = f"{min(worst, len(found.rows))} of {len(found.rows)} operators, the worst; --worst N lists more"
    pairs = [("inputs", inputs)] + ([("listed", shown)] if worst < len(found.rows) else [])
    console.print(pairs_table(pairs + ([] if out is None else [("written", out)])))


def _read_batch(path: str, model: Checkpoint, types: Mapping[str, str]) -> Dict[str, Any]:
    """Return the arrays of a .npz file, in the dtypes that are given, that the network declares, or float32."""
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {name: loaded[name] for name in getattr(loaded, "files", ())}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as e:
        raise CheckpointError(f"{path}: it cannot be read as a .npz file: {e}") from e
    if not arrays:
        raise CheckpointError(f"{path}: it is no .npz file with an array for each input; write one with numpy.savez.")
    attributes = model.symbol.attr_dict()
    declared = {name: dtypes.from_flag(attributes.get(name, {}).get("__dtype__", "")) for name in arrays}
    wanted = {name: types.get(name) or declared[name] or dtypes.FLOAT32 for name in arrays}
    return {name: mx.nd.array(array, dtype=wanted[name]) for name, array in arrays.items()}
