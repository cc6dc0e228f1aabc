"""What single modules of MXNet and GluonCV get in place of builtins of Python, and of names and constants of theirs.

- ``str``: MXNet hands numbers to its library as text. Numpy 2 writes a tuple of its scalars as ``(np.int64(2),)``,
  where numpy 1 wrote ``(2,)``, which alone the library reads.
- ``object``, the base of classes, of which numpy asks more than it did.
- ``int``, which refuses arrays that it used to take.
- Names and constants in their code that numpy removed, or no longer compares with.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Dict, Mapping, Optional, Tuple


class _TextType(type):
    """Calls go to `attribute_text`; instances are those of str."""

    def __call__(cls, value: Any = "") -> str:
        return attribute_text(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)


class Text(str, metaclass=_TextType):
    """`attribute_text` as a type, for modules that use ``str`` as one."""


def attribute_text(value: Any) -> str:
    """Return an operator's attribute as MXNet's library parses it: ``(np.int64(2), None)`` as '(2, None)'.

    Where numpy 1 writes the same, as numpy 1.26 on Python 3.12, this costs a look at the text.
    """
    text = str(value)
    return _written(value) if "np." in text and type(value) in (tuple, list) else text


def _written(value: Any) -> str:
    """Return a value as numpy 1 writes it: the scalars of numpy in its tuples and lists are plain numbers and texts."""
    import numpy as np

    if type(value) is tuple:
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, np.character):
        return repr(value.item())
    if isinstance(value, (np.number, np.bool_)):
        return str(value)
    return repr(value)


class HostArray:
    """Gives MXNet's arrays to numpy as arrays (``__array__``).

    Without it numpy takes an NDArray for a sequence, whose items are NDArrays of one more item each. Numpy 1 stopped
    at 32 dimensions with an array of objects, from which ``np.all`` or ``np.array_equal`` still got an answer;
    since numpy 1.24 it raises, and ``np.array_equal`` returns False.
    """

    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Return a copy in the host's memory; it waits for the array to be computed.

        A bfloat16 array, of which numpy knows the bits alone, comes as these, as ``asnumpy()`` returns it; with
        a dtype it comes as numbers.
        """
        if copy is False:
            raise ValueError("an array of MXNet has no memory that numpy could share; use np.asarray, or asnumpy()")
        array = self.asnumpy()
        if dtype is None or array.dtype == dtype:
            return array
        if array.dtype.names:  # bfloat16
            array = self.astype("float32").asnumpy()
        return array.astype(dtype, copy=False)


class DoubleSums:
    """Keeps numpy's half and single precision numbers as float64, as sums of metrics need it.

    A metric adds up what ``asscalar()`` and ``mean()`` return. Numpy 1 made a float64 of ``0.0 + np.float32(1)``;
    numpy 2 makes a float32 (NEP 50), which stops counting at 16,777,216, and a float16 at 2,048.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        import numpy as np

        if isinstance(value, (np.float16, np.float32)):
            value = np.float64(value)
        super().__setattr__(name, value)


def integer(value: Any) -> int:
    """Return Python's ``int``, of an array with one value too: numpy 2.4 refuses one that has dimensions."""
    return int(value.item() if hasattr(value, "item") else value)


# What modules get in place of builtins of Python.
BUILTINS: Dict[str, Dict[str, Any]] = {
    "mxnet._ctypes.ndarray": {"str": attribute_text, "object": HostArray},  # calls of operators; base of NDArrayBase
    "mxnet._ctypes.symbol": {"str": attribute_text},  # operators in symbols
    "mxnet.io.io": {"str": attribute_text},  # the parameters of ImageRecordIter and its like
    "mxnet.symbol.symbol": {"str": Text},  # the shape of a variable; the module asks isinstance(..., str) too
    "mxnet.metric": {"object": DoubleSums},  # base of EvalMetric
    "gluoncv.model_zoo.center_net.target_generator": {"int": integer},  # of a class id, which is an array (1,)
}


class EmptyTuple(Tuple[()]):
    """``()``, which compares with numpy's scalars too: ``np.int64(2) == ()`` is an empty array, without a truth."""

    __array_ufunc__ = None  # numpy leaves the comparison to this class

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


_EMPTY = {(): EmptyTuple()}  # ``if size == ()``: numpy 2.2 and later refuse the truth of an empty array
# What modules have in place of names (texts) and constants in their code.
CODE: Dict[str, Mapping[Any, Any]] = {
    # A method of arrays, removed in numpy 2.3: pack with several labels, pack_img.
    "mxnet.recordio": {"tostring": "tobytes"},
    "mxnet.ndarray.numpy.random": _EMPTY,
    "mxnet.ndarray.numpy_extension.random": _EMPTY,
    "mxnet.symbol.numpy.random": _EMPTY,
    "mxnet.symbol.numpy_extension.random": _EMPTY,
}


def changed_code(code: CodeType, changes: Mapping[Any, Any]) -> CodeType:
    """Return the code of a module, and of all functions in it, with other names and constants."""
    names = tuple(changes.get(name, name) for name in code.co_names)
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a function within
            constants.append(changed_code(constant, changes))
        else:
            constants.append(changes.get(constant, constant))
    return code.replace(co_names=names, co_consts=tuple(constants))
