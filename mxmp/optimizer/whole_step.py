"""An optimizer that rejects updates of single weights."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Tuple

import mxnet as mx

from ..errors import TrainerError
from ..train.masters import MultiPrecision

# What a plain trainer or module sets on its optimizer.
_SET_BY_OTHERS = ("param_dict", "idx2name", "sym_info", "aggregate_num")


class WholeStepOptimizer(MultiPrecision):
    """A `MultiPrecision` for subclasses that update all weights at once, or none.

    MXNet's trainers, modules and updaters update weight by weight, so that they are refused, each
    at the first thing that it does with its optimizer. All attributes that a subclass does not name
    are those of the inner optimizer.
    """

    # Attributes of the subclass.
    _own: ClassVar[Tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the inner optimizer's attribute."""
        if name in _SET_BY_OTHERS:
            _refuse(f"setting {name}")
        if name in self._own or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> NoReturn:
        """Refuse: a distributed kvstore pickles its optimizer for the servers."""
        _refuse("pickling it")

    @property
    def aggregate_num(self) -> NoReturn:
        """Refuse: what every ``mx.optimizer.Updater`` reads first."""
        _refuse("an updater")

    def create_state(self, index: int, weight: mx.nd.NDArray) -> NoReturn:
        """Refuse."""
        _refuse("create_state")

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> NoReturn:
        """Refuse."""
        _refuse("create_state_multi_precision")

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> NoReturn:
        """Refuse."""
        _refuse("update")

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> NoReturn:
        """Refuse."""
        _refuse("update_multi_precision")


def _refuse(call: str) -> NoReturn:
    raise TrainerError(
        f"{call}: a LossScaleOptimizer updates all weights at once, after all gradients are checked; call "
        "apply_gradients, or give it to mxmp.gluon.Trainer or mxmp.module.Module. A plain trainer, module or updater "
        "would update weight by weight, unchecked."
    )
