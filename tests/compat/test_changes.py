"""What single modules of MXNet and GluonCV get: numbers as text, arrays for numpy, metrics' sums, changed code."""

import functools
import pickle
import random

import mxnet as mx
import numpy as np
import pytest

from mxmp import compat
from mxmp.compat.changes import HostArray, attribute_text

pytestmark = [  # numpy 1 has what MXNet does, and warns of it; there MXNet is left as it is
    pytest.mark.filterwarnings("ignore:tostring.. is deprecated"),
    pytest.mark.filterwarnings("ignore:The truth value of an empty array is ambiguous"),
]

WIDE, NARROW = np.int64, np.int32
DATA = np.arange(24.0).reshape(2, 3, 4)

@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((np.int8(1), np.uint8(2)), "(1, 2)"),
        ((np.int64(3),), "(3,)"),
        ([(np.int32(1), 2), [np.int64(3)]], "[(1, 2), [3]]"),
        ((np.float32(0.5), np.bool_(True)), "(0.5, True)"),
        ((np.str_("a"), [np.bytes_(b"b")]), "('a', [b'b'])"),
        (np.int64(7), "7"),
        ("(np.int64(3),)", "(np.int64(3),)"),  # a text is what it is
        (np.float32, "<class 'numpy.float32'>"),
    ],
)
def test_each_kind_of_value(value, text):
    assert attribute_text(value) == text


def test_a_module_hands_on_none_of_its_own_builtins():
    names = {}
    exec("from mxnet.metric import *\nfrom mxnet.io.io import *\nfrom mxnet._ctypes.symbol import *", names)
    assert "EvalMetric" in names and "MXDataIter" in names and not {"object", "str"} & {*names}


def of(array, call):
    return lambda integer, another: call(array(DATA), integer, another).asnumpy()


def sym(call):
    def run(integer, another):
        symbol = call(mx.sym.var("x", shape=(integer(2), another(3), 4)), integer, another)
        loaded = mx.sym.load_json(symbol.tojson())
        return loaded.bind(mx.cpu(), {"x": mx.nd.array(DATA)}).forward()[0].asnumpy()

    return run


OPERATORS = {
    "reshape": lambda F, x, i, j: F.reshape(x, shape=(i(4), j(-1))),
    "axis": lambda F, x, i, j: F.sum(x, axis=i(1)),
    "axes": lambda F, x, i, j: F.sum(x, axis=(i(0), j(2))),
    "transpose": lambda F, x, i, j: F.transpose(x, axes=(i(2), j(0), 1)),
    "slice": lambda F, x, i, j: F.slice(x, begin=(i(0), None, j(3)), end=(None, i(2), None), step=(i(1), 1, j(-1))),
    "slice_axis": lambda F, x, i, j: F.slice_axis(x, axis=i(2), begin=j(1), end=i(3)),
    "tile": lambda F, x, i, j: F.tile(x, reps=(i(2), j(1), 1)),
    "expand_dims": lambda F, x, i, j: F.expand_dims(x, axis=i(0)),
    "pooling": lambda F, x, i, j: F.Pooling(x, kernel=(i(2),), stride=(j(2),), pool_type="max"),
    "pad": lambda F, x, i, j: F.pad(
        F.expand_dims(x, axis=0), mode="constant", pad_width=(0, 0, 0, 0, i(1), j(0), 1, i(2))
    ),
    "one_hot": lambda F, x, i, j: F.one_hot(x, depth=i(24)),
    "zeros": lambda F, x, i, j: F.broadcast_add(x, F.ones(shape=(i(2), j(1), 4))),
}


METHODS = {
    "integer": lambda x, i, j: x[i(1)],
    "slice": lambda x, i, j: x[i(0) : j(2), i(1) :],
    "reversed": lambda x, i, j: x[:, :: -i(1)],
    "integers": lambda x, i, j: x[i(1), j(2)],
    "several": lambda x, i, j: x[[i(1), j(0)]],
    "reshape": lambda x, i, j: x.reshape((i(6), j(4))),
    "transpose": lambda x, i, j: x.transpose((i(1), j(0), i(2))),
    "sum": lambda x, i, j: x.sum(axis=(i(0), j(1))),
    "repeat": lambda x, i, j: x.repeat(i(2), axis=j(1)),
}


NUMPY = {
    "reshape": lambda x, i, j: mx.np.reshape(x, (i(3), j(8))),
    "tile": lambda x, i, j: mx.np.tile(x, (i(2), j(1), 1)),
    "zeros": lambda x, i, j: x[0, 0, 0] + mx.np.zeros((i(2), j(3))),
    "full": lambda x, i, j: mx.np.full((i(2), j(3)), i(7)),
    "swapaxes": lambda x, i, j: mx.np.swapaxes(x, i(0), j(2)),
    "moveaxis": lambda x, i, j: mx.np.moveaxis(x, i(0), j(2)),
    "split": lambda x, i, j: mx.np.split(x, (i(1), j(2)), axis=i(2))[1],
    "concatenate": lambda x, i, j: mx.np.concatenate([x, x], axis=i(1)),
    "stack": lambda x, i, j: mx.np.stack([x, x], axis=i(1)),
    "roll": lambda x, i, j: mx.np.roll(x, (i(1), j(1)), axis=(i(0), j(2))),
    "random": lambda x, i, j: mx.np.random.uniform(size=(i(2), j(3))) * 0,
    "var": lambda x, i, j: mx.np.var(x, axis=(i(0), j(2)), ddof=i(1)),
    "linspace": lambda x, i, j: mx.np.linspace(0, 1, i(5)),
    "arange": lambda x, i, j: mx.np.arange(i(0), j(6), i(2)),
    "eye": lambda x, i, j: mx.np.eye(i(3), j(4)),
}


RUNS = {
    **{f"nd.{name}": of(mx.nd.array, functools.partial(call, mx.nd)) for name, call in OPERATORS.items()},
    **{f"sym.{name}": sym(functools.partial(call, mx.sym)) for name, call in OPERATORS.items()},
    **{f"a method of nd, {name}": of(mx.nd.array, call) for name, call in METHODS.items()},
    **{f"a method of np, {name}": of(mx.np.array, call) for name, call in METHODS.items()},
    **{f"np.{name}": of(mx.np.array, call) for name, call in NUMPY.items()},
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_operators_and_arrays_take_numpys_integers(run):
    np.testing.assert_array_equal(run(WIDE, NARROW), run(int, int))


def test_an_iterator_of_the_library_takes_them(tmp_path):
    file = tmp_path / "data.csv"
    np.savetxt(file, DATA.reshape(4, 6), delimiter=",")
    read = mx.io.CSVIter(data_csv=str(file), data_shape=(WIDE(2), NARROW(3)), batch_size=WIDE(2))
    found = np.concatenate([batch.data[0].asnumpy() for batch in read])
    np.testing.assert_array_equal(found, DATA.reshape(4, 2, 3))


def test_records_with_several_labels_and_images_are_packed():
    header, content = mx.recordio.unpack(mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.5], 7, 0), b"bytes"))
    assert (header.flag, header.id, header.label.tolist(), content) == (2, 7, [1.0, 2.5], b"bytes")
    pytest.importorskip("cv2")
    image = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    packed = mx.recordio.pack_img(mx.recordio.IRHeader(0, 3.0, 7, 0), image, quality=3, img_fmt=".png")
    header, unpacked = mx.recordio.unpack_img(packed)
    assert header.label == 3.0 and np.array_equal(unpacked, image)


with_views = pytest.mark.skipif(not compat.needed(), reason="numpy below 1.24 makes an array of objects")
ARRAYS = {"nd": mx.nd.array, "np": mx.np.array, "csr": lambda values: mx.nd.array(values).tostype("csr")}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@with_views
def test_numpy_makes_an_array_of_one_of_mxnets(array):
    values = [[1.5, 2.0], [3.0, 0.0]]
    made = np.asarray(array(values))
    assert made.dtype == np.float32 and made.tolist() == values and np.array_equal(array(values), array(values))
    assert np.array(array(values), dtype="int64").tolist() == [[1, 2], [3, 0]]
    with pytest.raises(ValueError, match="no memory that numpy could share"):
        array(values).__array__(copy=False)  # as np.asarray(..., copy=False) asks in numpy 2


@with_views
def test_an_array_of_bfloat16_comes_as_bits_or_with_a_dtype_as_numbers():
    array = mx.nd.amp_cast(mx.nd.array([1.0, -2.5]), dtype="bfloat16")
    assert np.asarray(array).dtype == np.asarray(array, dtype=array.dtype).dtype == array.asnumpy().dtype
    assert np.asarray(array, dtype="float32").tolist() == [1, -2.5]


def test_operators_of_numpys_scalars_and_mxnets_arrays_stay_mxnets():
    with mx.autograd.record():
        x = mx.nd.array([2.0, 3.0])
        results = [np.float32(2) * x, x - np.float64(1), np.int64(1) + x]
    assert all(isinstance(result, mx.nd.NDArray) for result in results)
    assert [result.asnumpy().tolist() for result in results] == [[4, 6], [1, 2], [3, 4]]


def test_an_array_is_pickled_and_gets_no_room_for_attributes():
    assert pickle.loads(pickle.dumps(mx.nd.array([1.0, 2.0]))).asnumpy().tolist() == [1, 2]
    assert not hasattr(HostArray(), "__dict__")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_sums_of_metrics_are_kept_in_double_precision(dtype):
    """2**24 + 1 is the first whole number that float32 skips, 2,049 that of float16."""
    loss, perplexity = mx.metric.Loss(), mx.metric.Perplexity(ignore_label=0)
    for _ in range(3):
        loss.update(None, [mx.nd.ones(1024, dtype=dtype)])
    loss.sum_metric += 2**24
    loss.update(None, [mx.nd.ones(1, dtype=dtype)])
    assert float(loss.sum_metric) == 3 * 1024 + 2**24 + 1
    perplexity.num_inst = np.float32(2**24)
    perplexity.update([mx.nd.array([0.0, 1.0])], [mx.nd.array([[0.5, 0.5], [0.5, 0.5]])])
    assert float(perplexity.num_inst) == 2**24 + 1
    custom = mx.metric.np(lambda label, pred: np.dtype(dtype).type(label.sum() - pred.sum()), name="difference")
    custom.update([mx.nd.array([3.0])], [mx.nd.array([1.0])])
    assert custom.sum_metric.dtype == np.float64 and pickle.loads(pickle.dumps(custom.sum_metric)) == 2.0


def test_a_target_of_center_net_takes_the_class_ids_as_they_come():
    """They are arrays (1,), of which numpy 2.4 makes no integer, and 1.25 one with a warning."""
    center_net = pytest.importorskip("gluoncv.data.transforms.presets.center_net")
    for seed in (mx.random.seed, random.seed, np.random.seed):
        seed(0)
    image = mx.nd.random.uniform(0, 255, (120, 160, 3)).astype("uint8")
    boxes = np.array([[10, 20, 80, 90, 1], [30, 10, 150, 100, 2]], "float32")
    heatmap = center_net.CenterNetDefaultTrainTransform(64, 64, num_class=3)(image, boxes)[1]
    assert heatmap.shape == (3, 16, 16)
    assert (heatmap.asnumpy().max(axis=(1, 2)) == [0, 1, 1]).all()  # a peak for each class that has a box


SAMPLERS = {
    **dict.fromkeys(["exponential", "gumbel", "logistic", "lognormal", "normal", "rayleigh", "uniform"], ()),
    **dict.fromkeys(["chisquare", "gamma", "pareto", "power", "weibull"], (2.0,)),
    **{"beta": (1.0, 2.0), "choice": (5,)},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_random_numbers_of_a_size_that_numpy_counted(name):
    sample = functools.partial(getattr(mx.np.random, name), *SAMPLERS[name])
    assert sample(size=np.int64(2)).shape == sample(size=2).shape == (2,)
    assert sample(size=(np.int64(2), 3)).shape == (2, 3)
