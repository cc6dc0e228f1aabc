"""The cast of a batch, which a CPU does not need: MXNet casts there, and refuses to where a GPU has another dtype."""

import mxnet as mx
import numpy as np

from mxmp.module.binding import cast_batch


def test_data_and_labels_are_cast_before_they_are_copied_to_executors():
    floats, integers = [mx.io.DataDesc("data", (2,))], [mx.io.DataDesc("label", (2,), "int32")]
    given = mx.io.DataBatch([mx.nd.ones(2, dtype="float16")], [mx.nd.ones(2, dtype="float64")])
    (batch,) = cast_batch([given], floats, integers)
    assert (batch.data[0].dtype, batch.label[0].dtype) == (np.float32, np.float64)  # the label is none of float32
    (other,) = cast_batch([given], integers, floats)
    assert (other.data[0].dtype, other.label[0].dtype) == (np.float16, np.float32)
    assert cast_batch(given, integers, integers) is given and given.data[0].dtype == np.float16
