"""A batch means the same in every form, for every function and every kind of network; and what nets and losses take."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.diagnose import compare, explain, measure_gradients, measure_ranges
from mxmp.diagnose.batches import arguments_of, losses_of, read_batches
from mxmp.errors import ConvertError, TuneError
from mxmp.tune import compare_speed
from tests.diagnose.nets import L2, SOFTMAX, Applied, chain, made, model, where

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
    symbol, args, _ = model()
    net = gluon.SymbolBlock(symbol.get_internals()["second_output"], mx.sym.var("data"))
    for name, param in net.collect_params().items():
        param._load_init(args[name], mx.cpu())
    return net


def bound(kind, **options):
    module = kind(model()[0] if kind in MODULES else lambda key: (model()[0], ("data",), ("softmax_label",)), **options)
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.set_params(*model()[1:])
    return module


MODULES = mx.mod.Module, mxmp.module.Module
NETS = {
    "net": dense,
    "hybridized net": lambda: (net := dense()).hybridize() or net,
    "converted net": lambda: mxmp.gluon.convert(dense(), "O2"),
    "blocks": lambda: made(chain(gluon.nn.Dense(4, in_units=5), gluon.nn.Dense(3, in_units=4))),
    "SymbolBlock": symbol_block,
}
SYMBOLS = {
    "model": model,
    "converted model": lambda: mxmp.symbol.convert_model(*model(), "O1"),
    "Module": lambda: bound(MODULES[0]),
    "Module of mxmp": lambda: bound(MODULES[1], policy="O1"),
    "BucketingModule": lambda: bound(mx.mod.BucketingModule, default_bucket_key=5),
}
VERBS = {
    "compare": lambda *args, **loss: [compare(*args, **loss)],
    "explain": lambda *args, **loss: [explain(*args, loss_scale=2.0**40, **loss)],
    "measure_ranges": lambda *args, **loss: [measure_ranges(*args, **loss)],
    "measure_gradients": lambda *args, **loss: [measure_gradients(*args, **loss)],
    "compare_speed": lambda *args, **loss: [len(compare_speed(*args, ["float32"], seconds=1e-3, **loss).rows)],
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("loss", [None, SOFTMAX], ids=["", "loss"])
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_every_form_of_a_batch_gives_the_same_for_a_net(make, loss, verb):
    options, net = {"loss": loss} if loss else {}, make()
    if verb is VERBS["measure_gradients"] and loss is None:
        with pytest.raises(ConvertError, match="the loss of a Gluon net is missing"):
            verb(net, (X, Y))
        return
    if verb is VERBS["compare_speed"] and loss is None and make is NETS["blocks"]:
        with pytest.raises(TuneError, match="freeze the blocks in it"):
            verb(net, (X, Y))
        return
    for forms in (ONE, SEVERAL):
        expected, *others = (verb(net, form(), **options) for form in forms.values())
        assert all(each == expected for each in others)
    if loss is None and "SymbolBlock" not in str(type(net)):
        (plain,) = {str(verb(net, form)) for form in (ND, X, [ND], [(X,)])}
        assert plain == str(verb(net, (X, Y))) or verb is VERBS["compare_speed"]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("make", SYMBOLS.values(), ids=SYMBOLS)
def test_every_form_of_a_batch_gives_the_same_for_a_symbol_or_module(make, verb):
    network = make()
    for forms in ({**ONE, **DICT}, SEVERAL):
        expected, *others = (verb(network, form()) for form in forms.values())
        assert all(each == expected for each in others)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("make", [dense, lambda: model()], ids=["net", "symbol"])
def test_a_batch_in_float16_means_its_values_in_float32(make, verb):
    options = {"loss": SOFTMAX} if make is dense else {}
    low, wide = (verb(make(), (data, LABEL), **options) for data in HALF)
    assert low == wide


def test_a_symbol_without_loss_heads_leaves_labels_out():
    headless = (model()[0].get_internals()["second_output"], *model()[1:])
    for form in {**ONE, "dict": lambda: {"data": X}, "array": lambda: X}.values():
        assert compare(headless, form()) == compare(headless, X)


# ---------------------------------------------------------------------- what nets and losses take


def two_outputs(F, x, *others):
    return F.slice_axis(x, axis=1, begin=0, end=2), F.slice_axis(x, axis=1, begin=2, end=4)


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
        return two_outputs(F, self.dense(x))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_gets_two_outputs_and_two_labels_as_its_signature_says(loss):
    """As an SSD has them."""
    net, batch = made(TwoOutputs(), mx.init.One()), [(ND, A, B)]
    expected = measure_gradients(net, batch, loss=LOSSES["outputs and labels"])
    assert measure_gradients(net, batch, loss=loss) == expected and len(expected) >= 1
    assert compare(net, batch, loss=loss).has_gradients
    assert explain(net, batch, loss=loss).kind == "no fault found"
    assert compare_speed(net, batch, ["float32"], loss, seconds=1e-3).rows[0].seconds


def test_labels_may_be_counted_by_the_user():
    net = made(Applied(lambda F, x, *others: x, inputs=5))
    with pytest.raises(ConvertError, match="labels=2: a batch has 2 arrays, labels included"):
        compare(net, (X, Y), labels=2)
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


def loss_with_weights(out, label, weights=None):
    return L2(out, label, weights)


COUNTS = {
    "a dense layer": (gluon.nn.Dense(3), (1, 1)),
    "a recurrent layer": (gluon.rnn.LSTM(3), (1, 3)),
    "blocks": (gluon.nn.Sequential(), (1, 1)),
    "a loss": (SOFTMAX, (2, 3)),
    "CTC": (gluon.loss.CTCLoss(), (2, 5)),
    "a function": (loss_with_weights, (2, 3)),
    "a function of any number": (lambda *args: args[0], (0, 2**31)),
}


@pytest.mark.parametrize("function, counts", COUNTS.values(), ids=COUNTS)
def test_signatures_say_how_many_arrays_are_taken(function, counts):
    assert tuple(arguments_of(function)) == counts


def test_a_loss_that_takes_the_outputs_only_gets_no_label():
    net = dense()
    expected = measure_gradients(net, X, loss=lambda out: out.sum())
    assert measure_gradients(net, (X, Y), loss=lambda out: out.sum()) == expected
    assert measure_gradients(net, (X, None), loss=lambda out, _: out.sum()) == expected
    assert losses_of(lambda out: out, ND, [LABEL])[0] is ND


class Lengths(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_mul(F.sum(x[0], axis=1, keepdims=True), F.expand_dims(x[1], 1))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_that_a_loader_nests_is_one_batch_and_nested_inputs_stay_nested(kind):
    batch = kind([[ND, LABEL], LABEL])
    for (read,) in (read_batches(batch), read_batches([batch])):
        (x, length), y = read.arrays
        assert x.shape == (4, 5) and length.shape == y.shape == (4,)
    assert explain(made(Lengths()), batch, loss=L2).kind == "no fault found"


@pytest.mark.parametrize("batch", [[None, X], [[ND, LABEL], None], [[ND, LABEL], X], (X, [ND, LABEL])])
def test_a_list_with_an_array_or_none_is_one_batch(batch):
    (read,) = read_batches(batch)
    assert len(read.arrays) == 2


def test_so_many_batches_are_read_and_no_more():
    read = []
    loader = (read.append(each) or each for each in [(X, Y)] * 5)
    assert len(list(read_batches(loader, 2))) == len(read) == 2


def test_a_module_trains_on_a_whole_epoch_after_its_iterator_was_read():
    iterator = mx.io.NDArrayIter(*TWO, batch_size=4, label_name="softmax_label")
    net = mx.mod.Module(model()[0])
    net.bind(iterator.provide_data, iterator.provide_label)
    net.set_params(*model()[1:])
    for ask in (explain, measure_ranges, lambda net, batches: compare_speed(net, batches, ["float32"], seconds=0.01)):
        ask(net, iterator)
        assert len(list(iterator)) == 2
        iterator.reset()


@pytest.mark.parametrize("labels", [-1, 2, 1.0, True, "1"])
def test_labels_that_are_no_count_of_a_batch_are_an_error(labels):
    with pytest.raises(ConvertError, match=f"labels={labels!r}: a batch has 2 arrays"):
        explain(dense(), (X, Y), loss=SOFTMAX, labels=labels)


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


def test_integers_of_numpy_stay_integers_for_a_net_and_get_the_dtype_of_a_symbols_variable():
    (batch,) = read_batches((X.astype("float64"), Y.astype("int32")))
    (x,), (label,) = batch.for_net(arguments_of(dense()), SOFTMAX)
    named = batch.by_name({"data": "float32", "label": "float32"})
    assert [np.dtype(array.dtype).name for array in (x, label)] == ["float32", "int32"]
    assert [(name, np.dtype(each.dtype).name) for name, each in named.items()] == [("data", "float32"), ("label", "float32")]


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


@pytest.mark.parametrize("ctx", [[mx.cpu(1)], [mx.cpu(1), mx.cpu(0)]])
def test_arrays_are_taken_to_where_a_net_is(ctx):
    net = dense()
    net.collect_params().reset_ctx(ctx)
    for given, expected in (((X, Y), ctx[-1]), ((ND.as_in_context(mx.cpu(1)), Y), mx.cpu(1))):
        (batch,) = read_batches(given)
        example = batch.for_net(arguments_of(net), SOFTMAX).on_context_of(net)
        assert example.inputs[0].ctx == example.labels[0].ctx == expected
    assert explain(net, (X, Y), loss=SOFTMAX).kind == "no fault found"
