"""How fast mxmp is here, beside MXNet's float32, contrib.amp and others that are installed.

A name like ``training`` is a group of cases, ``training/lstm`` one of them, and any classifier of Gluon's or GluonCV's
model zoo may be named: ``inference/cifar_resnet110_v1``. Columns of a case take turns, round by round, and are compared
within rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from typing import List, Optional


def main(argv: Optional[List[str]] = None) -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("cases", nargs="*", metavar="GROUP[/CASE]", help="what to measure; default: all")
    add("--list", action="store_true", help="print the groups and their cases, and end")
    add("--json", default="", metavar="FILE", help="write all that was measured")
    add("--store", default="", metavar="FOLDER", help="write it into a file of this kind of processor, for the tables")
    add("--plot", default="", metavar="FILE", help="draw it")
    add("--threads", type=int, help="of MXNet's operators; default: OMP_NUM_THREADS, or all cores")
    add("--policy", default="mixed_bfloat16", help="of inference and training; default: %(default)s")
    add("--float16", action="store_true", help="train in emulated float16, O1 and O2, too")
    add("--batch-size", type=int, default=0, help="default: each case's own")
    add("--image-size", type=int, default=0, help="or words of a sentence; default: each case's own")
    add("--rounds", type=int, default=11, help="at most; default: %(default)s")
    add("--seconds", type=float, default=0.0, help="about how long a case may take, once it has 5 rounds")
    add("--cpu-time", action="store_true", help="the process's CPU time, on a machine that others use; for one thread")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--small", action="store_true", help="one small case of each group, in this process: tries the benchmarks out")
    args = parser.parse_args(argv)
    if args.threads:  # MXNet reads it from the environment once, when it is imported
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    from .cases import GROUPS, Options
    from .runner import choose, run

    if args.list:
        for name, group in GROUPS.items():
            print(f"{name}: {group.about}; about {group.seconds:g} s a case", *group.cases, sep="\n    ")
        return 0
    try:
        cases = choose(args.cases, args.small)
    except ValueError as e:
        parser.exit(2, f"python -m benchmarks: {e}\n")
    options = vars(args)
    if args.small:
        options.update(batch_size=2, image_size=32, rounds=1)
    run(cases, Options(**{each.name: options[each.name] for each in fields(Options)}), args.json, args.plot, args.store)
    return 0


if __name__ == "__main__":
    sys.exit(main())
