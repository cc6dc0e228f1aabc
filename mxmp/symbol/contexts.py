"""Which policies run on which contexts."""

from __future__ import annotations

from typing import Iterable

import mxnet as mx

from .. import dtypes
from ..errors import ConvertError
from ..policy import Policy


def require_kernels(policy: Policy, contexts: Iterable[mx.Context], where: str) -> None:
    """Refuse a policy that MXNet has no kernels for on one of the contexts: bfloat16 on a GPU.

    Args:
        policy: The policy.
        contexts: Where it is to run.
        where: What is to run, for the message.

    Raises:
        ConvertError: If a context is a GPU, and data or parameters were bfloat16 there.
    """
    used = (policy.compute_dtype, policy.param_dtype, policy.output_dtype)
    if dtypes.BFLOAT16 not in used:
        return
    for context in contexts:
        if device_type(context) == "gpu":
            raise ConvertError(
                f"{where}: policy '{policy}' uses bfloat16 on {context}, but MXNet 1.9.1 has no bfloat16 kernels for "
                f"GPUs. Take a float16 policy there, such as 'O1', or run on a CPU."
            )


def device_type(context: mx.Context) -> str:
    """Return the kind of device that a context is on: 'cpu', 'gpu', 'cpu_pinned' or 'cpu_shared'."""
    return str(context.device_type)
