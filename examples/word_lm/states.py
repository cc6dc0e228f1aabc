"""A checkpoint that remembers where in the text a model stands."""

from __future__ import annotations

import os
import tempfile
from typing import List, Sequence

import mxnet as mx
from mxnet import gluon

from examples.common.parts import Part

States = List[mx.nd.NDArray]
"""Hidden and cell state of an LSTM, (layers, N, hidden) each."""

_NAME = "state:"


class RecurrentPart(Part):
    """A network and its trainer, with the states that the next batch starts from.

    A checkpoint holds them beside the parameters, as ``state:0`` and ``state:1``, where plain MXNet
    leaves them alone.

    Args:
        part: The network and its trainer, with Gluon or the Symbolic API.
        ctx: The contexts that the states are spread over.

    Attributes:
        states: States by context; empty before the first batch.
    """

    def __init__(self, part: Part, ctx: Sequence[mx.Context]) -> None:
        self._part, self._ctx = part, list(ctx)
        self.symbol = part.symbol
        self.states: List[States] = []

    def save_params(self, file: str) -> None:
        """Write parameters and states."""
        self._part.save_params(file)
        together = [mx.nd.concat(*[each.as_in_context(mx.cpu()) for each in kind], dim=1) for kind in zip(*self.states)]
        mx.nd.save(file, {**mx.nd.load(file), **{f"{_NAME}{i}": array for i, array in enumerate(together)}})

    def load_params(self, file: str) -> None:
        """Read what `save_params` wrote, onto as many contexts as there are now."""
        arrays = mx.nd.load(file)
        together = [arrays.pop(name) for name in sorted(arrays) if name.startswith(_NAME)]
        with tempfile.TemporaryDirectory() as folder:
            params = os.path.join(folder, "params")
            mx.nd.save(params, arrays)
            self._part.load_params(params)
        self.states = [list(each) for each in zip(*(spread(array, self._ctx, axis=1) for array in together))]

    def save_states(self, file: str) -> None:
        """Write the optimizer's states and the loss scale."""
        self._part.save_states(file)

    def load_states(self, file: str) -> None:
        """Read what `save_states` wrote."""
        self._part.load_states(file)


def begin(layers: int, batch_size: int, hidden: int, ctx: mx.Context) -> States:
    """Return the states before a text's first word: zeros."""
    return [mx.nd.zeros((layers, batch_size, hidden), ctx=ctx) for _ in range(2)]


def spread(array: mx.nd.NDArray, ctx: Sequence[mx.Context], axis: int = 0) -> List[mx.nd.NDArray]:
    """Return an array's parts, one on each context, as even as they can be."""
    return gluon.utils.split_and_load(array, ctx, batch_axis=axis, even_split=False)
