from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import is_low_precision, round_into, to_float32
from mxmp.dtypes import NUMPY_BFLOAT16, to_numpy
from mxmp.errors import TrainerError
from mxmp.train.masters import MultiPrecision, exact_value, follow, forget_masters, keep_masters, rounds_to, set_master

LOW = ["float16", "bfloat16"]


def round_on_host(values, dtype):
    """Round float32 to nearest even and back, with integer arithmetic for bfloat16."""
    values = np.asarray(values, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def low(values, dtype, ctx=None):
    source = mx.nd.array(values, dtype="float32", ctx=ctx)
    out = mx.nd.empty(source.shape, ctx=ctx, dtype=to_numpy(dtype))
    round_into(source, out)
    return out


def value_of(array):
    return to_float32(array).asnumpy()


def random_values(n=20_000, spread=8.0):
    draw = np.random.RandomState(3)
    return (draw.randn(n) * np.exp(draw.randn(n) * spread / 4)).astype(np.float32)


def test_is_low_precision():
    assert [is_low_precision(mx.nd.zeros((1,), dtype=to_numpy(d))) for d in LOW] == [True, True]
    assert not is_low_precision(mx.nd.zeros((1,)))
    assert not is_low_precision(mx.nd.zeros((1,), dtype="float64"))


def test_to_float32_is_exact_for_every_float16():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    found = to_float32(mx.nd.array(every, dtype="float16")).asnumpy()
    np.testing.assert_array_equal(found, every.astype(np.float32))


def test_to_float32_is_exact_for_every_normal_bfloat16():
    bits = np.arange(2**16, dtype=np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    normal = (np.abs(expected) >= 2.0**-126) | (expected == 0) | ~np.isfinite(expected)
    array = mx.nd.empty((int(normal.sum()),), dtype=NUMPY_BFLOAT16)
    array._sync_copyfrom(bits[normal].view(NUMPY_BFLOAT16))
    np.testing.assert_array_equal(to_float32(array).asnumpy(), expected[normal])


def test_to_float32_returns_a_float32_array_itself():
    array = mx.nd.ones((2,))
    assert to_float32(array) is array


def test_to_float32_keeps_row_sparse():
    rows = mx.nd.sparse.row_sparse_array(([[1.0, 2.0]], [2]), shape=(4, 2)).astype("float16")
    wide = to_float32(rows)
    assert (wide.stype, wide.dtype) == ("row_sparse", np.float32)
    np.testing.assert_array_equal(wide.asnumpy(), [[0, 0], [0, 0], [1, 2], [0, 0]])


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("shape", [(20_000,), (100, 200), (4, 5, 10, 100)], ids=str)
def test_round_into_rounds_to_nearest_even(dtype, shape):
    values = random_values()
    found = to_float32(low(values.reshape(shape), dtype)).asnumpy()
    np.testing.assert_array_equal(found, round_on_host(values, dtype).reshape(shape))


@pytest.mark.parametrize("dtype", LOW)
def test_round_into_breaks_ties_to_even(dtype):
    ulp = 2.0 ** (-10 if dtype == "float16" else -7)
    values = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 5 * ulp / 2, -1 - ulp / 2], np.float32)
    found = to_float32(low(values, dtype)).asnumpy()
    np.testing.assert_array_equal(found, [1, 1 + 2 * ulp, 1 + 2 * ulp, -1])


@pytest.mark.parametrize("dtype", LOW)
def test_follow_keeps_masters_that_round_to_the_weight(dtype):
    values = random_values()
    master = mx.nd.array(values)
    follow(master, low(values, dtype))
    np.testing.assert_array_equal(master.asnumpy(), values)


@pytest.mark.parametrize("dtype", LOW)
def test_follow_takes_changed_elements_from_the_weight(dtype):
    values = random_values(1000)
    weight = low(values, dtype)
    weight[10:20] = low(np.full(10, 0.3), dtype)
    master = mx.nd.array(values)
    follow(master, weight)
    expected = values.copy()
    expected[10:20] = round_on_host(np.full(10, 0.3), dtype)
    np.testing.assert_array_equal(master.asnumpy(), expected)


def test_follow_keeps_a_master_beyond_the_range_of_float16():
    master = mx.nd.array([1e6, 1.0])
    follow(master, low([1e6, 1.0], "float16"))
    assert master.asnumpy().tolist() == [1e6, 1.0]


def test_follow_takes_nan_from_the_weight():
    master = mx.nd.array([1.0, 2.0])
    follow(master, low([np.nan, 2.0], "float16"))
    np.testing.assert_array_equal(master.asnumpy(), [np.nan, 2.0])


def test_follow_does_not_touch_the_host(monkeypatch):
    master, weight = mx.nd.ones((3,)), low([1.0, 2.0, 3.0], "bfloat16")
    with monkeypatch.context() as patch:
        for name in ("asnumpy", "wait_to_read"):
            patch.setattr(mx.nd.NDArray, name, None)
        follow(master, weight)
    assert master.asnumpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("change, expected", [(None, 1), (0, 0), (999, 0)])
def test_one_changed_element_is_seen(change, expected, dtype):
    values = random_values(1000)
    values[5] = np.nan
    weight = low(values, dtype)
    if change is not None:
        weight[change] = low([0.3], dtype)
    assert rounds_to(mx.nd.array(values), weight).asnumpy().tolist() == [expected]


def parameter(values, dtype, ctx=None):
    """Return a parameter that was float32 and is cast now, and its float32 arrays."""
    param = mx.gluon.Parameter("w", shape=np.shape(values))
    param.initialize(init=mx.init.Zero(), ctx=ctx)
    param.set_data(mx.nd.array(values))
    before = param.list_data()
    param.cast(to_numpy(dtype))
    for wide, narrow in zip(before, param.list_data()):
        round_into(wide, narrow)
    return param, before


def new_master(param, weight=None):
    """Return the master that an optimizer makes for a parameter, or a weight."""
    optimizer = MultiPrecision(mx.optimizer.SGD(param_dict={} if param is None else {0: param}))
    weight = param.data() if weight is None else weight
    return optimizer.create_state_multi_precision(0, weight).master


@pytest.mark.parametrize("dtype", LOW)
def test_the_first_master_is_the_kept_value_bit_for_bit(dtype):
    values = random_values(500)
    param, before = parameter(values, dtype)
    keep_masters(param, before)
    np.testing.assert_array_equal(new_master(param).asnumpy(), values)


@pytest.mark.parametrize("dtype", LOW)
def test_the_first_master_is_the_weight_where_none_is_kept(dtype):
    values = random_values(500)
    param, _ = parameter(values, dtype)
    expected = round_on_host(values, dtype)
    np.testing.assert_array_equal(new_master(None, param.data()).asnumpy(), expected)
    np.testing.assert_array_equal(new_master(param).asnumpy(), expected)


def test_the_first_master_drops_a_value_that_the_weight_has_left():
    param, before = parameter([0.1, 0.2], "float16")
    keep_masters(param, before)
    param.data()[:] = mx.nd.array([3, 4], dtype="float16")
    assert new_master(param).asnumpy().tolist() == [3, 4]


def test_all_who_ask_share_one_master():
    contexts = [mx.cpu(0), mx.cpu(1)]
    param, before = parameter([0.1, 0.2], "float16", contexts)
    keep_masters(param, before)
    for number, weight in enumerate(param.list_data()):
        assert new_master(param, weight) is before[number]
        assert new_master(param, weight) is exact_value(weight, param) is before[number]


def test_a_master_made_from_the_weight_is_kept():
    param, _ = parameter([0.1, 0.2], "float16")
    assert exact_value(param.data(), param) is not exact_value(param.data(), param)
    master = new_master(param)
    assert exact_value(param.data(), param) is master


def test_masters_can_be_forgotten():
    contexts = [mx.cpu(0), mx.cpu(1)]
    param, before = parameter([0.1, 0.2], "float16", contexts)
    keep_masters(param, before)
    forget_masters(param, but=mx.cpu(0))
    first, second = (exact_value(weight, param) for weight in param.list_data())
    assert first is before[0] and second is not before[1]
    assert np.array_equal(second.asnumpy(), first.asnumpy())
    forget_masters(param)
    rounded = round_on_host(np.float32([0.1, 0.2]), "float16")
    assert np.array_equal(exact_value(param.data(mx.cpu(0)), param).asnumpy(), rounded)


@pytest.mark.parametrize("write", ["set_data", "load", "init"])
def test_the_master_of_an_optimizer_follows_what_is_set_and_loaded(write, tmp_path):
    param, _ = parameter([0.1, 0.2], "float16")
    master = new_master(param)
    if write == "set_data":
        param.set_data(mx.nd.array([0.1, 4], dtype="float16"))
    elif write == "load":
        params = mx.gluon.ParameterDict()
        params.update({"w": param})
        mx.nd.save(str(tmp_path / "file"), {"w": mx.nd.array([0.1, 4], dtype="float16")})
        params.load(str(tmp_path / "file"))
    else:
        param.initialize(mx.init.Constant(4), force_reinit=True)
        assert master.asnumpy()[0] == 4
    assert exact_value(param.data(), param) is master
    assert master.asnumpy()[1] == 4


def test_a_float32_value_that_is_set_becomes_the_master_where_it_is_kept():
    param, before = parameter([0.1, 0.2], "float16")
    set_master(param, mx.nd.array([0.3, 0.7]))
    param.data()[:] = mx.nd.array([0.3, 0.7], dtype="float16")
    assert exact_value(param.data(), param).asnumpy().tolist() == np.float32([0.3, 0.7]).tolist()


def test_a_write_past_the_master_of_an_optimizer_is_an_error_that_names_the_parameter():
    param, _ = parameter([0.1, 0.2], "float16")
    new_master(param)
    param.data()[1] = 4
    with pytest.raises(TrainerError, match=r"parameter 'w' is stored in low precision and was written to past its float32 master.*adopt_weights"):
        exact_value(param.data(), param)


def test_a_copied_parameter_has_the_class_that_it_had_before():
    param, _ = parameter([0.1, 0.2], "float16")
    kind = type(param)
    new_master(param)
    assert type(param) is not kind and isinstance(param, kind)
    other = copy.deepcopy(param)
    assert type(other) is kind and other.data().asnumpy().tolist() == param.data().asnumpy().tolist()
