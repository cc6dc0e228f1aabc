"""The window of one training step: from its first scaled loss up to its update.

A scaler has at most one window. A window has the scale of its step, the stage, the gradients that backward passes of
scaled losses wrote, and the flags that the host reads once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import threading
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Type

import mxnet as mx

from ..arrays import concat_scalars, merge_flags, to_float32
from ..errors import TrainerError

LOCK = threading.Condition(threading.RLock())
"""The only lock of a step. A thread holds it for a moment when it opens or leaves a block, or reads a gradient.

A thread that reads a gradient waits on it for the blocks of other threads.
"""

# Another thread may hold the lock in the parent process; the child does not have that thread.
os.register_at_fork(after_in_child=lambda: LOCK.__init__(threading.RLock()))  # type: ignore[misc]


class Alive:
    """A set of objects that keeps none of them alive, in the order in which they were added.

    Unlike a ``WeakSet`` it may be iterated while other threads add to it: all are looked up at once. A copy of it, or
    one from a pickle, has the copies of the objects.
    """

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        for each in objects:
            self.add(each)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Alive, (list(self),)

    def __iter__(self) -> Iterator[Any]:
        objects = [ref() for ref in self._objects.valuerefs()]
        return (each for each in objects if each is not None)

    def discard(self, each: Any) -> None:
        """Forget an object, if it is there."""
        self._objects.pop(id(each), None)

    def add(self, each: Any) -> None:
        """Add an object; one that is there already is there once."""
        self._objects[id(each)] = each


class Stage(enum.Enum):
    """Whether the gradients of a window are summed over contexts, and whether they have the scale."""

    SCALED = "of each context, times the scale"
    SEEN = "of each context, true: somebody has read one"
    SUMMED = "summed over contexts and workers, times the scale"
    TRUE = "summed, and true"


class Written:
    """The gradients that backward passes of scaled losses wrote, of all trainers that step on these losses.

    Attributes:
        ids: The ids of the weights. An id leaves with the first step that uses the gradient.
        owners: The `mxmp.gluon.gradients.Gradients` of each trainer, or the like of a module.
    """

    def __init__(self) -> None:
        self.ids: Set[int] = set()
        self.owners = Alive()

    def unscale_for_reader(self) -> None:
        """Unscale all gradients for somebody who reads one, unless the reader is in a block of this thread.

        A reader outside of a block waits for the blocks of other threads.
        """
        with LOCK:
            while not in_block() and any(owner.window is not None and owner.window.is_open for owner in self.owners):
                LOCK.wait(0.1)  # A block whose thread was interrupted may end without notice.
            owners = [owner for owner in self.owners if owner.window is not None]
            if any(owner.window.is_open for owner in owners):
                return
            done: Set[int] = set()
            for owner in owners:
                owner.make_true(done)

    def scale_again(self) -> None:
        """Multiply gradients that somebody has read back to the scale."""
        for owner in self.owners:
            owner.step.scale_again()


@dataclasses.dataclass(eq=False)
class Window:
    """One training step.

    A flag is an array of shape (1,), float32, on a device: 1 or 0.

    Attributes:
        scale: The factor of the losses; the first one decides.
        stage: Whether the gradients are summed, and whether they have the scale.
        written: The gradients that a scaled backward wrote.
        flags: 'losses': all losses are finite. 'gradients': all gradients were finite before they were unscaled.
            'statistics': no running statistic was lost. 'masters': each low precision weight equals its float32 master,
            rounded.
        failed: The names of the flags that the host has read as 0.
        finite: Whether the gradients are finite; None before the host has read it.
        reached: Whether a backward came through a scaled loss.
        awaits_update: Whether ``allreduce_grads`` was called, which ``update`` follows.
        fault: The class and the text of the error if the step cannot be made; None if it can.
        finite_after: With several losses, the number of each loss, and a flag of the gradients after its backward.
        shown: Float32 copies that are shown in place of low precision gradients.
        seen: The arrays that were divided by the scale for a reader; a further block multiplies them again.
    """

    scale: float = 1.0
    stage: Stage = Stage.SCALED
    written: Written = dataclasses.field(default_factory=Written)
    flags: Dict[str, mx.nd.NDArray] = dataclasses.field(default_factory=dict)
    failed: Set[str] = dataclasses.field(default_factory=set)
    finite: Optional[bool] = None
    reached: bool = False
    awaits_update: bool = False
    fault: Optional[Tuple[Type[TrainerError], str]] = None
    finite_after: List[Tuple[int, mx.nd.NDArray]] = dataclasses.field(default_factory=list)
    shown: List[Any] = dataclasses.field(default_factory=list)
    seen: Sequence[mx.nd.NDArray] = ()

    @property
    def is_true(self) -> bool:
        """Whether the gradients are true ones."""
        return self.stage in (Stage.SEEN, Stage.TRUE)

    @property
    def is_summed(self) -> bool:
        """Whether the gradients are summed over contexts and workers."""
        return self.stage in (Stage.SUMMED, Stage.TRUE)

    @property
    def is_open(self) -> bool:
        """Whether a block of any thread is open."""
        return any(self in block.windows for block in open_blocks())

    def flag(self, name: str, flag: Optional[mx.nd.NDArray]) -> None:
        """Add a flag to those of its name; nothing if it is None."""
        if flag is not None:
            self.flags[name] = merge_flags([self.flags[name], flag]) if name in self.flags else flag

    def read(self, values: Sequence[mx.nd.NDArray] = ()) -> List[float]:
        """Copy float32 arrays of shape (1,) and all flags to the host, at once; return the numbers of the arrays.

        On a GPU an inf becomes a NaN.
        """
        arrays = [*values, *self.flags.values()]
        numbers: List[float] = concat_scalars(arrays).asnumpy().tolist() if arrays else []
        self.failed |= {name for name, number in zip(self.flags, numbers[len(values) :]) if number != 1.0}
        if "gradients" in self.failed:
            self.finite = False
        return numbers[: len(values)]

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change gradients within this context; if it is cut, the step cannot be made any more."""
        before = self.fault
        self.fault = TrainerError, (
            "an earlier call of this step was interrupted, so that only some of its gradients are changed; call "
            "discard_grads to start again (with grad_req='add' zero_grad too)."
        )
        yield
        self.fault = before

    def require_sound(self, call: str) -> None:
        """Raise the error of a step that cannot be made."""
        if self.fault is not None:
            kind, text = self.fault
            raise kind(f"{call}: {text}")


def join(windows: Sequence[Window]) -> None:
    """Give the windows of trainers that step on one loss one set of written gradients."""
    together = windows[0].written
    for window in windows[1:]:
        if window.written is not together:
            together.ids |= window.written.ids
            for owner in window.written.owners:  # Owners of earlier blocks too.
                together.owners.add(owner)
                if owner.window is not None:
                    owner.window.written = together
            window.written = together


# ------------------------------------------------------------------ blocks


class Block:
    """A block in which backward passes of scaled losses run.

    Attributes:
        windows: Those of all owners that step on the losses; empty while the block is not open.
        thread: The number of its thread.
        is_alone: Whether no other block of its windows was open with it, and no two of its backward passes at once.
    """

    windows: Sequence[Window] = ()
    thread = 0
    is_alone = True


BLOCKS = Alive()
"""The blocks of all threads. A block whose thread was interrupted goes with the last reference to it."""


def open_blocks() -> List[Block]:
    """Return the open blocks of all threads."""
    return [block for block in BLOCKS if block.windows]


def in_block(window: Optional[Window] = None) -> bool:
    """Return whether this thread is in a block, of any window or of the given one."""
    mine = threading.get_ident()
    return any(block.thread == mine and (window is None or window in block.windows) for block in open_blocks())


# ------------------------------------------------------------------ readers of gradients


class TrueOnRead(List[mx.nd.NDArray]):
    """The gradients of a weight, one for each context, while they wait for a step: reading one unscales them all.

    Attributes:
        plain: The list that the parameter had before the step, and gets back after it.
        window: The window of the step.
    """

    def __init__(self, plain: List[mx.nd.NDArray], window: Window) -> None:
        super().__init__(plain)
        self.plain, self.window = plain, window

    def show(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Show readers other gradients."""
        super().__setitem__(slice(None), arrays)

    @property
    def is_left(self) -> bool:
        """Whether all trainers that would step with these gradients are gone."""
        return not any(self.window.written.owners)

    def copy(self) -> List[mx.nd.NDArray]:
        """Unscale the gradients; return them as a plain list."""
        if not self.is_left:
            self.window.written.unscale_for_reader()
        elif self.window.stage is Stage.SCALED:
            self.show([to_float32(array) * (1.0 / self.window.scale) for array in plain(self)])
            self.window = Window(stage=Stage.SEEN)
        return super().copy()

    def __getitem__(self, key: Any) -> Any:
        return self.copy()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.copy()
        super().__setitem__(key, value)

    def __contains__(self, array: Any) -> bool:
        return array in self.copy()

    def __iter__(self) -> Iterator[mx.nd.NDArray]:
        return iter(self.copy())

    def __reversed__(self) -> Any:
        return reversed(self.copy())

    def __add__(self, other: Any) -> Any:
        return self.copy() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.copy()

    def __mul__(self, count: Any) -> Any:
        return self.copy() * count

    __rmul__ = __mul__
    __copy__ = copy

    def pop(self, *index: Any) -> Any:
        """Return a gradient, which stays in the list."""
        return self.copy().pop(*index)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return a plain list of true gradients for copy and pickle: a copied net has gradients of its own."""
        return list, (self.copy(),)


def plain(arrays: Any) -> Any:
    """Return the gradients of a weight as they are, scaled or not."""
    return list.copy(arrays) if isinstance(arrays, TrueOnRead) else arrays
