"""Checkpoints of modules, bucketing or not: all files of one, or none."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np

from ..checkpoint import checkpoint_files
from ..errors import CheckpointError
from ..files import manifest_of, require_set, saving
from ..symbol import load_params, load_symbol
from ..symbol.checkpoint import load_arrays, named_arrays, write_arrays, write_symbol


def save_checkpoint(
    module: Any,
    prefix: str,
    epoch: int,
    with_states: bool,
    symbols: Mapping[str, Any],
    remove_amp_cast: bool,
    keys: Optional[Sequence[Any]] = None,
) -> None:
    """Write symbols by file, the keys of buckets if there are any, the parameters and, if asked for, the states."""
    params = module.get_params()
    params_file, states = checkpoint_files(prefix, epoch)[1], states_files(prefix, epoch, with_states)
    lists = [] if keys is None else [f"{prefix}.buckets"]
    files = [*symbols, *lists, params_file, *states]
    with saving(f"{prefix}: the checkpoint", *files, manifest=manifest_of(params_file)) as names:
        written = dict(zip(files, names))
        for file, symbol in symbols.items():
            write_symbol(written[file], symbol, remove_amp_cast)
        for file in lists:
            write_arrays(written[file], [mx.nd.array(keys, dtype=np.int32)])
        write_arrays(written[params_file], named_arrays(*params))
        for file in states:
            module.save_optimizer_states(written[file])
    for kind, file in zip(("checkpoint", "optimizer state"), (params_file, *states)):
        module.logger.info('Saved %s to "%s"', kind, file)


def load_buckets(prefix: str, epoch: int, with_states: bool) -> Any:
    """Return the symbols of a checkpoint by bucket key, its arguments and its auxiliary states."""
    file = f"{prefix}.buckets"  # epochs share it, and a later one may have more keys, so no manifest is asked
    lists = load_arrays(file)
    if not isinstance(lists, list) or len(lists) != 1 or lists[0].ndim != 1:
        raise CheckpointError(f"{file}: expected one array of bucket keys, as save_checkpoint writes it.")
    keys = lists[0].asnumpy().astype(int).tolist()
    params_file = checkpoint_files(prefix, epoch)[1]
    symbol_files = [f"{prefix}-{key}-symbol.json" for key in keys]
    symbols = {key: load_symbol(symbol_file) for key, symbol_file in zip(keys, symbol_files)}
    params = load_params(params_file)
    require_set(manifest_of(params_file), *symbol_files, params_file, *states_files(prefix, epoch, with_states))
    return (symbols, *params)


def states_files(prefix: str, epoch: int, with_states: bool) -> Sequence[str]:
    """Return the file of the optimizer states of a checkpoint, in a list; an empty one without states."""
    return [f"{prefix}-{epoch:04d}.states"] if with_states else []
