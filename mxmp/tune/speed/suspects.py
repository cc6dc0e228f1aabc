"""oneDNN's own account of a step, by groups: which of them run in reference code, and how long each takes.

The step runs in another process, since MXNet reads ``DNNL_VERBOSE`` when it is imported. An account is a hint for the
order of the search and no more: whatever goes wrong, there is none.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...devices import amx
from ...graph import Graph, to_json
from ...passes.facts import Facts
from ...policy import Policy
from .choices import Group
from .verbose import Primitive, sum_times

_LOG = logging.getLogger(__name__)

_PACKAGES = str(Path(__file__).resolve().parents[2])

JOB, OUTPUT = "job.json", "output.txt"
BEGIN, END = "mxmp: a step begins with policy", "mxmp: a step ends with policy"

_STARTING = 4.0  # seconds that the process takes before its first step, roughly
_SHARE = 0.15  # of the time of a search, what accounts may take at most

_PRODUCTS = ("dot", "batch_dot", "_linalg_gemm2", "_linalg_gemm", "_npi_matmul", "_npx_batch_dot")
_SUMS = ("elemwise_add", "_plus", "add_n", "broadcast_add", "_npi_add")
_ACTIVATIONS = (
    "Activation",
    "LeakyReLU",
    "relu",
    "sigmoid",
    "tanh",
    "clip",
    "softsign",
    "abs",
    "sqrt",
    "square",
    "exp",
)
_OPERATORS: Mapping[str, Tuple[str, ...]] = {
    "convolution": ("Convolution", "Deconvolution"),
    "deconvolution": ("Deconvolution",),
    "inner_product": ("FullyConnected", *_PRODUCTS),
    "matmul": (*_PRODUCTS, "FullyConnected"),
    "batch_normalization": ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm"),
    "layer_normalization": ("LayerNorm",),
    "eltwise": _ACTIVATIONS,
    "sum": _SUMS,
    "binary": (*_SUMS, "elemwise_mul", "broadcast_mul", "_npi_multiply"),
    "pooling": ("Pooling",),
    "pooling_v2": ("Pooling",),
    "softmax": ("softmax", "log_softmax", "SoftmaxActivation", "SoftmaxOutput"),
    "softmax_v2": ("softmax", "log_softmax", "SoftmaxActivation", "SoftmaxOutput"),
    "logsoftmax": ("log_softmax",),
    "concat": ("Concat",),
    "lrn": ("LRN",),
    "rnn": ("RNN",),
}
"""The operators of MXNet that oneDNN's kinds of primitives compute."""

_REORDER = "reorder"


class Account(NamedTuple):
    """The seconds of one step by group, and those of them that reference code takes."""

    seconds: Mapping[int, float]
    reference: Mapping[int, float]


NOTHING = Account({}, {})


def account_for(times: Mapping[Primitive, float], groups: Sequence[Group]) -> Account:
    """Return the account of what oneDNN has said.

    Groups that fit the same primitives share them by the number of their nodes. A copy into another layout counts for
    all groups that have its shape and primitives of their own, since layouts are chosen by neighbours together.
    """
    seconds: Dict[int, float] = {}
    reference: Dict[int, float] = {}
    reorders = []
    for primitive, taken in times.items():
        if primitive.kind == _REORDER:
            reorders.append((primitive, taken))
            continue
        members = [number for number, group in enumerate(groups) if _computes(primitive, group)]
        for number, share in _shared(taken, members, groups):
            seconds[number] = seconds.get(number, 0.0) + share
            if primitive.reference:
                reference[number] = reference.get(number, 0.0) + share
    for primitive, taken in reorders:
        members = [number for number in seconds if _same_shape(primitive.shape, groups[number].shape)]
        for number, share in _shared(taken, members, groups):
            seconds[number] += share
    return Account(seconds, reference)


def run_steps(
    parts: Sequence[Tuple[Graph, Facts]], policies: Sequence[Policy], training: bool, limit: float
) -> List[Dict[Primitive, float]]:
    """Return the times of the primitives of one step under each policy; nothing for those that fail or take too long.

    Args:
        parts: The graphs of a network, as they are before their conversion, with their shapes.
        policies: The policies, the most important first.
        training: Whether to run backward too.
        limit: Seconds after which the process is ended.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="mxmp-") as name:
            folder = Path(name)
            _write_job(folder, parts, policies, training)
            _run(folder, limit)
            lines = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as e:
        _LOG.info("oneDNN's account of a step cannot be had: %s", e)
        return [{} for _ in policies]
    return [sum_times(_lines_of_step(lines, number)) for number in range(len(policies))]


def time_allowed(seconds: float, step: Optional[float]) -> Optional[float]:
    """Return how long accounts may take in a search of so many seconds; None if not even one would be ready then.

    Args:
        seconds: Of the whole search.
        step: Of one step of the network; None if unknown.
    """
    allowed = _SHARE * seconds
    return allowed if step is not None and _STARTING + 2 * step <= allowed else None


def _computes(primitive: Primitive, group: Group) -> bool:
    fits = group.op in _OPERATORS.get(primitive.kind, ()) and primitive.depthwise == group.depthwise
    return fits and _same_shape(primitive.shape, group.shape)


def _same_shape(found: Tuple[int, ...], shape: Tuple[int, ...]) -> bool:
    """Return whether a shape of oneDNN's is one of MXNet's, whose first axes may have been taken together."""
    if found == shape:
        return True
    return len(found) == 2 < len(shape) and found == (math.prod(shape[:-1]), shape[-1])


def _shared(taken: float, members: Sequence[int], groups: Sequence[Group]) -> List[Tuple[int, float]]:
    nodes = sum(len(groups[number].names) for number in members)
    return [(number, taken * len(groups[number].names) / nodes) for number in members]


def _write_job(folder: Path, parts: Sequence[Tuple[Graph, Facts]], policies: Sequence[Policy], training: bool) -> None:
    graphs = []
    for graph, facts in parts:
        keys = {node.name: (position, 0) for position, node in enumerate(graph.nodes) if node.is_variable}
        known = {name: key for name, key in keys.items() if key in facts.shapes and key in facts.dtypes}
        graphs.append(
            {
                "symbol": to_json(graph),
                "shapes": {name: list(facts.shapes[key]) for name, key in known.items()},
                "dtypes": {name: facts.dtypes[key] for name, key in known.items()},
                "params": sorted(facts.params & known.keys()),
            }
        )
    job = {"policies": list(map(str, policies)), "training": training, "graphs": graphs}
    (folder / JOB).write_text(json.dumps(job), encoding="utf-8")


def _run(folder: Path, limit: float) -> None:
    """Run the steps; end them when the time is over."""
    command = [sys.executable, "-m", f"{__package__}.one_step", str(folder)]
    quiet = subprocess.DEVNULL
    with open(folder / OUTPUT, "wb") as output:
        process = subprocess.Popen(command, stdin=quiet, stdout=output, stderr=quiet, env=_environment())
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            _LOG.info("oneDNN's account of a step was ended after %g s.", limit)
        finally:
            process.kill()
            process.wait()


def _environment() -> Dict[str, str]:
    """Return this process's environment, with oneDNN's account switched on, and AMX as it is here."""
    found = {name: value for name, value in os.environ.items() if not name.endswith("_VERBOSE_TIMESTAMP")}
    paths = [_PACKAGES, *filter(None, [found.get("PYTHONPATH")])]
    found.update(DNNL_VERBOSE="1", MXNET_SUBGRAPH_BACKEND="NONE", PYTHONPATH=os.pathsep.join(paths))
    found["MXMP_AMX"] = "1" if amx.amx_status().on else "0"
    return found


def _lines_of_step(lines: Sequence[str], number: int) -> List[str]:
    """Return the lines of the last step with a policy that came to its end."""
    begins = [i for i, line in enumerate(lines) if line == f"{BEGIN} {number}"]
    ends = [i for i, line in enumerate(lines) if line == f"{END} {number}"]
    steps = list(zip(begins, ends))
    return list(lines[steps[-1][0] + 1 : steps[-1][1]]) if steps else []
