"""What the benchmarks of whole networks share: options, the way through the networks, and what they print and write."""

from __future__ import annotations

import argparse
import functools
import os
import time
from typing import Callable, Dict, List

from rich.console import Console
from rich.progress import track

from benchmarks import tables
from benchmarks.common import add_threads, describe, machine, make_parser, write
from benchmarks.comparison import Comparison, Found, to_json
from benchmarks.requirements import Check
from benchmarks.timing import Clock

WIDTH = 130
"""Of tables that go to no terminal: wide enough for all columns."""


def make_compare_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that both benchmarks have."""
    parser = make_parser(description)
    add_threads(parser)
    parser.add_argument("--rounds", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--budget", type=float, default=300, help="seconds for it all, about; default: %(default)s")
    cpu_time = "take the process's CPU time for the clock's, on a machine that others use; for one thread"
    parser.add_argument("--cpu-time", action="store_true", help=cpu_time)
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser


def clock_of(args: argparse.Namespace) -> Clock:
    """Return the clock that the options ask for."""
    return time.process_time if args.cpu_time else time.perf_counter


def compare(
    name: str,
    title: str,
    args: argparse.Namespace,
    measure: Callable[[str, float], Comparison],
    require: Callable[[Found], List[Check]],
) -> None:
    """Measure network after network, write JSON after each of them, and print and plot it all in the end.

    Args:
        name: Of the benchmark, and of what it writes.
        title: Of tables and plot.
        args: The options, ``networks`` among them.
        measure: Gets a network's name, and until when it may go on (`time.perf_counter`).
        require: Makes the checks of what was found.
    """
    found: Dict[str, Comparison] = {}
    end = time.perf_counter() + args.budget
    options = {key: value for key, value in vars(args).items() if key != "out"}
    for number, network in enumerate(track(args.networks, "measuring", transient=True)):
        share = (end - time.perf_counter()) / (len(args.networks) - number)
        found[network] = measure(network, time.perf_counter() + share)
        networks = {key: to_json(each) for key, each in found.items()}
        checks = [check._asdict() for check in require(found)]
        file = write(args.out, name, {"options": options, "networks": networks, "requirements": checks})
    tables.plot(found, str(args.out / f"{name}.png"), title)
    _show(found, title, [*tables.missing_lines(found), *map(str, require(found))])
    Console().print(f"Written: {os.path.relpath(file)} and {name}.png beside it", soft_wrap=True)


def _show(found: Found, title: str, lines: List[str]) -> None:
    """Print the machine, a table for each front, and lines."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    print_line = functools.partial(console.print, soft_wrap=True, markup=False, highlight=False)
    for front in tables.fronts(found):
        console.print(tables.table(found, front, f"{title}, {front}"))
    print_line(describe(machine()))
    for line in lines:
        print_line(line)
