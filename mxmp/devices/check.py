"""Whether this machine's GPUs and CPU run a policy's low precision in hardware.

References:
    ``device_compatibility_check`` of tf.keras.mixed_precision, which names cards below compute
    capability 7.0; NVIDIA, "CUDA GPUs" (https://developer.nvidia.com/cuda-gpus) for the numbers.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple, Union

import mxnet as mx

from .. import dtypes
from ..errors import DependencyError, mxnet_reason
from ..policy import Policy
from . import amx, speed
from .bfloat16 import runs_bfloat16
from .fatbin import RELEASED, Capability, GpuCode, read_gpu_code
from .processor import BFLOAT16_FLAGS, Processor, read_processor

_LOG = logging.getLogger(__name__)

TENSOR_CORES: Capability = (7, 0)  # float16 matrix products in them: Volta and later
BFLOAT16: Capability = (8, 0)  # bfloat16 in them: Ampere and later
_TURING: Capability = (7, 5)
# The Turing chips TU116 and TU117 have the number of those with tensor cores; their cards, by name.
_BARE = re.compile(r"\b(GTX 16\d\d|MX[45]50|T[456]00|T550|T1[02]00|T2000|CMP 30HX)\b")

TIMEOUT = 10.0  # seconds; a hanging driver must not hang the check


class Gpu(NamedTuple):
    """A graphics card."""

    index: int  # type: ignore[assignment]  # as nvidia-smi counts, CUDA may do otherwise; it hides tuple.index
    name: str
    capability: Optional[Capability]  # None if the driver does not tell


@dataclass(frozen=True)
class Finding:
    """Whether one device runs a policy in hardware.

    Attributes:
        device: Number and name of the device.
        ok: Whether MXNet runs the policy there in hardware, and bfloat16 no slower than float32; None if that is
            not known.
        message: One sentence, which names the device.
        advice: What to do about it; empty if nothing.
    """

    device: str
    ok: Optional[bool]
    message: str
    advice: str = ""


def check_devices(policy: Union[str, Policy], library: Union[str, Path, None] = None) -> List[Finding]:
    """Return whether every GPU of this machine and its CPU run a policy in hardware.

    Starts ``nvidia-smi`` if there is one, and reads which GPUs MXNet's library has code for. Where the processor
    runs bfloat16, its speed is measured for half a second, once for a machine and a build of MXNet; a policy of
    float32 asks for none of this.

    Args:
        policy: A policy or its name; its ``compute_dtype`` counts.
        library: The libmxnet.so to read; the installed one unless given. Where it cannot be read
            (systems other than Linux), it counts as one of the released CUDA wheels.

    Returns:
        One finding per GPU, then that of the CPU.

    Raises:
        PolicyError: If the policy is not one.

    Example:
        >>> print(check_devices("O0")[-1].message)  # doctest: +ELLIPSIS
        CPU (...): float32 runs as ever.
    """
    dtype = Policy.parse(policy).compute_dtype
    return find(dtype, None if dtype == dtypes.FLOAT32 else speed.bfloat16_speed(), library)


def find(dtype: str, measured: Optional[speed.Speed], library: Union[str, Path, None] = None) -> List[Finding]:
    """Return what `check_devices` does, given the compute dtype and the speed of bfloat16 if that is known."""
    runs = measured is not None or (dtype == dtypes.BFLOAT16 and runs_bfloat16())
    try:
        code = read_gpu_code(library or mx.libinfo.find_lib_path()[0])
    except DependencyError as e:
        _LOG.info("%s", e)
        code = RELEASED
    gpus = read_gpus() or [Gpu(index, "which nvidia-smi does not list", None) for index in range(_count_gpus())]
    return [*(check_gpu(gpu, dtype, code) for gpu in gpus), check_cpu(read_processor(), dtype, runs, measured)]


def read_gpus() -> List[Gpu]:
    """Return the NVIDIA cards of this machine, as ``nvidia-smi`` lists them; none where it cannot."""
    lines = _query("name,compute_cap")
    if lines is None:  # an older driver
        return [Gpu(index, line.strip(), None) for index, line in enumerate(_query("name") or [])]
    cards = [line.rpartition(",") for line in lines]
    return [Gpu(index, name.strip(), _capability(number)) for index, (name, _, number) in enumerate(cards)]


def check_gpu(gpu: Gpu, dtype: str, code: GpuCode = RELEASED) -> Finding:
    """Return whether a card runs a canonical dtype in hardware, with the code that MXNet's library holds for GPUs."""
    device = f"GPU {gpu.index} ({gpu.name})"
    if gpu.capability is None:
        known = f"its driver does not tell its compute capability; this MXNet has {code}"
        advice = "Look it up at https://developer.nvidia.com/cuda-gpus; float16 needs 7.0 to be fast."
        return Finding(device, None, f"{device}: {known}.", advice)
    ok, text, advice = _verdict(gpu.name, gpu.capability, dtype, code)
    major, minor = gpu.capability
    return Finding(device, ok, f"{device}, compute capability {major}.{minor}: {text}.", advice)


def check_cpu(processor: Processor, dtype: str, runs: bool, measured: Optional[speed.Speed] = None) -> Finding:
    """Return whether a processor runs a canonical dtype in hardware.

    Args:
        processor: The processor.
        dtype: The dtype.
        runs: Whether MXNet runs bfloat16 on it.
        measured: How fast that is, if it was measured.
    """
    device = f"CPU ({processor.name})"
    if dtype == dtypes.FLOAT32:
        return Finding(device, True, f"{device}: float32 runs as ever.")
    if dtype == dtypes.FLOAT16:
        text = "float16 is emulated: float32 arithmetic with results rounded to float16, which is slower than float32"
        advice = "train on a GPU of compute capability 7.0 or later"
        if measured is not None and measured.training > 1:
            advice = f"take mixed_bfloat16, {measured.training:.2f} times as fast as float32 in training here"
        return Finding(device, False, f"{device}: {text}.", f"For speed {advice}.")
    message = describe_bfloat16(processor, runs, measured)
    if runs and measured is not None:
        return Finding(device, not measured.slower, message, measured.advice)
    return Finding(device, None if runs else False, message, "Take float32 on this processor, or float16 on a GPU.")


def describe_bfloat16(processor: Processor, runs: bool, measured: Optional[speed.Speed]) -> str:
    """Return one sentence on how bfloat16 runs on a processor: whether it does at all, and how fast if known."""
    if not runs:
        return f"bfloat16 does not run on this processor ({processor.name}): MXNet needs AVX-512 for it."
    flags = ", ".join(flag for flag in BFLOAT16_FLAGS if flag in processor.flags) or "no instructions for bfloat16"
    state = f"; AMX {'on' if amx.amx_status().on else 'off'}" if amx.has_amx(processor) else ""
    found = "of unknown speed" if measured is None else str(measured)
    return f"bfloat16 is {found} on this processor ({processor.name}: {flags}{state})."


def _verdict(name: str, capability: Capability, dtype: str, code: GpuCode) -> Tuple[bool, str, str]:
    """Return whether a dtype runs in hardware, what it does and what to do about it."""
    if not code.runs_on(capability):
        text = f"this MXNet cannot run here, in any precision: it has {code}"
        if RELEASED.runs_on(capability):
            return False, text, "Install mxnet-cu112 1.9.1 in place of this MXNet."
        return False, text, f"Build MXNet for this card; its released wheels have {RELEASED}."
    if dtype == dtypes.FLOAT32:
        return True, "float32 runs as ever", ""
    if dtype == dtypes.BFLOAT16:
        lacks = "the card could, but " if capability >= BFLOAT16 else "the card has no bfloat16 arithmetic, and "
        return False, f"bfloat16 does not run: {lacks}MXNet 1.9.1 has no bfloat16 kernels for GPUs", "Take float16."
    if capability >= TENSOR_CORES:
        bare = capability == _TURING and _BARE.search(name)
        where = "in hardware, though this card has no tensor cores" if bare else "on its tensor cores"
        return True, f"float16 runs {where}", ""
    text = "float16 runs without tensor cores, which came with 7.0: it saves memory, but may be slower than float32"
    return False, text, "Take float32 unless memory is short."


def _capability(text: str) -> Optional[Capability]:
    """Return the two numbers of a text such as '8.6', None for any other text."""
    found = re.fullmatch(r"\s*(\d+)\.(\d+)\s*", text)
    return (int(found.group(1)), int(found.group(2))) if found else None


def _count_gpus() -> int:
    """Return how many cards MXNet sees; in a container it may be more than nvidia-smi does."""
    try:
        return int(mx.context.num_gpus())
    except mx.MXNetError as e:
        _LOG.warning("MXNet finds no GPU: %s", mxnet_reason(e))
        return 0


def _query(fields: str) -> Optional[List[str]]:
    """Return the lines that nvidia-smi prints, one per card; None if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT)
    except (subprocess.TimeoutExpired, OSError) as e:
        hangs = isinstance(e, subprocess.TimeoutExpired)
        reason = f"gave no answer within {TIMEOUT:g} s" if hangs else f"does not run ({e})"
        _LOG.warning("nvidia-smi %s; the GPUs of this machine are not known.", reason)
        return []
    return [line for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else None
