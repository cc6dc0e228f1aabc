"""The way from a command to its work, which needs MXNet."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from .interrupts import raising


def run(module: str, *args: Any) -> Any:
    """Import a module of this package, and return what its function ``run`` does.

    Args:
        module: Its name, 'run_convert' for example.
        *args: What ``run`` takes.
    """
    logging.basicConfig(format="mxmp: %(levelname)s: %(message)s")
    work = import_module(f"{__package__}.{module}").run
    with raising():
        return work(*args)
