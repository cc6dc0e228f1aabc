"""Time eight networks in float32, untuned, and with the policy that `mxmp.tune` finds, in training and in inference.

The times are not the tuner's: all three are built anew, as a user builds them, and take turns. Where the tuner returns
float32 or the untuned policy, that is not measured twice. Run it from the repository:
``OMP_NUM_THREADS=2 python -m benchmarks.tune``.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Dict, List, Optional, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import requirements, timing
from benchmarks.common import machine, use_threads
from benchmarks.compare import clock_of, compare, make_compare_parser
from benchmarks.comparison import FLOAT32, OWN, Column, Comparison, Found
from benchmarks.requirements import INFERENCE, TRAINING, TUNED
from benchmarks.tunables import NETWORKS, Tunable, make_tunable, start
from mxmp import Policy
from mxmp.tune.by_time import SECONDS

UNTUNED = "untuned"


def measure(tunable: Tunable, objective: str, args: argparse.Namespace, bfloat16: bool, until: float) -> List[Column]:
    """Return the columns of float32, the untuned and the tuned policy, tuned here."""
    untuned = Policy.parse(args.policy)
    begin = time.perf_counter()
    result = tunable.tune(objective, args.policy, args.seconds)
    took = time.perf_counter() - begin
    returned = result.fastest if result.fastest in (FLOAT32, UNTUNED) else TUNED
    policies: Dict[str, Optional[Policy]] = {FLOAT32: None, UNTUNED: untuned, returned: result.policy}
    policies[FLOAT32] = None  # MXNet alone
    runs, missing = {}, {}
    for name, policy in policies.items():
        run, missing[name] = start(tunable, objective, policy, bfloat16)
        if run is not None:
            runs[name] = timing.timer(run, clock_of(args))
    seconds = timing.take_turns(runs, args.rounds, max(until, time.perf_counter() + args.seconds))
    columns = [
        Column(objective, FLOAT32, FLOAT32, FLOAT32, seconds[FLOAT32]),
        Column(objective, OWN, UNTUNED, untuned.compute_dtype, seconds.get(UNTUNED, []), missing=missing[UNTUNED]),
    ]
    notes = {"returned": result.fastest, "tuning_seconds": took, "policy": str(result.policy), "tuner": result.seconds}
    dtype, times = result.policy.compute_dtype, seconds.get(returned, [])
    return [*columns, Column(objective, OWN, TUNED, dtype, times, missing=missing[returned], notes=notes)]


def tuned_table(found: Found, objectives: Sequence[str]) -> Table:
    """Return what the tuner returned, how fast it is beside the better of the others, and how long it took."""
    table = Table("network", "objective", "returned", "against the better", "tuned in, s")
    for name, comparison in found.items():
        for objective in objectives:
            column = requirements.tuned_column(comparison, objective)
            ratio = requirements.against_better(objective)(comparison)
            if column is not None and column.notes is not None:
                shown = "-" if ratio is None else f"{ratio:.2f}"
                table.add_row(name, objective, column.notes["returned"], shown, f"{column.notes['tuning_seconds']:.1f}")
    return table


def parse_args(argv: Optional[List[str]]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_compare_parser(__doc__.splitlines()[0])
    both = [TRAINING, INFERENCE]
    listed = " ".join(NETWORKS)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME", help=listed)
    parser.add_argument("--objectives", nargs="+", choices=both, default=both, metavar="OBJECTIVE", help=" ".join(both))
    parser.add_argument("--policy", default="mixed_bfloat16", help="to begin with; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each tuning; default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=0, help="default: each network's own")
    parser.set_defaults(budget=2400)
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    """Tune, measure, print tables and requirements, write JSON and plot."""
    args = parse_args(argv)
    unit = str(machine()["bfloat16"])
    found: Dict[str, Comparison] = {}

    def measure_network(name: str, until: float) -> Comparison:
        tunable = make_tunable(name, args.batch_size, args.seed)
        columns = [measure(tunable, objective, args, bool(unit), until) for objective in args.objectives]
        found[name] = Comparison([column for each in columns for column in each])
        return found[name]

    compare("tune", "Tuned", args, measure_network, lambda each: requirements.tuning(each, unit))
    Console().print(tuned_table(found, args.objectives))
    return 0


if __name__ == "__main__":
    use_threads("benchmarks.tune")
    sys.exit(main())
