"""The one observer of training: it hears of calls, losses and steps, and is asked why a step is not finite.

Training knows nothing of diagnosis but these methods. `mxmp.diagnose` registers the observer that notes the calls of a
step and runs them again; it is imported when the first trainer or module is made.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, List, Optional, Sequence

from .scaler import Scaler


class Observer:
    """Hears of everything and does nothing."""

    def on_owner(self, owner: Any, scaler: Scaler) -> None:
        """Hear that a trainer or module makes steps with a scaler from now on."""

    def on_call(self, net: Any, params: Sequence[Any], graph: Any, inputs: Sequence[Any], outputs: Any) -> Any:
        """Hear of a recorded call of a converted net with these parameters; return the outputs to go on with."""
        return outputs

    def on_loss(self, trainer: Any, loss: Any) -> None:
        """Hear of the loss of a trainer's step before it is scaled, or of nested lists and tuples of losses."""

    def on_end(self, owner: Any) -> None:
        """Hear that the present step of a trainer is over."""

    def explain(self, owner: Any) -> Optional[str]:
        """Return why the present step is not finite, in sentences; None if that is not found out."""
        return None

    def bad_input(self, owner: Any) -> Optional[str]:
        """Return which input of the present step holds NaN; None if none is known to."""
        return None


_REGISTERED: List[Observer] = [Observer()]


def register(observer: Observer) -> None:
    """Make an observer the one that hears of everything."""
    _REGISTERED[0] = observer


def observer() -> Observer:
    """Return the observer."""
    return _REGISTERED[0]


def observe_steps(scaler: Scaler, owner: Any) -> None:
    """Have the steps that an owner makes with a scaler observed, and explained where they fail."""
    importlib.import_module("mxmp.diagnose")  # by name, as it stands above this in the layers
    observer().on_owner(owner, scaler)
    scaler.explain = functools.partial(_explain, owner)
    scaler.bad_input = functools.partial(_bad_input, owner)


def _explain(owner: Any) -> Optional[str]:  # functions of a module, as scalers are copied and pickled with trainers
    return observer().explain(owner)


def _bad_input(owner: Any) -> Optional[str]:
    return observer().bad_input(owner)
