"""Ctrl-C between steps, so that none is torn apart."""

from __future__ import annotations

import contextlib
import signal
from typing import Any, Iterable, Iterator, TypeVar

from mxmp.distributed import saves_on_interrupt

Item = TypeVar("Item")


class Stopped(Exception):
    """Ctrl-C was pressed, and the present step is over."""


class Request:
    """Whether Ctrl-C was pressed.

    Attributes:
        made: Whether it was.
    """

    def __init__(self) -> None:
        self.made = False

    def guard(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items up to the one during which Ctrl-C was pressed.

        Raises:
            Stopped: Before the next item, or after the last.
        """
        for item in items:
            self._check()
            yield item
        self._check()

    def _check(self) -> None:
        if self.made:
            raise Stopped


@contextlib.contextmanager
def interruptible() -> Iterator[Request]:
    """Let the first Ctrl-C within the block make a request; the second one interrupts as ever.

    A launcher waits for the process meanwhile.
    """
    request = Request()
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        request.made = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        with saves_on_interrupt():
            yield request
    finally:
        signal.signal(signal.SIGINT, before)
