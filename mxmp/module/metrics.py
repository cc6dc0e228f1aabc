"""Metrics of modules whose outputs may be bfloat16."""

from __future__ import annotations

from typing import Any, Dict

import mxnet as mx

from ..arrays import to_float32
from ..dtypes import BFLOAT16, canonical


class Widening:
    """A metric that is given bfloat16 in float32, which numpy can read."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def update_dict(self, labels: Any, outputs: Dict[str, mx.nd.NDArray]) -> None:
        """Update the metric with outputs of one context."""
        wide = {name: to_float32(o) if canonical(o.dtype) == BFLOAT16 else o for name, o in outputs.items()}
        self._metric.update_dict(labels, wide)
