"""What `compare`, `explain` and `find_nonfinite` are given: the same networks, policies and errors."""

from __future__ import annotations

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import mxmp
from mxmp.diagnose import compare, explain, find_nonfinite
from mxmp.errors import ConvertError, LossScaleError
from tests.diagnose.test_compare import DATA, LABEL, LOSS, make, model


def converted_model():
    return mxmp.symbol.convert_model(*model(), "O2")


def module_of(sym, args, aux, kind=mxmp.module.Module, **options):
    module = kind(sym, **options)
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.set_params(args, aux)
    return module


def buckets(kind=mxmp.module.BucketingModule, **options):
    sym, args, aux = model()
    return module_of(lambda key: (sym, ("data",), ("softmax_label",)), args, aux, kind, default_bucket_key=4, **options)


SUBJECTS = {
    "model": (model, "O1"),
    "converted model": (converted_model, "O2"),
    "module of mxnet": (lambda: module_of(*model(), mx.mod.Module), "O1"),
    "module of mxmp": (lambda: module_of(*model(), policy="O2"), "O2"),
    "buckets of mxnet": (lambda: buckets(mx.mod.BucketingModule), "O1"),
    "buckets of mxmp": (lambda: buckets(policy="O2"), "O2"),
}


@functools.lru_cache(maxsize=None)
def compared(policy):
    return compare(model(), {"data": DATA * 20_000}, policy).rows


@pytest.mark.parametrize("name", SUBJECTS)
def test_all_functions_take_the_same_networks_under_their_own_policy(name):
    make_subject, policy = SUBJECTS[name]
    given, subject = {"data": DATA * 20_000}, make_subject()
    found = compare(subject, given)
    assert found.rows == compared(policy) and found.policy == str(mxmp.Policy.parse(policy))
    assert explain(subject, {**given, "softmax_label": LABEL}).kind == "activation out of range"
    assert find_nonfinite(subject, given).name == "first"


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", [None, "O2"])
def test_all_functions_take_a_net_under_its_own_policy(policy, hybridized):
    net = make()
    if hybridized:
        net.hybridize()
    if policy:
        mxmp.gluon.convert(net, policy)
    assert compare(net, DATA).policy == str(mxmp.Policy.parse(policy or "O1"))
    assert explain(net, DATA).kind == "no fault found"
    assert find_nonfinite(net, DATA * 1e6).precision == "float16"


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
@pytest.mark.parametrize("hybridized", [True, False])
@pytest.mark.parametrize("policy", [None, "O1", "O2"])
def test_a_net_is_left_as_it_was(policy, hybridized, ask):
    net = make()
    if hybridized:
        net.hybridize(static_alloc=True)
    if policy:
        mxmp.gluon.convert(net, policy)
    with autograd.record():
        value = net(DATA).sum()
    value.backward()
    params = net.collect_params().values()

    def state():
        values = [(id(p.data()), p.data().asnumpy().tobytes(), str(p.dtype)) for p in params]
        return values, [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"], repr(net), net._active

    np.random.seed(1)
    before, draws = state(), np.random.get_state()[1].tolist()
    found = ask(net, (DATA, LABEL), "O2", loss=LOSS)
    assert state() == before and np.random.get_state()[1].tolist() == draws and not net._forward_pre_hooks
    assert found == ask(make(), (DATA, LABEL), "O2", loss=LOSS)


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
@pytest.mark.parametrize("given, found", [(None, "NoneType"), ([make], "list of 1"), (mx.sym.var("x"), "Symbol")])
def test_anything_else_is_refused_with_all_that_is_taken(ask, given, found):
    message = rf"net_or_model is a {found}; expected a Gluon net, a Module or BucketingModule .*, or a tuple"
    with pytest.raises(ConvertError, match=message):
        ask(given, DATA)


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
def test_a_converted_symbol_needs_its_policy(ask):
    converted = tuple(mxmp.symbol.convert_model(*model(), "O1"))
    batch = {"data": DATA, "softmax_label": LABEL}
    with pytest.raises(ConvertError, match="policy: the network is converted already, .* does not say by which policy"):
        ask(converted, batch)
    assert ask(converted, batch, "O2") == ask(model(), batch, "O2")


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
def test_a_loss_scale_that_is_none_is_refused_alike(ask):
    with pytest.raises(LossScaleError, match="loss_scale is 0; expected a positive and finite number"):
        ask(make(), (DATA, LABEL), loss=LOSS, loss_scale=0)


@pytest.mark.parametrize("ask", [compare, explain, find_nonfinite])
def test_bfloat16_where_it_does_not_run_is_refused_in_words(ask, monkeypatch):
    monkeypatch.setattr("mxmp.diagnose.subject.runs_bfloat16", lambda: False)
    with pytest.raises(ConvertError, match="it computes in bfloat16, and MXNet runs none on this processor"):
        ask(make(), DATA, "mixed_bfloat16")


def of_length(length):
    """A network that is of one length, whose parameters are of none, and its batch."""
    data = mx.sym.reshape(mx.sym.var("data"), shape=(-1, length, 1), name="steps")
    out = mx.sym.FullyConnected(data, num_hidden=3, flatten=False, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.mean(out, axis=1, name="mean"), name="softmax"), ("data",), ("softmax_label",)


def batch_of(length):
    data, label = mx.nd.random.uniform(shape=(4, length)), mx.nd.zeros(4)
    described = [mx.io.DataDesc("data", data.shape)], [mx.io.DataDesc("softmax_label", (4,))]
    return mx.io.DataBatch([data], [label], 0, None, length, *described)


@pytest.fixture(params=[mx.mod.BucketingModule, mxmp.module.BucketingModule])
def of_two_lengths(request):
    module, batch = request.param(of_length, 6), batch_of(6)
    module.bind(batch.provide_data, batch.provide_label)
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer="sgd")
    for length in (6, 3):
        module.forward(batch_of(length), is_train=True)
        module.backward()
        module.update()
    return module


def test_the_bucket_of_a_batch_is_looked_at(of_two_lengths):
    current, batch = of_two_lengths._curr_module, batch_of(6)
    args, aux = of_two_lengths.get_params()
    found = compare(of_two_lengths, batch, "O1")
    assert found.rows == compare((of_length(6)[0], args, aux), batch, "O1").rows
    assert explain(of_two_lengths, batch, "O1").kind == "no fault found"
    assert find_nonfinite(of_two_lengths, batch_of(3), "O1") is None
    assert of_two_lengths._curr_module is current


def test_batches_of_several_buckets_or_an_unknown_one_are_refused(of_two_lengths):
    with pytest.raises(ConvertError, match="of the buckets 6, 3; give those of one bucket at a time"):
        compare(of_two_lengths, [batch_of(6), batch_of(3)], "O1")
    with pytest.raises(ConvertError, match="of bucket 5, which is not bound; run one .* or give batches of 6, 3"):
        explain(of_two_lengths, batch_of(5), "O1")
