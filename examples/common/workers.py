"""The processes that train together: who this one is, and sums over all."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import mxmp
import mxnet as mx

LOCAL = "device"
"""MXNet's kvstore within one process."""


class Workers:
    """Processes that take each step together; one alone, unless there is a kvstore over several.

    Worker 0 evaluates, writes the files and talks to the user.

    Attributes:
        kvstore: What trainers and modules take for ``kvstore``.
        rank: The number of this worker, from 0.
        size: How many there are.
    """

    def __init__(self, kvstore: Optional[mxmp.distributed.KVStore] = None) -> None:
        self._joint, self._known = kvstore, set()
        self.kvstore: Any = LOCAL if kvstore is None else kvstore
        self.rank, self.size = (0, 1) if kvstore is None else (kvstore.rank, kvstore.num_workers)

    def sum(self, values: Sequence[float]) -> List[float]:
        """Return the sum over the workers of each of some numbers; waits until all have given theirs."""
        if self._joint is None:
            return list(values)
        array = mx.nd.array(values, dtype="float64")
        key = f"figures {len(values)}"
        if key not in self._known:
            self._joint.init(key, mx.nd.zeros_like(array))
            self._known.add(key)
        self._joint.pushpull(key, array)
        return array.asnumpy().tolist()
