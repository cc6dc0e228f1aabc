"""Runs a command that dies when its launcher dies: ``python die_with_parent.py FD COMMAND...``.

FD is the read end of a pipe. Only the launcher holds the write end, and the system closes it when the launcher ends.
Then the command is killed, with all processes that it started in its group. Only the standard library is used.
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
        signal.signal(number, lambda *_: None)  # the command gets the signal too, and may need time to end.
    command = subprocess.Popen(sys.argv[2:])
    threading.Thread(target=_kill_when_closed, args=(pipe,), daemon=True).start()
    code = command.wait()
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL and the signals of the C library have no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _kill_when_closed(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
