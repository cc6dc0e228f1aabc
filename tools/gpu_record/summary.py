"""What the calls of a section amount to: launches, casts, products by dtype, waits, bytes."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, DefaultDict, Dict, Iterable, NamedTuple, Optional, Tuple
from typing import Counter as CounterOf

from .fused import fused_casts
from .kernel_names import SIZES, base_name, cast_of, dtypes_of
from .read import Call

_LIBRARY = re.compile(r"cudnn|cublas|cusolver|cufft|curand|nccl")
_NORM_KERNEL = re.compile(r"(Batch|Layer|Group|Instance)Norm")


class MatrixProduct(NamedTuple):
    """A product of cuBLAS: the function, the operands' dtype, that of the sums, and the math mode."""

    call: str
    dtype: str
    compute: str
    math: str


class Convolution(NamedTuple):
    """A convolution of cuDNN: forward, backward_data or backward_filter; dtype of x, of the sums; the math type."""

    direction: str
    dtype: str
    compute: str
    math: str


class Norm(NamedTuple):
    """A normalization, of cuDNN or a kernel of MXNet's: dtype of x, and of gamma and beta (None: not told)."""

    call: str
    dtype: str
    parameters: Optional[str]


class Softmax(NamedTuple):
    """A softmax or log softmax, forward or backward, of cuDNN or a kernel of MXNet's: dtype of its data."""

    call: str
    dtype: str


class Rnn(NamedTuple):
    """A recurrent network of cuDNN: the function, the cell, dtype of x, of the sums, and the math type."""

    call: str
    mode: str
    dtype: str
    compute: str
    math: str


@dataclass(frozen=True)
class Summary:
    """What a list of calls amounts to. Summaries can be added: ``sum(summaries, Summary())``."""

    launches: int = 0  # kernels, MXNet's own and run-time compiled ones; library calls launch further ones unseen
    fused: int = 0  # those of the launches that were compiled at run time
    library_calls: int = 0  # calls of cuDNN, cuBLAS and the like that work on data
    synchronizations: int = 0  # how often a thread waited for a stream
    host_reads: int = 0  # copies from a GPU to the host
    host_read_bytes: int = 0
    casts: CounterOf[str] = field(default_factory=Counter)  # launches that do nothing but cast, by float32->float16
    cast_bytes: int = 0  # what they read and write
    fused_casts: CounterOf[str] = field(default_factory=Counter)  # inside fused kernels: no memory traffic of their own
    unread_fused: int = 0  # launches of fused kernels whose source is not in the record, so that casts can't be told
    allocated_bytes: int = 0  # what cudaMalloc gave; MXNet's pool keeps it, so a later step allocates nothing
    freed_bytes: int = 0
    matrix_products: CounterOf[MatrixProduct] = field(default_factory=Counter)
    convolutions: CounterOf[Convolution] = field(default_factory=Counter)
    norms: CounterOf[Norm] = field(default_factory=Counter)
    softmaxes: CounterOf[Softmax] = field(default_factory=Counter)
    rnns: CounterOf[Rnn] = field(default_factory=Counter)
    kernels: CounterOf[str] = field(default_factory=Counter)  # launches by demangled name
    invalid_launches: int = 0  # launches that a GPU would refuse: an empty or too large grid or block
    compiled_sources: int = 0  # sources that NVRTC compiled,
    failed_sources: int = 0  # refused,
    unchecked_sources: int = 0  # or never saw, because there was none

    def __add__(self, other: Summary) -> Summary:
        """Return the summary of both together."""
        if not isinstance(other, Summary):
            return NotImplemented
        names = [one.name for one in dataclasses.fields(self)]
        return Summary(**{name: getattr(self, name) + getattr(other, name) for name in names})


def summarize(calls: Iterable[Call]) -> Summary:
    """Return what calls amount to."""
    numbers: CounterOf[str] = Counter()
    counters: DefaultDict[str, CounterOf[Any]] = defaultdict(Counter)
    for call in calls:
        if call.name in ("cudaLaunchKernel", "cuLaunchKernel"):
            numbers["launches"] += 1
            numbers["invalid_launches"] += call.fields.get("invalid", 0)
            counters["kernels"][call.kernel or ""] += 1
            (_count_launch if call.name == "cudaLaunchKernel" else _count_fused)(call, numbers, counters)
        elif call.name.startswith("cudaMemcpy") and call["kind"] == "device to host":
            numbers.update(host_reads=1, host_read_bytes=call["bytes"])
        elif call.name == "nvrtcCompileProgram":
            kind = "failed" if call["status"] else "compiled" if call["compiled"] else "unchecked"
            numbers[f"{kind}_sources"] += 1
        elif _LIBRARY.match(call.name) and "Algorithm" not in call.name:
            numbers["library_calls"] += 1
            kind, counted = _classify(call)
            if kind:
                counters[kind][counted] += 1
        elif call.name in ("cudaMalloc", "cudaFree"):
            numbers["allocated_bytes" if call.name == "cudaMalloc" else "freed_bytes"] += call["bytes"]
        elif call.name == "cudaStreamSynchronize":
            numbers["synchronizations"] += 1
    fields: Dict[str, Any] = {**numbers, **counters}
    return Summary(**fields)


def peak_bytes(calls: Iterable[Call]) -> int:
    """Return the most memory that was allocated at a time, on all GPUs together.

    MXNet's pool keeps what is freed and rounds up; with ``MXNET_GPU_MEM_POOL_TYPE=Unpooled`` it is what is in use.
    """
    peak = used = 0
    for call in calls:
        if call.name in ("cudaMalloc", "cudaFree"):
            used += call["bytes"] if call.name == "cudaMalloc" else -call["bytes"]
            peak = max(peak, used)
    return peak


def _count_launch(call: Call, numbers: CounterOf[str], counters: DefaultDict[str, CounterOf[Any]]) -> None:
    kernel = call.kernel or ""
    cast, base, dtypes = cast_of(kernel), base_name(kernel), dtypes_of(kernel) or ("unknown",)
    if cast:
        counters["casts"]["->".join(cast)] += 1
        numbers["cast_bytes"] += call.fields.get("elements", 0) * (SIZES[cast[0]] + SIZES[cast[1]])
    elif "softmax" in base.lower():
        counters["softmaxes"][Softmax(base, dtypes[0])] += 1
    elif _NORM_KERNEL.match(base):
        counters["norms"][Norm(base, dtypes[0], dtypes[-1] if base.startswith("Batch") else None)] += 1


def _count_fused(call: Call, numbers: CounterOf[str], counters: DefaultDict[str, CounterOf[Any]]) -> None:
    numbers["fused"] += 1
    if call.source is None:
        numbers["unread_fused"] += 1
    else:
        counters["fused_casts"].update(fused_casts(call.source))


def _classify(call: Call) -> Tuple[str, Optional[NamedTuple]]:
    """Return the field of a Summary that a library call belongs to, if any, and what it counts as."""
    name, fields = call.name, call.fields
    tensor = fields.get("x") or fields.get("y") or fields
    dtype: Any = tensor.get("dtype")
    if "a" in fields:
        operands = {fields["a"], fields["b"], fields["c"]}
        dtype = operands.pop() if len(operands) == 1 else f"{fields['a']}x{fields['b']}->{fields['c']}"
        return "matrix_products", MatrixProduct(name, dtype, fields["compute"], fields["math"])
    if name.startswith("cudnnConvolution") and "w" in fields:
        direction = {"Forward": "forward", "BackwardData": "backward_data", "BackwardFilter": "backward_filter"}
        kind = direction[name[len("cudnnConvolution") :]]
        return "convolutions", Convolution(kind, dtype, fields["compute"], fields["math"])
    if name.startswith("cudnnBatchNorm"):
        return "norms", Norm(name, dtype, fields["parameters"]["dtype"])
    if name.startswith("cudnnRNN"):
        return "rnns", Rnn(name, fields["mode"], dtype, fields["compute"], fields["math"])
    if name.startswith("cudnnSoftmax"):
        return "softmaxes", Softmax(name, dtype)
    return "", None  # pooling, dropout, bias gradients, dot products, ...
