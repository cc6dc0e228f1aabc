"""The one place where the processor of this machine is read, with the state of AMX."""

from __future__ import annotations

from ..processors import Processor, read_cpuinfo
from .amx import amx_status


def read_processor() -> Processor:
    """Return the processor of this machine, and whether MXNet uses AMX on it.

    The first call on a processor with AMX imports MXNet and asks oneDNN, by one small product (`amx.amx_status`).

    Example:
        >>> read_processor().kind.name in ("no bfloat16", "AMX")  # doctest: +SKIP
        True
    """
    return read_cpuinfo()._replace(amx=amx_status())
