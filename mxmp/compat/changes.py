"""Replacements for single modules of MXNet and GluonCV: of Python's builtins, and of names and constants in their code.

- ``str``: MXNet hands numbers to its library as text. Numpy 2 writes a tuple of its scalars as ``(np.int64(2),)``.
  Numpy 1 wrote ``(2,)``, and the library reads only that.
- ``object``, the base of classes from which newer versions of numpy expect more methods.
- ``int``, which newer versions of numpy refuse for some arrays.
- Names that numpy has removed, and constants with which it no longer compares.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Dict, Mapping, Optional, Tuple


class _TextType(type):
    """The type of `Text`: a call is a call of `attribute_text`, and every str is an instance."""

    def __call__(cls, value: Any = "") -> str:
        return attribute_text(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)


class Text(str, metaclass=_TextType):
    """`attribute_text` as a type, for modules that use ``str`` as a type too."""


def attribute_text(value: Any) -> str:
    """Return an operator's attribute as MXNet's library parses it: ``(np.int64(2), None)`` as '(2, None)'.

    With numpy 1, which writes that text itself, this only searches the text for 'np.'.
    """
    text = str(value)
    return _written(value) if "np." in text and type(value) in (tuple, list) else text


def _written(value: Any) -> str:
    """Return a value as numpy 1 writes it: numpy's scalars in tuples and lists as plain numbers and texts."""
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
    """Base of MXNet's arrays that lets numpy read them as arrays (``__array__``).

    Without it numpy takes an NDArray for a sequence whose items are NDArrays again. Numpy 1 stopped at 32 dimensions
    with an array of objects, and ``np.all`` and ``np.array_equal`` still worked. Numpy 1.24 and later raise an error,
    and ``np.array_equal`` returns False.
    """

    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Return a copy in the host's memory; it waits for the array to be computed.

        A bfloat16 array is returned as its bits, as by ``asnumpy()``, because numpy has no bfloat16. With a dtype it is
        returned as numbers.
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
    """Base of MXNet's metrics that keeps numpy's float16 and float32 attributes as float64.

    A metric adds up the results of ``asscalar()`` and ``mean()``. With numpy 1 ``0.0 + np.float32(1)`` is a float64.
    With numpy 2 it is a float32 (NEP 50). A sum of ones stops at 16,777,216 in float32, and at 2,048 in float16.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        import numpy as np

        if isinstance(value, (np.float16, np.float32)):
            value = np.float64(value)
        super().__setattr__(name, value)


def integer(value: Any) -> int:
    """Return the ``int`` of a value or of an array with one value. Numpy 2.4 refuses arrays with dimensions."""
    return int(value.item() if hasattr(value, "item") else value)


# The replacements of Python's builtins, by module.
BUILTINS: Dict[str, Dict[str, Any]] = {
    "mxnet._ctypes.ndarray": {"str": attribute_text, "object": HostArray},  # calls of operators; base of NDArrayBase
    "mxnet._ctypes.symbol": {"str": attribute_text},  # operators in symbols
    "mxnet.io.io": {"str": attribute_text},  # the parameters of ImageRecordIter and its like
    "mxnet.symbol.symbol": {"str": Text},  # the shape of a variable; the module asks isinstance(..., str) too
    "mxnet.metric": {"object": DoubleSums},  # base of EvalMetric
    "gluoncv.model_zoo.center_net.target_generator": {"int": integer},  # of a class id, which is an array (1,)
}


class EmptyTuple(Tuple[()]):
    """``()`` that can be compared with numpy's scalars: ``np.int64(2) == ()`` is an empty array, which has no truth."""

    __array_ufunc__ = None  # numpy leaves the comparison to this class

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


_EMPTY = {(): EmptyTuple()}  # ``if size == ()``: numpy 2.2 and later refuse the truth of an empty array
# The replacements of names (texts) and constants in the code of modules.
CODE: Dict[str, Mapping[Any, Any]] = {
    # A method of arrays, removed in numpy 2.3: pack with several labels, pack_img.
    "mxnet.recordio": {"tostring": "tobytes"},
    "mxnet.ndarray.numpy.random": _EMPTY,
    "mxnet.ndarray.numpy_extension.random": _EMPTY,
    "mxnet.symbol.numpy.random": _EMPTY,
    "mxnet.symbol.numpy_extension.random": _EMPTY,
}


def changed_code(code: CodeType, changes: Mapping[Any, Any]) -> CodeType:
    """Return the code of a module and of all its functions with some names and constants replaced."""
    names = tuple(changes.get(name, name) for name in code.co_names)
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a function within
            constants.append(changed_code(constant, changes))
        else:
            constants.append(changes.get(constant, constant))
    return code.replace(co_names=names, co_consts=tuple(constants))
