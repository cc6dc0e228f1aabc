"""The doctor: whether this machine runs a policy in hardware, by its versions, devices and environment variables."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from .. import compat, rounding
from ..devices import amx, speed
from ..devices.auto import parse_policy
from ..devices.check import RELEASED, check_devices, has_tensor_cores, is_for_gpus, read_gpus
from ..devices.processor import read_processor
from ..dtypes import BFLOAT16, FLOAT16, FLOAT32
from ..policy import Policy
from ..processors import AmxStatus, Processor
from ..report.doctor import DoctorReport, Finding

GPU, CPU = "GPU", "CPU"

_INSTRUCTIONS = ("avx512bw", "amx_bf16", "avx512_bf16")  # MXNet runs bfloat16 if it has the first.
_FEATURES = {"CUDA": "CUDA", "CUDNN": "cuDNN", "NCCL": "NCCL", "MKLDNN": "oneDNN", "DIST_KVSTORE": "parameter server"}


def doctor(
    policy: Union[str, Policy] = "O1",
    environ: Optional[Mapping[str, str]] = None,
) -> DoctorReport:
    """Return whether this machine runs a policy in hardware, with the remedies, and which policies to use here.

    It starts ``nvidia-smi`` if that is installed. If the processor runs bfloat16, it measures convolutions and matrix
    products in bfloat16 and float32 for a second or two. The times are shown. The advice depends on the kind of the
    processor (`mxmp.processors.KINDS`) and not on the times, so that it is the same in every run.

    Args:
        policy: A policy or its name; only its ``compute_dtype`` matters.
        environ: The environment variables; those of this process unless given.

    Raises:
        PolicyError: If the policy cannot be parsed.

    Example:
        >>> print(doctor("O0"))  # doctest: +ELLIPSIS
        float32 runs in hardware here: ...
    """
    parsed, processor = parse_policy(policy), read_processor()
    dtype, measured = parsed.compute_dtype, speed.bfloat16_speed(speed.LONG)
    environ = os.environ if environ is None else environ
    by_dtype = {each: check_devices(f"compute={each}") for each in (dtype, FLOAT16, BFLOAT16)}
    running = {each: _running(devices, environ, each) for each, devices in by_dtype.items()}
    kinds = {_kind(finding) for finding in by_dtype[dtype]}
    features = mx.runtime.Features()
    built = [text for name, text in _FEATURES.items() if name in features and features.is_enabled(name)]
    library = f"{mx.__version__} with {', '.join(built) or 'none of its options'}: {mx.libinfo.find_lib_path()[0]}"
    times = "not measured: it does not run on this processor" if measured is None else f"measured: {measured}"
    findings = [
        Finding("Python", platform.python_version()),  # The import of mxmp has checked the versions.
        Finding("numpy", np.__version__),
        _names(),
        Finding("MXNet", library),
        Finding("GPU code", f"{RELEASED}, as a released wheel" if is_for_gpus() else "none: this MXNet is for CPUs"),
        Finding("processor", f"{processor.name}, of the kind '{processor.kind.name}'"),
        _instructions(processor),
        _amx(processor.amx),
        Finding("bfloat16", times),
        Finding("emulated float16", rounding.state()),
        *([] if GPU in kinds else [Finding(GPU, "none")]),
        *(replace(finding, subject=_kind(finding)) for finding in by_dtype[dtype]),
        *(variable.check(environ, dtype if variable.devices in kinds else "") for variable in _VARIABLES),
    ]
    return DoctorReport(str(parsed), dtype, running[dtype], _use(running, processor), tuple(findings))


def _use(running: Mapping[str, Sequence[str]], processor: Processor) -> str:
    """Return the policies to train and infer with, given the devices that run each dtype, and how to turn AMX on."""
    convert, freeze = "mxmp.gluon.convert(net, {})", "mxmp.gluon.freeze(net)"
    if running[FLOAT16] and any(map(has_tensor_cores, read_gpus())):
        train = f"{convert.format(repr('O1'))} and mxmp.gluon.Trainer, which scales the loss, to train on the GPU"
        return f"Use {train}, and {freeze} to infer."
    if running[BFLOAT16] and processor.kind.gains:
        train = f"{convert.format(repr('mixed_bfloat16'))}, which needs no loss scale, to train on this CPU"
        return f"Use {train}, and {freeze} to infer."
    use = f"Use float32, MXNet's default, to train here, and {freeze}, which chooses float32, to infer"
    amx = processor.amx
    if not amx.advice:
        return f"{use}."
    return f"{use}. AMX would be faster, but is off ({amx.reason.rstrip('.')}): {amx.advice}"


def _running(findings: Sequence[Finding], environ: Mapping[str, str], dtype: str) -> Tuple[str, ...]:
    """Return the devices that run a dtype as far as is known, and that no environment variable keeps from it."""
    closed = {each.devices for each in _VARIABLES if each.check(environ, dtype).ok is False}
    return tuple(each.subject for each in findings if each.ok is not False and _kind(each) not in closed)


def _kind(finding: Finding) -> str:
    return GPU if finding.subject.startswith(GPU) else CPU


def _names() -> Finding:
    if not compat.needed():
        return Finding("names for MXNet", "not needed: MXNet runs with this Python and numpy as they are")
    if compat.installed():
        return Finding("names for MXNet", "mxmp gives MXNet the names that this Python or numpy has removed")
    return Finding("names for MXNet", "missing: MXNet was imported before mxmp", None, "Import mxmp before MXNet.")


def _instructions(processor: Processor) -> Finding:
    flags = processor.flags
    if not flags:
        return Finding("CPU flags", "unknown; this system does not list them", None)
    return Finding("CPU flags", ", ".join(f"{flag}: {'yes' if flag in flags else 'no'}" for flag in _INSTRUCTIONS))


def _amx(status: AmxStatus) -> Finding:
    state = f"{'on' if status.on else 'off'}: {status.reason}"
    return Finding("AMX", state, None if status.advice else True, status.advice)


def _is_off(value: Optional[str]) -> bool:
    return value is not None and value.strip().lower() in ("0", "false")


def _is_on(value: Optional[str]) -> bool:
    return bool(value) and not _is_off(value)  # MXNet ignores an empty value.


def _hides_all(value: Optional[str]) -> bool:
    """Return whether CUDA sees no card. It reads the list up to the first invalid number."""
    return value is not None and value.partition(",")[0].strip() in ("", "-1")


def _is_limit(value: Optional[str]) -> bool:
    return bool(value) and str(value).strip().upper() not in ("ALL", amx.VALUE)


class _Variable(NamedTuple):
    """An environment variable that decides how fast some dtypes run."""

    name: str
    default: str
    devices: str  # the kind of device that it is about, `GPU` or `CPU`
    dtypes: Tuple[str, ...]
    hurts: Callable[[Optional[str]], bool]  # whether a value, or None where it is not set, slows the dtypes down
    ok: Optional[bool]  # False if it then keeps the dtypes out of the hardware, None if a change makes them faster
    advice: str

    def check(self, environ: Mapping[str, str], dtype: str) -> Finding:
        """Return the finding about the variable's value, for a canonical dtype."""
        value = environ.get(self.name)
        text = f"not set, which is {self.default}" if value is None else repr(value)
        hurts = dtype in self.dtypes and self.hurts(value)
        return Finding(self.name, text, self.ok, self.advice) if hurts else Finding(self.name, text)


_LOW = (FLOAT16, BFLOAT16)

# The calls of dmlc::GetEnv in MXNet's src/ at tag 1.9.1: operator/nn/softmax-inl.h, operator/nn/layer_norm.cu,
# operator/tensor/broadcast_reduce_op.h (norm alone), operator/nn/cudnn/cudnn_convolution-inl.h, common/cuda_utils.h,
# operator/linalg_impl.h and operator/nn/mkldnn/mkldnn_base-inl.h; operator/rnn-inl.h asks common/cuda_utils.h. NVIDIA,
# "CUDA C++ Programming Guide", CUDA environment variables; oneDNN's documentation, "CPU Dispatcher Control"; glibc's
# manual, "Memory Allocation Tunables".
_VARIABLES = [
    _Variable(
        "MXNET_SAFE_ACCUMULATION", "0", GPU, (FLOAT16,), lambda value: not _is_on(value), None,
        "Set it to 1: softmax, LayerNorm and norm in float16, as under O3, then sum in float32.",
    ),
    _Variable(
        "MXNET_CUDNN_AUTOTUNE_DEFAULT", "1", GPU, _LOW, _is_off, None,
        "Unset it, so that cuDNN times its algorithms; 0 is for inputs whose shapes change often.",
    ),
    _Variable(
        "MXNET_CUDA_ALLOW_TENSOR_CORE", "1", GPU, (FLOAT16,), _is_off, False,
        "Unset it: it keeps float16 off the tensor cores.",
    ),
    _Variable(
        "MXNET_FC_TRUE_FP16", "0", GPU, (FLOAT16,), _is_on, None,
        "Unset it: with it matrix products add up in float16 instead of float32.",
    ),
    _Variable(
        "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", "0", GPU, (FLOAT16,), lambda value: not _is_on(value), None,
        "Set it to 1 for LSTM, GRU and RNN layers: they stay in float32, and cuDNN then uses tensor cores for them.",
    ),
    _Variable("CUDA_VISIBLE_DEVICES", "all", GPU, _LOW, _hides_all, False, "Unset it: it hides every GPU from MXNet."),
    _Variable(
        "MXNET_MKLDNN_ENABLED", "1", CPU, (BFLOAT16,), _is_off, False,
        "Unset it: on a CPU MXNet has bfloat16 only by oneDNN.",
    ),
    _Variable(
        "DNNL_MAX_CPU_ISA", "all but AMX", CPU, (BFLOAT16,), _is_limit, None,
        "Unset it, unless oneDNN should not use newer instructions.",
    ),
    _Variable(
        "MALLOC_TRIM_THRESHOLD_", "128 KiB and more", CPU, (FLOAT32, BFLOAT16), lambda value: value is None, None,
        "For an LSTM, or dense layers with many weights, set it and MALLOC_MMAP_THRESHOLD_ to 17179869184, and "
        "MALLOC_ARENA_MAX to 1: glibc then keeps the memory that each step frees and needs again.",
    ),
]  # fmt: skip
