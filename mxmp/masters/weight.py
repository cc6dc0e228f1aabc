"""One weight with its gradient and state, as the optimizers of MXNet take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import mxnet as mx
import numpy as np


class Weight(NamedTuple):
    """One weight with its state, as an optimizer of MXNet takes them."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    weight: mx.nd.NDArray
    grad: mx.nd.NDArray
    state: Any

    @property
    def is_dense(self) -> bool:
        """Whether it is dense, and its gradient too."""
        return bool(self.weight.stype == self.grad.stype == "default")

    @property
    def is_plain(self) -> bool:
        """Whether it is what the kernels for many take: dense float16 with a dense gradient."""
        return bool(self.weight.dtype == np.float16 and self.is_dense and self.weight.size)

    @property
    def is_float32(self) -> bool:
        """Whether it is dense float32 with a dense gradient."""
        return bool(self.weight.dtype == np.float32 and self.is_dense)
