"""MXNet's record files and random numbers work with any numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.compat import changes

pytestmark = [  # numpy 1 has what MXNet does, and warns of it; there MXNet is left as it is
    pytest.mark.filterwarnings("ignore:tostring.. is deprecated"),
    pytest.mark.filterwarnings("ignore:The truth value of an empty array is ambiguous"),
]


def test_a_record_with_several_labels_is_packed():
    packed = mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.5], 7, 0), b"bytes")
    header, content = mx.recordio.unpack(packed)
    assert header.flag == 2 and header.id == 7 and content == b"bytes"
    assert header.label.tolist() == [1.0, 2.5]


def test_an_image_is_packed():
    pytest.importorskip("cv2")
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    packed = mx.recordio.pack_img(mx.recordio.IRHeader(0, 3.0, 7, 0), image, quality=3, img_fmt=".png")
    header, unpacked = mx.recordio.unpack_img(packed)
    assert header.label == 3.0 and np.array_equal(unpacked, image)


def test_calls_in_nested_functions_are_renamed():
    source = "def outer():\n    def inner(x):\n        return x.old() + x.other()\n    return inner\n"
    space = {}
    exec(changes.changed_code(compile(source, "test", "exec"), {"old": "new"}), space)

    class Value:
        def new(self):
            return 1

        def other(self):
            return 2

    assert space["outer"]()(Value()) == 3


SAMPLERS = {
    **dict.fromkeys(["exponential", "gumbel", "logistic", "lognormal", "normal", "rayleigh", "uniform"], ()),
    **dict.fromkeys(["chisquare", "gamma", "pareto", "power", "weibull"], (2.0,)),
    **{"beta": (1.0, 2.0), "choice": (5,)},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_random_numbers_of_a_size_that_numpy_counted(name):
    sample = getattr(mx.np.random, name)
    assert sample(*SAMPLERS[name], size=np.int64(2)).shape == sample(*SAMPLERS[name], size=2).shape == (2,)
    assert sample(*SAMPLERS[name], size=(np.int64(2), 3)).shape == (2, 3)


def test_random_numbers_of_npx_and_of_symbols_take_such_a_size():
    assert mx.np.random.uniform(size=()).shape == ()
    assert mx.npx.random.bernoulli(0.5, size=np.int64(2)).shape == (2,)
    assert mx.npx.random.uniform_n(batch_shape=np.int64(2)).shape == (2,)
    assert mx.npx.random.normal_n(batch_shape=np.int64(2)).shape == (2,)
    assert mx.sym.np.random.uniform(size=np.int64(2)).infer_shape()[1] == [(2,)]


def test_an_empty_tuple_is_one_in_all_else():
    empty = changes.EmptyTuple()
    assert empty == () and () == empty and hash(empty) == hash(()) and repr(empty) == "()"
    assert [other == empty for other in (None, 2, (2,), np.int64(2), [])] == [False] * 5
    assert [other != empty for other in ((), (2,), np.int64(2))] == [False, True, True]
