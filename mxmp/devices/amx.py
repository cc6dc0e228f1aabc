"""Switches on AMX, the matrix unit of Intel processors since Sapphire Rapids, for MXNet, and asks whether it is on.

The oneDNN in MXNet 1.9.1 (2.4) has kernels for AMX, several times as fast in bfloat16 as its others. It takes them only
if ``DNNL_MAX_CPU_ISA`` is ``AVX512_CORE_AMX`` when its first primitive is made. It does not ask the kernel, which ends
a process (SIGILL) that touches AMX's tiles without permission. So `enable_amx`

1. asks for the permission. It is the whole process's, threads that run already included; a fork inherits it,
   a program that is started (exec) does not;
2. sets the variable, runs one small oneDNN operator, and takes the variable out again. A child process, which
   would inherit it without the permission, finds the environment as it was.

If MXNet has run an operator before, this comes too late. No function of oneDNN tells. But its kernels add in different
orders, and `uses_amx` runs a product whose bits differ. That product is itself a first primitive, so it never runs
before the variable was set.

References:
    Linux, Documentation/arch/x86/xstate.rst, and arch/x86/kernel/fpu/xstate.c; oneDNN,
    src/cpu/x64/cpu_isa_traits.cpp at commit 5818c40f, which MXNet 1.9.1 is built with.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import logging
import os
from typing import Iterator, Optional

from ..processors import NO_AMX, AmxStatus, read_cpuinfo

_LOG = logging.getLogger(__name__)

VARIABLE, VALUE = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX"
_DECIDE = (VARIABLE, "ONEDNN_MAX_CPU_ISA")  # later versions of oneDNN read the second
SWITCH = "MXMP_AMX"
"""The environment variable that keeps AMX off: '0', 'false', 'no' or 'off'."""

# The number of the system call arch_prctl on x86-64, ARCH_REQ_XCOMP_PERM, and XTILEDATA, the tiles' state component.
_REQUEST = (158, 0x1023, 18)
_REFUSALS = {
    errno.EINVAL: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.ENOSYS: ("the kernel does not know the request", "Take Linux 5.16 or later."),
    errno.EOPNOTSUPP: ("the kernel has no support for AMX here", ""),
    errno.ENOSPC: (
        "a thread has a signal stack of its own that is too small for AMX",
        "Import mxmp before the code that sets it up, such as faulthandler of an older Python.",
    ),
    errno.EPERM: ("the request is forbidden here", "Allow arch_prctl in the container's rules for system calls."),
}

_TOO_LATE = "MXNet ran operators of oneDNN, such as convolutions, before mxmp could switch it on."

_status: Optional[AmxStatus] = None  # of this process, for which oneDNN decides once; None before it was switched on


def enable_amx() -> AmxStatus:
    """Let MXNet use AMX in this process, where the processor has it; return whether it does, and why not.

    ``import mxmp`` does it by itself, unless ``MXMP_AMX=0`` is set. In that case call this function before any operator
    of MXNet runs, because oneDNN decides at the first operator. It imports MXNet.

    A ``DNNL_MAX_CPU_ISA`` or ``ONEDNN_MAX_CPU_ISA`` of the user's own decides, and is left as it is. With
    ``DNNL_MAX_CPU_ISA=AVX512_CORE_AMX`` this only asks the kernel for the permission, without which MXNet would die.

    Example:
        >>> enable_amx() == amx_status()
        True
    """
    switch_on()
    return amx_status()


def amx_status() -> AmxStatus:
    """Return whether MXNet uses AMX, and why.

    Asks oneDNN once, by a small product that takes a few milliseconds. On a processor that has AMX the first call
    imports MXNet.
    """
    global _status
    if _status is None:
        if not read_cpuinfo().has_amx:
            return NO_AMX
        if is_kept_off():
            return _kept_off()
        switch_on()
    if _status is not None and _status.on and not uses_amx():
        first = "Call mxmp.enable_amx()" if is_kept_off() else "Put `import mxmp`"
        _status = AmxStatus(False, _TOO_LATE, f"{first} before the first operator of MXNet.")
    return _status or NO_AMX


def is_kept_off() -> bool:
    """Return whether the user keeps AMX off by the variable `SWITCH`, and does not ask for it by oneDNN's own."""
    return _is_no(os.environ.get(SWITCH)) and os.environ.get(VARIABLE) != VALUE


def switch_on_at_import() -> None:
    """Switch AMX on as MXNet's own import ends; an operator that fails is no reason for the import to fail."""
    import mxnet as mx

    try:
        switch_on()
    except mx.MXNetError as e:
        _LOG.warning("AMX stays off, because an operator of MXNet failed: %s", e)


def switch_on() -> None:
    """Switch AMX on, unless it is."""
    global _status
    if _status is None or not _status.on:
        _status = _switched_on()


def request_permission() -> int:
    """Ask the kernel to let this process use AMX; return 0, or the errno of its refusal."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    refused = call(*map(ctypes.c_long, _REQUEST))
    return ctypes.get_errno() if refused else 0


def has_onednn() -> bool:
    """Return whether MXNet runs operators by oneDNN."""
    import mxnet as mx  # here, so that a processor without AMX is no reason to import it

    return not _is_no(os.environ.get("MXNET_MKLDNN_ENABLED")) and mx.runtime.Features().is_enabled("MKLDNN")


def run_operator() -> None:
    """Run the smallest operator of oneDNN, and wait for its result."""
    import mxnet as mx

    with mx.autograd.pause():  # the user may be recording
        one = mx.nd.ones((1, 1), ctx=mx.cpu(), dtype="float32")
        mx.nd.FullyConnected(one, one, num_hidden=1, no_bias=True).wait_to_read()


@functools.lru_cache(maxsize=None)
def uses_amx() -> bool:
    """Return whether oneDNN multiplies bfloat16 by AMX, by the bits of a product; waits for it.

    The sum of 2^20, 2^-8, -2^20 and 2^-8 in float32 depends on the order. The kernel for AMX gives 2^-7, that for
    AVX512-BF16 gives 0. They were run in a 1 x 1 convolution of 64 channels, on an Intel Xeon with oneDNN 2.4.4.
    """
    import mxnet as mx
    import numpy as np

    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    values = np.zeros((1, 64, 4, 4), np.float32)
    values[0, :4] = np.array([2.0**20, 2.0**-8, -(2.0**20), 2.0**-8])[:, None, None]
    with mx.autograd.pause():
        data = mx.nd.array(values, ctx=mx.cpu())
        weight = mx.nd.ones((64, 64, 1, 1), ctx=mx.cpu())
        low = [mx.nd.amp_cast(array, dtype=bfloat16) for array in (data, weight)]
        output = mx.nd.Convolution(*low, kernel=(1, 1), num_filter=64, no_bias=True)
        return bool((mx.nd.amp_cast(output, dtype="float32").asnumpy() == 2.0**-7).all())


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


def _switched_on() -> AmxStatus:
    """Switch AMX on, unless the user has decided; the environment is always the same before and after."""
    if not read_cpuinfo().has_amx:
        return NO_AMX
    decisions, wanted = [name for name in _DECIDE if os.environ.get(name)], os.environ.get(VARIABLE) == VALUE
    if decisions and not wanted:
        reason = f"{decisions[0]}={os.environ[decisions[0]]} is set."
        return AmxStatus(False, reason, f"Unset {' and '.join(decisions)}.")
    error = request_permission()
    if error:
        why, advice = _REFUSALS.get(error, (os.strerror(error), ""))
        reason = f"The kernel gave no permission ({errno.errorcode.get(error, error)}): {why}."
        return AmxStatus(False, reason, f"Unset {VARIABLE}, of which MXNet dies now." if wanted else advice)
    if not has_onednn():
        return AmxStatus(False, "MXNet runs no oneDNN, which has the kernels for it.", "Unset MXNET_MKLDNN_ENABLED.")
    if wanted:
        return AmxStatus(True, f"{VARIABLE}={VALUE} is set; mxmp got the kernel's permission.")
    with variable_set(VARIABLE, VALUE):
        run_operator()
    return AmxStatus(True, "mxmp switched it on.")


def _kept_off() -> AmxStatus:
    others = [name for name in _DECIDE if os.environ.get(name)]
    call = "" if others else ", or call mxmp.enable_amx() before the first operator of MXNet"
    return AmxStatus(False, f"{SWITCH}={os.environ[SWITCH]} is set.", f"Unset {' and '.join([SWITCH, *others])}{call}.")


def _is_no(value: Optional[str]) -> bool:
    return value is not None and value.strip().lower() in ("0", "false", "no", "off")
