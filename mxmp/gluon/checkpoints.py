"""A net's parameters and its trainer's states, as the files of one checkpoint."""

from __future__ import annotations

from typing import Any, Tuple

from mxnet import gluon

from ..checkpoint import checkpoint_files
from ..errors import TrainerError
from ..files import manifest_of, require_file, require_set, saving
from . import files
from .trainer import Trainer


def save_checkpoint(prefix: str, epoch: int, net: gluon.Block, trainer: Trainer) -> None:
    """Save a net's parameters and its trainer's states as one set: all files or none.

    A run that loads both by `load_checkpoint` goes on bit for bit as if never stopped. The parameters are float32 and
    load in plain MXNet. The manifest has a hash of each file, so that a mixture that a kill leaves is refused.

    Args:
        prefix: Of the files ``<prefix>-<epoch>.params``, ``.states`` and ``.manifest.json``.
        epoch: Four digits in the names.
        net: Any Gluon net, converted or not.
        trainer: Its trainer, of mxmp.

    Raises:
        CheckpointError: If the epoch is no whole number from 0 on, or a file cannot be written; then nothing is
            changed.
        TrainerError: Between backward and step, or if ``net`` or ``trainer`` is none; then nothing is written.
    """
    params, states = _files("save_checkpoint", prefix, epoch, net, trainer)
    with saving(f"{prefix}: the checkpoint", params, states, manifest=manifest_of(params)) as names:
        files.save(names[0], net.save_parameters)
        trainer.save_states(names[1])


def load_checkpoint(prefix: str, epoch: int, net: gluon.Block, trainer: Trainer) -> None:
    """Load what `save_checkpoint` saved into a net and its trainer, which are made as before.

    Args:
        prefix: As for `save_checkpoint`.
        epoch: Likewise.
        net: The net, converted or not, under any policy.
        trainer: Its trainer, of mxmp.

    Raises:
        CheckpointError: If a file is missing or damaged, or was not saved together with the other; then nothing is
            changed.
        TrainerError: Between backward and step, or if ``net`` or ``trainer`` is none; then nothing is changed.
        StateError: If the states are of another training; the parameters are loaded by then.
    """
    params, states = _files("load_checkpoint", prefix, epoch, net, trainer)
    for file in (params, states):
        require_file(file)
    require_set(manifest_of(params), params, states)
    trainer._require_between_steps("load_checkpoint")
    files.check(params)
    net.load_parameters(params)
    trainer.load_states(states)


def _files(call: str, prefix: str, epoch: int, net: Any, trainer: Any) -> Tuple[str, str]:
    """Return the names of the files of parameters and states; raise if a call has no net or no trainer of mxmp."""
    if not isinstance(net, gluon.Block):
        raise TrainerError(f"{call}: expected a Gluon net, found a {type(net).__name__}.")
    if not isinstance(trainer, Trainer):
        raise TrainerError(
            f"{call}: expected a trainer of mxmp, found a {type(trainer).__name__} of {type(trainer).__module__}; see "
            "Trainer.adopt."
        )
    params = checkpoint_files(prefix, epoch)[1]
    return params, f"{prefix}-{epoch:04d}.states"
