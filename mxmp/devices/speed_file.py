"""What was measured on a machine, kept in the user's cache folder: ``$XDG_CACHE_HOME/mxmp`` or ``~/.cache/mxmp``.

A file that is missing, damaged or cannot be written is no error: it is measured anew.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, Dict, List, Optional

from ..errors import MxmpError
from ..files import cache_folder, replacing
from .machine import library, read_machine

_LOG = logging.getLogger(__name__)

_NAME = "bfloat16-1.json"  # another number when other things are measured
_MOST = 64  # machines that share the folder
_VALUES = 4


def path() -> Optional[str]:
    """Return the file's path; None where the user has no folder."""
    folder = cache_folder()
    return None if folder is None else os.path.join(folder, _NAME)


def describe_machine() -> str:
    """Return what the speed depends on: processor, threads, instructions in use, and the very file that MXNet is."""
    return f"{read_machine()}, {os.stat(library()).st_mtime_ns}"


def load(machine: str) -> Optional[List[float]]:
    """Return what was kept for a machine; None if nothing fit to use was."""
    values = _read().get(machine)
    if not isinstance(values, list) or len(values) != _VALUES:
        return None
    return values if all(_is_ratio(value) for value in values) else None


def store(machine: str, values: List[float]) -> None:
    """Keep what was measured on a machine, beside what is kept of others."""
    name = path()
    if name is None:
        return
    kept = _read()
    kept.pop(machine, None)
    newest = dict([*kept.items(), (machine, values)][-_MOST:])
    try:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        with replacing(name) as (temporary,), open(temporary, "w", encoding="utf-8") as file:
            json.dump(newest, file, indent=1)
    except (OSError, MxmpError) as e:
        _LOG.info("%s cannot be written, so that the speed of bfloat16 is measured in each process: %s", name, e)


def _read() -> Dict[str, Any]:
    name = path()
    try:
        with open(name or "", encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_ratio(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0
