"""Whether this machine's GPUs and CPU run a policy's low precision in hardware; warns and refuses where they do not.

A CPU is judged by its flags. GPUs are judged by nvidia-smi and by the machine code in the released wheels of MXNet.

References:
    ``device_compatibility_check`` of tf.keras.mixed_precision, which names cards below compute
    capability 7.0; NVIDIA, "CUDA GPUs" (https://developer.nvidia.com/cuda-gpus) for the numbers.
"""

from __future__ import annotations

import inspect
import logging
import re
import shutil
import subprocess
import warnings
from typing import Iterable, List, NamedTuple, Optional, Tuple, Union

import mxnet as mx

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32
from ..errors import ConvertError, SlowPrecisionWarning, mxnet_reason
from ..policy import Policy
from ..processors import Processor
from ..report import Report
from ..report.doctor import Finding
from .processor import read_processor

_LOG = logging.getLogger(__name__)

Capability = Tuple[int, int]  # compute capability, (major, minor)

# The cards that the wheels mxnet-cu112, -cu115 and -cu117 1.9.1 hold machine code for, as cuobjdump lists it. It runs
# on cards of the same major number, from the minor one on; there is no PTX, which a driver compiles for later cards.
_RELEASED: Tuple[Capability, ...] = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
RELEASED = f"machine code for {', '.join(f'{major}.{minor}' for major, minor in _RELEASED)}; no PTX"

# The Turing chips TU116 and TU117 have the number of those with tensor cores; their cards, by name.
_BARE = re.compile(r"\b(GTX 16\d\d|MX[45]50|T[456]00|T550|T1[02]00|T2000|CMP 30HX)\b")

TIMEOUT = 10.0  # seconds; a hanging driver must not hang the check


class Gpu(NamedTuple):
    """A graphics card."""

    index: int  # type: ignore[assignment]  # as nvidia-smi counts, CUDA may do otherwise; it hides tuple.index
    name: str
    capability: Optional[Capability]  # None if the driver does not tell


def check_devices(policy: Union[str, Policy]) -> List[Finding]:
    """Return whether every GPU of this machine and its CPU run a policy in hardware.

    Starts ``nvidia-smi`` if there is one. Nothing is measured: the speed of bfloat16 on the CPU follows from the kind
    of the processor, and ``mxmp doctor`` has the clock. An MXNet with CUDA counts as one of the released wheels.

    Args:
        policy: A policy or its name; its ``compute_dtype`` counts.

    Returns:
        One finding per GPU, then that of the CPU.

    Raises:
        PolicyError: If the policy is not one.

    Example:
        >>> print(check_devices("O0")[-1].message)  # doctest: +ELLIPSIS
        CPU (...): float32 runs as ever.
    """
    dtype = Policy.parse(policy).compute_dtype
    gpus = read_gpus()
    if not gpus:
        gpus = [Gpu(index, "which nvidia-smi does not list", None) for index in range(count_gpus())]
    findings = [check_gpu(gpu, dtype) for gpu in gpus]
    return [*findings, check_cpu(read_processor(), dtype)]


def not_for_this_machine(policy: Union[str, Policy], report: Report) -> str:
    """Return why plain MXNet does not run a converted network well on this machine; '' if a device here does."""
    parsed = Policy.parse(policy)
    if not parsed.is_mixed or parsed.compute_dtype not in report.count:  # float32 runs anywhere
        return ""
    findings = check_devices(parsed)
    if any(finding.ok is not False for finding in findings):
        return ""
    # The last finding is the processor's and says why bfloat16 does not run. There may be several GPUs, or none.
    last = findings[-1]
    lacks = "float16 needs a GPU" if parsed.compute_dtype == FLOAT16 else f"{last.message} {last.advice}"
    return f"not for this machine: {lacks}"


def read_gpus() -> List[Gpu]:
    """Return the NVIDIA cards of this machine, as ``nvidia-smi`` lists them; none where it does not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT)
    except (subprocess.TimeoutExpired, OSError) as e:
        _LOG.warning("nvidia-smi does not answer, so that the GPUs of this machine are not known: %s", e)
        return []
    if done.returncode:  # a driver before 510 does not know the field
        return []
    gpus: List[Gpu] = []
    for line in filter(str.strip, done.stdout.splitlines()):
        name, _, number = line.rpartition(",")
        gpus.append(Gpu(len(gpus), name.strip(), _capability(number)))
    return gpus


def is_for_gpus() -> bool:
    """Return whether this MXNet was built with CUDA."""
    return bool(mx.runtime.Features().is_enabled("CUDA"))


def check_gpu(gpu: Gpu, dtype: str) -> Finding:
    """Return whether a card runs a canonical dtype in hardware."""
    device = f"GPU {gpu.index} ({gpu.name})"
    if gpu.capability is None:
        text = f"{device}: its driver does not tell its compute capability; released MXNets have {RELEASED}."
        advice = "Look it up at https://developer.nvidia.com/cuda-gpus; float16 needs 7.0 to be fast."
        return Finding(device, text, None, advice)
    ok, text, advice = _verdict(gpu.name, gpu.capability, dtype)
    return Finding(device, "{}, compute capability {}.{}: {}.".format(device, *gpu.capability, text), ok, advice)


def has_tensor_cores(gpu: Gpu) -> bool:
    """Return whether a card is known to run float16 on tensor cores, by this MXNet."""
    is_bare = gpu.capability == (7, 5) and _BARE.search(gpu.name) is not None
    return gpu.capability is not None and gpu.capability >= (7, 0) and not is_bare and bool(check_gpu(gpu, FLOAT16).ok)


def check_cpu(processor: Processor, dtype: str) -> Finding:
    """Return whether a processor runs a canonical dtype in hardware, by its kind."""
    device = f"CPU ({processor.name})"
    if dtype == FLOAT32:
        return Finding(device, f"{device}: float32 runs as ever.")
    ok, text, advice = _verdict_on_bfloat16(processor)
    if dtype == FLOAT16:
        other = "take mixed_bfloat16" if ok else "train on a GPU of compute capability 7.0 or later"
        text = "float16 is emulated: float32 arithmetic with results rounded to float16, which is slower than float32"
        return Finding(device, f"{device}: {text}.", False, processor.amx.advice or f"For speed {other}.")
    return Finding(device, f"{device}: {text}.", ok, advice)


def warn_if_slow(dtype: str) -> None:
    """Warn if a network is converted to bfloat16 and that is slow here, or does not run, by the processor's kind."""
    if dtype == BFLOAT16:
        finding = check_cpu(read_processor(), dtype)
        if finding.ok is False:
            warn(f"{finding.message} {finding.advice}")


def warn(text: str) -> None:
    """Give a SlowPrecisionWarning on the user's line, the first outside mxmp."""
    level = 1
    for caller in inspect.stack(context=0):
        module = caller.frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != "mxmp":
            break
        level += 1
    warnings.warn(text, SlowPrecisionWarning, level)


def amx_notes(dtypes: Iterable[str]) -> Tuple[str, ...]:
    """Return a note for a network in bfloat16 that AMX could be on and is not; none for other dtypes."""
    note = read_processor().amx.note if BFLOAT16 in dtypes else ""
    return (note,) if note else ()


def is_gpu(context: mx.Context) -> bool:
    """Return whether a context is a GPU."""
    return bool(context.device_type == "gpu")


def require_bfloat16(dtype: str, contexts: Iterable[mx.Context], where: str, runs: bool = False) -> None:
    """Refuse bfloat16 on a GPU; if something ``runs`` in it, also on a CPU that MXNet has no kernels for.

    ``where`` names the network or parameter. MXNet itself fails at some later read, with a message that does not.
    """
    for context in contexts if dtype == BFLOAT16 else ():
        if is_gpu(context):
            raise ConvertError(
                f"{where}: bfloat16 on {context}, but MXNet 1.9.1 has no bfloat16 kernels for GPUs. Take a float16 "
                f"policy there, such as 'O1', or run on a CPU."
            )
        if runs and read_processor().kind.runs is False:
            raise ConvertError(
                f"{where} computes in bfloat16, which MXNet does not run on this processor ({read_processor().name}): "
                f"it needs AVX-512. Convert it to float32 or 'O1' to run it here, or run it on another machine."
            )


def _verdict(name: str, capability: Capability, dtype: str) -> Tuple[bool, str, str]:
    """Return whether a dtype runs on a card in hardware, a sentence about it, and advice."""
    if not any(major == capability[0] and minor <= capability[1] for major, minor in _RELEASED):
        text = f"no released MXNet 1.9.1 runs here, in any precision: they have {RELEASED}"
        return False, text, "Build MXNet for this card."
    if not is_for_gpus():
        return False, "this MXNet is for CPUs", "Install mxnet-cu112 1.9.1 in place of this MXNet."
    if dtype == FLOAT32:
        return True, "float32 runs as ever", ""
    if dtype == BFLOAT16:  # which tensor cores multiply from Ampere on
        lacks = "the card could, but" if capability >= (8, 0) else "the card has no bfloat16 arithmetic, and"
        return False, f"bfloat16 does not run: {lacks} MXNet 1.9.1 has no bfloat16 kernels for GPUs", "Take float16."
    if capability < (7, 0):  # Volta, with the first tensor cores
        text = "float16 runs without tensor cores, which came with 7.0: it saves memory, but may be slower than float32"
        return False, text, "Take float32 unless memory is short."
    if capability == (7, 5) and _BARE.search(name):
        return True, "float16 runs in hardware, though this card has no tensor cores", ""
    return True, "float16 runs on its tensor cores", ""


def _verdict_on_bfloat16(processor: Processor) -> Tuple[Optional[bool], str, str]:
    """Return whether bfloat16 is at least as fast as float32 on a processor, a sentence about it, and advice."""
    kind = processor.kind
    if kind.runs is None:
        return None, "the speed of bfloat16 is not known, nor the processor's flags", "`mxmp doctor` measures it."
    if not kind.runs:
        why = "bfloat16 does not run, because MXNet needs AVX-512 for it"
        return False, why, "Take float32 on this processor, or float16 on a GPU."
    if kind.gains:
        return True, f"bfloat16 runs in hardware ({kind.name}); its speed: {kind.figure}", ""
    if processor.amx.advice:
        why = f"AMX is off: {processor.amx.reason.rstrip('.')}"
        return False, f"bfloat16 is slower than float32, as {why}", processor.amx.advice
    return False, f"bfloat16 is slower than float32 on the kind '{kind.name}': {kind.figure}", "Take float32."


def _capability(text: str) -> Optional[Capability]:
    """Return the two numbers of a text such as '8.6', None for any other text."""
    match = re.fullmatch(r"\s*(\d+)\.(\d+)\s*", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def count_gpus() -> int:
    """Return how many cards MXNet sees; in a container it may be more than nvidia-smi does."""
    try:
        return int(mx.context.num_gpus())
    except mx.MXNetError as e:
        _LOG.warning("MXNet finds no GPU: %s", mxnet_reason(e))
        return 0
