"""The first call of a net converts it: what a user does before the call, and what counts at it."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.errors import ConvertError, InferenceError, PolicyError, TrainerError
from mxmp.gluon import Trainer, convert, exact_value, export, freeze, report, restore
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.gluon.nets import (
    Function,
    X,
    cnn,
    exact,
    exported,
    imported,
    initialized,
    operator_precisions,
    sequence,
    started,
    step,
)

WEIGHT = "net_dense0_weight"


def stored(net):
    return {name: np.dtype(param.dtype).name for name, param in net.collect_params().items()}


def bits(net):
    return {name: value.tobytes() for name, value in exact(net).items()}


# ---------------------------------------------------------------------- nothing is traced, nothing is stored


def test_the_first_call_stores_what_the_policy_says():
    net = convert(cnn(), "O2")
    assert set(stored(net).values()) == {"float32"}
    net(X)
    assert stored(net)[WEIGHT] == "float16" and stored(net)["net_batchnorm0_gamma"] == "float32"


@pytest.mark.parametrize("policy", ["O1", "O2", "O3"])
def test_a_trainer_that_is_made_before_the_call_trains_as_one_that_is_made_after_it(policy):
    nets = [cnn(policy), cnn(policy)]
    nets[1](X)
    trainers = [Trainer(net, "adam", {"learning_rate": 0.01}) for net in nets]
    for _ in range(3):
        for net, trainer in zip(nets, trainers):
            step(net, trainer)
    assert bits(nets[0]) == bits(nets[1]) and stored(nets[0]) == stored(nets[1])
    assert trainers[0].loss_scale == trainers[1].loss_scale


def test_a_trainer_that_skips_losses_needs_a_loss_scale_at_its_first_step():
    net = cnn()
    trainer = Trainer(net, "sgd", {"learning_rate": 0.1}, nonfinite_loss="skip")
    convert(net, "O1", loss_scale=1.0)
    convert(net, "float32")
    for _ in range(2):  # and another trainer goes on
        with pytest.raises(TrainerError, match="without a loss scale nothing is checked; give loss_scale=1"):
            step(net, trainer)
        other = cnn("O1")
        step(other, Trainer(other, "sgd"))


def test_a_copied_trainer_trains_as_the_other_one():
    net = cnn("O2")
    net(X)
    net.collect_params()["net_dense0_bias"].lr_mult = 0.0
    trainer = Trainer(net, "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    step(net, trainer)
    copied = copy.deepcopy((net, trainer))
    for each in ((net, trainer), copied):
        for _ in range(2):
            step(*each)
    assert bits(copied[0]) == bits(net)


def test_a_trainer_takes_the_loss_scale_of_the_policy_that_its_first_step_finds():
    net = cnn()
    trainer = Trainer(net, "sgd")
    assert trainer.loss_scale == DynamicLossScale()
    convert(net, "O1,loss_scale=64")
    assert trainer.loss_scale == StaticLossScale(64)
    convert(net, "O1,loss_scale=32")
    step(net, trainer)
    convert(net, "O1,loss_scale=16")
    step(net, trainer)
    assert trainer.loss_scale == StaticLossScale(32)


def test_a_loss_scale_that_is_set_or_loaded_is_kept(tmp_path):
    net = cnn("O1,loss_scale=64")
    chosen, saved, loaded = (Trainer(net, "sgd") for _ in range(3))
    chosen.loss_scale = 8
    saved.save_states(str(tmp_path / "states"))
    loaded.load_states(str(tmp_path / "states"))
    convert(net, "O3")
    assert chosen.loss_scale == StaticLossScale(8) and loaded.loss_scale == StaticLossScale(64)
    assert saved.loss_scale == NoOpLossScale()


def test_policies_that_contradict_each_other_are_refused_by_the_first_step():
    net = sequence(cnn("O1,loss_scale=64"), started(nn.Dense(2, in_units=5)), kind=nn.Sequential)
    trainer = Trainer(net, "sgd")
    convert(net[1], "O1,loss_scale=32")
    with pytest.raises(TrainerError, match="policies that say different loss scales"):
        step(net, trainer)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_parameters_are_saved_and_loaded(policy, tmp_path):
    source, net = cnn(), cnn(policy)
    source[3].weight.set_data(source[3].weight.data() + 1)
    source.save_parameters(str(tmp_path / "source"))
    net.load_parameters(str(tmp_path / "source"))
    net.save_parameters(str(tmp_path / "net"))
    saved = {name: array.asnumpy().tobytes() for name, array in mx.nd.load(str(tmp_path / "net")).items()}
    assert saved == bits(source) == bits(net)
    np.testing.assert_array_equal(net(X).asnumpy(), convert(source, policy)(X).asnumpy())
    assert bits(net) == saved


def test_what_needs_a_graph_asks_for_a_batch(tmp_path):
    net = cnn("O2")
    with pytest.raises(ConvertError, match="block 'net' is converted at its first call; call it with one batch"):
        report(net)
    with pytest.raises(ConvertError, match="block 'net' has not been called yet outside of precision regions"):
        export(net, str(tmp_path / "net"))
    assert not list(tmp_path.iterdir())
    expected = net(X).asnumpy()
    assert report(net).count["float16"] and export(net, str(tmp_path / "net"))
    assert abs(freeze(net)(X).asnumpy() - expected).max() < 0.01


@pytest.mark.parametrize("policy", ["float32", "O1"])
def test_a_net_that_was_not_called_is_frozen(policy):
    """With one input, or as many as have shapes."""
    net, pair = cnn("O2"), Function(lambda net, F, x, y: x + y)
    assert abs(freeze(net, policy)(X).asnumpy() - cnn("O2")(X).asnumpy()).max() < 0.01
    y = mx.nd.ones((2, 3))
    assert (freeze(pair, policy, shapes={"data0": (2, 3), "data1": (2, 3)})(y, 2 * y).asnumpy() == 3).all()


def test_a_report_names_the_block_that_was_not_called():
    net = convert(sequence(cnn(), started(nn.Dense(2, in_units=5, prefix="last_")), kind=nn.Sequential), "O1")
    net[0](X)
    with pytest.raises(ConvertError, match="block 'last' is converted at its first call"):
        report(net)
    assert report(net[0]).count["float16"]


def test_a_block_has_a_report_if_only_a_hybridized_net_around_it_was_called():
    inner = cnn("O2")
    net = sequence(inner, prefix="outer_")
    net.hybridize()
    net(X)
    assert report(inner).count["float16"] and report(net).count == report(inner).count


def test_parameters_are_collected_as_they_are():
    net = cnn("O2")
    params = net.collect_params()
    params.zero_grad()
    params.setattr("lr_mult", 2.0)
    net(X)
    assert list(params) == list(net.collect_params()) and params[WEIGHT] is net[3].weight
    assert net[3].weight.lr_mult == 2.0 and not net[3].weight.grad().asnumpy().any()


# ---------------------------------------------------------------------- another policy, or none


def test_restore_leaves_nothing():
    net, expected = cnn(), cnn()(X).asnumpy()
    before = bits(net), {name: set(vars(param)) for name, param in net.collect_params().items()}
    restore(convert(net, "O2"))
    assert (bits(net), {name: set(vars(param)) for name, param in net.collect_params().items()}) == before
    assert np.array_equal(net(X).asnumpy(), expected)


# ---------------------------------------------------------------------- patterns that match nothing


@pytest.mark.parametrize("initialized", [True, False])
@pytest.mark.parametrize(
    "pattern, message",
    [
        ("op:Convolutoin=float32", "ops: the network has no operator 'Convolutoin'"),
        ("name:net_typo=float32", "names: 'net_typo' matches no node"),
    ],
)
def test_a_pattern_of_operators_or_names_that_matches_nothing_is_refused_by_the_call(pattern, message, initialized):
    net = cnn() if initialized else started(sequence(nn.Dense(5, flatten=True), nn.Dense(2)))
    convert(net, f"O2,{pattern}")
    before = {name: (param.dtype, param.shape, param._data) for name, param in net.collect_params().items()}
    for _ in range(2):
        with pytest.raises(PolicyError, match=message):
            net(X)
    assert {name: (param.dtype, param.shape, param._data) for name, param in net.collect_params().items()} == before
    assert restore(net)(X).shape[0] == len(X)
    convert(net, "O2")(X)
    assert report(net).count["float16"]


@pytest.mark.parametrize("how", [lambda net: net, copy.deepcopy], ids=["itself", "a copy"])
def test_a_part_that_ran_before_another_found_no_match_is_as_it_was(how):
    """Only the last part's graph tells; a parameter that nothing trains has all its digits again too."""
    net = sequence(cnn(), nn.Dense(2), kind=nn.Sequential)
    net[1].initialize()
    net[0][0].weight.grad_req = "null"
    x = net[0](X)
    expected, before = net(X).asnumpy(), bits(net)
    net = how(convert(net, "O2,name:typo=float32"))
    for _ in range(2):
        with pytest.raises(PolicyError, match="names: 'typo' matches no node"):
            net(X)
        assert set(stored(net).values()) == {"float32"} and bits(net) == before
    assert net[0][0](X).dtype == np.float32
    assert np.array_equal(restore(net)(X).asnumpy(), expected)
    convert(net, "O2")(X)
    assert report(net).count["float16"] and stored(net)[WEIGHT] == "float16"
    assert not np.array_equal(net[0](X).asnumpy(), x.asnumpy())


def test_exact_values_of_a_frozen_parameter_are_kept_until_all_names_are_found():
    net = started(sequence(nn.Dense(4, in_units=108), nn.Dense(2, prefix="last_"), kind=nn.Sequential))
    net[0].weight.grad_req = "null"
    before = net[0].weight.data().asnumpy()
    convert(net, "O2,name:last_*=float32")
    hidden = net[0](X)
    np.testing.assert_array_equal(exact_value(net[0].weight).asnumpy(), before)
    net[1](hidden)
    np.testing.assert_array_equal(exact_value(net[0].weight).asnumpy(), before.astype("float16"))


def test_an_input_that_does_not_fit_leaves_parameters_as_they_were():
    net = started(sequence(nn.Dense(5, in_units=108, prefix="a_"), nn.Dense(2, prefix="b_")))
    convert(net, "O2")
    with pytest.raises(InferenceError, match="block 'net': node 'a_fwd': MXNet cannot infer its shapes"):
        net(X[:, :2])
    assert set(stored(net).values()) == {"float32"} and net[1].weight.shape == (2, 0)
    assert net(X).shape == (4, 2) and set(stored(net).values()) == {"float16"}


# ---------------------------------------------------------------------- a SymbolBlock has its graph


def test_a_symbol_block_is_converted_at_once(tmp_path):
    net = cnn()
    net.hybridize()
    block = imported(exported(net, tmp_path))
    plain = block(X).asnumpy()
    convert(block, "O2")
    assert report(block).count["float16"] and "float16" in stored(block).values()
    files = export(block, str(tmp_path / "low"))
    assert np.array_equal(convert(imported(files), "O2")(X).asnumpy(), block(X).asnumpy())
    with pytest.raises(PolicyError, match="names: 'typo' matches no node"):
        convert(block, "O1,name:typo=float32")
    assert report(block).policy.startswith("param=float16")
    assert np.array_equal(restore(block)(X).asnumpy(), plain)


# ---------------------------------------------------------------------- the first call converts the net as it is then


def made(last=lambda F, y: y):
    """Return a convolution and a dense layer, with ``last`` behind them."""

    def forward(net, F, x):
        y = F.relu(net.norm(net.conv(x)))
        return last(F, net.dense(y * net.factor if net.factor != 1 else y))

    conv, norm = nn.Conv2D(4, 3, in_channels=3, prefix="conv_"), nn.BatchNorm(in_channels=4, prefix="norm_")
    net = Function(forward, conv=conv, norm=norm, dense=nn.Dense(4, in_units=4 * 4 * 4, prefix="dense_"))
    net.factor = 1
    return initialized(net, mx.init.Xavier(), seed=5)


def output(net, x=X):
    return net(x).asnumpy()


def test_casts_stand_where_the_sizes_of_the_batch_make_them_cheapest():
    net = convert(made(lambda F, y: F.exp(F.slice_axis(y, axis=1, begin=0, end=1))), "O1")
    net(X)
    assert operator_precisions(net)["slice_axis"] == "float16" and report(net).activation_bytes is not None


def added(name):
    def change(net):
        net.collect_params()[name].data()[:] += 0.5

    return change


def other_layer(net):
    net.norm = initialized(nn.BatchNorm(in_channels=4, scale=False, center=False, epsilon=1, prefix="other_"))


CHANGES = {
    "an attribute": lambda net: setattr(net, "factor", 2),
    "a layer": other_layer,
    "a weight": added("conv_weight"),
    "a statistic": added("norm_running_mean"),
    "a last weight": added("dense_weight"),
}


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_since_counts(change, flags):
    net, other = convert(made(), "O1"), made()
    net.hybridize(**flags)
    change(net), change(other)
    np.testing.assert_array_equal(output(net), output(convert(other, "O1")))
    assert not np.array_equal(output(net), output(convert(made(), "O1")))


def test_inputs_of_another_dtype_are_converted_for():
    net = convert(nn.HybridLambda(lambda F, x: F.relu(F.dot(F.cast(x, "float32"), F.ones((3, 3)))), prefix="n_"), "O1")
    assert net(mx.nd.ones((2, 3), dtype="int32")).asnumpy().tolist() == [[3.0] * 3] * 2


def test_parameters_may_move_between():
    net, expected = convert(made(), "O1"), output(convert(made(), "O1"))
    net.collect_params().reset_ctx(mx.cpu(1))
    np.testing.assert_array_equal(output(net, X.as_in_context(mx.cpu(1))), expected)
