"""The names that MXNet 1.9.1 and GluonCV 0.10 read of numpy, scipy and distutils, and that are no longer there.

Those of numpy mean what they meant in numpy 1.23, the last version with which MXNet imports by itself. distutils, which
Python 3.12 removed, has this module as its stand-in for ``distutils.version``.
"""

from __future__ import annotations

import builtins
import functools
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Mapping, NoReturn

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


def view(module: ModuleType, names: Mapping[str, Any]) -> ModuleType:
    """Return a module with further names; any other is read in the module, as it is by then."""
    seen = ModuleType(module.__name__)
    vars(seen).clear()  # of __spec__, __package__ and __loader__, which the module has too
    vars(seen).update(
        names,
        __doc__=module.__doc__,  # else it is that of the class
        __getattr__=functools.partial(getattr, module),
        __dir__=lambda: sorted({*dir(module), *names}),
    )
    return seen


def numpy_names(numpy: Any) -> Dict[str, Any]:
    """Return the names that this numpy lacks, or has with another meaning, and their values."""
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
        # What MXNet reads of numpy.core (in moveaxis): numpy 2 warns of the real one, and may drop it.
        numeric = SimpleNamespace(normalize_axis_tuple=numpy.lib.array_utils.normalize_axis_tuple)
        names["core"] = SimpleNamespace(numeric=numeric)
    return names


def _function(name: str, call: Any) -> Callable[..., Any]:
    """Return a function of its own: MXNet registers one of its functions for each of numpy's (NEP 18)."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As numpy.{name} in numpy 1.23."
    return function


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"numpy.{name} was removed in numpy 1.20 (NEP 32); use numpy_financial.{name}")


def _interpolate(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with ``interpolation``, which numpy has named ``method`` since 1.22, alone since 2.4."""
    if "interpolation" in kwargs:
        kwargs["method"] = kwargs.pop("interpolation")
    return call(*args, **kwargs)


def _array(numpy: Any, object: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Return an array that integers wrap around in, as in numpy 1 and in MXNet's operators; numpy 2 raises.

    What int64 cannot hold either, such as an infinity, is an error with any numpy.
    """
    try:
        return numpy.array(object, dtype, **kwargs)
    except OverflowError:
        if dtype is None:
            raise
        return numpy.array(object, numpy.int64, **kwargs).astype(dtype)


def _qr(numpy: Any, a: Any, mode: str = "reduced") -> Any:
    """Return a plain tuple: MXNet cannot make its arrays of named ones, which numpy returns since 1.25."""

    def plain(*args: Any) -> Any:
        result = numpy.linalg.qr(*args)
        return tuple(result) if isinstance(result, tuple) else result

    dispatch = getattr(type(a), "__array_function__", None)
    if dispatch is None or isinstance(a, numpy.ndarray):
        return plain(a, mode)
    return dispatch(a, plain, (type(a),), (a, mode), {})  # MXNet's is a static method, which gets the array too


def scipy_names(scipy: ModuleType) -> Dict[str, Any]:
    """Return ``scipy.sparse.csr``, which MXNet reads: SciPy 1.8 and later warn of it, and SciPy 2 will have none."""
    sparse = import_module("scipy.sparse")
    return {"sparse": view(sparse, {"csr": SimpleNamespace(csr_matrix=sparse.csr_matrix)})}


@functools.total_ordering
class LooseVersion:
    """A version as a list of numbers and words, which are compared one by one with another's."""

    def __init__(self, text: str) -> None:
        import re  # on Python 3.12 and later alone, and not where only mxmp is imported

        self.vstring = text
        parts = re.split(r"(\d+|[a-z]+|\.)", text)  # what stands between them is kept, such as the + of 1.13.1+cu117
        self.version = [int(part) if part.isdecimal() else part for part in parts if part not in ("", ".")]

    def __eq__(self, other: Any) -> bool:
        return bool(self.version == other.version)

    def __lt__(self, other: Any) -> bool:
        return bool(self.version < other.version)


class StrictVersion(LooseVersion):
    """As `LooseVersion`: MXNet compares numpy's version with 1.6.0, which may be one that distutils refused."""
