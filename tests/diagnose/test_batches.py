"""What a batch is, and what several are: the same for every function, of arrays of MXNet and of numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.diagnose import compare, explain, find_nonfinite, measure_ranges
from mxmp.diagnose.batches import one_batch, read_loader, some_batches
from mxmp.errors import ConvertError

X, Y = np.random.RandomState(0).randn(4, 5).astype("float32"), np.array([0, 1, 2, 0])
ND, LABEL = mx.nd.array(X), mx.nd.array(Y)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()

ONE = {
    "array": (ND, [X]),
    "numpy": (X, [X]),
    "tuple": ((ND, LABEL), [X, Y]),
    "list": ([ND, LABEL], [X, Y]),
    "tuple of numpy": ((X, Y), [X, Y]),
    "dict": ({"data": X, "label": LABEL}, [X, Y]),
    "DataBatch": (mx.io.DataBatch([ND], [LABEL]), [X, Y]),
}
SEVERAL = {
    "tuples": [(X, Y), (X * 2, Y)],
    "lists": [[ND, LABEL], [ND * 2, LABEL]],
    "dicts": [{"data": ND, "label": LABEL}, {"data": ND * 2, "label": LABEL}],
    "DataBatches": [mx.io.DataBatch([ND], [LABEL]), mx.io.DataBatch([ND * 2], [LABEL])],
    "iterator": mx.io.NDArrayIter(np.concatenate([X, X * 2]), np.concatenate([Y, Y]), batch_size=4),
    "loader": gluon.data.DataLoader(
        gluon.data.ArrayDataset(np.concatenate([X, X * 2]), np.concatenate([Y, Y])), batch_size=4
    ),
    "generator": None,
}


def values(batch):
    return [(array if isinstance(array, np.ndarray) else array.asnumpy()).tolist() for array in batch.arrays]


@pytest.mark.parametrize("name", ONE)
def test_one_batch_is_read_as_one_and_in_a_list_as_one_of_several(name):
    given, expected = ONE[name]
    expected = [each.tolist() for each in expected]
    (only,) = some_batches(given)
    (listed,) = read_loader([given])
    assert values(one_batch(given)) == values(only) == values(listed) == expected


@pytest.mark.parametrize("name", SEVERAL)
def test_several_batches_are_read_as_several_and_refused_as_one(name):
    given = SEVERAL[name] or (pair for pair in SEVERAL["tuples"])
    if name != "generator":
        with pytest.raises(ConvertError, match="batches; give one of them"):
            one_batch(given)
    found = [values(batch) for batch in some_batches(given)]
    assert found == [[X.tolist(), Y.tolist()], [(X * 2).tolist(), Y.tolist()]]


def test_integers_of_numpy_stay_integers_for_a_net_and_get_the_dtype_of_a_symbols_variable():
    batch = one_batch((X.astype("float64"), Y.astype("int32")))
    (x,), label, _ = batch.for_net(True)
    assert [np.dtype(array.dtype).name for array in (x, label)] == ["float32", "int32"]
    found = batch.by_name({"data": "float32", "label": "float32"})
    assert {name: np.dtype(array.dtype).name for name, array in found.items()} == {
        "data": "float32",
        "label": "float32",
    }


def dense():
    net = gluon.nn.Dense(3, in_units=5, prefix="net_")
    net.initialize(mx.init.One())
    return net


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], [ND, LABEL], (ND, LABEL), mx.io.DataBatch([ND], [LABEL])])
def test_all_functions_take_a_batch_as_the_same(batch):
    net = dense()
    assert compare(net, batch, loss=LOSS).has_gradients
    assert explain(net, batch, loss=LOSS).kind == "no fault found"
    assert find_nonfinite(net, batch, loss=LOSS) is None
    assert measure_ranges(net, [batch])["data"] == np.abs(X).max()


def test_a_symbol_takes_arrays_in_the_order_of_its_inputs_and_labels_it_lacks_are_left_out():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    params = {"fc_weight": mx.nd.ones((3, 5)), "fc_bias": mx.nd.zeros(3)}
    headed = mx.sym.SoftmaxOutput(sym, name="softmax")
    expected = compare((headed, params, {}), {"data": ND, "softmax_label": LABEL})
    assert compare((headed, params, {}), (X, Y)) == expected and expected.has_gradients
    for given in (mx.io.NDArrayIter(X, Y, batch_size=4), mx.io.DataBatch([ND], [LABEL])):
        assert compare((headed, params, {}), given) == expected
        assert compare((sym, params, {}), given).rows == compare((sym, params, {}), X).rows
    with pytest.raises(ConvertError, match="a batch has 2 arrays; the network has the inputs data"):
        compare((sym, params, {}), (X, Y))


def test_nested_inputs_stay_nested():
    x, (h, c) = one_batch((X, [ND, LABEL])).arrays
    assert x.shape == h.shape == (4, 5) and c.shape == (4,)


class Lengths(gluon.HybridBlock):
    """A net of a list of two inputs."""

    def hybrid_forward(self, F, x):
        return F.broadcast_mul(F.sum(x[0], axis=1, keepdims=True), F.expand_dims(x[1], 1))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_that_a_loader_nests_is_one_batch(kind):
    batch = kind([[ND, LABEL], LABEL])
    for read in (one_batch(batch), *some_batches(batch), *read_loader([batch])):
        (x, length), y = read.arrays
        assert x.shape == (4, 5) and length.shape == y.shape == (4,)
    net = Lengths()
    net.initialize()
    assert explain(net, batch, loss=gluon.loss.L2Loss()).kind == "no fault found"


@pytest.mark.parametrize("batch", [[None, X], [[ND, LABEL], None], [[ND, LABEL], X]])
def test_a_list_with_something_else_than_batches_is_one_batch(batch):
    assert len(one_batch(batch).arrays) == 2


NEEDED = r"batches: 'data' has shape \(4, 4\): parameter 'net_weight' of shape \(3, 5\) would have to be \(3, 4\)\.$"


@pytest.mark.parametrize("ask", [compare, explain])
def test_arrays_that_do_not_fit_are_named(ask):
    with pytest.raises(ConvertError, match=NEEDED) as e:
        ask(dense(), X[:, :4])
    assert "\n" not in str(e.value)
    with pytest.raises(
        ConvertError, match=r"block 'net' cannot be called with 'data0' .* A label is read only with loss=\.$"
    ):
        ask(dense(), (X, Y))
    with pytest.raises(
        ConvertError, match=r"the loss fails on an output of shape \(4, 3\) and a label of shape \(9,\)"
    ):
        ask(dense(), (X, np.zeros(9)), loss=gluon.loss.L2Loss())
    with pytest.raises(ConvertError, match="has no label"):
        ask(dense(), X, loss=LOSS)


class Product(mx.operator.CustomOp):
    """A product whose property takes shapes from its weight."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.dot(in_data[0], in_data[1], transpose_b=True))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        for place, request, array in zip(in_grad, req, in_data):
            self.assign(place, request, array * 0)


@mx.operator.register("test_batches_product")
class ProductProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["data", "w"]

    def infer_shape(self, shapes):
        return shapes, [[shapes[0][0], shapes[1][0]]], []

    def create_operator(self, ctx, shapes, types):
        return Product()


DATA = mx.sym.var("data")
SHAPED = {  # networks of which the batch does not say all shapes, and their parameters
    "joined": (mx.sym.FullyConnected(mx.sym.concat(DATA, mx.sym.var("w"), dim=1), num_hidden=3, name="fc"), dict(w=(4, 2), fc_weight=(3, 7), fc_bias=(3,))),
    "shared slope": (mx.sym.LeakyReLU(mx.sym.FullyConnected(DATA, num_hidden=3, name="fc"), act_type="prelu", name="pr"), dict(fc_weight=(3, 5), fc_bias=(3,), pr_gamma=(1,))),
    "custom": (mx.sym.Custom(DATA, mx.sym.var("w"), op_type="test_batches_product") + 0, dict(w=(3, 5))),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("np_shape", [False, True])
def test_parameters_may_have_shapes_that_the_batch_does_not_say(name, np_shape):
    sym, shapes = SHAPED[name]
    with mx.util.np_shape(np_shape):
        args = {name: mx.nd.ones(shape) for name, shape in shapes.items()}
        assert find_nonfinite((sym, args, {}), {"data": mx.nd.ones((4, 5))}, "O1") is None


def normed():
    net = gluon.nn.BatchNorm(in_channels=5)
    net.initialize()
    return net


@pytest.mark.parametrize("ask", [compare, explain, lambda net, x: measure_ranges(net, [x])])
@pytest.mark.parametrize("made, dtype", [(dense, "int64"), (dense, "uint8"), (normed, "int32")])
@pytest.mark.parametrize("hybridize", [False, True])
def test_arrays_of_a_dtype_that_a_net_does_not_take_are_named_with_it(ask, made, dtype, hybridize):
    net = made()
    net.hybridize(hybridize)
    with pytest.raises(ConvertError, match=rf"^batches: 'data' has dtype {dtype}; give it as float32: ") as e:
        ask(net, np.ones((4, 5), dtype))
    assert "shape" not in str(e.value)


def test_an_array_of_integers_is_not_blamed_for_the_shape_of_another():
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Embedding(3, 4), gluon.nn.Dense(2, in_units=5))
    net.initialize()
    with pytest.raises(ConvertError, match=r"^batches: 'data' has shape \(4,\)") as e:
        compare(net, Y)
    assert "dtype" not in str(e.value)


class OfArrays(gluon.HybridBlock):
    """A net that runs on arrays, whose ``*`` broadcasts, and not on symbols."""

    def hybrid_forward(self, F, x, length):
        return x * F.expand_dims(length, 1)


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
def test_a_net_that_runs_on_arrays_alone_is_a_convert_error_that_names_the_node(ask):
    net = OfArrays(prefix="net_")
    net.initialize()
    with pytest.raises(ConvertError, match="node 'net__mul0': MXNet cannot infer its shapes"):
        ask(net, (ND, LABEL))


@pytest.mark.parametrize("ctx", [[mx.cpu(1)], [mx.cpu(1), mx.cpu(0)]])
def test_arrays_are_taken_to_where_a_net_is(ctx):
    net = dense()
    net.collect_params().reset_ctx(ctx)
    for given, expected in (((X, Y), ctx[-1]), ((ND.as_in_context(mx.cpu(1)), Y), mx.cpu(1))):
        example = one_batch(given).for_net(True).beside(net)
        assert example.inputs[0].ctx == example.label.ctx == expected
    assert explain(net, (X, Y), loss=LOSS).kind == "no fault found"
