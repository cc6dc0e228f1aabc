"""Runs steps of a network, for what oneDNN prints of them: ``python -m mxmp.tune.speed.one_step FOLDER``.

`suspects` starts it, and has written the network into the folder; its arrays are random.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import mxnet as mx
import numpy as np

from ... import dtypes
from ...policy import Policy
from .stopwatch import Run
from .suspects import BEGIN, END, JOB
from .symbol_nets import Inputs, ModuleWorkload

_LONG = 1.0  # seconds


def main(folder: Path) -> None:
    """Run steps of the network in a folder under each policy, each between two lines on the standard output.

    The first step of two finds cold memory; it is the only one if it takes long.
    """
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    for number, policy in enumerate(job["policies"]):
        runs = [_build(graph, Policy.parse(policy), job["training"]) for graph in job["graphs"]]
        if _step(runs, number) < _LONG:
            _step(runs, number)


def _step(runs: Sequence[Run], number: int) -> float:
    """Run one step and return its seconds."""
    start = time.perf_counter()
    _say(f"{BEGIN} {number}")
    for run in runs:
        run()
    mx.nd.waitall()
    _say(f"{END} {number}")
    return time.perf_counter() - start


def _build(graph: Dict[str, Any], policy: Policy, training: bool) -> Run:
    symbol = mx.sym.load_json(graph["symbol"])
    random = np.random.RandomState(0)
    arrays = {name: _random(random, tuple(shape), graph["dtypes"][name]) for name, shape in graph["shapes"].items()}
    params, states = set(graph["params"]), set(symbol.list_auxiliary_states())
    data = {name: array for name, array in arrays.items() if name not in params | states}
    weights = {name: array for name, array in arrays.items() if name in params - states}
    values = weights, {name: array for name, array in arrays.items() if name in states}
    return ModuleWorkload(symbol, values, Inputs(data, {}), [mx.cpu()], training).build(policy)


def _random(random: np.random.RandomState, shape: Tuple[int, ...], dtype: str) -> mx.nd.NDArray:
    """Return values whose weighted sums stay near 1; indices are 0."""
    values = random.uniform(0, 2 / max(math.prod(shape[1:]), 1) if len(shape) > 1 else 1, shape)
    return mx.nd.array(values, ctx=mx.cpu(), dtype=dtypes.to_numpy(dtype))


def _say(line: str) -> None:
    """Write a line in turn with oneDNN's, which are written out one by one."""
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
