"""Time training steps of ResNet-50 with a ledger against steps without one.

Processor time of whole steps, forward, backward and update, on one thread: those without a ledger, those that a ledger
looks at but does not sample, and samples take turns on one net. Run it from the repository: ``OMP_NUM_THREADS=1 python
-m benchmarks.ledger``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from statistics import median
from typing import Dict, List

import mxnet as mx
from mxnet import autograd
from mxnet.gluon.model_zoo import vision
from rich.console import Console
from rich.table import Table

import mxmp
from benchmarks.common import make_parser, write
from mxmp.diagnose import Ledger

WITHOUT, BETWEEN, SAMPLE = "without", "between samples", "sample"
NEVER = 10**9  # steps from a first sample, which is not timed, to the next
TARGET = 1.05
"""How many times as long as a step without a ledger one may take with it, on average."""


class Training:
    """A net that takes steps on one batch, under a policy.

    Attributes:
        ledgers: By the kind of step: what is attached for it.
    """

    def __init__(self, network: str, policy: str, batch: int, pixels: int) -> None:
        self.net = vision.get_model(network)
        self.net.initialize(mx.init.Xavier())
        mxmp.gluon.convert(self.net, policy)
        self.net.hybridize(static_alloc=True, static_shape=True)
        self.data = mx.nd.random.uniform(shape=(batch, 3, pixels, pixels))
        self.labels = mx.nd.arange(batch)
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.net(self.data)
        options = {"learning_rate": 1e-3, "momentum": 0.9}
        self.trainer = mxmp.gluon.Trainer(self.net.collect_params(), "sgd", options, loss_scale=128.0)
        self.ledgers = {BETWEEN: Ledger(every=NEVER), SAMPLE: Ledger(every=1)}

    def step(self) -> None:
        """Take a step, and wait for it."""
        with autograd.record():
            loss = self.loss(self.net(self.data), self.labels)
            with self.trainer.scale_loss(loss) as scaled:
                scaled.backward()
        assert self.trainer.step(len(self.data))
        mx.nd.waitall()

    def seconds_of(self, kind: str) -> float:
        """Return the processor time of a step of a kind."""
        ledger = self.ledgers.get(kind)
        if ledger is not None:
            ledger.attach(self.trainer)
        start = time.process_time()
        self.step()
        seconds = time.process_time() - start
        if ledger is not None:
            ledger.detach()
        return seconds


def measure(training: Training, warmup: int, rounds: int) -> Dict[str, List[float]]:
    """Return the seconds of each timed step by its kind; the kinds take turns, the order turns round each time."""
    found: Dict[str, List[float]] = {kind: [] for kind in (WITHOUT, BETWEEN, SAMPLE)}
    gc.collect()
    for number in range(warmup + rounds):
        for kind in list(found)[:: -1 if number % 2 else 1]:
            seconds = training.seconds_of(kind)
            if number >= warmup:
                found[kind].append(seconds)
    return found


def main(argv: List[str] | None = None) -> int:
    """Measure, print the table, write JSON."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50_v1", help="of the Gluon model zoo; default: %(default)s")
    parser.add_argument("--policy", default="O1", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--pixels", type=int, default=224, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=Ledger().every, help="steps to a sample; default: %(default)s")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds of three steps; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of three steps; default: %(default)s")
    args = parser.parse_args(argv)
    training = Training(args.network, args.policy, args.batch, args.pixels)
    seconds = measure(training, args.warmup, args.rounds)
    # Of neighbours in time: what else the machine does hits both alike.
    ratios = {kind: median(a / b for a, b in zip(seconds[kind], seconds[WITHOUT])) for kind in (BETWEEN, SAMPLE)}
    average = (ratios[SAMPLE] + (args.every - 1) * ratios[BETWEEN]) / args.every
    title = f"A step of {args.network}, {args.policy}, {args.batch} images of {args.pixels} pixels"
    table = Table("step", "processor ms (median)", "ratio (median)", title=title)
    for kind, values in seconds.items():
        table.add_row(kind, f"{1e3 * median(values):.1f}", f"{ratios[kind]:.3f}" if kind in ratios else "1")
    table.add_row(f"with a ledger, every={args.every}", "", f"{average:.3f}, at most {TARGET:g}")
    settings = {name: getattr(args, name) for name in ("network", "policy", "batch", "pixels", "every")}
    result = {**settings, "ratios": ratios, "average": average, "target": TARGET, "seconds": seconds}
    file = write(args.out, "ledger", result)
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
