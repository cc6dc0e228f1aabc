"""What single classes of MXNet are built on in place of Python's ``object``, since numpy asks more of them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional


class HostArray:
    """Gives MXNet's arrays to numpy as arrays (``__array__``).

    Without it numpy takes an NDArray for a sequence, whose items are NDArrays of one more item each. Numpy 1 stopped
    at 32 dimensions with an array of objects, from which ``np.all`` or ``np.array_equal`` still got an answer;
    since numpy 1.24 it raises, and ``np.array_equal`` returns False.
    """

    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Return a copy in the host's memory; it waits for the array to be computed.

        Raises:
            ValueError: If no copy may be made.
        """
        if copy is False:
            raise ValueError("an array of MXNet has no memory that numpy could share; use np.asarray, or asnumpy()")
        array = self.asnumpy()
        return array if dtype is None else array.astype(dtype, copy=False)


class DoubleSums:
    """Keeps numpy's half and single precision numbers as float64, as sums of metrics need it.

    A metric adds up what ``asscalar()`` and ``mean()`` return. Numpy 1 made a float64 of ``0.0 + np.float32(1)``;
    numpy 2 makes a float32 (NEP 50), which stops counting at 16,777,216, and a float16 at 2,048.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        import numpy as np

        super().__setattr__(name, np.float64(value) if isinstance(value, (np.float16, np.float32)) else value)


_BASES = {
    "mxnet._ctypes.ndarray": HostArray,  # of NDArrayBase
    "mxnet.metric": DoubleSums,  # of EvalMetric
}


def of_module(name: str) -> Dict[str, type]:
    """Return the ``object`` that the classes of a module get; nothing for a module that keeps Python's."""
    return {"object": _BASES[name]} if name in _BASES else {}
