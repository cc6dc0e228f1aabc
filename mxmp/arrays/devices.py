"""Where arrays lie."""

from __future__ import annotations

import mxnet as mx


def on_gpu(array: mx.nd.NDArray) -> bool:
    """Return whether an array lies on a GPU."""
    return bool(array.ctx.device_type == "gpu")
