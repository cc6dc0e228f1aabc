"""MXNet's record files are written and read with any numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.compat import old_methods

pytestmark = pytest.mark.filterwarnings("ignore:tostring.. is deprecated")  # in numpy 1, which has it


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
    exec(old_methods.renamed(compile(source, "test", "exec"), {"old": "new"}), space)

    class Value:
        def new(self):
            return 1

        def other(self):
            return 2

    assert space["outer"]()(Value()) == 3
