"""A checkpoint that remembers where in the text a model stands."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Any, List, Sequence

import mxnet as mx
from mxnet import gluon

from examples.common.parts import Part

States = List[mx.nd.NDArray]
"""Hidden and cell state of an LSTM, (layers, N, hidden) each."""

_NAME = "state:"


def recurrent_part(part: Part, learner: Any, ctx: Sequence[mx.Context]) -> Part:
    """Return what to save of a network, its trainer, and the states that the next batch starts from.

    A checkpoint holds them beside the parameters, as ``state:0`` and ``state:1``, where plain MXNet
    leaves them alone.

    Args:
        part: The network and its trainer, with Gluon or the Symbolic API.
        learner: Its ``states`` are saved and loaded: states by context, empty before the first batch.
        ctx: The contexts that the states are spread over.
    """

    def save(file: str) -> None:
        part.save_params(file)
        kinds = [[each.as_in_context(mx.cpu()) for each in kind] for kind in zip(*learner.states)]
        together = {f"{_NAME}{number}": mx.nd.concat(*kind, dim=1) for number, kind in enumerate(kinds)}
        mx.nd.save(file, {**mx.nd.load(file), **together})

    def load(file: str) -> None:
        arrays = mx.nd.load(file)
        together = [arrays.pop(name) for name in sorted(arrays) if name.startswith(_NAME)]
        with tempfile.TemporaryDirectory() as folder:
            params = os.path.join(folder, "params")
            mx.nd.save(params, arrays)
            part.load_params(params)
        learner.states = [list(each) for each in zip(*(spread(array, ctx, axis=1) for array in together))]

    return dataclasses.replace(part, save_params=save, load_params=load)


def begin(layers: int, batch_size: int, hidden: int, ctx: mx.Context) -> States:
    """Return the states before a text's first word: zeros."""
    return [mx.nd.zeros((layers, batch_size, hidden), ctx=ctx) for _ in range(2)]


def spread(array: mx.nd.NDArray, ctx: Sequence[mx.Context], axis: int = 0) -> List[mx.nd.NDArray]:
    """Return an array's parts, one on each context, as even as they can be."""
    return gluon.utils.split_and_load(array, ctx, batch_axis=axis, even_split=False)
