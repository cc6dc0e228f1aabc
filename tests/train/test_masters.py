"""Masters of parameters that ``cast`` has put in low precision; tests/gluon/test_saved_parameters.py has converted nets."""

import copy
import gc
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.gluon import exact_value
from tests.gluon.trainer_tools import LOW, TWO, param, run, sgd
from tests.values import DTYPES, as_float32, in_dtype

BELOW = 2.0**-20  # half a unit in the last place of the values here is more


def rounded(values, dtype="float16"):
    return in_dtype(mx.nd.array(values), DTYPES[dtype])


def trained(values=(0.1, 0.2), dtype="float16", ctx=None):
    """Return a parameter after a step that only its master shows, the master's values, and the trainer."""
    w = param(values, dtype, ctx)
    trainer = sgd(w, 8, lr=BELOW)
    before = as_float32(w.list_data()[0])
    assert run(trainer, w)
    assert np.array_equal(as_float32(w.list_data()[0]), before)
    return w, before - np.float32(BELOW * len(w.list_ctx())), trainer


def assert_exact(w, expected):
    np.testing.assert_array_equal(exact_value(w).asnumpy(), np.float32(expected))


def load(w, value, folder):
    mx.nd.save(str(folder / "file"), {"w": value})
    params = mx.gluon.ParameterDict()
    params.update({"w": w})
    params.load(str(folder / "file"))


WRITES = {"set_data": lambda w, value, folder: w.set_data(value), "load": load}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_master_takes_the_elements_that_differ_and_keeps_the_others(write, dtype, tmp_path):
    """A master beyond float16 rounds to the weight's inf, and stays."""
    w, expected, _trainer = trained(np.linspace(-4, 4, 1000), dtype)
    expected[0] = 1e6
    w.set_data(mx.nd.array(expected))
    value = as_float32(w.data())
    value[1:3] = expected[1:3] = np.nan, 3
    write(w, rounded(value, dtype), tmp_path)
    assert_exact(w, expected)


def test_a_parameter_that_is_initialized_again_has_a_new_master():
    w, _, _trainer = trained()
    w.initialize(mx.init.Constant(4), force_reinit=True)
    assert_exact(w, [4, 4])


@pytest.mark.parametrize("target", ["float32", "float64", *LOW])
@pytest.mark.parametrize("ctx", [None, TWO], ids=["one context", "two"])
def test_a_cast_is_of_the_exact_value(ctx, target):
    w, exact, _trainer = trained([0.1, 1], ctx=ctx)
    w.cast(DTYPES.get(target, target))
    for weight in w.list_data():
        np.testing.assert_array_equal(as_float32(weight), as_float32(rounded(exact, target)) if target in LOW else exact)
    assert_exact(w, exact)


@pytest.mark.parametrize("dtype", LOW)
def test_a_float32_value_that_is_set_is_the_master_and_rounded_once(dtype):
    w, _, trainer = trained(dtype=dtype)
    values = np.float32([0.3, 1 + 2.0**-11 + 2.0**-18])
    w.set_data(mx.nd.array(values))
    np.testing.assert_array_equal(as_float32(w.data()), as_float32(rounded(values, dtype)))
    assert_exact(w, values)
    run(trainer, w)
    assert_exact(w, values - np.float32(BELOW))


def test_a_write_past_a_master_is_an_error_only_while_its_trainer_is_there():
    w, exact, trainer = trained()
    w.data()[1] = 4
    message = r"parameter 'w' is stored in low precision and was written to past its float32 master.*adopt_weights"
    with pytest.raises(TrainerError, match=message):
        exact_value(w)
    w._trainer = trainer = None
    gc.collect()
    assert trainer is None
    assert_exact(w, [exact[0], 4])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_parameter_that_is_cast_by_hand_has_no_master_any_more(dtype):
    w, exact, _trainer = trained()
    w.cast(dtype)
    w.data()[:] = 3  # past no master
    assert_exact(w, [3, 3])
    value = exact + np.float32(BELOW)  # to which the master of before rounds too
    w.set_data(mx.nd.array(value, dtype=dtype))
    w.cast("float16")
    assert_exact(w, value)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))], ids=["copy", "pickle"])
def test_a_copied_parameter_has_the_class_that_it_had_before_and_no_trainer(clone):
    w, _, _trainer = trained()
    w._trainer = None  # which MXNet cannot copy
    other = clone(w)
    assert type(other) is mx.gluon.Parameter
    assert other.data().asnumpy().tolist() == w.data().asnumpy().tolist()
    other.data()[1] = 4
    assert exact_value(other).asnumpy()[1] == 4
