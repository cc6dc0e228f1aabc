"""Names, aliases and limits of dtypes."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import dtypes


@pytest.mark.parametrize(
    "given, name",
    [
        ("float16", "float16"), ("FP16", "float16"), (" half ", "float16"), (np.float16, "float16"),
        ("bf16", "bfloat16"), (np.dtype([("bfloat16", np.uint16)]), "bfloat16"),
        ("float", "float32"), (np.dtype("float32"), "float32"), ("double", "float64"), (int, "int64"),
        (np.bool_, "bool"),
    ],
)  # fmt: skip
def test_canonical(given, name):
    assert dtypes.canonical(given) == name


@pytest.mark.parametrize("name", ["float16", "float32"])
def test_limits_are_numpys(name):
    info, found = np.finfo(name), dtypes.limits(name)
    assert (found.max, found.tiny, found.eps) == (info.max, info.tiny, info.eps)
    assert found.smallest_subnormal == np.nextafter(np.dtype(name).type(0), np.dtype(name).type(1))


def test_limits_of_bfloat16_are_mxnets():
    def rounded(value):
        low = mx.nd.amp_cast(mx.nd.array([value]), dtype=dtypes.NUMPY_BFLOAT16)
        return float(mx.nd.amp_cast(low, dtype="float32").asscalar())

    limits = dtypes.limits("bfloat16")
    assert rounded(limits.max) == limits.max and rounded(limits.max * 1.003) == np.inf  # which float32 has
    assert rounded(1 + limits.eps) == 1 + limits.eps and rounded(1 + limits.eps / 4) == 1
    assert rounded(limits.tiny) == limits.tiny


@pytest.mark.parametrize("name", sorted(dtypes.ITEM_BYTES))
def test_type_flags_are_mxnets_and_sizes_numpys(name):
    declared = mx.sym.var("x", dtype=dtypes.to_numpy(name)).attr("__dtype__")
    assert declared == dtypes.to_flag(name)
    assert dtypes.from_flag(declared) == name and dtypes.from_flag("-1") is None
    assert dtypes.ITEM_BYTES[name] == np.dtype("float16" if name == "bfloat16" else name).itemsize
