"""An exponential moving average of a net's parameters, in float32."""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator

import mxnet as mx
from mxnet import autograd, gluon

from ..arrays import to_float32
from ..dtypes import PRECISIONS, canonical
from ..errors import TrainerError
from ..mxnet_private import parameters
from ..train.masters import exact_value as _exact_value
from ..train.masters import masters_of


def exact_value(param: gluon.Parameter, ctx: mx.Context | None = None) -> mx.nd.NDArray:
    """Return the float32 value of a parameter, a copy: of its master where it is stored in low precision.

    Args:
        param: An initialized parameter.
        ctx: One of its contexts; the first unless given.

    Returns:
        The value, of the parameter's shape, on that context.

    Raises:
        TrainerError: If the parameter is not initialized, or was written to past its master.
    """
    if not isinstance(param, gluon.Parameter):
        raise TrainerError(f"exact_value: expected a gluon Parameter, found a {type(param).__name__}.")
    if not parameters.is_initialized(param):
        raise TrainerError(f"exact_value: parameter '{param.name}' is not initialized.")
    with autograd.pause():
        weight = param.list_data()[0] if ctx is None else param.data(ctx)
        return to_float32(_exact_value(weight, param)).copy()


class averaged:
    """An exponential moving average of the parameters of a net, of their float32 values.

    With decay d it becomes d * average + (1 - d) * value at each `update`, to be called after a step::

        average = mxmp.gluon.averaged(net, decay=0.999)
        for x, y in loader:
            ...
            if trainer.step(batch_size):
                average.update()
        with average.swapped_in():
            evaluate(net)

    Running statistics, such as BatchNorm's, are averaged too; parameters of integers are left alone.

    Args:
        net: A net whose parameters are initialized, converted or not.
        decay: From 0 to below 1.

    Raises:
        TrainerError: If a parameter is not initialized, or ``decay`` is no such number.

    References:
        ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``.
    """

    def __init__(self, net: gluon.Block, decay: float = 0.999) -> None:
        if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
            raise TrainerError(f"averaged: decay={decay!r}; expected a number from 0 to below 1.")
        if not isinstance(net, gluon.Block):
            raise TrainerError(f"averaged: expected a Gluon net, found a {type(net).__name__}.")
        self.decay = float(decay)
        params: Dict[str, gluon.Parameter] = net.collect_params()
        floats = (*PRECISIONS, "float64")
        self._params = {name: param for name, param in params.items() if canonical(param.dtype) in floats}
        self._values = {name: exact_value(param) for name, param in self._params.items()}

    @property
    def values(self) -> Dict[str, mx.nd.NDArray]:
        """The averages by the names of the parameters, float32, each on the first context of its parameter."""
        return dict(self._values)

    def update(self) -> None:
        """Move the averages towards the present values."""
        with autograd.pause():
            for name, param in self._params.items():
                weight, average = param.list_data()[0], self._values[name]
                value = masters_of(param).get(weight.ctx)  # not compared: the trainer's steps do that
                average += (1 - self.decay) * ((to_float32(weight) if value is None else value) - average)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the net have the averages within this context; it has its own values again after it, bit for bit.

        Make no step within it: what it changes is gone after it.
        """
        own = {name: exact_value(param) for name, param in self._params.items()}
        try:
            self._set(self._values)
            yield
        finally:
            self._set(own)

    def _set(self, values: Dict[str, mx.nd.NDArray]) -> None:
        for name, param in self._params.items():
            param.set_data(values[name])
