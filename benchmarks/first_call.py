"""Time the first call of a converted net against the first hybridized call of the net as it was written.

A first call traces the net, takes over what ``convert`` has made of the same trace or converts it, has MXNet make its
cached operator and runs it. What of it is MXNet's is told by a third net, a SymbolBlock of what ran, which knows
nothing of mxmp, and casts weights within its graph. All three are made anew in each round and take turns. Run it from
the repository: ``python -m benchmarks.first_call``; with ``--record`` for calls that autograd records.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import nullcontext
from statistics import median
from typing import Callable, Dict, List

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision
from rich.console import Console
from rich.table import Table

from benchmarks.common import describe, machine, make_parser, write
from benchmarks.timing import Clock, timer
from mxmp.devices.speed import runs_bfloat16
from mxmp.gluon import convert
from mxmp.gluon.lookup import conversion_of
from mxmp.rounding import state

TARGET = 1.3
"""How many times as long as a plain net's first call a converted net's may take."""

PLAIN, CONVERT, CALL, MXNET = "plain call", "convert", "call", "call of MXNet alone"


def seconds_of(run: Callable[[], object], clock: Clock) -> float:
    """Return the seconds that something takes where no garbage waits for it."""
    gc.collect()
    return timer(run, clock)()


def first_call(net: gluon.HybridBlock, data: mx.nd.NDArray, record: bool, clock: Clock) -> float:
    """Return the seconds of a net's call, its result computed."""

    def call() -> None:
        with autograd.record() if record else nullcontext():
            net(data).wait_to_read()

    return seconds_of(call, clock)


def make(network: str, data: mx.nd.NDArray, deferred: bool) -> gluon.HybridBlock:
    """Return a fresh net of the zoo, its parameters' shapes known unless that is left to the first call."""
    net = vision.get_model(network)
    net.initialize()
    if not deferred:
        give_values(net, data)
    return net


def give_values(net: gluon.HybridBlock, data: mx.nd.NDArray) -> None:
    """Give values to the parameters of a net that is initialized, but has not seen data."""
    net.infer_shape(data)
    for param in net.collect_params().values():
        param._finish_deferred_init()
    mx.nd.waitall()


def one_round(
    network: str, policy: str, data: mx.nd.NDArray, deferred: bool, record: bool, for_inference: bool, clock: Clock
) -> Dict[str, float]:
    """Return the seconds of each first call, and of ``convert``."""
    plain = make(network, data, deferred)
    plain.hybridize()
    found = {PLAIN: first_call(plain, data, record, clock)}
    net = make(network, data, deferred)
    found[CONVERT] = seconds_of(lambda: convert(net, policy, for_inference=for_inference), clock)
    found[CALL] = first_call(net, data, record, clock)
    ran = conversion_of(net).current.converted
    # With its dtype: of an input that has none MXNet warns, though float32 is meant.
    inputs = [mx.sym.var("data", dtype=data.dtype)]
    symbol = ran.on_cpu(trains=record, written=frozenset(net.collect_params()))
    alone = gluon.SymbolBlock(symbol, inputs, params=net.collect_params())
    if for_inference:  # with the parameters that only the folded graph has
        for name in {name for fold in ran.folds for name in (fold.weight, fold.bias)} - set(net.collect_params()):
            alone.collect_params()[name].initialize()
        give_values(alone, data)
    alone.hybridize()
    found[MXNET] = first_call(alone, data, record, clock)
    return found


def main(argv: List[str] | None = None) -> int:
    """Measure, print the table, write JSON."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["resnet50_v1", "resnet152_v1", "mobilenet1.0"])
    policies = ["O1", *(["mixed_bfloat16"] if runs_bfloat16() else [])]
    parser.add_argument("--policies", nargs="+", default=policies, help="default: those that this machine runs")
    parser.add_argument("--size", type=int, default=224, help="of the one image, pixels; default: %(default)s")
    parser.add_argument("--deferred", action="store_true", help="leave the parameters' shapes to the first call")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--record", action="store_true", help="time calls that autograd records, forward alone")
    kinds.add_argument("--for-inference", action="store_true", help="convert for inference alone, BatchNorm folded")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time of all threads, not the wall clock's")
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    args = parser.parse_args(argv)
    data = mx.nd.zeros((1, 3, args.size, args.size))
    rounding = state()
    clock = time.process_time if args.cpu_time else time.perf_counter
    kind = "CPU time, " if args.cpu_time else ""
    what = "recorded, " if args.record else "for inference, " if args.for_inference else ""
    title = f"The first call, {what}batch 1, {args.size} pixels; {kind}ms, medians"
    table = Table("network", "policy", *(PLAIN, CONVERT, CALL, MXNET), "call / plain", title=title)
    results: Dict[str, Dict[str, Dict[str, List[float]]]] = {}
    for network in args.networks:
        for policy in args.policies:
            how = data, args.deferred, args.record, args.for_inference, clock
            rounds = [one_round(network, policy, *how) for _ in range(args.rounds + 1)][1:]
            seconds = {name: [each[name] for each in rounds] for name in rounds[0]}
            results.setdefault(network, {})[policy] = seconds
            ratio = median(own / peer for own, peer in zip(seconds[CALL], seconds[PLAIN]))
            times = (f"{1e3 * median(seconds[name]):.0f}" for name in (PLAIN, CONVERT, CALL, MXNET))
            table.add_row(network, policy, *times, f"{ratio:.2f}")
    settings = {name: getattr(args, name) for name in ("size", "deferred", "record", "for_inference", "cpu_time")}
    file = write(args.out, "first_call", {**settings, "rounding": rounding, "seconds": results})
    console = Console()
    console.print(table)
    console.print(f"Target: at most {TARGET:g} times the plain call.")
    console.print(f"Emulated float16 was {rounding}.")
    console.print(describe(machine()))
    console.print(f"Written: {os.path.relpath(file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
