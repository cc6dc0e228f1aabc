"""Parameters that have float32 masters: whose they are, what they follow, and what is compared with them."""

import copy
import gc
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import to_float32
from mxmp.errors import TrainerError
from mxmp.train.masters import Masters, exact_value, forget_masters, keep_masters, set_master, sync_master_from_weight
from tests.gluon.trainer_tools import TWO, param
from tests.optimizer.test_multi_precision import LOW, low
from tests.values import DTYPES, as_float32


def random_values(n=1000, spread=8.0):
    draw = np.random.RandomState(3)
    return (draw.randn(n) * np.exp(draw.randn(n) * spread / 4)).astype(np.float32)


def parameter(values, dtype="float16", ctx=None):
    """Return a parameter in low precision and its float32 values on each context."""
    result = param(values, dtype, ctx)
    return result, [mx.nd.array(values, ctx=each) for each in result.list_ctx()]


def owner_of(w):
    return Masters(mx.optimizer.SGD(param_dict={0: w}))


def new_master(w, weight=None):
    """Return the master that an optimizer makes for a weight of a parameter."""
    return owner_of(w).of(0, w.data() if weight is None else weight)


def owned(values=(0.1, 0.2), **options):
    """Return a parameter, its master, and the masters of the optimizer that has it."""
    w, before = parameter(values, **options)
    keep_masters(w, before)
    masters = owner_of(w)
    return w, masters.of(0, w.data()), masters


# A float32 array that follows a weight.


def test_to_float32_keeps_a_float32_array_and_what_is_row_sparse():
    array = mx.nd.ones((2,))
    assert to_float32(array) is array
    rows = mx.nd.sparse.row_sparse_array(([[1.0, 2.0]], [2]), shape=(4, 2)).astype("float16")
    assert (to_float32(rows).stype, to_float32(rows).dtype) == ("row_sparse", np.float32)
    np.testing.assert_array_equal(to_float32(rows).asnumpy(), [[0, 0], [0, 0], [1, 2], [0, 0]])


@pytest.mark.parametrize("dtype", LOW)
def test_follow_takes_the_elements_that_changed_and_no_others(dtype, monkeypatch):
    """A value beyond float16 rounds to the weight's inf, and stays; nothing is read on the host."""
    values = random_values()
    values[0], expected = 1e6, values.copy()
    master, weight = mx.nd.array(values), low(values, dtype)
    expected[0], expected[1], expected[10:20] = 1e6, np.nan, as_float32(low([0.3], dtype))
    weight[1], weight[10:20] = np.nan, low(np.full(10, 0.3), dtype)
    with monkeypatch.context() as patch:
        for name in ("asnumpy", "wait_to_read"):
            patch.setattr(mx.nd.NDArray, name, None)
        sync_master_from_weight(master, weight)
    np.testing.assert_array_equal(master.asnumpy(), expected)


# The first master.


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("kept", [True, False])
def test_the_first_master_is_the_kept_value_bit_for_bit_where_the_weight_was_not_written_to(kept, dtype):
    values = random_values()
    w, before = parameter(values, dtype)
    if kept:
        keep_masters(w, before)
    w.data()[7] = 3
    expected = values.copy() if kept else as_float32(low(values, dtype))
    expected[7] = 3
    np.testing.assert_array_equal(new_master(w).asnumpy(), expected)


def test_all_who_ask_share_one_master_which_is_made_once():
    w, before = parameter([0.1, 0.2], ctx=TWO)
    keep_masters(w, before)
    for number, weight in enumerate(w.list_data()):
        assert new_master(w, weight) is new_master(w, weight) is exact_value(weight, w) is before[number]
    w, _ = parameter([0.1, 0.2])
    assert exact_value(w.data(), w) is not exact_value(w.data(), w)
    master = new_master(w)
    assert exact_value(w.data(), w) is master


def test_masters_can_be_forgotten():
    w, before = parameter([0.1, 0.2], ctx=TWO)
    keep_masters(w, before)
    forget_masters(w, but=TWO[0])
    first, second = (exact_value(weight, w) for weight in w.list_data())
    assert first is before[0] and second is not before[1]
    assert np.array_equal(second.asnumpy(), first.asnumpy())
    forget_masters(w)
    rounded = as_float32(low([0.1, 0.2], "float16"))
    assert np.array_equal(exact_value(w.data(TWO[0]), w).asnumpy(), rounded)


# The master of an optimizer.


def load(w, folder):
    params = mx.gluon.ParameterDict()
    params.update({"w": w})
    mx.nd.save(str(folder / "file"), {"w": mx.nd.array([0.1, 4]).astype(w.dtype)})
    params.load(str(folder / "file"))


WRITES = {
    "set_data": (lambda w, _: w.set_data(low([0.1, 4], "float16")), [0.1, 4]),
    "load": (load, [0.1, 4]),
    "initialize": (lambda w, _: w.initialize(mx.init.Constant(4), force_reinit=True), [4, 4]),
}


@pytest.mark.parametrize("write, expected", WRITES.values(), ids=WRITES)
def test_the_master_of_an_optimizer_follows_what_is_set_and_loaded(write, expected, tmp_path):
    w, master, _optimizer = owned()
    write(w, tmp_path)
    assert exact_value(w.data(), w) is master
    np.testing.assert_array_equal(master.asnumpy(), np.float32(expected))


@pytest.mark.parametrize("target", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("ctx", [None, TWO], ids=["one context", "two"])
def test_a_cast_is_of_the_exact_value(ctx, target):
    exact = np.float32([0.1, 1 - 3e-5])  # the second is 1 in float16
    w, _, _optimizer = owned(exact, ctx=ctx)
    w.cast(DTYPES.get(target, target))
    for weight in w.list_data():
        np.testing.assert_array_equal(as_float32(weight), as_float32(low(exact, target)) if target in LOW else exact)
    np.testing.assert_array_equal(exact_value(w.list_data()[0], w).asnumpy(), exact)


@pytest.mark.parametrize("dtype", LOW)
def test_a_float32_value_that_is_set_is_the_master_and_rounded_once(dtype):
    w, master, _optimizer = owned(dtype=dtype)
    values = np.array([0.3, 1 + 2.0**-11 + 2.0**-20], np.float32)
    w.set_data(mx.nd.array(values))
    np.testing.assert_array_equal(master.asnumpy(), values)
    np.testing.assert_array_equal(as_float32(w.data()), as_float32(low(values, dtype)))
    assert exact_value(w.data(), w) is master


def test_a_float32_value_becomes_the_master_where_none_is_kept():
    w, _ = parameter([0.1, 0.2])
    set_master(w, mx.nd.array([0.3, 0.7]))
    w.data()[:] = low([0.3, 0.7], "float16")
    assert exact_value(w.data(), w).asnumpy().tolist() == np.float32([0.3, 0.7]).tolist()


@pytest.mark.parametrize("alive", [True, False], ids=["its trainer is there", "its trainer is gone"])
def test_a_write_past_a_master_is_an_error_only_while_an_optimizer_has_it(alive):
    w, _, optimizer = owned()
    w.data()[1] = 4
    if alive:
        message = r"parameter 'w' is stored in low precision and was written to past its float32 master.*adopt_weights"
        with pytest.raises(TrainerError, match=message):
            exact_value(w.data(), w)
        return
    del optimizer
    gc.collect()
    assert exact_value(w.data(), w).asnumpy().tolist() == [np.float32(0.1), 4]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_parameter_that_is_cast_by_hand_has_no_master_any_more(dtype):
    w, _, _optimizer = owned()
    w.cast(dtype)
    w.data()[:] = 3  # past no master
    assert exact_value(w.data(), w).asnumpy().tolist() == [3, 3]
    w.set_data(mx.nd.array([5, 6], dtype=dtype))
    w.cast("float16")
    assert exact_value(w.data(), w).asnumpy().tolist() == [5, 6]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))], ids=["copy", "pickle"])
def test_a_copied_parameter_has_the_class_that_it_had_before_and_no_owner(clone):
    w, _ = parameter([0.1, 0.2])
    kind, masters = type(w), owner_of(w)
    masters.of(0, w.data())
    assert type(w) is not kind and isinstance(w, kind)
    w._trainer = None
    other = clone(w)
    assert type(other) is kind and other.data().asnumpy().tolist() == w.data().asnumpy().tolist()
    other.data()[1] = 4
    assert exact_value(other.data(), other).asnumpy()[1] == 4 and masters.optimizer.param_dict[0] is w
