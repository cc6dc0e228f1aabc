"""What a converted net computes from parameters alone: once, and again when one of them changes."""

from __future__ import annotations

import copy
import gc
import tempfile

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, block_hooks, cached_ops, convert, export, restore
from mxmp.gluon import prepared as prepared_module

POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


def make(ctx=None):
    mx.random.seed(7)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.Dense(6, in_units=8 * 36))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def batch(seed=1):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, (2, 3, 6, 6)), dtype="float32")


@pytest.fixture
def computed(monkeypatch):
    """Counts how often values were computed."""
    found = []
    original = prepared_module.PreparedParams._computed

    def compute(self, arrays):
        found.append(self)
        return original(self, arrays)

    monkeypatch.setattr(prepared_module.PreparedParams, "_computed", compute)
    return found


def expected(net, x):
    """What a net that is converted afresh gives, with the same parameters."""
    other = make()
    for (_, target), (_, source) in zip(other.collect_params().items(), net.collect_params().items()):
        target.set_data(source._reduce())
    return convert(other, net._mxmp_conversion.policy)(x).asnumpy()


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_are_cast_once(policy, computed):
    net = convert(make(), policy)
    found = [net(batch()).asnumpy() for _ in range(4)]
    assert len(computed) == 1
    assert all(np.array_equal(each, found[0]) for each in found)


def test_the_main_graph_has_no_cast_of_a_weight():
    net = convert(make(), "O1")
    net(batch())
    (built,) = net._mxmp_conversion.graphs.ops.values()
    assert [param.name for is_input, param in built.args if not is_input and "weight" in param.name] == [
        "net_conv0_weight_cast_float16_as_float32_output_prepared",
        "net_dense0_weight_cast_float16_as_float32_output_prepared",
    ]


def set_data(net):
    net[0].weight.set_data(net[0].weight._reduce() * 2)


def in_place(net):
    net[0].weight.data()[:] = 3


def element(net):
    net[3].bias.data()[2] = 3


def operator(net):
    mx.nd.random.uniform(-1, 1, out=net[3].weight.data())


def view(net):
    net[3].weight.data()[1:3] *= 2


def reinitialize(net):
    net.initialize(mx.init.Xavier(), force_reinit=True)


def other_context(net):
    net.collect_params().reset_ctx([mx.cpu(1), mx.cpu(0)])
    set_data(net)


def load(net):
    other = make()
    other.initialize(mx.init.Normal(0.3), force_reinit=True)
    with tempfile.TemporaryDirectory() as folder:
        other.save_parameters(f"{folder}/net.params")
        net.load_parameters(f"{folder}/net.params")


def plain_step(net):
    with autograd.record():
        loss = net(batch(2)).square().mean()
    loss.backward()
    gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3}).step(1)


def scaled_step(net):
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.3}, loss_scale=8.0)
    with autograd.record():
        loss = net(batch(2)).square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    trainer.step(1)


def pending(net):
    weight = net[3].weight.data()
    large = mx.nd.ones((1200, 1200))
    for _ in range(3):
        large = mx.nd.dot(large, large) / 1200
    weight[:] = weight * 2 + large[:6, : weight.shape[1]]  # queued behind what takes a while


BY_PARAMETER = [set_data, reinitialize, other_context, load, scaled_step]
BY_ARRAY = [in_place, element, operator, view, pending, plain_step]  # of what is stored in float32


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
@pytest.mark.parametrize(
    "change,policy",
    [(change, policy) for change in BY_PARAMETER for policy in ("O1", "O2")]
    + [(change, "O1") for change in BY_ARRAY]
    + [pytest.param(change, "mixed_bfloat16", marks=pytest.mark.bfloat16) for change in BY_PARAMETER + BY_ARRAY],
)
def test_no_weight_is_stale(change, policy, flags):
    net = convert(make(), policy)
    net.hybridize(**flags)
    before = net(batch()).asnumpy()
    change(net)
    after = net(batch()).asnumpy()
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, expected(net, batch()))


class Interrupted(BaseException):
    """What Ctrl-C raises in the midst of a computation."""


def interrupt_first(monkeypatch, owner, name):
    """Have the next call of a method be interrupted, before it has done anything; those after it are not."""
    original = getattr(owner, name)

    def interrupted(*args, **kwargs):
        monkeypatch.setattr(owner, name, original)
        raise Interrupted

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("where, folds", [("fold_params", False), ("fold_params", True), ("to_float32", True)])
def test_no_weight_is_stale_after_an_interruption(where, folds, monkeypatch):
    net = convert(make(), "O1", for_inference=folds)
    net(batch())
    set_data(net)
    interrupt_first(monkeypatch, prepared_module, where)
    with pytest.raises(Interrupted):
        net(batch())
    found = net(batch()).asnumpy()
    np.testing.assert_array_equal(found, convert(restore(net), "O1", for_inference=folds)(batch()).asnumpy())


def test_a_new_context_can_be_interrupted(monkeypatch):
    net = convert(make([mx.cpu(0), mx.cpu(1)]), "O1")
    expected = net(batch()).asnumpy()
    net[0].weight.data(mx.cpu(1))[:] *= 1  # what `convert` has computed there is not current any more
    interrupt_first(monkeypatch, prepared_module, "fold_params")
    with pytest.raises(Interrupted):
        net(batch().as_in_context(mx.cpu(1)))
    np.testing.assert_array_equal(net(batch().as_in_context(mx.cpu(1))).asnumpy(), expected)


def fused():
    net = convert(make([mx.cpu(0), mx.cpu(1)]), "O1")
    net.hybridize(backend="MKLDNN", static_alloc=True, static_shape=True)
    return net


def test_weights_that_operators_keep_are_current_after_an_interrupted_build(monkeypatch):
    net, x = fused(), batch()
    before = net(x).asnumpy()
    (old,) = net._mxmp_conversion.graphs.ops.values()
    assert old.keeps_weights
    set_data(net)
    interrupt_first(monkeypatch, block_hooks, "plan_op")
    with pytest.raises(Interrupted):
        net(x)
    after = net(x).asnumpy()
    assert all(each is not old for each in net._mxmp_conversion.graphs.ops.values())
    net.hybridize(backend="MKLDNN")
    np.testing.assert_array_equal(after, net(x).asnumpy())
    assert not np.array_equal(after, before)


def test_operators_that_keep_weights_are_built_anew_once_after_a_change(computed):
    """Their end, which MXNet counts as a write to what they have read, is not taken for another change."""
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=3), make())  # no convolution takes this one in: it reads the net's own parameters
    net[0].initialize()
    convert(net, "O1", for_inference=True)
    net.hybridize(static_alloc=True, static_shape=True)
    x = batch()
    for number in range(2):
        net[1][0].weight.set_data(net[1][0].weight.data() * 2)
        found = net(x).asnumpy()
        before = len(computed)
        for _ in range(3):
            np.testing.assert_array_equal(net(x).asnumpy(), found)
        assert len(computed) == before, number
    assert all(built.keeps_weights for built in net._mxmp_conversion.graphs.ops.values())


def recorded(net, x):
    with autograd.record():
        net(x)


def away(net, x):
    net.collect_params().reset_ctx(mx.cpu(1))
    net(x.as_in_context(mx.cpu(1))).wait_to_read()
    net.collect_params().reset_ctx(mx.cpu(0))


@pytest.mark.parametrize("between", [recorded, away])
def test_weights_that_operators_keep_are_current_after_values_were_freed(between):
    net, x = fused(), batch()
    before = net(x).asnumpy()
    (old,) = net._mxmp_conversion.graphs.ops.values()
    assert old.keeps_weights
    between(net, x)
    set_data(net)
    after = net(x).asnumpy()
    assert all(each is not old for each in net._mxmp_conversion.graphs.ops.values())
    net.hybridize(backend="MKLDNN")
    np.testing.assert_array_equal(after, net(x).asnumpy())
    assert not np.array_equal(after, before)


def test_what_is_kept_for_a_context_goes_with_the_parameters():
    net = convert(make(), "O1")
    net(batch())
    (built,) = net._mxmp_conversion.graphs.ops.values()
    alive = []
    for number in (1, 2, 3):
        net.collect_params().reset_ctx(mx.cpu(number))
        net(batch().as_in_context(mx.cpu(number)))
        assert all(list(param.values) == [mx.cpu(number)] for param in built.prepared.params)
        gc.collect()
        alive.append(sum(isinstance(each, mx.nd.NDArray) for each in gc.get_objects()))
    assert len(set(alive)) == 1


def test_other_graphs_free_what_they_kept_for_a_context(monkeypatch):
    """As the graph for a GPU does when the parameters are on a CPU, which has a graph of its own."""
    net = convert(make(), "O1")
    monkeypatch.setattr(cached_ops, "on_cpu", lambda: False)
    with pytest.raises(mx.MXNetError):  # no such kernel here; what it reads was computed before
        net(batch()).asnumpy()
    (other,) = net._mxmp_conversion.graphs.ops.values()
    assert all(param.values for param in other.prepared.params)
    monkeypatch.undo()
    net.collect_params().reset_ctx(mx.cpu(1))
    net(batch().as_in_context(mx.cpu(1)))
    assert not any(param.values for param in other.prepared.params)
    assert other not in net._mxmp_conversion.graphs.ops.values()


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_and_calls_in_turn(policy):
    net = convert(make(), policy)
    for _ in range(3):
        scaled_step(net)
        np.testing.assert_array_equal(net(batch()).asnumpy(), expected(net, batch()))


def test_each_context_has_its_own(computed):
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = convert(make(contexts), "O1")
    first = [net(batch().as_in_context(ctx)).asnumpy() for ctx in contexts for _ in range(2)]
    assert len(computed) == 2 and all(np.array_equal(each, first[0]) for each in first)
    net[0].weight.data(mx.cpu(1))[:] = 0.5
    second = [net(batch().as_in_context(ctx)).asnumpy() for ctx in contexts]
    assert len(computed) == 3
    assert np.array_equal(second[0], first[0]) and not np.array_equal(second[1], first[0])


def test_recording_frees_them_and_trains():
    net = convert(make(), "O1")
    net(batch())
    (built,) = net._mxmp_conversion.graphs.ops.values()
    with autograd.record(train_mode=False):
        y = net(batch())
    y.backward()
    assert all(not param.values for param in built.prepared.params)
    assert net[0].weight.grad().asnumpy().any()


def test_where_writes_cannot_be_counted_each_call_computes(computed, monkeypatch):
    monkeypatch.setattr(prepared_module, "write_count", lambda array: None)
    net = convert(make(), "O1")
    for number in range(3):
        in_place(net) if number else None
        np.testing.assert_array_equal(net(batch()).asnumpy(), expected(net, batch()))
    (built,) = net._mxmp_conversion.graphs.ops.values()
    assert sum(each is built.prepared for each in computed) == 3


def test_recurrent_weights_that_their_operator_keeps_are_current():
    """MXNet's RNN keeps its weights by their version, which new arrays share with the old ones."""
    net = gluon.rnn.LSTM(5, input_size=4, prefix="lstm_")
    net.initialize(mx.init.Normal(0.5))
    convert(net, "O1")
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.random.uniform(shape=(3, 2, 4))
    before = net(x).asnumpy()
    for param in net.collect_params().values():
        param.set_data(param.data() * 2)
    after = net(x).asnumpy()
    net.hybridize()
    np.testing.assert_array_equal(after, net(x).asnumpy())
    assert not np.array_equal(after, before)


def test_copies_restored_nets_and_exports_have_the_parameters(tmp_path):
    net = convert(make(), "O1")
    y = net(batch()).asnumpy()
    other = copy.deepcopy(net)
    in_place(other)
    np.testing.assert_array_equal(net(batch()).asnumpy(), y)
    np.testing.assert_array_equal(other(batch()).asnumpy(), expected(other, batch()))
    export(net, str(tmp_path / "net"))
    names = {name.split(":")[1] for name in mx.nd.load(str(tmp_path / "net-0000.params"))}
    assert names == set(net.collect_params())
    restore(net)
    assert set(net.collect_params()) == names and np.isfinite(net(batch()).asnumpy()).all()
