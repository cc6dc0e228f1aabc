"""What the states of an optimizer look like, to compare those of a file with."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..dtypes import FLOAT32, LOW_PRECISION, canonical, to_numpy
from ..masters.optimizer import MasterState, MultiPrecision
from .state_file import StateFile

_UNKNOWN = object()


class ModelStates:
    """The states that an optimizer makes, by the shape and dtype of a parameter.

    The optimizer is not changed. ``fields`` of it a file decides over, which decide over its states; ``params`` is what
    the file says of the parameters: 'shape' and 'dtype' of each.
    """

    def __init__(self, optimizer: MultiPrecision, fields: Dict[str, Any], params: List[Dict[str, Any]]) -> None:
        inner = optimizer.inner
        self._masters, self._params = optimizer.masters, params
        self._inner = object.__new__(type(inner))
        own = {name: copy.copy(value) if type(value) in (dict, list) else value for name, value in fields.items()}
        vars(self._inner).update({**vars(inner), **own})
        self._made: Dict[Tuple[str, Tuple[int, ...]], Any] = {}

    def check(self, file: StateFile, where: str, index: int, state: Any) -> None:
        """Raise a StateError, which names the entry, unless the optimizer can go on with a state of a file."""
        dtype, shape = self._params[index]["dtype"], tuple(self._params[index]["shape"])
        if dtype in LOW_PRECISION:
            if not isinstance(state, MasterState):
                raise file.error(where, _text(state), f"the state of a {dtype} parameter, with its master")
            master = f"{FLOAT32} {shape}" if self._masters else "None"
            if _text(state.master) != master:
                raise file.error(f"{where}.master", _text(state.master), master)
            where, state, dtype = f"{where}.inner", state.inner, FLOAT32
        expected = self._make(index, dtype, shape)
        if expected is not _UNKNOWN:
            _compare(file, where, state, expected)

    def _make(self, index: int, dtype: str, shape: Tuple[int, ...]) -> Any:
        key = dtype, shape
        if key not in self._made:
            weight = mx.nd.zeros(shape, ctx=mx.cpu(), dtype=to_numpy(dtype))
            try:
                self._made[key] = self._inner.create_state_multi_precision(index, weight)
            except Exception:  # an optimizer of the user may want a weight that means something
                self._made[key] = _UNKNOWN
        return self._made[key]


def _compare(file: StateFile, where: str, found: Any, expected: Any) -> None:
    """Compare shapes and dtypes of arrays, lengths of tuples and kinds of everything else, which may change."""
    if _text(found) != _text(expected):
        raise file.error(where, _text(found), _text(expected))
    if isinstance(expected, tuple):
        for number, (one, other) in enumerate(zip(found, expected)):
            _compare(file, f"{where}[{number}]", one, other)


def _text(value: Any) -> str:
    if isinstance(value, mx.nd.NDArray):
        return f"{canonical(value.dtype)} {value.shape}"
    if isinstance(value, (int, float, np.number)):
        return "a number"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
