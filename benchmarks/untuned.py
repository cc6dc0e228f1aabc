"""Time every classifier of Gluon's model zoo and of GluonCV in float32 and in mixed_bfloat16 as it comes, untuned.

A training step is forward and backward. Inference is that of a net that is hybridized, and of one whose operators
MXNet fuses, with mxmp of a frozen one. Networks that fail are a line. Run it from the repository:
``OMP_NUM_THREADS=2 python -m benchmarks.untuned``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Callable, Dict, List, Optional

import mxnet as mx

import mxmp
from benchmarks import requirements, timing
from benchmarks.common import machine, use_threads
from benchmarks.compare import clock_of, compare, make_compare_parser
from benchmarks.comparison import FLOAT32, OWN, Column, Comparison
from benchmarks.forms import FUSED
from benchmarks.requirements import FOLDED, INFERENCE, TRAINING
from benchmarks.tasks import Case, classifier, classifiers
from benchmarks.tunables import GluonNetwork, Run, start
from mxmp import Policy


class Classifier(GluonNetwork):
    """A classifier of GluonCV, which is also built for inference alone: fused by MXNet, or frozen."""

    def build(self, objective: str, policy: Optional[Policy]) -> Run:
        """Build the net and convert it."""
        if objective != FOLDED:
            return super().build(objective, policy)
        task = self._task()
        net = task.net
        if policy is None:
            net.hybridize(**FUSED)
        else:
            net(*task.inputs)  # so that all parameters have values
            net = mxmp.gluon.freeze(net, policy)

        def infer() -> None:
            net(*task.inputs)
            mx.nd.waitall()

        return infer

    def _case(self) -> Case:
        return classifier(self.name)


def measure(
    network: GluonNetwork, objective: str, args: argparse.Namespace, bfloat16: bool, until: float
) -> List[Column]:
    """Return the columns of float32 and of the policy; one that does not run is a line and no end."""
    policy = Policy.parse(args.policy)
    columns = [
        Column(objective, FLOAT32, FLOAT32, FLOAT32),
        Column(objective, OWN, str(args.policy), policy.compute_dtype),
    ]
    runs: Dict[str, Callable[[], float]] = {}
    for number, (column, given) in enumerate(zip(columns, (None, policy))):
        run, why = start(network, objective, given, bfloat16)
        columns[number] = column._replace(missing=why)
        if run is not None:
            runs[column.who] = timing.timer(run, clock_of(args))
    seconds = timing.take_turns(runs, args.rounds, until)
    return [column._replace(seconds=seconds.get(column.who, [])) for column in columns]


def parse_args(argv: Optional[List[str]]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_compare_parser(__doc__.splitlines()[0])
    every = [TRAINING, INFERENCE, FOLDED]
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="of GluonCV; default: all its classifiers")
    listed = ", ".join(map(repr, every))
    parser.add_argument("--objectives", nargs="+", choices=every, default=every, metavar="OBJECTIVE", help=listed)
    parser.add_argument("--policy", default="mixed_bfloat16", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=0, help="default: 4, of CIFAR's networks 32")
    parser.set_defaults(budget=1500, rounds=5)
    args = parser.parse_args(argv)
    args.networks = args.networks or classifiers()
    return args


def main(argv: Optional[List[str]] = None) -> int:
    """Measure, print tables and requirements, write JSON and plot."""
    args = parse_args(argv)
    unit = str(machine()["bfloat16"])

    def measure_network(name: str, until: float) -> Comparison:
        network = Classifier(name, args.batch_size, args.seed)
        columns = [measure(network, objective, args, bool(unit), until) for objective in args.objectives]
        return Comparison([column for each in columns for column in each])

    compare("untuned", "Untuned", args, measure_network, lambda found: requirements.untuned(found, unit))
    return 0


if __name__ == "__main__":
    use_threads("benchmarks.untuned")
    sys.exit(main())
