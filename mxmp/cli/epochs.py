"""The epochs of a checkpoint: which are there."""

from __future__ import annotations

import os
import re
from glob import escape, glob
from typing import List

from ..errors import CheckpointError
from ..symbol.checkpoint import checkpoint_files

_EPOCH = re.compile(r"-\d{4,}\.params")


def params_files(prefix: str) -> List[str]:
    """Return the files with parameters of a prefix."""
    return [name for name in glob(f"{escape(prefix)}-*.params") if _EPOCH.fullmatch(name[len(prefix) :])]


def epochs_there(prefix: str) -> str:
    """Return what to say of the epochs that are there, empty if there are none."""
    found = sorted(int(name[len(prefix) + 1 : -len(".params")]) for name in params_files(prefix))
    if len(found) == 1:
        return f"there is epoch {found[0]}"
    return f"there are epochs {', '.join(map(str, found))}" if found else ""


def check_epoch(prefix: str, epoch: int) -> str:
    """Return the file of an epoch's parameters.

    Raises:
        CheckpointError: If it is not there, but other epochs are.
    """
    file = checkpoint_files(prefix, epoch)[1]
    there = epochs_there(prefix)
    if there and not os.path.lexists(file):
        raise CheckpointError(f"{file}: there is no such file; {there}.")
    return file
