"""A batch means the same in every form, for every function and every kind of network; and what nets and losses take."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.diagnose import compare, explain, measure_gradients, measure_ranges
from mxmp.errors import ConvertError
from mxmp.tune import compare_speed
from tests.diagnose.nets import L2, SOFTMAX, Applied, block_of, bound, chain, made, model, where

X, Y = np.random.RandomState(0).randn(4, 5).astype("float32"), np.array([0, 1, 2, 0], "float32")
ND, LABEL = mx.nd.array(X), mx.nd.array(Y)
TWO = np.concatenate([X, X * 2]), np.concatenate([Y, Y])
HALF = ND.astype("float16"), mx.nd.array(X.astype("float16"), dtype="float16").astype("float32")


class Pairs(gluon.data.Dataset):
    """Rows and labels of the two batches."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return TWO[0][number], TWO[1][number]


HEADLESS = (model()[0].get_internals()["second_output"], *model()[1:])
ONE = {  # forms of one batch
    "tuple": lambda: (ND, LABEL),
    "list": lambda: [ND, LABEL],
    "tuple of numpy": lambda: (X, Y),
    "numpy in float64": lambda: (X.astype("float64"), Y),
    "DataBatch": lambda: mx.io.DataBatch([ND], [LABEL]),
    "a list of it": lambda: [(X, Y)],
}
SEVERAL = {  # forms of two
    "tuples": lambda: [(X, Y), (X * 2, Y)],
    "lists": lambda: [[ND, LABEL], [ND * 2, LABEL]],
    "DataBatches": lambda: [mx.io.DataBatch([ND], [LABEL]), mx.io.DataBatch([ND * 2], [LABEL])],
    "DataIter": lambda: mx.io.NDArrayIter(*TWO, batch_size=4),
    "DataLoader": lambda: gluon.data.DataLoader(Pairs(), batch_size=4),
    "generator": lambda: (pair for pair in [(X, Y), (X * 2, Y)]),
}
DICT = {"dict": lambda: {"data": X, "softmax_label": Y}, "dicts": lambda: [{"data": ND, "softmax_label": LABEL}]}


class Refilled(mx.io.DataIter):
    """An iterator that fills one array with each batch."""

    provide_data, provide_label = [mx.io.DataDesc("data", (2, 4))], []

    def __init__(self, values):
        super().__init__(2)
        self.values, self.array = values, mx.nd.zeros((2, 4))

    def reset(self):
        self.remaining = iter(self.values)

    def next(self):
        self.array[:] = next(self.remaining)
        return mx.io.DataBatch([self.array], [])


def test_batches_of_an_iterator_that_fills_its_arrays_again_are_all_looked_at():
    """300 ** 2 is beyond float16."""
    square = mx.sym.square(mx.sym.var("data"), name="square")
    assert compare((square, {}, {}), Refilled([300, 1]), "O3").rows[0].local_error == np.inf
    assert compare((square, {}, {}), Refilled([1, 1]), "O3").rows[0].local_error == 0


def dense():
    return made(gluon.nn.Dense(3, in_units=5, prefix="net_"))


def symbol_block():
    return block_of(HEADLESS[0], HEADLESS[1])


NETS = {
    "net": dense,
    "blocks": lambda: made(chain(gluon.nn.Dense(4, in_units=5), gluon.nn.Dense(3, in_units=4))),
    "SymbolBlock": symbol_block,
}
SYMBOLS = {"model": model, "Module": lambda: bound(policy="O1")}
VERBS = {
    "compare": lambda *args, **loss: [compare(*args, **loss)],
    "explain": lambda *args, **loss: [explain(*args, loss_scale=2.0**40, **loss)],
    "measure_ranges": lambda *args, **loss: [measure_ranges(*args, **loss)],
    "measure_gradients": lambda *args, **loss: [measure_gradients(*args, **loss)],
    "compare_speed": lambda *args, **loss: [len(compare_speed(*args, ["float32"], seconds=1e-3, **loss).rows)],
}
EACH_VERB = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def assert_alike(verb, network, forms, **options):
    expected, *others = (verb(network, form(), **options) for form in forms.values())
    assert all(each == expected for each in others)


@EACH_VERB
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_every_form_of_a_batch_gives_the_same_for_a_net(make, verb):
    net = make()
    assert_alike(verb, net, ONE, loss=SOFTMAX)
    assert_alike(verb, net, SEVERAL, loss=SOFTMAX)


@EACH_VERB
@pytest.mark.parametrize("make", SYMBOLS.values(), ids=SYMBOLS)
def test_every_form_of_a_batch_gives_the_same_for_a_symbol_or_module(make, verb):
    network = make()
    assert_alike(verb, network, {**ONE, **DICT})
    assert_alike(verb, network, SEVERAL)


@pytest.mark.parametrize("batch", [ND, X, [ND], [(X,)], (X, Y), [[ND, LABEL]]], ids=lambda batch: type(batch).__name__)
def test_a_net_without_a_loss_takes_an_array_and_leaves_labels_out(batch):
    assert compare(dense(), batch) == compare(dense(), ND)


def test_a_symbol_without_loss_heads_leaves_labels_out():
    assert_alike(compare, HEADLESS, {**ONE, "dict": lambda: {"data": X}, "array": lambda: X})


@pytest.mark.parametrize("make", [dense, model], ids=["net", "symbol"])
def test_a_batch_in_float16_means_its_values_in_float32(make):
    options = {"loss": SOFTMAX} if make is dense else {}
    low, wide = (measure_gradients(make(), (data, LABEL), **options) for data in HALF)
    assert low == wide


# ---------------------------------------------------------------------- what nets and losses take

LOSSES = {  # of a net with two outputs, (4, 2) each: batches, and what the loss gets beside them
    "outputs and labels": (lambda out, a, b: L2(out[0], a) + L2(out[1], b)),
    "each output and each label": (lambda first, second, a, b: L2(first, a) + L2(second, b)),
    "labels as a list": (lambda out, labels: L2(out[0], labels[0]) + L2(out[1], labels[1])),
}
A, B = mx.nd.array(np.arange(8).reshape(4, 2)), mx.nd.array(-np.arange(8).reshape(4, 2))


class TwoOutputs(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.dense = gluon.nn.Dense(4, in_units=5)

    def hybrid_forward(self, F, x):
        return tuple(F.split(self.dense(x), num_outputs=2))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_gets_two_outputs_and_two_labels_as_its_signature_says(loss):
    """As an SSD has them."""
    net, batch = made(TwoOutputs(), mx.init.One()), [(ND, A, B)]
    expected = measure_gradients(net, batch, loss=LOSSES["outputs and labels"])
    assert expected == measure_gradients(net, batch, loss=loss) != {}
    assert compare(net, batch, loss=loss).has_gradients
    assert explain(net, batch, loss=loss).kind == "no fault found"
    assert compare_speed(net, batch, ["float32"], loss, seconds=1e-3).rows[0].seconds


OTHERS = {
    "an argument that may be left out": lambda out, label, weights=None: SOFTMAX(out, label, weights),
    "any number of arguments": lambda *args: SOFTMAX(*args),
}


@pytest.mark.parametrize("loss", OTHERS.values(), ids=OTHERS)
def test_a_loss_may_have_arguments_that_a_batch_does_not_give(loss):
    expected = measure_gradients(dense(), (X, Y), loss=SOFTMAX)
    assert measure_gradients(dense(), (X, Y), loss=loss) == expected


def test_labels_may_be_counted_by_the_user():
    net = made(Applied(lambda F, x, *others: x, inputs=5))
    assert compare(net, (X, Y), labels=1) == compare(net, X)


class Optional(gluon.HybridBlock):
    def hybrid_forward(self, F, x, mask=None):
        return x if mask is None else x * mask


def test_arrays_that_may_be_an_optional_input_or_a_label_are_counted_by_the_user():
    for batch in ((X, X), (X, X, Y)):
        with pytest.raises(ConvertError, match=f"labels: the net takes 1 to 2 arrays, and a batch has {len(batch)}"):
            measure_ranges(Optional(), batch)
    assert {labels: "data" in measure_ranges(Optional(), (X, X), labels=labels) for labels in (0, 1)} == {0: False, 1: True}
    assert "data" in measure_ranges(Optional(), (X, Y), loss=SOFTMAX) and "data" in measure_ranges(Optional(), X)


@pytest.mark.parametrize("labels", [-1, 2, True, "1"])
def test_labels_that_are_no_count_of_a_batch_are_an_error(labels):
    with pytest.raises(ConvertError, match=f"labels={labels!r}: a batch has 2 arrays, labels included"):
        explain(dense(), (X, Y), loss=SOFTMAX, labels=labels)


def test_a_loss_that_takes_the_outputs_only_gets_no_label():
    net = dense()
    expected = measure_gradients(net, X, loss=lambda out: out.sum())
    assert measure_gradients(net, (X, Y), loss=lambda out: out.sum()) == expected
    for batch in ((X, None), [X, None]):  # a list with None is one batch
        assert measure_gradients(net, batch, loss=lambda out, _: out.sum()) == expected


class Lengths(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_mul(F.sum(x[0], axis=1, keepdims=True), F.expand_dims(x[1], 1))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_that_a_loader_nests_is_one_batch_and_nested_inputs_stay_nested(kind):
    for batch in (kind([[ND, LABEL], LABEL]), [kind([[ND, LABEL], LABEL])]):
        assert explain(made(Lengths()), batch, loss=L2).kind == "no fault found"


def test_a_module_trains_on_a_whole_epoch_after_its_iterator_was_read():
    iterator = mx.io.NDArrayIter(*TWO, batch_size=4, label_name="softmax_label")
    for ask in (explain, measure_ranges, lambda net, batches: compare_speed(net, batches, ["float32"], seconds=0.01)):
        ask(bound(policy="O1"), iterator)
        assert len(list(iterator)) == 2
        iterator.reset()


def test_a_loss_scale_may_be_a_number_of_numpy():
    assert explain(dense(), (X, Y), loss=SOFTMAX, loss_scale=np.float32(8)).scale == 8.0


@pytest.mark.parametrize("batch", [[None], (None, [None])])
def test_a_batch_without_an_array_is_an_error(batch):
    with pytest.raises(ConvertError, match="a batch holds no array"):
        compare_speed(dense(), batch)


def test_a_batch_whose_nesting_does_not_fit_is_an_error():
    for net in (dense(), symbol_block()):
        with pytest.raises(ConvertError, match="fails on 'data' of shape"):
            explain(net, ([ND], LABEL), loss=SOFTMAX)


class Seen(gluon.nn.Sequential):
    """A net and a loss that note the dtypes and contexts of all that they get."""

    def __init__(self):
        super().__init__(prefix="net_")
        self.add(gluon.nn.Dense(3, in_units=5))
        self.noted = set()

    def forward(self, x):
        self.noted.add(("data", np.dtype(x.dtype).name, x.ctx))
        return super().forward(x)

    def loss(self, out, label):
        self.noted.add(("label", np.dtype(label.dtype).name, label.ctx))
        return SOFTMAX(out, label)


def test_numbers_of_numpy_are_float32_for_a_net_and_integers_stay_integers():
    net = made(Seen())
    explain(net, (X.astype("float64"), Y.astype("int32")), "O0", loss=net.loss)
    assert net.noted == {("data", "float32", mx.cpu()), ("label", "int32", mx.cpu())}


def test_arrays_are_taken_to_where_a_net_is():
    net = made(Seen())
    net.collect_params().reset_ctx(mx.cpu(1))
    explain(net, (X, Y), "O0", loss=net.loss)
    assert {context for _, _, context in net.noted} == {mx.cpu(1)}


@pytest.mark.parametrize("data, context", [(ND.as_in_context(mx.cpu(1)), mx.cpu(1)), (X, mx.cpu(0))], ids=["there", "numpy"])
def test_of_several_contexts_that_of_the_data_is_taken_or_the_last(data, context):
    net = made(Seen())
    net.collect_params().reset_ctx([mx.cpu(1), mx.cpu(0)])
    explain(net, (data, Y), "O0", loss=net.loss)
    assert {each for _, _, each in net.noted} == {context}


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
        assert where((sym, args, {}), {"data": mx.nd.ones((4, 5))}, "O1") is None
