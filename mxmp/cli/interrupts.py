"""Ctrl-C: one line and an exit code, whatever runs at that moment.

While modules are imported, an exception would not do: a C extension makes an ImportError of it, and a library may
swallow it. There is nothing to clean up then, so the process ends at once. Commands that have begun get a
KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, NoReturn

INTERRUPTED = 130
"""The exit code that a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""

LINE = "mxmp: interrupted"


def end_at_once() -> None:
    """Let Ctrl-C end the process from here on; not one that was started to ignore it, as by nohup."""
    # Python leaves its own handler out where the parent has the signal ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = _unraisable


def as_python() -> None:
    """Leave Ctrl-C to Python again, for a program that runs in place of the command line."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = sys.__unraisablehook__


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl-C raise a KeyboardInterrupt within the block, if it would end the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: Any) -> NoReturn:
    # Neither print nor sys.exit: the signal may have come in the middle of a write, or within an import that swallows
    # whatever is raised.
    os.write(2, f"{LINE}\n".encode())
    os._exit(INTERRUPTED)


def _unraisable(unraisable: Any) -> None:
    """End the process where a KeyboardInterrupt was lost: in a destructor, say, which cannot raise it."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(unraisable)
