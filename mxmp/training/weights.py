"""What a training step needs to know of the weights that a trainer, a module or an optimizer trains."""

from __future__ import annotations

import abc
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx

from ..arrays.finite import first_non_finite
from ..distributed import KVStore
from ..masters.optimizer import MultiPrecision
from .running_stats import Named


class Update(NamedTuple):
    """What an ``mx.optimizer.Updater`` needs for one weight on one context, which is updated in place."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


class Weights(abc.ABC):
    """The weights of one step with their gradients, on one or several contexts.

    Attributes:
        updaters: One per context; or one alone, whose weights the other contexts copy: optimizers that draw
            noise (SGLD) or count their calls (Nadam) would let them drift apart.
        kvstore: What sums the gradients; None leaves every context its own.
    """

    optimizer: MultiPrecision
    updaters: Sequence[mx.optimizer.Updater]
    kvstore: Any = None

    @property
    def workers(self) -> Optional[KVStore]:
        """The kvstore if it sums over several workers, which must all decide alike."""
        return self.kvstore if isinstance(self.kvstore, KVStore) else None

    @abc.abstractmethod
    def groups(self) -> List[List[Update]]:
        """Return for each context the weights whose gradients are to be used."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a weight, for messages."""

    @abc.abstractmethod
    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradients of a weight that the user sees, one per context."""

    @abc.abstractmethod
    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the user see other arrays as gradients, by the index of their weight; `groups` has them from now on."""

    def accumulates(self, index: int) -> bool:
        """Return whether backward passes add to the gradient of a weight (``grad_req='add'``)."""
        return False

    def prepare_reduce(self) -> None:  # noqa: B027 (most have nothing to do)
        """Make all contexts' gradients fit to be summed."""

    def reduce(self) -> None:  # noqa: B027
        """Sum the gradients over contexts and workers, in place."""

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:  # noqa: B027
        """Give the contexts that have no updater the weights of the first."""

    def release(self) -> None:  # noqa: B027
        """Forget the gradients: the step is over."""

    def running_stats(self) -> Named:
        """Return BatchNorm's running statistics and their like, on every context."""
        return ()

    def losses(self) -> Sequence[mx.nd.NDArray]:
        """Return losses that nothing has checked yet; they are looked at only where gradients are not finite."""
        return ()

    def first_non_finite(self) -> Optional[str]:
        """Return the name of the first weight whose gradient is not finite; slow."""
        return first_non_finite((self.name(index), grad) for group in self.groups() for index, grad, _ in group)
