"""What commands do once their arguments are parsed: the only modules here that import MXNet, when they run."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from ..interrupts import raising


def run(command: str, *args: Any) -> Any:
    """Import the module of a command, 'convert' for example, and return what its function ``run`` returns."""
    logging.basicConfig(format="mxmp: %(levelname)s: %(message)s")
    work = import_module(f"{__package__}.{command}").run
    with raising():
        return work(*args)
