"""The names of numpy, scipy and distutils that MXNet 1.9.1 and GluonCV 0.10 read, and that were removed since.

The names of numpy have the meaning of numpy 1.23, the last version with which MXNet imports by itself. This module also
replaces ``distutils.version``, because Python 3.12 removed distutils.
"""

from __future__ import annotations

import builtins
import functools
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Mapping, NoReturn

_PYTHON_TYPES = ("bool", "int", "float", "complex", "object", "str")  # removed in 1.24; numpy 2 has a new bool.
_CONSTANTS = {  # removed in numpy 2.0.
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), float("inf")),
    **dict.fromkeys(("NAN", "NaN"), float("nan")),
    "NINF": -float("inf"),
    "PZERO": 0.0,
    "NZERO": -0.0,
}
_SCALAR_TYPES = {"float_": "float64", "complex_": "complex128", "unicode_": "str_", "string_": "bytes_"}  # until 2.0.
_FUNCTIONS = {  # removed in numpy 2.0, trapz and in1d in 2.4.
    "alltrue": "all",
    "sometrue": "any",
    "product": "prod",
    "cumproduct": "cumprod",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
}
_FINANCIAL = ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate")  # these raise since 1.20.


def view(module: ModuleType, names: Mapping[str, Any]) -> ModuleType:
    """Return a module with some more names. All other names are read from the original module at each access."""
    seen = ModuleType(module.__name__)
    vars(seen).clear()  # __spec__, __package__ and __loader__ come from the original module.
    vars(seen).update(
        names,
        __doc__=module.__doc__,  # else it is the docstring of the class.
        __getattr__=functools.partial(getattr, module),
        __dir__=lambda: sorted({*dir(module), *names}),
    )
    return seen


def numpy_names(numpy: Any) -> Dict[str, Any]:
    """Return the names, with their values, that this numpy lacks or has with another meaning."""
    names: Dict[str, Any] = {**_CONSTANTS, "compat": SimpleNamespace(basestring=str)}
    for name, new in _SCALAR_TYPES.items():
        names[name] = getattr(numpy, new)
    for name, new in _FUNCTIONS.items():
        names[name] = _function(name, getattr(numpy, new, None))
    for name in _FINANCIAL:
        names[name] = _function(name, functools.partial(_refuse, name))
    names["in1d"] = _function("in1d", lambda ar1, *args, **options: numpy.isin(numpy.ravel(ar1), *args, **options))
    names["msort"] = _function("msort", lambda a: numpy.sort(a, axis=0))
    for name in names.keys() & vars(numpy).keys():  # not hasattr: numpy warns of the financial names as they are read
        del names[name]

    for name in _PYTHON_TYPES:
        names[name] = getattr(builtins, name)
    for name in ("nanpercentile", "nanquantile"):
        names[name] = _function(name, functools.partial(_interpolate, getattr(numpy, name)))
    names["array"] = _function("array", functools.partial(_array, numpy))
    names["linalg"] = view(numpy.linalg, {"qr": _function("qr", functools.partial(_qr, numpy))})
    if hasattr(numpy.lib, "array_utils"):
        # MXNet's moveaxis reads this of numpy.core. Numpy 2 warns of the real numpy.core, and may remove it.
        numeric = SimpleNamespace(normalize_axis_tuple=numpy.lib.array_utils.normalize_axis_tuple)
        names["core"] = SimpleNamespace(numeric=numeric)
    return names


def _function(name: str, call: Any) -> Callable[..., Any]:
    """Return a new function with a name, because MXNet registers a function for each function of numpy (NEP 18)."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As numpy.{name} in numpy 1.23."
    return function


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"numpy.{name} was removed in numpy 1.20 (NEP 32); use numpy_financial.{name}")


def _interpolate(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with the argument ``interpolation``. Its name is ``method`` since numpy 1.22; 2.4 removed the old name."""
    if "interpolation" in kwargs:
        kwargs["method"] = kwargs.pop("interpolation")
    return call(*args, **kwargs)


def _array(numpy: Any, object: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Return an array in which too large integers wrap around, as in numpy 1 and in MXNet's operators. Numpy 2 raises.

    A value that int64 cannot hold either, such as an infinity, is an error with any numpy.
    """
    try:
        return numpy.array(object, dtype, **kwargs)
    except OverflowError:
        if dtype is None:
            raise
        return numpy.array(object, numpy.int64, **kwargs).astype(dtype)


def _qr(numpy: Any, a: Any, mode: str = "reduced") -> Any:
    """Return the result as a plain tuple. MXNet cannot use the named tuple that numpy returns since 1.25."""

    def plain(*args: Any) -> Any:
        result = numpy.linalg.qr(*args)
        return tuple(result) if isinstance(result, tuple) else result

    dispatch = getattr(type(a), "__array_function__", None)
    if dispatch is None or isinstance(a, numpy.ndarray):
        return plain(a, mode)
    return dispatch(a, plain, (type(a),), (a, mode), {})  # MXNet's method is static.


def scipy_names(scipy: ModuleType) -> Dict[str, Any]:
    """Return ``scipy.sparse.csr``, which MXNet reads. SciPy warns of it since 1.8, and SciPy 2 will remove it."""
    sparse = import_module("scipy.sparse")
    return {"sparse": view(sparse, {"csr": SimpleNamespace(csr_matrix=sparse.csr_matrix)})}


@functools.total_ordering
class LooseVersion:
    """The class of distutils: a version as a list of numbers and words, which are compared one by one."""

    def __init__(self, text: str) -> None:
        import re  # only needed on Python 3.12 and later.

        self.vstring = text
        parts = re.split(r"(\d+|[a-z]+|\.)", text)  # other parts are kept, such as the + of 1.13.1+cu117.
        self.version = [int(part) if part.isdecimal() else part for part in parts if part not in ("", ".")]

    def __eq__(self, other: Any) -> bool:
        return bool(self.version == other.version)

    def __lt__(self, other: Any) -> bool:
        return bool(self.version < other.version)


class StrictVersion(LooseVersion):
    """The same as `LooseVersion`, because distutils' own class refuses some versions of numpy that MXNet compares."""
