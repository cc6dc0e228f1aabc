"""The names that MXNet 1.9.1 and GluonCV 0.10 read of numpy, and numpy has removed.

They mean what they meant in numpy 1.23, the last version with which MXNet imports by itself.
"""

from __future__ import annotations

import builtins
from types import SimpleNamespace

from . import views

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, NoReturn

_PYTHON_TYPES = ("bool", "int", "float", "complex", "object", "str")  # numpy 1.24; numpy 2 has another np.bool
_CONSTANTS = {  # numpy 2.0
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), float("inf")),
    **dict.fromkeys(("NAN", "NaN"), float("nan")),
    "NINF": -float("inf"),
    "PZERO": 0.0,
    "NZERO": -0.0,
}
_SCALAR_TYPES = {"float_": "float64", "complex_": "complex128", "unicode_": "str_", "string_": "bytes_"}  # numpy 2.0
_FUNCTIONS = {  # numpy 2.0; trapz and in1d: 2.4
    "alltrue": "all",
    "sometrue": "any",
    "product": "prod",
    "cumproduct": "cumprod",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
}
_FINANCIAL = ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate")  # they raise since numpy 1.20


def names(numpy: ModuleType) -> Dict[str, Any]:
    """Return the names that this numpy lacks, or has with another meaning, and their values."""
    missing = {
        **_CONSTANTS,
        **{name: getattr(numpy, new) for name, new in _SCALAR_TYPES.items()},
        **{name: _renamed(numpy, name, new) for name, new in _FUNCTIONS.items()},
        **{name: _removed(name) for name in _FINANCIAL},
        "compat": SimpleNamespace(basestring=str),
        "in1d": _in1d(numpy),
        "msort": _named(lambda a: numpy.sort(a, axis=0), "msort", "As numpy.sort along the first axis."),
    }
    changed = {
        **{name: getattr(builtins, name) for name in _PYTHON_TYPES},
        **{name: _interpolating(numpy, name) for name in ("nanpercentile", "nanquantile")},
        **_core(numpy),
        "array": _array(numpy),
        "linalg": views.View(numpy.linalg, {"qr": _qr(numpy)}),
    }
    present = vars(numpy)  # not hasattr: numpy warns of the financial names as they are read
    return {**{name: value for name, value in missing.items() if name not in present}, **changed}


def _core(numpy: ModuleType) -> Dict[str, Any]:
    """Return what MXNet reads of ``numpy.core`` (in moveaxis): numpy 2 warns of the real one, and may drop it."""
    public = getattr(numpy.lib, "array_utils", None)
    if public is None:
        return {}
    return {"core": SimpleNamespace(numeric=SimpleNamespace(normalize_axis_tuple=public.normalize_axis_tuple))}


def _renamed(numpy: ModuleType, name: str, new: str) -> Callable[..., Any]:
    """Return a function of its own: MXNet registers one of its functions for each of numpy's (NEP 18)."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(numpy, new)(*args, **kwargs)

    return _named(function, name, f"As numpy.{new}.")


def _removed(name: str) -> Callable[..., NoReturn]:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"numpy.{name} was removed in numpy 1.20 (NEP 32); use numpy_financial.{name}")

    return _named(function, name, "Raises: numpy has no financial functions.")


def _in1d(numpy: ModuleType) -> Callable[..., Any]:
    def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
        return numpy.isin(numpy.ravel(ar1), ar2, assume_unique=assume_unique, invert=invert)

    return _named(in1d, "in1d", "As numpy.isin, of a flat array.")


def _interpolating(numpy: ModuleType, name: str) -> Callable[..., Any]:
    """Return a function whose argument ``interpolation`` numpy has named ``method`` since 1.22, alone since 2.4."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if "interpolation" in kwargs:
            kwargs["method"] = kwargs.pop("interpolation")
        return getattr(numpy, name)(*args, **kwargs)

    return _named(function, name, f"As numpy.{name}.")


def _array(numpy: ModuleType) -> Callable[..., Any]:
    """Return an array that integers wrap around in, as in numpy 1 and in MXNet's operators; numpy 2 raises.

    What int64 cannot hold either, such as an infinity, is an error with any numpy.
    """

    def array(object: Any, dtype: Any = None, **kwargs: Any) -> Any:
        try:
            return numpy.array(object, dtype, **kwargs)
        except OverflowError:
            if dtype is None:
                raise
            return numpy.array(object, numpy.int64, **kwargs).astype(dtype)

    return _named(array, "array", "As numpy.array.")


def _qr(numpy: ModuleType) -> Callable[..., Any]:
    """Return a qr of plain tuples: MXNet cannot make its arrays of named ones, which numpy returns since 1.25."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        result = numpy.linalg.qr(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result

    def qr(a: Any, mode: str = "reduced") -> Any:
        dispatch = None if isinstance(a, numpy.ndarray) else getattr(type(a), "__array_function__", None)
        return plain(a, mode) if dispatch is None else dispatch(a, plain, (type(a),), (a, mode), {})

    return _named(qr, "qr", "As numpy.linalg.qr.")


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
