"""Why a step is not finite: `mxmp.diagnose` finds it out, and registers here how, by the class of who makes the step.

Training knows nothing of diagnosis: that is imported when a step is to be explained for the first time.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable, Optional

from .scaler import Scaler


@functools.singledispatch
def explain(owner: Any) -> Optional[str]:
    """Return why the present step of a trainer or module is not finite, in sentences; None if that is not found out."""
    return None


@functools.singledispatch
def bad_input(owner: Any) -> Optional[str]:
    """Return which input of the present step holds NaN; None if none is known to."""
    return None


def let_explain(scaler: Scaler, owner: Any) -> None:
    """Have the steps of a scaler explained as those of an owner from now on."""
    scaler.explain = functools.partial(_ask, explain, owner)
    scaler.bad_input = functools.partial(_ask, bad_input, owner)


def _ask(question: Callable[[Any], Optional[str]], owner: Any) -> Optional[str]:
    importlib.import_module("mxmp.diagnose")  # by name, as it stands above this in the layers
    return question(owner)
