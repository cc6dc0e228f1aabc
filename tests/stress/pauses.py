"""One thread that is held up at a chosen line while another one works: races that come each time."""

import os
import sys
import threading

import mxmp

HERE = os.path.dirname(mxmp.__file__)
TRAIN = os.path.join(HERE, "train")
CALLS = tuple(os.path.join(HERE, *path) for path in (("diagnose", "rerun.py"), ("diagnose", "watch.py"), ("train", "step.py")))
"""The files that keep the recorded calls of a trainer's nets, and tell of them."""


def paused(action, line, meanwhile, files):
    """Run an action, and another one in a second thread when the first is at this line of those in some files.

    Returns whether it has so many lines. If the second one waits for the first, as for a lock, both go on after half a
    second. An error of the second one is raised when the first is done.
    """
    count, errors = 0, []

    def work():
        try:
            meanwhile()
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=work)

    def trace(frame, event, arg):
        nonlocal count
        if not frame.f_code.co_filename.startswith(files):
            return None
        if event == "line":
            count += 1
            if count == line:
                thread.start()
                thread.join(0.5)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        if count >= line:
            thread.join(30)
            assert not thread.is_alive()
    for error in errors:
        raise error
    return count >= line
