"""What users give to tune: the batch that is taken of it, and errors that name the argument."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.errors import TuneError
from mxmp.tune.speed.gluon_net import GluonWorkload
from mxmp.tune.speed.symbol_nets import ModelWorkload, ModuleWorkload
from mxmp.tune.speed.workloads import first_batch, make_workload

IMAGES, LABELS = np.zeros((4, 3)), np.zeros(4)


def symbol():
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), name="softmax")


def model():
    params = {"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.ones(2)}
    return symbol(), params, {}


def dense():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    return net


def iterator():
    return mx.io.NDArrayIter(IMAGES, LABELS, 2, label_name="softmax_label")


def test_the_first_batch_of_a_list_is_taken():
    assert first_batch([1, 2]) == 1


def test_an_iterator_of_mxnet_is_reset_before_and_after():
    batches = iterator()
    batches.next()
    found = first_batch(batches)
    assert {name: array.shape for name, array in found.items()} == {"data": (2, 3), "softmax_label": (2,)}
    assert sum(1 for _ in batches) == 2


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches: there is none; give at least one."),
        (3, "batches: expected a list or loader of batches, found a int."),
        (mx.nd.zeros(3), r"batches: expected a list or loader of batches, found a NDArray; give \[batch\]."),
        ({"data": 1}, r"batches: expected a list or loader of batches, found a dict; give \[batch\]."),
    ],
)
def test_what_is_no_list_of_batches_is_refused(batches, message):
    with pytest.raises(TuneError, match=message):
        first_batch(batches)


@pytest.mark.parametrize(
    ("network", "batches", "training", "kind"),
    [
        (dense, lambda: [mx.nd.zeros((2, 3))], True, GluonWorkload),
        (model, iterator, False, ModelWorkload),
        (model, iterator, True, ModuleWorkload),
        (model, lambda: [{"data": mx.nd.zeros((2, 3))}], True, ModuleWorkload),
        (lambda: mx.mod.Module(symbol()), iterator, True, ModuleWorkload),
        (
            lambda: mx.mod.Module(symbol()),
            lambda: [mx.io.DataBatch([mx.nd.zeros((2, 3))], [mx.nd.zeros(2)])],
            False,
            ModuleWorkload,
        ),
    ],
    ids=["net", "model", "model that trains", "batch without label", "module", "module that infers"],
)
def test_each_kind_of_network_runs(network, batches, training, kind):
    from mxmp.policy import Policy

    workload = make_workload(network(), batches(), training, False)
    assert isinstance(workload, kind)
    assert workload.shapes == {"data": (2, 3)}
    assert workload.on_cpu
    workload.build(Policy())()
    mx.nd.waitall()


@pytest.mark.parametrize(
    ("network", "batch", "message"),
    [
        (symbol, {"data": mx.nd.zeros((2, 3))}, r"a symbol alone cannot run; give \(symbol, arg_params, aux_params\)"),
        (lambda: 3, {"data": mx.nd.zeros((2, 3))}, "expected a Gluon Block, a Module, or .*; found a int"),
        (model, {"dta": mx.nd.zeros((2, 3))}, "batches: the symbol has no input 'dta'; the nearest are data"),
        (model, mx.nd.zeros((2, 3)), "batches: expected dicts of arrays by the names of inputs, found a NDArray"),
        (model, {"data": np.zeros((2, 3))}, "batches: input 'data' is a ndarray; expected an NDArray"),
        (lambda: (symbol(), None, {}), {"data": mx.nd.zeros((2, 3))}, "net_or_model: arg_params is a NoneType"),
        (dense, np.zeros((2, 3)), "batches: expected an NDArray or a list of them as a batch, found a ndarray"),
        (
            dense,
            {"data": mx.nd.zeros((2, 3))},
            "batches: expected an NDArray or a list of them as a batch, found a dict",
        ),
        (model, {"data": mx.nd.zeros((2, 3))[:0]}, "batches: input 'data' has shape .*: there is nothing in it"),
        (
            model,
            {"data": mx.nd.zeros((2, 3)), "fc_weight": mx.nd.zeros((2, 4))},
            "batches: inputs of shapes .* do not fit",
        ),
        (dense, mx.nd.zeros((2, 3))[:0], "batches: an input of the first batch has nothing in it"),
        (dense, [], "batches: expected an NDArray or a list of them as a batch, found an empty one"),
        (dense, [np.zeros((2, 3))], "batches: expected NDArrays as inputs of the net, found an array of numpy"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(network, batch, message):
    with pytest.raises(TuneError, match=message):
        make_workload(network(), [batch], False, False)


def test_forward_is_for_gluon_nets():
    with pytest.raises(TuneError, match="forward: it is for Gluon nets, but net_or_model is a tuple"):
        make_workload(model(), iterator(), False, False, forward=lambda net, batch: net)


def test_forward_is_a_function():
    with pytest.raises(TuneError, match="forward is a int; expected a function of the net and a batch"):
        make_workload(dense(), [mx.nd.zeros((2, 3))], False, False, forward=3)


def test_a_module_does_not_fold():
    with pytest.raises(TuneError, match="for_inference: BatchNorm is folded in models, not in a Module"):
        make_workload(mx.mod.Module(symbol()), iterator(), False, True)


class Unlabelled(mx.io.DataIter):
    """An iterator of MXNet whose batches have no list of labels, so many of them."""

    provide_data, provide_label = [mx.io.DataDesc("data", (2, 3))], []

    def __init__(self, count):
        super().__init__(2)
        self.count = count

    def next(self):
        if not self.count:
            raise StopIteration
        return mx.io.DataBatch([mx.nd.zeros((2, 3))], None)


def test_batches_of_an_iterator_may_lack_labels():
    assert {name: array.shape for name, array in first_batch(Unlabelled(1)).items()} == {"data": (2, 3)}


def test_an_empty_iterator_of_mxnet_is_refused():
    with pytest.raises(TuneError, match="batches: there is none; give at least one."):
        first_batch(Unlabelled(0))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": IMAGES}, "batches: input 'data' is a ndarray; expected an NDArray"),
        ({"softmax_label": mx.nd.zeros(4)}, r"batches: a batch has labels alone \(softmax_label\); give the symbol's"),
    ],
)
def test_batches_that_a_symbol_cannot_run_on_are_refused(batch, message):
    with pytest.raises(TuneError, match=message):
        make_workload(model(), [batch], training=False, for_inference=False)
