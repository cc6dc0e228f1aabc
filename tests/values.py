"""Arrays of any precision as float32 numbers and back, by MXNet and numpy: nothing of mxmp takes part."""

import mxnet as mx
import numpy as np

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # MXNet's stand-in
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": BFLOAT16}


def name_of(dtype):
    """Return the name of a dtype of MXNet or numpy."""
    return "bfloat16" if np.dtype(dtype) == BFLOAT16 else np.dtype(dtype).name


def as_float32(array):
    """Return an NDArray's values as a float32 array of numpy."""
    values = array.asnumpy()
    if values.dtype == BFLOAT16:
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def in_dtype(array, dtype):
    """Return a float32 array rounded to nearest even in another dtype."""
    return array if dtype == np.float32 else mx.nd.amp_cast(array, dtype=dtype)
