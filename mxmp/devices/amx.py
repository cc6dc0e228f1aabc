"""Switches on AMX, the matrix unit of Intel processors since Sapphire Rapids, for MXNet.

The oneDNN in MXNet 1.9.1 (2.4) has kernels for AMX, several times as fast in bfloat16 as its others, but takes them
only if ``DNNL_MAX_CPU_ISA`` says ``AVX512_CORE_AMX`` when its first primitive is made; no other value has them taken.
It does not ask the kernel, which ends a process (SIGILL) that touches AMX's tiles without permission. So `enable_amx`

1. asks for the permission. It is the whole process's, threads that run already included; a fork inherits it,
   a program that is started (exec) does not;
2. sets the variable, runs one small oneDNN operator, and takes the variable out again. A child process, which
   would inherit it without the permission, finds the environment as it was.

Whether oneDNN had made a primitive before, when this comes too late, cannot be seen: MXNet's library exports nothing
of what oneDNN says about itself.

References:
    Linux, Documentation/arch/x86/xstate.rst, and arch/x86/kernel/fpu/xstate.c; oneDNN,
    src/cpu/x64/cpu_isa_traits.cpp at commit 5818c40f, which MXNet 1.9.1 is built with.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import Iterable, Iterator, NamedTuple, Optional, Tuple

from .processor import Processor, read_processor

VARIABLE, VALUE = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX"

# The number of the system call arch_prctl on x86-64, ARCH_REQ_XCOMP_PERM, and XTILEDATA, the tiles' state component.
_REQUEST = (158, 0x1023, 18)
_REFUSALS = {
    errno.EINVAL: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.ENOSYS: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.EOPNOTSUPP: ("the kernel has no support for AMX here", ""),
    errno.ENOSPC: (
        "a thread has a signal stack of its own that is too small for AMX",
        "Call mxmp.enable_amx() before what sets it up, such as faulthandler of an older Python.",
    ),
    errno.EPERM: ("the request is forbidden here", "Allow arch_prctl in the container's rules for system calls."),
}


class AmxStatus(NamedTuple):
    """Whether MXNet's bfloat16 convolutions and matrix products use AMX.

    Attributes:
        on: Whether they do.
        reason: One sentence on why, or why not.
        advice: The remedy; empty if there is none.
    """

    on: bool
    reason: str
    advice: str = ""


_ABSENT = AmxStatus(False, "This processor has no AMX.")
_UNASKED = AmxStatus(
    False, "This process has not asked for it.", "Call mxmp.enable_amx() before any operator of MXNet runs."
)

_status: Optional[AmxStatus] = None  # of this process, for which oneDNN decides once; None before `enable_amx`


def has_amx(processor: Processor) -> bool:
    """Return whether a processor has AMX, and its kernel says so."""
    return processor.flags >= {"amx_tile", "amx_bf16", "avx512_bf16"}  # oneDNN asks for all of them


def enable_amx() -> AmxStatus:
    """Let MXNet use AMX in this process, where the processor has it; return whether it does, and why not.

    Call it before any operator of MXNet runs, which is when oneDNN decides: later it has no effect, and still says
    that AMX is on. It imports MXNet. ``MXMP_AMX=1`` in the environment has ``import mxmp`` call it.

    A ``DNNL_MAX_CPU_ISA`` or ``ONEDNN_MAX_CPU_ISA`` of the user's own decides, and is left as it is. With
    ``DNNL_MAX_CPU_ISA=AVX512_CORE_AMX`` this only asks the kernel for the permission, without which MXNet would die.

    Example:
        >>> enable_amx() == amx_status()
        True
    """
    global _status
    if _status is None or not _status.on:
        _status = _switch_on()
    return _status


def amx_status() -> AmxStatus:
    """Return whether MXNet uses AMX, and why; changes nothing."""
    if _status is not None:
        return _status
    return _UNASKED if has_amx(read_processor()) else _ABSENT


def notes(dtypes: Iterable[str]) -> Tuple[str, ...]:
    """Return what to say of a network that computes in some canonical dtypes: that AMX could be on and is not."""
    status = amx_status() if "bfloat16" in dtypes else _ABSENT
    return (f"AMX is off: {status.reason} {status.advice}",) if status.advice else ()


def request_permission() -> int:
    """Ask the kernel to let this process use AMX; return 0, or the errno of its refusal."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    refused = call(*map(ctypes.c_long, _REQUEST))
    return ctypes.get_errno() if refused else 0


def run_operator() -> bool:
    """Run the smallest operator of oneDNN, and return whether it is there to run it; waits for the result."""
    import mxnet as mx  # here, so that a processor without AMX is no reason to import it

    is_off = os.environ.get("MXNET_MKLDNN_ENABLED", "").strip().lower() in ("0", "false")
    if is_off or not mx.runtime.Features().is_enabled("MKLDNN"):
        return False
    with mx.autograd.pause():  # the user may be recording
        one = mx.nd.ones((1, 1), ctx=mx.cpu(), dtype="float32")
        mx.nd.FullyConnected(one, one, num_hidden=1, no_bias=True).wait_to_read()
    return True


@contextlib.contextmanager
def variable_set(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within a block, for C code too."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _switch_on() -> AmxStatus:
    """Switch AMX on, unless the user has decided; the environment is the same before and after, whatever happens."""
    if not has_amx(read_processor()):
        return _ABSENT
    # Later versions of oneDNN read the second.
    decision = next((name for name in (VARIABLE, "ONEDNN_MAX_CPU_ISA") if os.environ.get(name)), None)
    wanted = os.environ.get(VARIABLE) == VALUE
    if decision and not wanted:
        return AmxStatus(False, f"{decision}={os.environ[decision]} is set.", f"Unset {decision}.")
    error = request_permission()
    if error:
        why, advice = _REFUSALS.get(error, (os.strerror(error), ""))
        reason = f"The kernel gave no permission ({errno.errorcode.get(error, error)}): {why}."
        return AmxStatus(False, reason, f"Unset {VARIABLE}, of which MXNet dies now." if wanted else advice)
    if wanted:
        return AmxStatus(True, f"{VARIABLE}={VALUE} is set; mxmp got the kernel's permission.")
    with variable_set(VARIABLE, VALUE):
        if run_operator():
            return AmxStatus(True, "mxmp switched it on.")
    return AmxStatus(False, "MXNet runs no oneDNN, which has the kernels for it.", "Unset MXNET_MKLDNN_ENABLED.")
