"""Time the import of MXNet with mxmp before it against the import of MXNet alone.

Where MXNet needs the names that mxmp gives it (docs/python.md), the peer gets them by hand, untimed. Every import
is that of a new process; the two take turns. Run it from the repository: ``python -m benchmarks.import_time``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from typing import Dict, List

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import make_parser, write
from mxmp import compat
from mxmp.compat import old_modules

TARGET = 20.0
"""How many milliseconds the import of mxmp may add to that of MXNet."""

OWN = """
import time
start = time.perf_counter()
import mxmp
import mxnet
print(time.perf_counter() - start)
"""
PEER = """
import time
start = time.perf_counter()
import numpy
import mxnet
print(time.perf_counter() - start)
"""
PEER_BY_HAND = """
import builtins, sys, time, types
start = time.perf_counter()
import numpy
seconds = time.perf_counter() - start
for name in {names}:  # MXNet's import reads them and calls none
    if not hasattr(numpy, name):
        setattr(numpy, name, getattr(builtins, name, max))
version = types.ModuleType("distutils.version")
version.StrictVersion = version.LooseVersion = lambda text: [int(part) for part in text.split(".")[:2]]
sys.modules.update({{"distutils": types.ModuleType("distutils"), "distutils.version": version}})
start = time.perf_counter()
import mxnet
print(seconds + time.perf_counter() - start)
"""


def seconds_of(code: str) -> float:
    """Return what a new process prints."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120).stdout)


def measure(rounds: int) -> Dict[str, List[float]]:
    """Return the seconds of each import; the two take turns, the first changes from round to round."""
    peer = PEER_BY_HAND.format(names=list(old_modules.numpy_names(np))) if compat.needed() else PEER
    codes = {"mxmp and MXNet": OWN, "MXNet": peer}
    found: Dict[str, List[float]] = {who: [] for who in codes}
    for number in range(rounds + 1):
        for who in list(codes)[:: -1 if number % 2 else 1]:
            seconds = seconds_of(codes[who])
            if number:  # the first round warms the file cache
                found[who].append(seconds)
    return found


def main(argv: List[str] | None = None) -> int:
    """Measure, print the table, write JSON."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="timed imports of each; default: %(default)s")
    args = parser.parse_args(argv)
    found = measure(args.rounds)
    own, peer = found.values()
    added = 1e3 * median(a - b for a, b in zip(own, peer))
    table = Table("import", "ms (median)", title=f"Python {sys.version.split()[0]}")
    for who, seconds in found.items():
        table.add_row(who, f"{1e3 * median(seconds):.0f}")
    table.add_row(f"added (at most {TARGET:g})", f"{added:.1f}")
    file = write(args.out, "import_time", {"seconds": found, "added_ms": added, "target_ms": TARGET})
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
