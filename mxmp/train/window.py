"""The window of one training step: from its first scaled loss up to its update.

A scaler has at most one window. A window has the scale of its step, the gradients that backward passes of scaled losses
wrote, their state, and the flags that the host reads once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

import mxnet as mx

from ..arrays import merge_flags, round_into, scale_in_place, to_float32
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


class Written:
    """The gradients that backward passes of scaled losses wrote, of all trainers that step on these losses.

    Attributes:
        ids: The ids of the weights. An id leaves with the first step that uses the gradient.
        owners: The trainers, or the module. Each has a ``_scaler``, and a `mxmp.train.step.Step` as ``_training_step``.
    """

    def __init__(self) -> None:
        self.ids: Set[int] = set()
        self.owners = Alive()

    def windows(self) -> List[Tuple[Any, Window]]:
        """Return the owners that are in a step, each with its window."""
        return [(owner, owner._scaler.window) for owner in self.owners if owner._scaler.window is not None]

    def unscale_for_reader(self) -> None:
        """Unscale all gradients for somebody who reads one, unless the reader is in a block of this thread.

        A reader outside of a block waits for the blocks of other threads.
        """
        with LOCK:
            while not in_block() and any(window.is_open for _, window in self.windows()):
                LOCK.wait(0.1)  # A block whose thread was interrupted may end without notice.
            windows = self.windows()
            if any(window.is_open for _, window in windows):
                return
            done: Set[int] = set()
            for owner, window in windows:
                if not window.is_true and not window.is_summed and window.fault is None:
                    owner._training_step.unscale_for_reader(done)


class Shown(NamedTuple):
    """Low precision gradients by the index of their weight, and the float32 copies that are shown in their place."""

    step: Any
    originals: Mapping[int, List[mx.nd.NDArray]]
    copies: Mapping[int, List[mx.nd.NDArray]]


@dataclasses.dataclass(eq=False)
class Window:
    """One training step.

    Gradients are scaled and of each context at first. A reader makes them true, a step or ``unscale`` sums them.

    A flag is an array of shape (1,), float32, on a device: 1 or 0.

    Attributes:
        scale: The factor of the losses; the first one decides.
        is_true: Whether the gradients were divided by the scale. A block that follows on a reader scales them again.
        is_summed: Whether the gradients are summed over contexts and workers.
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
        shown: The float32 copies that are shown in place of low precision gradients.
        seen: The arrays that were divided by the scale for a reader; a further block multiplies them again.
    """

    scale: float = 1.0
    is_true: bool = False
    is_summed: bool = False
    written: Written = dataclasses.field(default_factory=Written)
    flags: Dict[str, mx.nd.NDArray] = dataclasses.field(default_factory=dict)
    failed: Set[str] = dataclasses.field(default_factory=set)
    finite: Optional[bool] = None
    reached: bool = False
    awaits_update: bool = False
    fault: Optional[Tuple[Type[TrainerError], str]] = None
    finite_after: List[Tuple[int, mx.nd.NDArray]] = dataclasses.field(default_factory=list)
    shown: List[Shown] = dataclasses.field(default_factory=list)
    seen: Sequence[mx.nd.NDArray] = ()

    @property
    def is_open(self) -> bool:
        """Whether a block of any thread is open."""
        return any(self in block.windows for block in open_blocks())

    def flag(self, name: str, flag: Optional[mx.nd.NDArray]) -> None:
        """Add a flag to those of its name; nothing if it is None."""
        if flag is not None:
            self.flags[name] = merge_flags([self.flags[name], flag]) if name in self.flags else flag

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

    def scale_again(self) -> None:
        """Multiply gradients that were unscaled for a reader by the scale, because more will be added to them."""
        if self.is_true and not self.is_summed:
            with self.changing():
                scale_in_place(self.seen, self.scale)
                self.hide_float32(keep=True)
                self.seen, self.is_true = (), False

    def hide_float32(self, keep: bool = False) -> None:
        """Show the gradients' own arrays again in place of float32 copies.

        Gradients that accumulate get the values of their copies, because a user may have zeroed these. With ``keep``
        all gradients get them.
        """
        for step, originals, copies in self.shown:
            step.set_grads(originals)
            for index in (index for index in copies if keep or step.accumulates(index)):
                for copy, grad in zip(copies[index], originals[index]):
                    round_into(copy.as_nd_ndarray(), grad.as_nd_ndarray())
        self.shown = []


def join(windows: Sequence[Window]) -> None:
    """Give the windows of trainers that step on one loss one set of written gradients."""
    together = windows[0].written
    for written in [window.written for window in windows if window.written is not together]:
        together.ids |= written.ids
        for owner in written.owners:  # Owners of earlier blocks too.
            together.owners.add(owner)
        for window in [*windows, *(window for _, window in written.windows())]:
            window.written = together


# ------------------------------------------------------------------ blocks


BLOCKS = Alive()
"""The `mxmp.gluon.gradients.LossBlock` objects that are open in any thread.

A block whose thread was interrupted goes with the last reference to it.
"""


def open_blocks() -> List[Any]:
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
        elif not self.window.is_true and not self.window.is_summed:
            self.show([to_float32(array) * (1.0 / self.window.scale) for array in plain(self)])
            self.window = Window(is_true=True)
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
