"""Time the inference of networks of the model zoo in float32, with contrib.amp and with mxmp, errors beside times.

Each network runs in every form of both fronts, one after the other, round by round. Run it from the repository:
``OMP_NUM_THREADS=2 python -m benchmarks.inference``.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Dict, List, Optional, Sequence, Tuple

import mxnet as mx

from benchmarks import requirements, timing
from benchmarks.common import first_line, machine, use_threads
from benchmarks.compare import clock_of, compare, make_compare_parser
from benchmarks.comparison import FAILS, Column, Comparison, Found
from benchmarks.forms import Form, Run, error, forms, missing, to_numpy
from benchmarks.zoo import IMAGE_SIZES, OWN_SIZE, Model, make_model
from mxmp import Policy
from mxmp.errors import MxmpError

WARMUP = 2


def measure(
    model: Model,
    tried: Sequence[Form],
    bfloat16: bool,
    rounds: int,
    until: float,
    clock: timing.Clock = time.perf_counter,
) -> Comparison:
    """Return what each form gives on a network; one that does not run is a line and no end.

    Args:
        model: The network.
        tried: The forms.
        bfloat16: Whether MXNet runs bfloat16 here.
        rounds: Rounds to measure.
        until: When to end, as `timing.take_turns`.
        clock: Takes the times.
    """
    reference = to_numpy(model.net(model.images))
    runs: Dict[int, Run] = {}
    columns: List[Column] = []
    for number, form in enumerate(tried):
        column = Column(form.front, form.who, form.title, form.dtype)
        run, why = start(form, model, bfloat16)
        if run is not None:
            runs[number] = run
            column = column._replace(error=error(to_numpy(run()), reference))
        columns.append(column._replace(missing=why))
    timed = {str(number): timing.timer(run, clock) for number, run in runs.items()}
    seconds = timing.take_turns(timed, rounds, until)
    return Comparison([each._replace(seconds=seconds.get(str(i), [])) for i, each in enumerate(columns)])


def start(form: Form, model: Model, bfloat16: bool) -> Tuple[Optional[Run], str]:
    """Return a run of a form that is warm, or why there is none."""
    why = missing(form, bfloat16)
    if why is not None:
        return None, why
    try:
        run = form.build(model)
        for _ in range(WARMUP):
            run()
        return run, ""
    except (mx.MXNetError, MxmpError) as e:
        return None, f"{FAILS}{first_line(e)}"


def parse_args(argv: Optional[List[str]]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_compare_parser(__doc__.splitlines()[0])
    known = list(IMAGE_SIZES)
    parser.add_argument("--networks", nargs="+", default=known, metavar="NAME", help=f"default: {' '.join(known)}")
    parser.add_argument("--policy", default="mixed_bfloat16", help="of mxmp's columns; default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--image-size", type=int, default=OWN_SIZE, help="default: each network's own")
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    """Measure, print tables and requirements, write JSON and plot."""
    args = parse_args(argv)
    policy, unit = Policy.parse(args.policy), str(machine()["bfloat16"])
    tried = forms(policy)

    def measure_network(name: str, until: float) -> Comparison:
        model = make_model(name, args.batch_size, args.image_size, args.seed)
        return measure(model, tried, bool(unit), args.rounds, until, clock_of(args))

    def require(found: Found) -> List[requirements.Check]:
        return requirements.inference(found, list(IMAGE_SIZES), unit, policy.compute_dtype)

    compare("inference", f"Inference, batch {args.batch_size}", args, measure_network, require)
    return 0


if __name__ == "__main__":
    use_threads("benchmarks.inference")
    sys.exit(main())
