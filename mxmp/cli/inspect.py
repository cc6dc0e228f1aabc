"""``mxmp inspect``: what a policy decides about a network, or what a converted one holds."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from glob import escape, glob
from typing import Any, Dict, List, Optional, Sequence, Tuple

import click

from ..diagnose.tensor_cores import BATCH, MULTIPLE, Uneven
from ..passes import is_converted
from ..symbol import load_params, load_symbol, to_graph
from ..symbol.checkpoint import checkpoint_files
from .inspection import Inspection, decided, held
from .options import Prefix, make_policy, model_options
from .output import pairs_table, progress, stdout, value_lines

_UNEVEN = f"no multiple of {MULTIPLE}"

_EPOCH = re.compile(r"-\d{4,}\.params")


@click.command()
@click.argument("prefix", type=Prefix())
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the parameters; the only one there unless given.")
@click.option("--policy", "text", help="The policy; O2 unless given, or what a converted network has.")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    shapes: Dict[str, Any],
    types: Dict[str, str],
    as_json: bool,
    **changes: Any,
) -> None:
    """Show each operator's precision, the reason and the casts.

    PREFIX-symbol.json may be a float32 network: then this is what a conversion would decide. A
    network that mxmp converted is shown as it is, unless a policy is given. Layers in float16 with a
    batch, channels or other sizes that are no multiples of 8, which tensor cores want, are named; give
    the shapes of inputs for the batch.

    \b
    Example:
      mxmp inspect resnet50 --policy mixed_bfloat16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = text is not None or any(changes.values())
    policy = make_policy(text or "O2", **changes)
    with progress(2) as begin:
        begin("load")
        symbol = load_symbol(checkpoint_files(prefix, 0)[0])
        file = _params_file(prefix, epoch)
        params = None if file is None else load_params(file)
        begin("inspect")
        if is_converted(to_graph(symbol)) and not asked:
            found = held(symbol, params, shapes, types)
        else:
            found = decided(symbol, params, policy, shapes, types)
    if as_json:
        values = {"changes": [asdict(change) for change in found.changes], "unfit": found.unfit}
        uneven = [layer._asdict() for layer in found.uneven]
        click.echo(json.dumps({**asdict(found.report), **values, "uneven": uneven}, indent=2))
    else:
        _print(found, policy.compute_dtype, prefix)


def _params_file(prefix: str, epoch: Optional[int]) -> Optional[str]:
    """Return the file with the parameters to count, if it is clear which."""
    if epoch is not None:
        return checkpoint_files(prefix, epoch)[1]
    names = _params_files(prefix)
    return names[0] if len(names) == 1 else None


def _params_files(prefix: str) -> List[str]:
    return [name for name in glob(f"{escape(prefix)}-*.params") if _EPOCH.fullmatch(name[len(prefix) :])]


def _epochs(prefix: str) -> str:
    """Return what to say of the parameters that are there, if there are several."""
    found = [int(name[len(prefix) + 1 : -len(".params")]) for name in _params_files(prefix)]
    return f"there are epochs {', '.join(map(str, sorted(found)))}; " if len(found) > 1 else ""


def _print(found: Inspection, dtype: str, prefix: str) -> None:
    console = stdout()
    console.print(found.report.table())
    pairs = found.report.totals + value_lines(found.changes, found.unfit, dtype)
    if found.report.param_bytes is None:
        pairs.append(("parameters", f"bytes unknown; {_epochs(prefix)}--epoch or --shape of every input tells them"))
    if found.report.activation_bytes is None:
        pairs.append(("activations", "bytes unknown; --shape of every input tells them"))
    pairs += _uneven_lines(found.uneven)
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
