"""What oneDNN says of each primitive that it runs, where ``DNNL_VERBOSE=1``: its kernel, its sizes and its time.

A line of oneDNN 2.4.4 (src/common/verbose.cpp) is
``dnnl_verbose,exec,cpu,KIND,KERNEL,DIRECTION,MEMORY,ATTRIBUTES,AUXILIARY,PROBLEM,MILLISECONDS``.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Iterable, NamedTuple, Optional, Tuple

_FIELDS = 11
_SIZES = re.compile(r"(mb|ic|oc|id|ih|iw|od|oh|ow)(\d+)")
_REFERENCE = re.compile(r"(?:^|[_:])ref(?:[_:]|$)")
_DIMS = re.compile(r"\d+(?:x\d+)*")
_RNN = re.compile(r"l\d+t(\d+)mb(\d+).*dic(\d+)$")  # layers, steps, batch, ..., features of the output
_BOTH_WAYS = "bidirectional_concat"  # the direction of an RNN that gives the features of two
_ONE_CODE = ("rnn",)  # kinds whose usual code, of matrix products that are generated, is called "ref"


class Primitive(NamedTuple):
    """What oneDNN ran: its kind, whether by reference code, and the shape of what it gives in the forward pass.

    The shape is that of its data where the sizes of what it gives are not said (a concatenation).
    """

    kind: str
    reference: bool
    shape: Tuple[int, ...]
    depthwise: bool = False


def sum_times(lines: Iterable[str]) -> Dict[Primitive, float]:
    """Return the seconds of the primitives in some lines; all that cannot be read is left out."""
    found: Dict[Primitive, float] = {}
    for line in lines:
        parsed = parse_line(line)
        if parsed is not None:
            primitive, seconds = parsed
            found[primitive] = found.get(primitive, 0.0) + seconds
    return found


def parse_line(line: str) -> Optional[Tuple[Primitive, float]]:
    """Return what a line says of a primitive on a CPU and its seconds, None for any other line."""
    fields = line.strip().split(",")
    if len(fields) < _FIELDS or fields[:3] != ["dnnl_verbose", "exec", "cpu"]:
        return None
    kind, kernel, algorithm, problem = fields[3], fields[4], fields[-3], fields[-2]
    shape = _shape(kind, problem, algorithm)
    try:
        seconds = float(fields[-1]) / 1000
    except ValueError:
        return None
    if shape is None or not (math.isfinite(seconds) and seconds >= 0):
        return None
    depthwise = kind in ("convolution", "deconvolution") and problem.startswith("g") and not problem.startswith("g1mb")
    reference = kind not in _ONE_CODE and bool(_REFERENCE.search(kernel))
    return Primitive(kind, reference, shape, depthwise), seconds


def _shape(kind: str, problem: str, algorithm: str) -> Optional[Tuple[int, ...]]:
    """Return the shape of what a primitive gives, None if the problem does not say."""
    if _DIMS.match(problem):
        shapes = [tuple(map(int, dims.split("x"))) for dims in problem.split(":") if _DIMS.fullmatch(dims)]
        return (shapes[-1] if kind == "matmul" else shapes[0]) if shapes else None
    recurrent = _RNN.match(problem)
    if recurrent:
        steps, batch, features = map(int, recurrent.groups())
        return steps, batch, features * (2 if _BOTH_WAYS in algorithm else 1)
    sizes = {name: int(size) for name, size in _SIZES.findall(problem)}
    if "mb" not in sizes:
        return None
    if kind == "inner_product":
        return (sizes["mb"], sizes["oc"]) if "oc" in sizes else None
    channels = sizes.get("oc", sizes.get("ic"))
    space = [sizes.get(f"o{axis}", sizes.get(f"i{axis}")) for axis in "dhw"]
    found = (sizes["mb"], channels, *space)
    return tuple(size for size in found if size is not None)
