"""One batch or several: the same for every function, of arrays of MXNet and of numpy."""


import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.diagnose import compare, explain, find_nonfinite
from mxmp.diagnose.batches import one_batch, read_loader, some_batches
from mxmp.errors import ConvertError
from tests.diagnose.nets import L2, SOFTMAX, made

X, Y = np.random.RandomState(0).randn(4, 5).astype("float32"), np.array([0, 1, 2, 0])
ND, LABEL = mx.nd.array(X), mx.nd.array(Y)
ONE = {
    "array": (ND, [X]),
    "numpy": (X, [X]),
    "tuple": ((ND, LABEL), [X, Y]),
    "list": ([ND, LABEL], [X, Y]),
    "tuple of numpy": ((X, Y), [X, Y]),
    "dict": ({"data": X, "label": LABEL}, [X, Y]),
    "DataBatch": (mx.io.DataBatch([ND], [LABEL]), [X, Y]),
}
TWO = np.concatenate([X, X * 2]), np.concatenate([Y, Y])
SEVERAL = {
    "tuples": [(X, Y), (X * 2, Y)],
    "lists": [[ND, LABEL], [ND * 2, LABEL]],
    "dicts": [{"data": ND, "label": LABEL}, {"data": ND * 2, "label": LABEL}],
    "DataBatches": [mx.io.DataBatch([ND], [LABEL]), mx.io.DataBatch([ND * 2], [LABEL])],
    "iterator": mx.io.NDArrayIter(*TWO, batch_size=4),
    "loader": gluon.data.DataLoader(gluon.data.ArrayDataset(*TWO), batch_size=4),
    "generator": (pair for pair in [(X, Y), (X * 2, Y)]),
}


def values(batch):
    return [(array if isinstance(array, np.ndarray) else array.asnumpy()).tolist() for array in batch.arrays]


@pytest.mark.parametrize("given, expected", ONE.values(), ids=ONE.keys())
def test_one_batch_is_read_as_one_and_in_a_list_as_one_of_several(given, expected):
    (only,), (listed,) = some_batches(given), read_loader([given])
    assert values(one_batch(given)) == values(only) == values(listed) == [each.tolist() for each in expected]


@pytest.mark.parametrize("name", SEVERAL)
def test_several_batches_are_read_as_several_and_refused_as_one(name):
    if name != "generator":
        with pytest.raises(ConvertError, match="batches; give one of them"):
            one_batch(SEVERAL[name])
    found = [values(batch) for batch in some_batches(SEVERAL[name])]
    assert found == [[X.tolist(), Y.tolist()], [(X * 2).tolist(), Y.tolist()]]


def test_integers_of_numpy_stay_integers_for_a_net_and_get_the_dtype_of_a_symbols_variable():
    batch = one_batch((X.astype("float64"), Y.astype("int32")))
    (x,), label, _ = batch.for_net(True)
    named = batch.by_name({"data": "float32", "label": "float32"})
    assert [np.dtype(array.dtype).name for array in (x, label)] == ["float32", "int32"]
    assert [(name, np.dtype(array.dtype).name) for name, array in named.items()] == [("data", "float32"), ("label", "float32")]


def test_a_symbol_takes_arrays_in_the_order_of_its_inputs_and_labels_it_lacks_are_left_out():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    params = {"fc_weight": mx.nd.ones((3, 5)), "fc_bias": mx.nd.zeros(3)}
    headed, plain = (mx.sym.SoftmaxOutput(sym, name="softmax"), params, {}), (sym, params, {})
    expected = compare(headed, {"data": ND, "softmax_label": LABEL})
    assert compare(headed, (X, Y)) == expected and expected.has_gradients
    for given in (mx.io.NDArrayIter(X, Y, batch_size=4), mx.io.DataBatch([ND], [LABEL])):
        assert compare(headed, given) == expected and compare(plain, given).rows == compare(plain, X).rows


class Lengths(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_mul(F.sum(x[0], axis=1, keepdims=True), F.expand_dims(x[1], 1))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_that_a_loader_nests_is_one_batch_and_nested_inputs_stay_nested(kind):
    batch = kind([[ND, LABEL], LABEL])
    for read in (one_batch(batch), *some_batches(batch), *read_loader([batch])):
        (x, length), y = read.arrays
        assert x.shape == (4, 5) and length.shape == y.shape == (4,)
    assert explain(made(Lengths()), batch, loss=L2).kind == "no fault found"


@pytest.mark.parametrize("batch", [[None, X], [[ND, LABEL], None], [[ND, LABEL], X], (X, [ND, LABEL])])
def test_a_list_with_something_else_than_batches_is_one_batch(batch):
    assert len(one_batch(batch).arrays) == 2


DATA = mx.sym.var("data")
SHAPED = {  # networks of which the batch does not say all shapes, and their parameters
    "joined": (mx.sym.FullyConnected(mx.sym.concat(DATA, mx.sym.var("w"), dim=1), num_hidden=3, name="fc"), dict(w=(4, 2), fc_weight=(3, 7), fc_bias=(3,))),
    "shared slope": (mx.sym.LeakyReLU(mx.sym.FullyConnected(DATA, num_hidden=3, name="fc"), act_type="prelu", name="pr"), dict(fc_weight=(3, 5), fc_bias=(3,), pr_gamma=(1,))),
}  # fmt: skip


@pytest.mark.parametrize("sym, shapes", SHAPED.values(), ids=SHAPED.keys())
@pytest.mark.parametrize("np_shape", [False, True])
def test_parameters_may_have_shapes_that_the_batch_does_not_say(sym, shapes, np_shape):
    with mx.util.np_shape(np_shape):
        args = {name: mx.nd.ones(shape) for name, shape in shapes.items()}
        assert find_nonfinite((sym, args, {}), {"data": mx.nd.ones((4, 5))}, "O1") is None


@pytest.mark.parametrize("ctx", [[mx.cpu(1)], [mx.cpu(1), mx.cpu(0)]])
def test_arrays_are_taken_to_where_a_net_is(ctx):
    net = made(gluon.nn.Dense(3, in_units=5))
    net.collect_params().reset_ctx(ctx)
    for given, expected in (((X, Y), ctx[-1]), ((ND.as_in_context(mx.cpu(1)), Y), mx.cpu(1))):
        example = one_batch(given).for_net(True).beside(net)
        assert example.inputs[0].ctx == example.label.ctx == expected
    assert explain(net, (X, Y), loss=SOFTMAX).kind == "no fault found"
