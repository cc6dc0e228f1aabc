"""The files of a checkpoint, which share a prefix: ``net-symbol.json`` and ``net-0007.params``, as MXNet names them."""

from __future__ import annotations

import os
import re
from glob import escape, glob
from typing import List, Optional, Tuple

from .errors import CheckpointError
from .files import require_folder

_EPOCH = re.compile(r"-(\d{4}|[1-9]\d{4,})\.params")
_NUMBER = re.compile(r"-\d+\.params")


def checkpoint_files(prefix: str, epoch: int) -> Tuple[str, str]:
    """Return the names of a checkpoint's files, of symbol and parameters, if the epoch is a whole number from 0 on."""
    if type(epoch) is not int or epoch < 0:
        raise CheckpointError(f"epoch={epoch!r}: expected a whole number from 0 on, as in '{prefix}-0007.params'.")
    return f"{prefix}-symbol.json", f"{prefix}-{epoch:04d}.params"


def saved_epochs(prefix: str) -> List[int]:
    """Return the epochs of which there are files of parameters, in ascending order.

    Raises:
        CheckpointError: If the only files have epochs that MXNet writes otherwise, such as ``net-3.params``.
    """
    names = {file: file[len(prefix) :] for file in glob(f"{escape(prefix)}-*.params")}
    found = sorted(int(match[1]) for match in map(_EPOCH.fullmatch, names.values()) if match)
    for file, name in sorted(names.items()):
        if not found and _NUMBER.fullmatch(name):
            expected = checkpoint_files(prefix, int(name[1:-len(".params")]))[1]
            raise CheckpointError(f"{file}: MXNet writes the epoch in four digits; rename it to '{expected}'.")
    return found


def describe_epochs(prefix: str) -> str:
    """Return what to say of the epochs that are there, '' without any."""
    epochs = saved_epochs(prefix)
    one = "there is epoch" if len(epochs) == 1 else "there are epochs"
    return f"{one} {', '.join(map(str, epochs))}" if epochs else ""


def params_file_of(prefix: str, epoch: int) -> str:
    """Return the name of a file of parameters that is there; a CheckpointError has the epochs that are."""
    file = checkpoint_files(prefix, epoch)[1]
    if not os.path.lexists(file):
        found = describe_epochs(prefix)
        raise CheckpointError(f"{file}: there is no such file{found and '; '}{found}.")
    return file


def only_epoch(prefix: str) -> int:
    """Return the epoch of the only parameters that a prefix has; a CheckpointError has all that there are."""
    found = saved_epochs(prefix)
    if len(found) != 1:
        raise CheckpointError(
            f"{prefix}: give the EPOCH of its parameters; {describe_epochs(prefix) or 'there are none'}."
        )
    return found[0]


def require_checkpoint(prefix: str, epoch: Optional[int] = None) -> None:
    """Check, before any work, that the file of a symbol is there, and the parameters of an epoch unless it is None."""
    file = f"{prefix}-symbol.json"
    if not os.path.lexists(file):
        raise CheckpointError(f"{file}: there is no such file.")
    if epoch is not None:
        params_file_of(prefix, epoch)


def check_out_prefix(prefix: str, out_prefix: str, given: str = "out_prefix=") -> None:
    """Refuse, before any work, to write over the checkpoint itself or into a missing folder.

    ``given`` is what stands before ``out_prefix`` where it is given.
    """
    if os.path.realpath(prefix) == os.path.realpath(out_prefix):
        raise CheckpointError(f"{given}{out_prefix!r} is the prefix of the checkpoint itself; give another.")
    require_folder(out_prefix)
