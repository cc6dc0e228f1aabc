"""``mxmp inspect``: loads a network and prints its report."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import click

from ...diagnose.tensor_cores import BATCH, MULTIPLE, Uneven
from ...passes import is_converted
from ...policy import Policy
from ...symbol import load_params, load_symbol, to_graph
from ...symbol.checkpoint import checkpoint_files, describe_epochs, naming_files, params_file_of, saved_epochs
from .network_report import Inspection, inspect_converted, inspect_policy
from .output import pairs_table, progress, rounded_lines, stdout, value_lines

_NARROW = 80  # columns of a terminal, below which names would be broken

_UNEVEN = f"no multiple of {MULTIPLE}"


def run(
    prefix: str,
    epoch: Optional[int],
    policy: Policy,
    asked: bool,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    as_json: bool,
) -> None:
    """Print what a policy decides about the network of a prefix, or what it holds.

    Args:
        prefix: The prefix.
        epoch: Epoch of the parameters; the only one there if None.
        policy: The policy.
        asked: Whether it was asked for; without, a converted network is shown as it is.
        shapes: Shapes of inputs.
        types: Dtypes of inputs.
        as_json: Whether to print JSON.
    """
    with progress(2) as begin:
        begin("load")
        symbol_file, _ = checkpoint_files(prefix, 0)
        symbol = load_symbol(symbol_file)
        file = _params_file(prefix, epoch)
        params = None if file is None else load_params(file)
        begin("inspect")
        with naming_files(symbol_file, file):
            if is_converted(to_graph(symbol)) and not asked:
                found = inspect_converted(symbol, params, shapes, types)
            else:
                found = inspect_policy(symbol, params, policy, shapes, types)
    if as_json:
        values = {"changes": [asdict(change) for change in found.changes], "unfit": found.out_of_range}
        uneven = [layer._asdict() for layer in found.uneven]
        click.echo(json.dumps({**asdict(found.report), **values, "uneven": uneven}, indent=2))
    else:
        _print(found, policy.compute_dtype, prefix)


def _params_file(prefix: str, epoch: Optional[int]) -> Optional[str]:
    """Return the file with the parameters to count, if it is clear which."""
    if epoch is not None:
        return params_file_of(prefix, epoch)
    epochs = saved_epochs(prefix)
    return params_file_of(prefix, epochs[0]) if len(epochs) == 1 else None


def _print(found: Inspection, dtype: str, prefix: str) -> None:
    console = stdout()
    console.print(found.report.table(narrow=console.width < _NARROW))
    pairs = found.report.totals + value_lines(found.changes, found.out_of_range, dtype)
    if found.report.param_bytes is None:
        several = describe_epochs(prefix)
        pairs.append(
            ("parameters", f"bytes unknown; {several}{several and '; '}--epoch or --shape of every input tells them")
        )
    if found.report.activation_bytes is None:
        pairs.append(("activations", "bytes unknown; --shape of every input tells them"))
    pairs += _uneven_lines(found.uneven) + rounded_lines(found.widened)
    console.print(pairs_table(pairs + [("note", warning) for warning in found.report.warnings]))


def _uneven_lines(layers: Sequence[Uneven]) -> List[Tuple[str, str]]:
    """Return a line for each layer that does not fill tensor cores, and one for all with the same batch."""
    lines = []
    batches: Dict[int, List[str]] = {}
    for layer in layers:
        rest = ", ".join(f"{what} {size}" for what, size in layer.sizes.items() if what != BATCH)
        if rest:
            lines.append((_UNEVEN, f"{layer.name}: {rest}" + ("; cuDNN pads it, by a copy" if layer.padded else "")))
        if BATCH in layer.sizes:
            batches.setdefault(layer.sizes[BATCH], []).append(layer.name)
    return lines + [(_UNEVEN, f"batch {batch}: {', '.join(names)}") for batch, names in batches.items()]
