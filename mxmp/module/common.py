"""The common parts of `Module` and `BucketingModule`: policy, loss scale, and files of parameters and checkpoints."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import mxnet as mx
import numpy as np

from ..checkpoint import checkpoint_files
from ..devices.auto import parse_policy
from ..errors import CheckpointError
from ..files import manifest_of, require_set, saving
from ..loss_scale import LossScale, parse
from ..policy import Policy
from ..symbol import load_params, load_symbol
from ..symbol.checkpoint import load_arrays, named_arrays, save_params, write_arrays, write_symbol
from ..train.scaler import ScalerStatus


class PolicyStatus(ScalerStatus):
    """The policy, the loss scale and the files of parameters of a module, bucketing or not."""

    _policy: Policy
    get_params: Any
    set_params: Any

    @property
    def policy(self) -> Policy:
        """The precision policy."""
        return self._policy

    def _set_loss_scale(self, spec: Any) -> None:
        self._scaler.loss_scale = loss_scale_of(self._policy, spec)

    def save_params(self, fname: str) -> None:
        """Write the float32 parameters, whole or not at all, as ``mx.mod.Module.save_params``.

        Raises:
            CheckpointError: If the file cannot be written; an older file stays as it was.
            TrainerError: If a parameter was written to past its float32 master.
        """
        save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Set the parameters to those of a file that `save_params` wrote.

        Raises:
            CheckpointError: If the file is missing or damaged; then nothing is changed.
        """
        self.set_params(*load_params(fname))


def policy_of(policy: Union[str, Policy], context: Any) -> Policy:
    """Return the policy of a module on a context, a list of them, or None for the CPU; 'auto' goes by them."""
    contexts = context if isinstance(context, (list, tuple)) else [mx.cpu() if context is None else context]
    return parse_policy(policy, [each for each in contexts if isinstance(each, mx.Context)])


def loss_scale_of(policy: Policy, loss_scale: Any) -> LossScale:
    """Return the loss scale that an argument means; 'policy' means the policy's."""
    return parse(policy.loss_scale if isinstance(loss_scale, str) and loss_scale == "policy" else loss_scale)


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
