"""Switches on AMX, the matrix unit of Intel processors since Sapphire Rapids, for MXNet.

The oneDNN in MXNet 1.9.1 (2.4) has kernels for AMX, several times as fast in bfloat16 as its others, but takes them
only if ``DNNL_MAX_CPU_ISA`` says ``AVX512_CORE_AMX`` when its first primitive is made; no other value has them taken.
It does not ask the kernel, which ends a process (SIGILL) that touches AMX's tiles without permission. So, right
after MXNet is imported:

1. The permission is asked for. It is the whole process's, threads that run already included; a fork inherits it,
   a program that is started (exec) does not.
2. The variable is set, one small oneDNN operator runs, and the variable is taken out again. A child process, which
   would inherit it without the permission, finds the environment as it was.

It is the one thing that importing mxmp changes. Where the processor has no AMX, nothing is done. Nothing here imports
MXNet before somebody else has.

References:
    Linux, Documentation/arch/x86/xstate.rst, and arch/x86/kernel/fpu/xstate.c; oneDNN,
    src/cpu/x64/cpu_isa_traits.cpp at commit 5818c40f, which MXNet 1.9.1 is built with.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Iterable, NamedTuple, Optional, Tuple

from .processor import Processor, read_processor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator

SWITCH = "MXMP_AMX"
"""The environment variable that leaves AMX as it is, if it is 0."""

VARIABLE, VALUE = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX"
_DECISIONS = (VARIABLE, "ONEDNN_MAX_CPU_ISA")  # the second is what later versions of oneDNN call it
_FLAGS = {"amx_tile", "amx_bf16", "avx512_bf16"}  # oneDNN asks for all of them

_ARCH_PRCTL = 158  # the system call's number on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18  # the state component that the tiles are
_REFUSALS = {
    errno.EINVAL: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.ENOSYS: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.EOPNOTSUPP: ("the kernel has no support for AMX here", ""),
    errno.ENOSPC: (
        "a thread has a signal stack of its own that is too small for AMX",
        "Import mxmp before what sets it up, such as faulthandler of an older Python.",
    ),
    errno.EPERM: ("the request is forbidden here", "Allow arch_prctl in the container's rules for system calls."),
}


class AmxStatus(NamedTuple):
    """Whether MXNet's bfloat16 convolutions and matrix products use AMX.

    Attributes:
        on: Whether they do.
        reason: One sentence on why, or why not.
        advice: What to do about it; empty if nothing.
    """

    on: bool
    reason: str
    advice: str = ""


_ABSENT = AmxStatus(False, "This processor has no AMX.")
_WAITING = AmxStatus(False, "It is switched on when MXNet is imported.")
_ON = AmxStatus(True, "mxmp switched it on.")
_NO_ONEDNN = AmxStatus(False, "MXNet runs no oneDNN, which has the kernels for it.", "Unset MXNET_MKLDNN_ENABLED.")
_LATE = AmxStatus(
    False,
    "MXNet had run an operator before mxmp was imported; oneDNN decides at its first one.",
    "Import mxmp before any operator of MXNet runs.",
)

_status: Optional[AmxStatus] = None  # once MXNet is imported: what `switch_on` returned
_to_verify = False  # whether MXNet may have run an operator before


def has_amx(processor: Processor) -> bool:
    """Return whether a processor has AMX, and its kernel says so."""
    return processor.flags >= _FLAGS


def install() -> None:
    """Have AMX switched on at the end of MXNet's import, or now if that was before, where the processor has it."""
    global _to_verify
    if not has_amx(read_processor()) or sys.maxsize < 2**32:
        return
    if "mxnet" in sys.modules:
        _to_verify = True
        _switch_on()
        return
    from .after_import import after_import

    after_import("mxnet", _switch_on)


def amx_status() -> AmxStatus:
    """Return whether MXNet uses AMX, and why.

    If MXNet was imported before mxmp, one bfloat16 convolution runs once, to see whether that was too late.
    """
    global _status, _to_verify
    if _status is None:
        return _WAITING if has_amx(read_processor()) else _ABSENT
    if _to_verify and _status.on:
        from .generated_code import uses_amx

        _status = _status if uses_amx() else _LATE
    _to_verify = False
    return _status


def notes(dtypes: Iterable[str]) -> Tuple[str, ...]:
    """Return what to say of a network that computes in some canonical dtypes: that AMX could be on and is not."""
    found = amx_status() if "bfloat16" in dtypes else _ABSENT
    return (f"AMX is off: {found.reason} {found.advice}",) if found.advice else ()


def switch_on(request: Callable[[], int], run: Callable[[], bool]) -> AmxStatus:
    """Switch AMX on for MXNet's oneDNN, unless the user has decided, and return what came of it.

    The environment is the same before and after, whatever happens.

    Args:
        request: Asks the kernel; returns 0, or the errno of its refusal.
        run: Runs an operator, and returns whether it was oneDNN's.
    """
    if os.environ.get(SWITCH) == "0":
        return AmxStatus(False, f"{SWITCH}=0 is set.", f"Unset {SWITCH}.")
    decision = next((name for name in _DECISIONS if os.environ.get(name)), None)
    wanted = os.environ.get(VARIABLE) == VALUE
    if decision and not wanted:
        return AmxStatus(False, f"{decision}={os.environ[decision]} is set.", f"Unset {decision}.")
    error = request()
    if error:
        return _refused(error, wanted)
    if wanted:
        return AmxStatus(True, f"{VARIABLE}={VALUE} is set; mxmp got the kernel's permission.")
    with variable_set(VARIABLE, VALUE):
        return _ON if run() else _NO_ONEDNN


def request_permission() -> int:
    """Ask the kernel to let this process use AMX; return 0, or the errno of its refusal."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    refused = call(*map(ctypes.c_long, (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)))
    return ctypes.get_errno() if refused else 0


def run_operator() -> bool:
    """Run the smallest operator of oneDNN, and return whether it is there to run it; waits for the result."""
    import mxnet as mx

    off = os.environ.get("MXNET_MKLDNN_ENABLED", "").strip().lower() in ("0", "false")
    if off or not mx.runtime.Features().is_enabled("MKLDNN"):
        return False
    with mx.autograd.pause():  # mxmp may be imported while the user records
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


def _switch_on() -> None:
    global _status
    import logging

    try:
        _status = switch_on(request_permission, run_operator)
    except Exception as e:  # not the user's, who has imported MXNet or mxmp
        _status = AmxStatus(False, f"Switching it on failed: {type(e).__name__}: {e}")
    dangerous = not _status.on and os.environ.get(VARIABLE) == VALUE and os.environ.get(SWITCH) != "0"
    level = logging.WARNING if dangerous else logging.INFO
    logging.getLogger(__name__).log(level, "AMX is %s: %s", "on" if _status.on else "off", _status.reason)


def _refused(error: int, wanted: bool) -> AmxStatus:
    why, advice = _REFUSALS.get(error, (os.strerror(error), ""))
    reason = f"The kernel gave no permission ({errno.errorcode.get(error, error)}): {why}."
    if wanted:
        return AmxStatus(False, f"{reason} With {VARIABLE}={VALUE} MXNet dies of it.", f"Unset {VARIABLE}.")
    return AmxStatus(False, reason, advice)
