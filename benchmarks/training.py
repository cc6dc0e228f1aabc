"""Time training steps of six networks in float32, with contrib.amp and with mxmp, forward to update.

The modes take turns, one step each, so that whatever else the machine does hits all of them alike. Each runs in a
process of its own: contrib.amp changes MXNet for the whole process, and networks that share one may slow each other
down. Run it from the repository: ``OMP_NUM_THREADS=2 python -m benchmarks.training``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from benchmarks import requirements, timing
from benchmarks.common import first_line, machine, use_threads
from benchmarks.compare import clock_of, compare, make_compare_parser
from benchmarks.comparison import FAILS, FLOAT32, NO_BFLOAT16, OWN, PEER, Column, Comparison, Found
from benchmarks.tasks import CASES
from benchmarks.trainings import Remote
from mxmp import Policy, dtypes

POLICIES = ["mixed_bfloat16", "param=bfloat16,compute=bfloat16"]
EMULATED = ["O1", "O2"]
TITLES = {POLICIES[1]: "bfloat16, stored", "O1": "float16 O1", "O2": "float16 O2"}
WARMUP = 2


class Mode(NamedTuple):
    """A way to train: MXNet's own, contrib.amp's, or a policy of mxmp; ``text`` is as `Training` takes it."""

    text: str
    who: str
    dtype: str

    @property
    def title(self) -> str:
        """What the mode is called in a table."""
        return TITLES.get(self.text, self.text)


def modes(policies: Sequence[str]) -> List[Mode]:
    """Return float32, contrib.amp if a policy computes in bfloat16, and the policies."""
    own = [Mode(text, OWN, Policy.parse(text).compute_dtype) for text in policies]
    peer = [Mode(PEER, PEER, dtypes.BFLOAT16)] if any(mode.dtype == dtypes.BFLOAT16 for mode in own) else []
    return [Mode(FLOAT32, FLOAT32, dtypes.FLOAT32), *peer, *own]


def start(mode: Mode, name: str, args: argparse.Namespace, bfloat16: bool) -> Tuple[Optional[Remote], str]:
    """Return a training that is warm, or why there is none."""
    if mode.dtype == dtypes.BFLOAT16 and not bfloat16:
        return None, NO_BFLOAT16
    try:
        training = Remote(name, mode.text, args.batch_size, args.seed, clock_of(args))
        for _ in range(WARMUP):
            training.step()
        return training, ""
    except RuntimeError as e:
        return None, f"{FAILS}{first_line(e)}"


def measure(name: str, tried: Sequence[Mode], args: argparse.Namespace, bfloat16: bool, until: float) -> Comparison:
    """Return what each mode gives on a network; one that does not run is a line and no end."""
    started = [start(mode, name, args, bfloat16) for mode in tried]
    trainings = {str(i): training for i, (training, _) in enumerate(started) if training is not None}
    try:
        seconds = timing.take_turns({key: each.step for key, each in trainings.items()}, args.rounds, until)
    finally:
        for each in trainings.values():
            each.close()
    columns = [
        _column(mode, training, seconds.get(str(number), []))._replace(missing=why)
        for number, (mode, (training, why)) in enumerate(zip(tried, started))
    ]
    first = columns[0].notes  # of float32
    return Comparison([each._replace(error=_difference(each.notes, first)) for each in columns])


def _column(mode: Mode, training: Optional[Remote], seconds: Sequence[float]) -> Column:
    notes = {"first_loss": training.loss, "skipped": training.skipped} if training is not None else None
    return Column(requirements.GLUON, mode.who, mode.title, mode.dtype, seconds, notes=notes)


def _difference(notes: Optional[Dict[str, Any]], first: Optional[Dict[str, Any]]) -> Optional[float]:
    """Return how far a first loss is from float32's, as a share of that; None if either is not known."""
    return abs(notes["first_loss"] / first["first_loss"] - 1) if notes and first else None


def parse_args(argv: Optional[List[str]]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_compare_parser(__doc__.splitlines()[0])
    known = list(CASES)
    parser.add_argument("--networks", nargs="+", choices=known, default=known, metavar="NAME", help=" ".join(known))
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="POLICY", help=f"default: {POLICIES}")
    parser.add_argument("--float16", action="store_true", help="O1 and O2 too, emulated")
    parser.add_argument("--batch-size", type=int, default=0, help="default: each network's own")
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    """Measure, print table and requirements, write JSON and plot."""
    args = parse_args(argv)
    unit = str(machine()["bfloat16"])
    tried = modes([*args.policies, *(EMULATED if args.float16 else [])])

    def measure_network(name: str, until: float) -> Comparison:
        return measure(name, tried, args, bool(unit), until)

    def require(found: Found) -> List[requirements.Check]:
        return requirements.training(found, unit)

    compare("training", "One training step", args, measure_network, require)
    return 0


if __name__ == "__main__":
    use_threads("benchmarks.training")
    sys.exit(main())
