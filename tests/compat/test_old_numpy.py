"""The view of numpy has what MXNet and GluonCV read, with the meaning of numpy 1.23."""

from __future__ import annotations

import ast
import math
import warnings
from importlib.util import find_spec
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp.compat import old_modules

RENAMED = ["alltrue", "sometrue", "product", "cumproduct", "round_", "row_stack", "trapz"]
FINANCIAL = ["fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate"]


@pytest.fixture(scope="module")
def view():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return old_modules.view(np, old_modules.numpy_names(np))


def names_read(path):
    """Yield (line, dotted name) for what a file reads of numpy through a name that it imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of escapes such as \[ in plain strings
        tree, aliases = ast.parse(path.read_text(encoding="utf-8")), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "numpy":
                    aliases[alias.asname or "numpy"] = alias.name.split(".")[1:] if alias.asname else []
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "numpy":
            yield from ((node.lineno, ".".join([*node.module.split(".")[1:], alias.name])) for alias in node.names)
    for node in ast.walk(tree):
        chain, base = [], node
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
        if chain and isinstance(base, ast.Name) and base.id in aliases:
            yield node.lineno, ".".join([*aliases[base.id], *chain])


def read(module, name):
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("package", ["mxnet", "gluoncv"])
def test_the_view_has_each_name_that_the_sources_read(view, package):
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    missing, count = {}, 0
    for path in Path(spec.origin).parent.rglob("*.py"):
        for line, name in names_read(path):
            count += 1
            try:
                read(view, name)
            except AttributeError:
                missing[name] = f"{path}:{line}"
    assert not missing and count > 500


def test_the_view_has_each_name_that_mxnet_lists(view):
    protocol = mx.numpy_dispatch_protocol
    lists = [protocol._NUMPY_ARRAY_FUNCTION_LIST, protocol._NUMPY_ARRAY_UFUNC_LIST, mx.numpy.fallback.__all__]
    assert all(len(names) > 50 for names in lists)
    assert [name for names in lists for name in names if read(view, name) is None] == []


def test_the_view_reads_without_a_warning(view):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in (*old_modules.numpy_names(np), "random", "float32"):
            assert hasattr(view, name)


@pytest.mark.parametrize("name", [*RENAMED, "in1d", "msort", "float_", "string_", "Inf", "NINF", "PZERO", "trapezoid"])
def test_what_this_numpy_has_by_that_name_stays(view, name):
    if name in vars(np):
        assert getattr(view, name) is getattr(np, name)
    else:
        assert (name in old_modules.numpy_names(np)) is (name != "trapezoid")


@pytest.mark.parametrize("name", ["bool", "int", "float", "complex", "object", "str"])
def test_the_names_of_python_types_are_these(view, name):
    assert getattr(view, name) is eval(name)


def test_constants_have_their_values(view):
    for name in ("Inf", "Infinity", "PINF", "infty"):
        assert getattr(view, name) == math.inf
    assert view.NINF == -math.inf
    assert math.isnan(view.NaN) and math.isnan(view.NAN)
    assert [math.copysign(1, value) for value in (view.PZERO, view.NZERO)] == [1, -1]
    assert view.PZERO == view.NZERO == 0


def test_scalar_types_are_numpys(view):
    assert [view.float_, view.complex_] == [np.float64, np.complex128]
    assert [view.unicode_, view.string_] == [np.str_, np.bytes_]
    assert [view.dtype(view.bool), view.dtype(view.int), view.dtype(view.float)] == ["bool", "int64", "float64"]


def test_moveaxis_reads_no_numpy_core():
    assert mx.nd.moveaxis(mx.nd.zeros((2, 3, 4)), (0, -1), (1, 0)).shape == (4, 2, 3)  # a warning would be an error


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # from numpy 1.25 on, of its own functions
@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "expected"),
    [
        ("alltrue", [[[1, 0], [1, 1]]], {}, False),
        ("alltrue", [[[1, 0], [1, 1]]], {"axis": 0}, [True, False]),
        ("sometrue", [[[0, 0], [0, 1]]], {"axis": 1}, [False, True]),
        ("sometrue", [[0, 0]], {"keepdims": True}, [False]),
        ("product", [[[1, 2], [3, 4]]], {}, 24),
        ("product", [[[1, 2], [3, 4]]], {"axis": 0}, [3, 8]),
        ("cumproduct", [[1, 2, 3]], {}, [1, 2, 6]),
        ("cumproduct", [[[1, 2], [3, 4]]], {"axis": 1}, [[1, 2], [3, 12]]),
        ("round_", [[1.25, -2.35]], {"decimals": 1}, [1.2, -2.4]),
        ("round_", [2.5], {}, 2.0),
        ("row_stack", [([1, 2], [3, 4])], {}, [[1, 2], [3, 4]]),
        ("trapz", [[1, 2, 4]], {}, 4.5),
        ("trapz", [[1, 2, 4]], {"x": [0, 2, 3]}, 6.0),
        ("trapz", [[[1, 2], [3, 5]]], {"dx": 2.0, "axis": 0}, [4, 7]),
        ("in1d", [[[1, 2], [3, 1]], [1, 5]], {}, [True, False, False, True]),
        ("in1d", [[1, 2, 3], [2]], {"invert": True}, [True, False, True]),
        ("in1d", [[1, 2, 3], [2]], {"assume_unique": True}, [False, True, False]),
        ("msort", [[[3, 1], [2, 4]]], {}, [[2, 1], [3, 4]]),
        ("msort", [[3, 1, 2]], {}, [1, 2, 3]),
    ],
)
def test_functions_compute_what_they_did(view, name, arguments, keywords, expected):
    found = getattr(view, name)(*arguments, **keywords)
    np.testing.assert_allclose(found, expected)
    assert np.shape(found) == np.shape(expected)


@pytest.mark.parametrize("name", FINANCIAL)
def test_financial_functions_raise_as_since_numpy_1_20(view, name):
    with pytest.raises(RuntimeError, match=f"(?s){name}.*numpy_financial"):
        getattr(view, name)(0.05, 10, 1, 1)


def test_each_function_is_one_of_its_own(view):
    """MXNet registers a function of its own for each of numpy's; two names for one would overwrite each other."""
    functions = [getattr(view, name) for name in [*RENAMED, *FINANCIAL, "in1d", "msort"]]
    assert len({id(function) for function in functions}) == len(functions)
    own = old_modules.numpy_names(np)
    assert all(own[name].__name__ == name for name in [*RENAMED, *FINANCIAL, "in1d", "msort"] if name in own)


@pytest.mark.skipif(not hasattr(np, "trapezoid"), reason="before numpy 2 the functions have the old names alone")
def test_the_functions_of_numpy_that_took_over_still_reach_mxnet():
    array = mx.np.array([[1.0, 2.0], [0.0, 4.0]])
    for found, expected in [(np.prod(array), 0), (np.all(array), False), (np.any(array), True)]:
        assert isinstance(found, mx.np.ndarray) and found.item() == expected
    assert isinstance(np.vstack([array, array]), mx.np.ndarray)
