"""What the calls of a section amount to: launches, casts, products by dtype, waits, bytes."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple, Union
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


class OtherCall(NamedTuple):
    """Another call of a library: pooling, dropout, bias gradients, dot products; dtype of x, if it is told."""

    call: str
    dtype: Optional[str]


@dataclass(frozen=True)
class Summary:
    """What a list of calls amounts to. Summaries can be added: ``sum(summaries, Summary())``.

    Attributes:
        launches: Kernels, MXNet's own and run-time compiled ones; library calls launch further ones unseen.
        fused: Those of the launches that were compiled at run time.
        library_calls: Calls of cuDNN, cuBLAS and the like that work on data.
        synchronizations: How often a thread waited for a stream.
        host_reads: Copies from a GPU to the host.
        host_read_bytes: Their bytes.
        casts: Launches that do nothing but cast, by ``float32->float16``.
        cast_bytes: What they read and write.
        fused_casts: Casts inside fused kernels, of which each costs no memory traffic of its own; see `fused`.
        unread_fused: Launches of fused kernels whose source is not in the record, so that casts can't be told.
        copies: All copies, by kind: ``host to device``, ``device to host``, ``device to device``, ``peer to peer``.
        copy_bytes: Their bytes, by kind.
        memsets: Fillings of memory.
        allocated_bytes: What cudaMalloc gave; MXNet's pool keeps it, so a later step allocates nothing.
        freed_bytes: What cudaFree took back.
        matrix_products: Products of cuBLAS.
        convolutions: Convolutions of cuDNN, their bias gradients apart (`other_calls`).
        norms: Normalizations.
        softmaxes: Softmaxes.
        rnns: Recurrent networks of cuDNN.
        other_calls: All other library calls.
        kernels: Launches by demangled name.
        invalid_launches: Launches that a GPU would refuse: an empty or too large grid or block.
        compiled_sources: Sources that NVRTC compiled.
        failed_sources: Sources that NVRTC refused.
        unchecked_sources: Sources that nothing compiled, because there was no NVRTC.
        calls: Every line of the record, by function.
    """

    launches: int = 0
    fused: int = 0
    library_calls: int = 0
    synchronizations: int = 0
    host_reads: int = 0
    host_read_bytes: int = 0
    casts: CounterOf[str] = field(default_factory=Counter)
    cast_bytes: int = 0
    fused_casts: CounterOf[str] = field(default_factory=Counter)
    unread_fused: int = 0
    copies: CounterOf[str] = field(default_factory=Counter)
    copy_bytes: CounterOf[str] = field(default_factory=Counter)
    memsets: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0
    matrix_products: CounterOf[MatrixProduct] = field(default_factory=Counter)
    convolutions: CounterOf[Convolution] = field(default_factory=Counter)
    norms: CounterOf[Norm] = field(default_factory=Counter)
    softmaxes: CounterOf[Softmax] = field(default_factory=Counter)
    rnns: CounterOf[Rnn] = field(default_factory=Counter)
    other_calls: CounterOf[OtherCall] = field(default_factory=Counter)
    kernels: CounterOf[str] = field(default_factory=Counter)
    invalid_launches: int = 0
    compiled_sources: int = 0
    failed_sources: int = 0
    unchecked_sources: int = 0
    calls: CounterOf[str] = field(default_factory=Counter)

    def __add__(self, other: Summary) -> Summary:
        """Return the summary of both together."""
        if not isinstance(other, Summary):
            return NotImplemented
        names = [one.name for one in dataclasses.fields(self)]
        return Summary(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def as_dict(self) -> Dict[str, Any]:
        """Return the summary as JSON has it: each kind of call becomes an object with its ``count``."""
        return {one.name: _plain(getattr(self, one.name)) for one in dataclasses.fields(self)}


def summarize(calls: Iterable[Call]) -> Summary:
    """Return what calls amount to."""
    total = _Totals()
    for call in calls:
        total.calls[call.name] += 1
        if call.name in ("cudaLaunchKernel", "cuLaunchKernel"):
            total.add_launch(call)
        elif call.name.startswith("cudaMemcpy"):
            total.add_copy(call)
        elif call.name == "nvrtcCompileProgram":
            total.add_source(call)
        elif _LIBRARY.match(call.name) and "Algorithm" not in call.name:
            total.add_library_call(call)
        elif call.name in ("cudaMalloc", "cudaFree"):
            total.numbers["allocated_bytes" if call.name == "cudaMalloc" else "freed_bytes"] += call["bytes"]
    return total.summary()


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


class _Totals:
    """The fields of a Summary while they are counted."""

    def __init__(self) -> None:
        self.calls: CounterOf[str] = Counter()
        self.numbers: CounterOf[str] = Counter()
        self.counters: Dict[str, CounterOf[Any]] = {}

    def count(self, field_name: str, key: object, by: int = 1) -> None:
        self.counters.setdefault(field_name, Counter())[key] += by

    def add_launch(self, call: Call) -> None:
        kernel = call.kernel or ""
        self.numbers["launches"] += 1
        self.numbers["invalid_launches"] += call.fields.get("invalid", 0)
        self.count("kernels", kernel)
        if call.name == "cuLaunchKernel":
            self.add_fused(call)
            return
        cast, base, dtypes = cast_of(kernel), base_name(kernel), dtypes_of(kernel) or ("unknown",)
        if cast:
            self.count("casts", "->".join(cast))
            self.numbers["cast_bytes"] += call.fields.get("elements", 0) * (SIZES[cast[0]] + SIZES[cast[1]])
        elif "softmax" in base.lower():
            self.count("softmaxes", Softmax(base, dtypes[0]))
        elif _NORM_KERNEL.match(base):
            self.count("norms", Norm(base, dtypes[0], dtypes[-1] if base.startswith("Batch") else None))

    def add_fused(self, call: Call) -> None:
        self.numbers["fused"] += 1
        if call.source is None:
            self.numbers["unread_fused"] += 1
            return
        for pair, number in fused_casts(call.source).items():
            self.count("fused_casts", pair, number)

    def add_copy(self, call: Call) -> None:
        self.count("copies", call["kind"])
        self.count("copy_bytes", call["kind"], call["bytes"])
        if call["kind"] == "device to host":
            self.numbers["host_reads"] += 1
            self.numbers["host_read_bytes"] += call["bytes"]

    def add_source(self, call: Call) -> None:
        kind = "failed" if call["status"] else "compiled" if call["compiled"] else "unchecked"
        self.numbers[f"{kind}_sources"] += 1

    def add_library_call(self, call: Call) -> None:
        self.numbers["library_calls"] += 1
        self.count(*_classify(call))

    def summary(self) -> Summary:
        fields: Dict[str, Any] = {**self.numbers, **self.counters, "calls": self.calls}
        fields["synchronizations"] = self.calls["cudaStreamSynchronize"]
        fields["memsets"] = self.calls["cudaMemsetAsync"]
        return Summary(**fields)


def _classify(call: Call) -> Tuple[str, NamedTuple]:
    """Return the field of a Summary that a library call belongs to, and what it counts as."""
    name, fields = call.name, call.fields
    dtype: Any = _dtype_of(fields)
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
    return "other_calls", OtherCall(name, dtype)


def _dtype_of(fields: Mapping[str, Any]) -> Optional[str]:
    """Return the dtype of x, of y if a call has no x, or of all that it works on."""
    tensor = fields.get("x") or fields.get("y") or fields
    return tensor.get("dtype")


def _plain(value: Union[int, CounterOf[Any]]) -> Any:
    """Return a field of a Summary as JSON has it."""
    if isinstance(value, int):
        return value
    if any(isinstance(key, tuple) for key in value):
        return [{**key._asdict(), "count": number} for key, number in value.most_common()]
    return dict(value.most_common())
