"""Ctrl-C, or any error, at a chosen line of the code that changes nets, parameters and steps."""

import contextlib
import os
import sys

import mxmp

# Where nets, parameters and steps are changed: the passes build new graphs.
CHANGING = tuple(os.path.join(os.path.dirname(mxmp.__file__), name) for name in ("gluon", "train", "diagnose"))


def interrupted(action, line, error=KeyboardInterrupt):
    """Whether an action was interrupted at this line of those that change something; it has fewer else."""
    return line <= _traced(action, line, error)


def cuts(first=1, every=1, least=20):
    """Yield a function that interrupts an action, at a later line each time, until the action has fewer lines.

    Args:
        first: The line of the first cut.
        every: How many lines lie between a cut and the next.
        least: How many lines the action has at least, or it was none of those that are cut.
    """

    def cut(action, error=KeyboardInterrupt):
        nonlocal was_cut
        was_cut = interrupted(action, line, error)
        return was_cut

    was_cut, line = True, first
    while was_cut:
        yield cut
        line += every
    assert line > least


def count_lines(action):
    """Return how many lines of those that change something an action has."""
    return _traced(action, None, KeyboardInterrupt)


def _traced(action, line, error):
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if not frame.f_code.co_filename.startswith(CHANGING):
            return None
        if event == "line":
            count += 1
            if count == line:
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(error):
            action()
    finally:
        sys.settrace(before)
    return count
