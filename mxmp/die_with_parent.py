"""Runs a command that dies when its launcher does: ``python die_with_parent.py FD COMMAND...``.

FD is the read end of a pipe whose write end only the launcher holds. When the launcher ends, however it does, the
pipe is closed: then the command and all that it started in its group are killed. It uses the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the command and exit as it does."""
    pipe = int(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the command gets it too, and may take its time
    command = subprocess.Popen(sys.argv[2:])
    threading.Thread(target=_kill_when_closed, args=(pipe,), daemon=True).start()
    code = command.wait()
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler, nor have those that the C library keeps
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _kill_when_closed(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
