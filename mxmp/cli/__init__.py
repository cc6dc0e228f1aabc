"""Internal: the command line, which parses arguments, prints, and does nothing else.

No module here imports MXNet, numpy or rich, which take seconds to import: a command imports them once its arguments are
checked, so that ``--help`` and wrong arguments are answered at once.
"""

from __future__ import annotations

from .interrupts import end_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional, Sequence


def main(args: Optional[Sequence[str]] = None, prog_name: str = "mxmp") -> NoReturn:
    """Run the program ``mxmp`` and end the process.

    From here on Ctrl-C ends it with one line and the exit code 130. Before, while Python starts and finds this
    function, it is Python's to handle, and so it is for a program that ``mxmp run`` runs.
    """
    end_at_once()
    from .commands import commands
    from .environment import Program

    try:
        commands.main(args, prog_name)
    except Program as e:
        program = e
    else:
        raise AssertionError("click ends the process")
    program.run()  # out of the block, so that its errors have no context of ours
