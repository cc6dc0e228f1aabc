"""Ctrl-C between steps, so that none is torn apart."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let the first Ctrl-C within the block set an event; the second one interrupts as ever."""
    requested, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def request(number: int, frame: Any) -> None:
        requested.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, request)
    try:
        yield requested
    finally:
        signal.signal(signal.SIGINT, before)
