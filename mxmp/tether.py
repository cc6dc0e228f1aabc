"""Run a command that ends when its launcher does: ``python tether.py FD COMMAND...``, with the standard library alone.

FD is the reading end of a pipe whose other end only the launcher holds. When that is gone, however
it went, the pipe ends, and so do the command and all that it started in its group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the command and end as it does."""
    pipe = int(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the command gets it too, and may take its time
    command = subprocess.Popen(sys.argv[2:])
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    code = command.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
