"""The views have what MXNet and GluonCV read of numpy, scipy and distutils, with the meaning of numpy 1.23."""

import ast
import itertools
import math
import operator
import warnings
from importlib.util import find_spec
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from packaging.version import Version

from mxmp import compat
from mxmp.compat import old_modules
from mxmp.compat.old_modules import LooseVersion, StrictVersion

RENAMED = ["alltrue", "sometrue", "product", "cumproduct", "round_", "row_stack", "trapz"]
FINANCIAL = ["fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate"]
VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]


@pytest.fixture(scope="module")
def view():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return old_modules.view(np, old_modules.numpy_names(np))


def names_read(tree):
    """Yield the dotted names that a module reads of numpy through a name that it imported."""
    nodes, aliases = list(ast.walk(tree)), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "numpy"}
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "numpy":
            yield from (".".join([*node.module.split(".")[1:], alias.name]) for alias in node.names)
    for node in nodes:
        chain = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if chain and isinstance(node, ast.Name) and node.id in aliases:
            yield ".".join(chain)


@pytest.mark.parametrize("package", ["mxnet", "gluoncv"])
@pytest.mark.slow
def test_the_view_has_each_name_that_the_sources_read(view, package):
    spec = find_spec(package) or pytest.skip(f"{package} is not installed")
    texts = (path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.rglob("*.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of escapes such as \[ in plain strings
        names = {name for text in texts if "numpy" in text for name in names_read(ast.parse(text))}
    assert len(names) > 30 and [operator.attrgetter(name)(view) for name in names]


def test_the_view_has_each_name_that_mxnet_lists(view):
    protocol = mx.numpy_dispatch_protocol
    lists = [protocol._NUMPY_ARRAY_FUNCTION_LIST, protocol._NUMPY_ARRAY_UFUNC_LIST, mx.numpy.fallback.__all__]
    assert all(len(names) > 50 for names in lists)
    assert [name for names in lists for name in names if operator.attrgetter(name)(view) is None] == []


CONSTANTS = {
    **{kind.__name__: kind for kind in (bool, int, float, complex, object, str)},
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), math.inf),
    **{"NINF": -math.inf, "NaN": math.nan, "NAN": math.nan, "PZERO": 0.0, "NZERO": -0.0},
    **{"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_, "string_": np.bytes_},
}


def test_types_and_constants_are_those_of_numpy_1_23(view):
    assert {name: repr(getattr(view, name)) for name in CONSTANTS} == {k: repr(v) for k, v in CONSTANTS.items()}


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
    names, own = [*RENAMED, *FINANCIAL, "in1d", "msort"], old_modules.numpy_names(np)
    assert len({id(getattr(view, name)) for name in names}) == len(names)
    assert all(own[name].__name__ == name for name in names if name in own)


@pytest.mark.skipif(not hasattr(np, "trapezoid"), reason="before numpy 2 the functions have the old names alone")
def test_the_functions_of_numpy_that_took_over_still_reach_mxnet():
    array = mx.np.array([[1.0, 2.0], [0.0, 4.0]])
    for found, expected in [(np.prod(array), 0), (np.all(array), False), (np.any(array), True)]:
        assert isinstance(found, mx.np.ndarray) and found.item() == expected
    assert isinstance(np.vstack([array, array]), mx.np.ndarray)


@pytest.mark.parametrize("make", [mx.np.array, np.array], ids=["mxnet", "numpy"])
def test_qr_returns_a_tuple_of_arrays_of_the_kind_that_it_takes(make):
    array = make(VALUES, "float32")
    (q, r), alone = mx.np.linalg.qr(array), mx.np.linalg.qr(array, mode="r")
    assert type(q) is type(r) is type(alone) is type(array)
    q, r, alone = (np.asarray(each.tolist()) for each in (q, r, alone))
    assert q.shape == (3, 2) and r[1, 0] == 0
    assert q @ r == pytest.approx(np.array(VALUES), abs=1e-5) and alone == pytest.approx(r, abs=1e-6)


@pytest.mark.filterwarnings("ignore:the `interpolation=` argument")  # numpy 1.23
@pytest.mark.parametrize("name, q", [("nanpercentile", 25), ("nanquantile", 0.25)])
def test_nanpercentile_keeps_the_argument_that_percentile_has(name, q):
    array = mx.np.array([1.0, 2.0, 4.0, np.nan])
    for method, value in (("lower", 1.0), ("higher", 2.0), ("linear", 1.5)):
        assert getattr(mx.np, name)(array, q, interpolation=method) == value


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion of out-of-bound")  # 1.24 to 1.26
def test_integers_wrap_around_as_they_do_in_operators():
    made = [make([-1, 300], dtype="uint8") for make in (mx.nd.array, mx.np.array)]
    made += [mx.nd.zeros(2, dtype="uint8"), mx.nd.full((2,), 300, dtype="uint8")]
    made[2][:] = [-1, 300]
    assert [each.asnumpy().tolist() for each in made] == [[255, 44]] * 3 + [[44, 44]]
    assert mx.nd.array([1.5, -1, 2**40], dtype="uint8").asnumpy().tolist() == [1, 255, 0]  # floats are cut off


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # a warning is no refusal
@pytest.mark.parametrize("value", [2**70, math.inf, -math.inf, math.nan])
def test_what_no_integer_type_holds_is_refused(value):
    with pytest.raises((OverflowError, TypeError)):
        mx.nd.array([value], dtype="int32")


@pytest.mark.skipif(not compat.needed(), reason="MXNet runs as it is, and scipy warns")
def test_sparse_matrices_of_scipy_go_both_ways_without_a_warning():
    sparse = pytest.importorskip("scipy.sparse", reason="MXNet does without scipy")
    matrix = sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = mx.nd.sparse.array(matrix)
        assert array.stype == mx.nd.array(matrix).stype == "csr" and array.asnumpy().tolist() == [[0, 2], [3, 0]]
        assert next(iter(mx.io.NDArrayIter(np.ones((4, 3)), batch_size=2))).data[0].shape == (2, 3)
    assert type(array.asscipy()) is sparse.csr_matrix


@pytest.mark.parametrize("kind", [LooseVersion, StrictVersion])
def test_versions_compare_as_those_of_packaging(kind):
    releases = ["1.6.0", "1.9.1", "1.17.0", "1.23.5", "1.26.4", "2.0.0", "2.5.5", "10.0.1", "0.10.5"]
    operators = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]
    for first, second, compare in itertools.product(releases, releases, operators):
        assert compare(kind(first), kind(second)) == compare(Version(first), Version(second)), (first, second, compare)
