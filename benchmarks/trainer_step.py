"""Time ``step`` of mxmp's Trainer with a dynamic loss scale against ``mx.gluon.Trainer``'s.

The parameters are ResNet-50's, the optimizer is SGD with momentum, and nothing but the step is
timed: the gradients lie there and are declared fresh. The two trainers take turns. Run it from
the repository: ``python -m benchmarks.trainer_step``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from statistics import median
from typing import Dict, List

import mxnet as mx
from matplotlib.figure import Figure
from mxnet.gluon.model_zoo import vision
from rich.console import Console
from rich.table import Table

from benchmarks.common import make_parser, write
from examples.common.plot import save
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale

OWN, PEER = "mxmp", "mx.gluon"
GRADIENT = 2.0**-10
ROWS = {"float32": "float32", "float16, float32 masters": "float16"}
TARGETS = {"float32": 1.05, "float16, float32 masters": 1.2}
"""How many times as long as its peer's step mxmp's may take."""

SMALL, COUNT = "small", 200


def parameters(network: str, dtype: str) -> List[mx.gluon.Parameter]:
    """Return a network's parameters in a dtype, BatchNorm's statistics among them; or many small ones."""
    if network == SMALL:
        shapes = [(64,) if number % 2 else (32, 32) for number in range(COUNT)]
        params = [mx.gluon.Parameter(f"small{number}", shape=each, dtype=dtype) for number, each in enumerate(shapes)]
        for param in params:
            param.initialize(mx.init.Normal(0.1))
        return params
    net = vision.get_model(network)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 64, 64)))
    net.cast(dtype)
    return list(net.collect_params().values())


def trained(params: List[mx.gluon.Parameter]) -> List[mx.gluon.Parameter]:
    """Return those that have gradients."""
    return [param for param in params if param.grad_req != "null"]


class Own:
    """A step of mxmp: the loss is scaled, the gradients are checked, the host reads the verdict."""

    def __init__(self, params: List[mx.gluon.Parameter]) -> None:
        self.params = params
        scale = DynamicLossScale(init_scale=2.0**16)  # which stays: the gradients are those of one scale
        self.trainer = Trainer(params, "sgd", {"learning_rate": 1e-3, "momentum": 0.9}, loss_scale=scale)
        self.loss = mx.nd.ones((1,))
        fill(trained(params), GRADIENT * self.trainer.loss_scale.value)

    def prepare(self) -> None:
        """Bring the trainer to where backward leaves it."""
        with self.trainer.scale_loss(self.loss):
            pass
        refresh(trained(self.params))

    def step(self) -> None:
        """Step; a skipped one would be too fast."""
        assert self.trainer.step(1)


class Peer:
    """A step of MXNet, which scales and checks nothing."""

    def __init__(self, params: List[mx.gluon.Parameter]) -> None:
        self.params = params
        options = {"learning_rate": 1e-3, "momentum": 0.9, "multi_precision": True}
        self.trainer = mx.gluon.Trainer(params, "sgd", options)
        fill(trained(params), GRADIENT)

    def prepare(self) -> None:
        """Bring the trainer to where backward leaves it."""
        refresh(trained(self.params))

    def step(self) -> None:
        """Step."""
        self.trainer.step(1)


def fill(params: List[mx.gluon.Parameter], gradient: float) -> None:
    """Give every element the same gradient."""
    for param in params:
        param.grad()[:] = gradient


def refresh(params: List[mx.gluon.Parameter]) -> None:
    """Declare every gradient fresh, as backward does."""
    for param in params:
        param.data()._fresh_grad = True


def seconds_of(side: Own | Peer) -> float:
    """Return how long a step takes, what it left to MXNet's engine included."""
    side.prepare()
    mx.nd.waitall()
    start = time.perf_counter()
    side.step()
    mx.nd.waitall()
    return time.perf_counter() - start


def measure(network: str, dtype: str, warmup: int, rounds: int) -> Dict[str, List[float]]:
    """Return the seconds of each timed step; the two take turns, the first changes from round to round."""
    sides = {OWN: Own(parameters(network, dtype)), PEER: Peer(parameters(network, dtype))}
    found: Dict[str, List[float]] = {who: [] for who in sides}
    gc.collect()
    for number in range(warmup + rounds):
        for who in list(sides)[:: -1 if number % 2 else 1]:
            seconds = seconds_of(sides[who])
            if number >= warmup:
                found[who].append(seconds)
    return found


def plot(seconds: Dict[str, Dict[str, List[float]]], path: str) -> None:
    """Draw the spread of the step times as boxes."""
    figure = Figure(figsize=(7, 3), tight_layout=True)
    axes = figure.subplots()
    boxes = {f"{row}\n{who}": values for row, found in seconds.items() for who, values in found.items()}
    axes.boxplot([[1e3 * value for value in values] for values in boxes.values()], showfliers=False)
    axes.set_xticks(range(1, len(boxes) + 1), list(boxes))
    axes.set_ylim(bottom=0)
    axes.set(ylabel="ms per step", title="Trainer.step, SGD with momentum")
    axes.grid(axis="y", alpha=0.3)
    save(figure, path)


def main(argv: List[str] | None = None) -> int:
    """Measure, print the table, write JSON and plot."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50_v1", help="of the Gluon model zoo, or 'small': 200 small arrays")
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=40, help="timed steps; default: %(default)s")
    args = parser.parse_args(argv)
    seconds = {row: measure(args.network, dtype, args.warmup, args.rounds) for row, dtype in ROWS.items()}
    medians = {row: {who: median(values) for who, values in found.items()} for row, found in seconds.items()}
    # Of neighbours in time: what else the machine does hits both alike.
    ratios = {row: median(a / b for a, b in zip(found[OWN], found[PEER])) for row, found in seconds.items()}
    table = Table(
        "parameters", "mxmp, ms", "mx.gluon, ms", "ratio (median)", "target", title=f"One step of {args.network}"
    )
    for row, found in medians.items():
        target = f"at most {TARGETS[row]:g}"
        table.add_row(row, f"{1e3 * found[OWN]:.1f}", f"{1e3 * found[PEER]:.1f}", f"{ratios[row]:.2f}", target)
    result = {"network": args.network, "medians": medians, "ratios": ratios, "targets": TARGETS, "seconds": seconds}
    file = write(args.out, "trainer_step", result)
    plot(seconds, str(args.out / "trainer_step.png"))
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)} and trainer_step.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
