"""The networks, policies and errors of `compare` and `explain`: the same; and a net is put back."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import compare, explain, measure_gradients, measure_ranges
from mxmp.tune import search
from tests.diagnose.nets import (
    DATA,
    LABEL,
    SOFTMAX,
    bound,
    bucket,
    buckets,
    chain,
    classifier,
    data,
    forward_and_update,
    linear,
    made,
    model,
    state,
    step,
    trainer_of,
    where,
)

BUCKETING = [mx.mod.BucketingModule, mxmp.module.BucketingModule]
ASK = pytest.mark.parametrize("ask", [compare, explain])


def measure(net, batch, _, loss):
    return set(measure_ranges(net, batch)), set(measure_gradients(net, batch, loss=loss))


SUBJECTS = {
    "model": (model, "O1"),
    "converted model": (lambda: mxmp.symbol.convert_model(*model(), "O2"), "O2"),
    "module of mxnet": (lambda: bound(mx.mod.Module), "O1"),
    "module of mxmp": (lambda: bound(policy="O2"), "O2"),
    "buckets of mxnet": (lambda: bound(BUCKETING[0], default_bucket_key=4), "O1"),
    "buckets of mxmp": (lambda: bound(BUCKETING[1], default_bucket_key=4, policy="O2"), "O2"),
}


@functools.lru_cache(maxsize=None)
def compared(policy):
    return compare(model(), {"data": DATA * 20_000}, policy).rows


@pytest.mark.parametrize("make, policy", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_all_functions_take_the_same_networks_under_their_own_policy(make, policy):
    given, subject = {"data": DATA * 20_000}, make()
    found = compare(subject, given)
    assert found.rows == compared(policy) and found.policy == str(mxmp.Policy.parse(policy))
    assert explain(subject, {**given, "softmax_label": LABEL}).kind == "activation out of range"
    assert where(subject, given).name == "first"


def net_of(policy, hybridized, **flags):
    net = classifier()
    net.hybridize(hybridized, **flags)
    return mxmp.gluon.convert(net, policy) if policy else net


@pytest.mark.parametrize("policy, hybridized", [(None, True), ("O2", False)])
def test_all_functions_take_a_net_under_its_own_policy(policy, hybridized):
    net = net_of(policy, hybridized)
    assert compare(net, DATA).policy == str(mxmp.Policy.parse(policy or "O1"))
    assert explain(net, DATA).kind == "no fault found"
    assert where(net, DATA * 1e6).precision == "float16"


@pytest.mark.parametrize("ask", [compare, explain, measure])
@pytest.mark.parametrize("policy, hybridized", [(None, False), ("O1", True), ("O2", False)])
def test_a_net_is_left_as_it_was(policy, hybridized, ask):
    net = net_of(policy, hybridized, static_alloc=True)
    with autograd.record():
        value = net(DATA).sum()
    value.backward()
    before, draws = state(net), np.random.get_state()[1].tolist()
    found = ask(net, (DATA, LABEL), "O2", loss=SOFTMAX)
    assert state(net) == before and np.random.get_state()[1].tolist() == draws
    assert found == ask(classifier(), (DATA, LABEL), "O2", loss=SOFTMAX)


@pytest.mark.parametrize("ask", [compare, explain, measure])
def test_running_statistics_of_a_model_are_left_as_they_were(ask):
    symbol = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="norm")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax")
    shapes, _, states = symbol.infer_shape(data=DATA.shape)
    args = dict(zip(symbol.list_arguments(), map(mx.nd.ones, shapes)))
    batch = {"data": DATA, "softmax_label": LABEL}
    args = {name: array for name, array in args.items() if name not in batch}
    aux = dict(zip(symbol.list_auxiliary_states(), map(mx.nd.ones, states)))
    ask((symbol, args, aux), batch, "O1", loss=None)
    assert [array.asnumpy().tolist() for array in aux.values()] == [[1] * 3] * 2


@ASK
def test_a_converted_symbol_is_asked_with_its_policy(ask):
    converted, batch = tuple(mxmp.symbol.convert_model(*model(), "O1")), {"data": DATA, "softmax_label": LABEL}
    assert ask(converted, batch, "O2") == ask(model(), batch, "O2")


# ---------------------------------------------------------------------- buckets


def of_two_lengths(kind):
    module = buckets(lambda x, key: mx.sym.identity(linear(x, "fc"), name=f"of_{key}"), kind)
    for length in (5, 8):
        forward_and_update(module, bucket(data((4, length, 6))))
    return module


@pytest.mark.parametrize("kind", BUCKETING)
def test_the_bucket_of_a_batch_is_looked_at(kind):
    module, batch = of_two_lengths(kind), bucket(data((4, 8, 6)))
    current = module._curr_module
    assert where(module, bucket(data((4, 5, 6))), "O1") is None
    assert {row.name for row in compare(module, bucket(data((4, 5, 6))), "O1").rows} >= {"fc", "of_5"}
    assert compare(module, batch, "O1").rows == compare((module.symbol, *module.get_params()), batch, "O1").rows
    assert explain(module, batch, "O1").kind == "no fault found" and module._curr_module is current


# ---------------------------------------------------------------------- a net is put back


def search_with(net, act):
    """Let a search do something with each version of a net; all are as good as float32."""

    def evaluate(candidate):
        candidate(DATA)
        act(candidate)
        return 1.0

    search(net, evaluate, 0.1, "O2")


def values_of(net):
    return {name: param.data().astype("float32").asnumpy().tobytes() for name, param in net.collect_params().items()}


def test_a_net_in_float32_has_the_values_of_the_masters():
    net = net_of("O2", hybridized=False)
    trainer = trainer_of(net, 128, learning_rate=0.1)
    step(trainer, lambda: (net(DATA) ** 2).sum())
    stored, seen = values_of(net), []
    search_with(net, lambda net: seen.append(values_of(net)))
    assert seen[0] != stored == values_of(net)
    mxmp.gluon.restore(net)
    assert seen[0] == values_of(net)


def test_blocks_that_share_parameters_and_were_converted_one_by_one_are_so_again():
    first = nn.Dense(5, in_units=5)
    net = made(chain(first, nn.Dense(5, in_units=5, params=first.params), nn.Sequential()))
    mxmp.gluon.convert(first, "O1")
    output = net(DATA).asnumpy()
    search_with(net, lambda net: None)
    assert "converted" in repr(net[0]) and "converted" not in repr(net[1])
    assert np.array_equal(net(DATA).asnumpy(), output)


@pytest.mark.parametrize("ask", [compare, explain, measure])
def test_a_graph_that_is_recorded_already_can_run_backward_afterwards(ask):
    grads = []
    for asked in (False, True):
        net = made(chain(nn.Dense(4, in_units=5), nn.BatchNorm(in_channels=4)))
        with autograd.record():
            loss = SOFTMAX(net(DATA), LABEL)
        if asked:
            ask(net, (DATA, LABEL), "O1", loss=SOFTMAX)
        loss.backward()
        grads.append(net[0].weight.grad().asnumpy())
    assert np.array_equal(*grads)
