"""Time the minimum cut that places casts: ResNet-152, and a chain with 5,000 free nodes.

Run it from the repository: ``python -m benchmarks.placement``.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median
from typing import Callable

import mxnet as mx
from matplotlib.figure import Figure
from mxnet.gluon.model_zoo import vision
from rich.console import Console
from rich.table import Table

from benchmarks.common import make_parser, write
from examples.common.plot import save
from mxmp import Policy
from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, Verdict, classify, place
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.rules import CLEAR, RULES, Rule
from mxmp.symbol import infer_facts, to_graph

TARGETS = {"ResNet-152": 0.05, "5,000 free nodes": 1.0}
"""Seconds that placing may take."""

Problem = Callable[[], object]


def resnet152() -> Problem:
    """Return the placement of ResNet-152 at 224x224, batch 32, under O1."""
    net = vision.resnet152_v1()
    symbol = net(mx.sym.var("data"))
    graph = to_graph(symbol)
    params = frozenset(net.collect_params())
    facts = infer_facts(symbol, graph, {"data": (32, 3, 224, 224)}, {"data": "float32"}, params)
    verdicts = classify(graph, Policy.parse("O1"), facts, RULES)
    return lambda: place(graph, verdicts, facts)


def chain(groups: int = 1667) -> Problem:
    """Return the placement of low, three free and a float32 operator, again and again."""
    rule = Rule("op", CLEAR)
    labels = [LOW, FREE, FREE, FREE, FLOAT32] * groups
    nodes = [Node("null", "data"), *(Node("op", f"n{i}", inputs=(Entry(i),)) for i in range(len(labels)))]
    verdicts = [Verdict(KEEP, "variable"), *(Verdict(label, "", rule) for label in labels)]
    keys = [(i, 0) for i in range(len(nodes))]
    facts = Facts(dict.fromkeys(keys, "float32"), {key: (1 + key[0] % 97,) for key in keys})
    graph = Graph(tuple(nodes), (Entry(len(labels)),))
    return lambda: place(graph, verdicts, facts)


def measure(problem: Problem, rounds: int) -> list[float]:
    """Return the seconds of each placement."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        problem()
        seconds.append(time.perf_counter() - start)
    return seconds


def plot(seconds: dict[str, list[float]], path: str) -> None:
    """Draw each placement's time beside its target."""
    figure = Figure(figsize=(7, 3), tight_layout=True)
    axes = figure.subplots()
    names = list(seconds)
    axes.barh(names, [1000 * TARGETS[name] for name in names], color="C2", alpha=0.2, label="target")
    axes.barh(names, [1000 * median(seconds[name]) for name in names], color="C0", height=0.4, label="median")
    axes.set(xscale="log", xlabel="ms", title="Placing casts by minimum cut")
    axes.legend()
    save(figure, path)


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, write JSON and plot."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="default: %(default)s")
    args = parser.parse_args(argv)
    problems = {"ResNet-152": resnet152(), "5,000 free nodes": chain()}
    seconds = {name: measure(problem, args.rounds) for name, problem in problems.items()}
    table = Table("problem", "ms (median)", "target", title="Placing casts by minimum cut")
    for name, values in seconds.items():
        table.add_row(name, f"{1000 * median(values):.1f}", f"under {1000 * TARGETS[name]:g}")
    file = write(args.out, "placement", {"seconds": seconds, "targets": TARGETS})
    plot(seconds, str(args.out / "placement.png"))
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)} and placement.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
