"""Time the conversion of ResNet-152, symbol and parameters, against ``contrib.amp.convert_model``.

Both do what their users get. mxmp reads the values that it casts, and shares the arrays that stay as they are; the peer
copies every array, which takes two to three times as long in memory that the process has not had before. So
``--processes`` gives each conversion a process of its own, as most users convert: once. The symbol is timed by itself
too: there the peer's work is C++ alone. Run it from the repository: ``python -m benchmarks.conversion``; with
``--cpu-time`` and OMP_NUM_THREADS=1 on a machine that others use.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from multiprocessing import get_context
from statistics import median
from typing import Any, Callable, Dict, List, Tuple

import mxnet as mx
from matplotlib.figure import Figure
from mxnet.contrib import amp
from mxnet.gluon.model_zoo import vision
from rich.console import Console
from rich.table import Table

from benchmarks.common import make_parser, write
from examples.common.plot import save
from mxmp.symbol import convert_model, convert_symbol

TARGET = 1.5
"""How many times as long as its peer's conversion of a model mxmp's may take."""

SYMBOL = "symbol alone (O1)"
WHAT = "weights in float32 (O1)", "weights in float16 (O2)", SYMBOL

Model = Tuple[Any, Dict[str, Any], Dict[str, Any]]
Convert = Callable[[], object]
Clock = Callable[[], float]


def network(name: str) -> Model:
    """Return a network of the Gluon model zoo in memory, as a checkpoint gives it: symbol, arguments, states."""
    net = vision.get_model(name)
    net.initialize()
    net(mx.nd.zeros((1, 3, 64, 64)))
    symbol = net(mx.sym.var("data"))
    # Copied: the call has left weights in layouts of oneDNN's.
    arrays = {param.name: mx.nd.array(param.data().asnumpy()) for param in net.collect_params().values()}
    aux = set(symbol.list_auxiliary_states())
    return (
        symbol,
        {n: a for n, a in arrays.items() if n not in aux},
        {n: a for n, a in arrays.items() if n in aux},
    )


def pairs(model: Model) -> Dict[str, Tuple[Convert, Convert]]:
    """Return (mxmp's, its peer's) conversion: weights as they are, weights stored in float16, the symbol alone."""
    symbol, args, aux = model

    def peer(stored: bool) -> Convert:
        return lambda: amp.convert_model(symbol, dict(args), dict(aux), cast_optional_params=stored)

    found = (
        (lambda: convert_model(*model, "O1"), peer(False)),
        (lambda: convert_model(*model, "O2"), peer(True)),
        (lambda: convert_symbol(symbol, "O1"), lambda: amp.convert_symbol(symbol)),
    )
    return dict(zip(WHAT, found))


def seconds_of(convert: Convert, clock: Clock) -> float:
    """Return how long a conversion takes, what it left to MXNet's engine included.

    What others left to Python's garbage collector is not.
    """
    gc.collect()
    start = clock()
    convert()
    mx.nd.waitall()
    return clock() - start


def measure(model: Model, rounds: int, clock: Clock) -> Dict[str, Dict[str, List[float]]]:
    """Return the seconds of each conversion; mxmp and its peer take turns, the first round is left out."""
    mx.nd.waitall()
    found: Dict[str, Dict[str, List[float]]] = {}
    for number in range(rounds + 1):
        for name, (own, peer) in pairs(model).items():
            row = found.setdefault(name, {"mxmp": [], "contrib.amp": []})
            for who, convert in (("mxmp", own), ("contrib.amp", peer)):
                seconds = seconds_of(convert, clock)
                if number:
                    row[who].append(seconds)
    return found


def measure_in_processes(name: str, rounds: int, clock: Clock) -> Dict[str, Dict[str, List[float]]]:
    """Return the seconds of each conversion of a network of this name, each the first of a process."""
    found: Dict[str, Dict[str, List[float]]] = {}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(rounds):
            for what in WHAT:
                row = found.setdefault(what, {"mxmp": [], "contrib.amp": []})
                for who in row:
                    row[who].append(pool.apply(once, (name, what, who, clock)))
    return found


def once(name: str, what: str, who: str, clock: Clock) -> float:
    """Return the seconds of one conversion of a network, by mxmp or its peer."""
    model = network(name)
    mx.nd.waitall()
    own, peer = pairs(model)[what]
    return seconds_of(own if who == "mxmp" else peer, clock)


def plot(ratios: Dict[str, List[float]], path: str) -> None:
    """Draw the ratio of each round."""
    figure = Figure(figsize=(7, 3), tight_layout=True)
    axes = figure.subplots()
    for name, values in ratios.items():
        axes.plot(values, [name] * len(values), "o", alpha=0.4)
    axes.axvline(TARGET, color="C2", label="target")
    axes.set(xlabel="mxmp / contrib.amp, each round", xlim=(0, None), title="Converting a model")
    axes.margins(y=0.5)
    axes.legend()
    save(figure, path)


def main(argv: List[str] | None = None) -> int:
    """Measure, print the table, write JSON and plot."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet152_v1", help="of the Gluon model zoo; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--processes", action="store_true", help="convert in a new process each time")
    parser.add_argument("--cpu-time", action="store_true", help="take the process's CPU time for the clock's")
    args = parser.parse_args(argv)
    clock = time.process_time if args.cpu_time else time.perf_counter
    if args.processes:
        seconds = measure_in_processes(args.network, args.rounds, clock)
    else:
        seconds = measure(network(args.network), args.rounds, clock)
    ratios = {name: [a / b for a, b in zip(row["mxmp"], row["contrib.amp"])] for name, row in seconds.items()}
    table = Table("what is converted", "mxmp, ms", "contrib.amp, ms", "ratio (medians)", "target", title=args.network)
    for name, row in seconds.items():
        own, peer = median(row["mxmp"]), median(row["contrib.amp"])
        target = "" if name == SYMBOL else f"at most {TARGET:g}"
        table.add_row(name, f"{1e3 * own:.0f}", f"{1e3 * peer:.0f}", f"{median(ratios[name]):.2f}", target)
    medians = {name: median(values) for name, values in ratios.items()}
    result = {"network": args.network, "processes": args.processes, "seconds": seconds, "ratios": medians}
    file = write(args.out, "conversion", result)
    plot(ratios, str(args.out / "conversion.png"))
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)} and conversion.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
