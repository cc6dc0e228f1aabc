"""What a user can check of the fronts and the tools, by public names alone. docs/behaviours.md lists it."""

import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.diagnose import compare, explain
from mxmp.errors import CheckpointError, LossScaleError
from mxmp.loss_scale import DynamicLossScale
from mxmp.optimizer import LossScaleOptimizer
from tests.freeze import freeze
from tests.symbol.small import dense, dtypes_of, params_of
from tests.values import as_float32

X = mx.nd.array(np.random.RandomState(0).randn(4, 5))


def make(seed=0, flatten=True, layers=2):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=5, activation="relu"), nn.Dense(3, in_units=6, flatten=flatten))
        net.add(*(nn.Dense(3, in_units=3) for _ in range(layers - 2)))
    net.initialize(mx.init.Normal(0.5))
    return net


def values(net):
    return {name: as_float32(param.data()) for name, param in net.collect_params().items()}


def head():
    return mx.sym.SoftmaxOutput(dense(mx.sym.var("data"), hidden=3), name="softmax")


def module(seed=0, **options):
    """Return a module that is ready to train; it has the values of a seed."""
    found = mxmp.module.Module(head(), **options)
    found.bind([("data", (4, 5))], [("softmax_label", (4,))])
    found.init_params(arg_params={"fc_weight": mx.nd.array(np.random.RandomState(seed).randn(3, 5))}, aux_params={})
    found.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.125})
    return found


def train(trained, steps):
    for number in range(steps):
        data = mx.nd.array(np.random.RandomState(number).randn(4, 5))
        trained.forward_backward(mx.io.DataBatch([data], [mx.nd.array([0, 1, 2, 0])]))
        trained.update()


# Gluon.


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_net_is_converted_in_place_and_computes_in_low_precision(hybridized):
    net = make()
    net.hybridize(hybridized)
    before, params = net(X).asnumpy(), dict(net.collect_params())
    assert mxmp.gluon.convert(net, "O1") is net
    after = net(X)
    assert after.dtype == np.float32 and 0 < np.abs(after.asnumpy() - before).max() < 0.02
    assert all(net.collect_params()[name] is param for name, param in params.items())


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("hybridized", [False, True])
def test_restore_gives_the_float32_net_back_bit_for_bit(policy, hybridized):
    net = make()
    net.hybridize(hybridized)
    before = freeze([values(net), net(X)])
    mxmp.gluon.convert(net, policy)
    assert freeze([values(net), net(X)]) != before
    mxmp.gluon.restore(net)
    assert freeze([values(net), net(X)]) == before


def test_a_float32_region_holds_for_the_calls_in_it():
    net = make()
    exact = net(X).asnumpy()
    mxmp.gluon.convert(net, "O1")
    with mxmp.gluon.precision("float32"):
        inside = net(X).asnumpy()
    np.testing.assert_array_equal(inside, exact)
    assert not np.array_equal(net(X).asnumpy(), exact)


def test_saved_parameters_are_the_float32_masters(tmp_path):
    """Updates of 2**-14 are less than half of the last place of 1 in float16; twenty of them are not."""
    net = mxmp.gluon.convert(make(), "O2")
    net(X)
    net[1].bias.set_data(mx.nd.ones(3))
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0**-14}, loss_scale=8)
    for _ in range(20):
        with autograd.record(), trainer.scale_loss(net(X).sum()) as scaled:
            scaled.backward()
        assert trainer.step(4)
    net.save_parameters(str(tmp_path / "net.params"))
    plain = make(seed=1)
    plain.load_parameters(str(tmp_path / "net.params"))
    moved = 1 - plain.collect_params()["net_dense1_bias"].data().asnumpy()
    assert dtypes_of({"": plain[1].bias.data()}) == {"": "float32"}
    np.testing.assert_array_equal(moved, [20 * 2.0**-14] * 3)


@pytest.mark.parametrize("clips", [False, True])
def test_without_a_kvstore_each_context_is_updated_by_its_own_gradients(clips):
    net, contexts = make(), [mx.cpu(0), mx.cpu(1)]
    net.collect_params().reset_ctx(contexts)
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore=None, loss_scale=8)
    with autograd.record():
        losses = [net(X.as_in_context(ctx)).sum() * factor for ctx, factor in zip(contexts, [1, 2])]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
    if clips:
        trainer.clip_global_norm(1.0)
    assert trainer.step(4)
    one, other = (bias.asnumpy() for bias in net[1].bias.list_data())
    assert other.tolist() == (2 * one).tolist() != [0] * 3 and (one.tolist() == [-1] * 3) is not clips


def test_of_several_bad_gradients_at_the_floor_the_first_is_named():
    """A trainer has its parameters in the order of their names."""
    net, scale = make(), DynamicLossScale(init_scale=1, min_scale=1, max_floor_skips=1)
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=scale)
    with autograd.record(), trainer.scale_loss(net(X).sum()) as scaled:
        scaled.backward()
    for param in net.collect_params().values():
        param.grad()[:] = np.inf
    with pytest.raises(LossScaleError, match="'net_dense0_bias'"):
        trainer.step(4)


# Modules.


def test_a_loss_scale_leaves_a_module_as_it_is_in_float32_bit_for_bit():
    """`scale_loss` puts the scale behind the forward pass: outputs and updates are the same."""
    plain, scaled = module(policy="float32"), module(policy="float32", loss_scale=2.0**10)
    for trained in (plain, scaled):
        train(trained, 3)
    assert freeze(scaled.get_outputs()) == freeze(plain.get_outputs())
    assert freeze(scaled.get_params()) == freeze(plain.get_params()) != freeze(module().get_params())


def test_a_loss_scale_leaves_values_exact_that_are_infinite():
    found = []
    for loss_scale in (None, 2.0**10):
        symbol = mx.sym.LinearRegressionOutput(mx.sym.var("data"), name="out")
        each = mxmp.module.Module(symbol, label_names=["out_label"], policy="float32", loss_scale=loss_scale)
        each.bind([("data", (1, 3))], [("out_label", (1, 3))], inputs_need_grad=True)
        each.init_params()
        each.forward(mx.io.DataBatch([mx.nd.array([[np.inf, -np.inf, 3e38]])], [mx.nd.zeros((1, 3))]))
        found.append(freeze(each.get_outputs()))
    assert found[0] == found[1] == freeze([np.float32([[np.inf, -np.inf, 3e38]])])


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_module_goes_on_from_its_checkpoint_bit_for_bit(policy, tmp_path):
    whole, prefix = module(policy=policy, loss_scale="dynamic"), str(tmp_path / "net")
    train(whole, 3)
    whole.save_checkpoint(prefix, 3, save_optimizer_states=True)
    resumed = mxmp.module.Module.load(prefix, 3, load_optimizer_states=True, policy=policy, loss_scale="dynamic")
    resumed.bind([("data", (4, 5))], [("softmax_label", (4,))])
    assert freeze(resumed.get_params()) == freeze(whole.get_params())
    resumed.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.125})
    for trained in (whole, resumed):
        train(trained, 4)
    assert freeze(resumed.get_params()) == freeze(whole.get_params())
    assert resumed.loss_scale == whole.loss_scale != DynamicLossScale()


@pytest.mark.parametrize("suffix", ["params", "states"])
def test_a_manifest_refuses_files_of_different_saves(suffix, tmp_path):
    """Of one network and one size, so that nothing else tells them apart."""
    for seed, folder in enumerate(["a", "b"]):
        (tmp_path / folder).mkdir()
        trained = module(seed, policy="O1")
        train(trained, 1)
        trained.save_checkpoint(str(tmp_path / folder / "net"), 1, save_optimizer_states=True)
    (tmp_path / "b" / f"net-0001.{suffix}").replace(tmp_path / "a" / f"net-0001.{suffix}")
    with pytest.raises(CheckpointError, match="does not fit"):
        mxmp.module.Module.load(str(tmp_path / "a" / "net"), 1, load_optimizer_states=True)


# contrib.amp, Apex, Keras.


def test_disable_takes_back_what_init_did():
    net = make()
    net.hybridize()
    exact = net(X).asnumpy()
    classes = [dict(vars(kind)) for kind in (gluon.Block, gluon.HybridBlock)]
    amp.init()
    try:
        low = net(X).asnumpy()
    finally:
        amp.disable()
    assert [dict(vars(kind)) for kind in (gluon.Block, gluon.HybridBlock)] == classes
    assert 0 < np.abs(low - exact).max() < 0.02
    np.testing.assert_array_equal(net(X).asnumpy(), exact)


def test_each_loss_of_apex_has_a_scale_of_its_own():
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, kvstore=None)
    amp.initialize(net, trainer, "O1", num_losses=2, loss_scale=DynamicLossScale(init_scale=64))
    for loss_id in (0, 1):
        with autograd.record():
            loss = net(X).sum()
        with amp.scale_loss(loss, trainer, loss_id=loss_id) as scaled:
            scaled.backward()
        if loss_id == 1:
            net[0].weight.grad()[:] = np.inf
        assert trainer.step(4) is (loss_id == 0)
    scales = amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]
    assert [scale["value"] for scale in scales] == [64, 32]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_of_losses_that_add_up_the_scale_backs_off_of_that_which_overflows(bad):
    net = make()
    net.collect_params().setattr("grad_req", "add")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, kvstore=None)
    amp.initialize(net, trainer, "O1", num_losses=3, loss_scale=DynamicLossScale(init_scale=64))
    for loss_id in range(3):
        with autograd.record():
            loss = net(X).sum()
        with amp.scale_loss(loss, trainer, loss_id=loss_id) as scaled:
            scaled.backward()
            if loss_id == bad:
                net[0].weight.grad()[:] = np.inf
    assert trainer.step(4) is False
    scales = amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]
    assert [scale["value"] for scale in scales] == [32 if loss_id == bad else 64 for loss_id in range(3)]


def test_the_optimizer_of_keras_skips_and_counts_its_iterations():
    net = make()
    optimizer = LossScaleOptimizer(mx.optimizer.create("sgd", learning_rate=0.1), initial_scale=16)
    params = list(net.collect_params().values())
    before = values(net)
    for spoilt, taken in ((True, 0), (False, 1), (True, 1), (True, 1)):
        present = values(net)
        with autograd.record():
            scaled = optimizer.get_scaled_loss(net(X).sum())
        scaled.backward()
        if spoilt:
            params[0].grad()[:] = np.nan
        grads = optimizer.get_unscaled_gradients([param.grad() for param in params])
        assert optimizer.apply_gradients(zip(grads, params)) is not spoilt
        assert (freeze(values(net)) == freeze(present)) is spoilt
        assert optimizer.iterations == optimizer.inner_optimizer.num_update == taken
    assert optimizer.loss_scale == 2
    bias = "net_dense1_bias"  # whose gradient is 1 for each of the four rows
    np.testing.assert_array_equal(values(net)[bias], before[bias] - np.float32(0.1) * 4)


# Diagnosis.


def test_explain_names_the_operator_that_leaves_float16s_range():
    """And not a parameter beyond it that float32 reads."""
    squares = mx.sym.square(dense(mx.sym.var("data")), name="squares")
    shifted = mx.sym.broadcast_add(squares, mx.sym.var("shift", shape=(1, 6)), name="shifted")
    symbol = mx.sym.LinearRegressionOutput(shifted, name="out")
    args = {"fc_weight": mx.nd.full((6, 5), 100), "shift": mx.nd.full((1, 6), 1e5)}
    batch = {"data": mx.nd.ones((4, 5)), "out_label": mx.nd.full((4, 6), 1e5)}
    found = explain((symbol, args, {}), batch, "O1,op:square=float16,name:shifted=float32", loss_scale=1)
    assert (found.kind, found.node.name) == ("activation out of range", "squares") and "squares" in str(found)
    healthy = explain((symbol, {**args, "fc_weight": args["fc_weight"] / 100}, {}), batch, "O1", loss_scale=1)
    assert (healthy.kind, healthy.node) == ("no fault found", None)


class SquareRootOfZero(gluon.Block):
    """Two layers, and between them an operator that has no finite gradient there."""

    def __init__(self):
        super().__init__(prefix="net_")
        self.first, self.second = nn.Dense(3, in_units=5, prefix="first_"), nn.Dense(3, in_units=3)

    def forward(self, x):
        return self.second(mx.nd.sqrt(self.first(x) * 0))


def test_explain_finds_a_gradient_that_is_lost_between_two_blocks():
    """Where the values of both are finite, and the gradients of the second."""
    net = SquareRootOfZero()
    net.initialize()
    found = explain(net, (X, mx.nd.ones((4, 3))), "O1", loss=gluon.loss.L2Loss())
    assert (found.kind, found.node.name) == ("float32 model broken", "first_fwd_output")


def test_what_compare_writes_to_gradients_is_none_for_a_step():
    net = nn.Sequential()
    net.add(make())
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    with autograd.record():
        net(X).sum().backward()
    trainer.step(4)
    compare(net, (X, mx.nd.ones((4, 3))), "O1", loss=gluon.loss.L2Loss())
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(4)


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [nn.HybridSequential, nn.Sequential])
def test_compare_leaves_the_net_as_it_was(policy, gradients, kind):
    """Its statistics and gradients too."""
    net, norm = kind(), nn.BatchNorm(in_channels=3)
    norm.initialize()
    net.add(make(), norm)
    mxmp.gluon.convert(net, policy)
    with autograd.record():
        net(X).sum().backward()

    def state():
        grads = [param.grad() for param in net.collect_params().values() if param.grad_req != "null"]
        return freeze([values(net), grads, net(X)])

    before = state()
    loss = gluon.loss.L2Loss() if gradients else None
    found = compare(net, (X, mx.nd.ones((4, 3))) if gradients else X, "mixed_float16", loss=loss)
    assert state() == before
    assert found.has_gradients is gradients and 0 < found.outputs[0].error < 1e-2


# Tuning, the command line.


def test_speeds_are_compared_without_a_change_and_the_fastest_is_a_policy():
    net = make()
    before = freeze(values(net))
    found = mxmp.tune.compare_speed(net, [X], ["float32", "O1"], seconds=0.01)
    assert [row.policy for row in found.rows] == ["float32", "O1"] and freeze(values(net)) == before
    assert found.fastest in ("float32", "O1") and mxmp.gluon.convert(net, found.fastest) is net


def mxmp_command(*args, cwd):
    return subprocess.run([sys.executable, "-m", "mxmp", *args], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(("policy", "folds"), [("O2", False), ("mixed_bfloat16", True)])
def test_the_command_line_converts_a_checkpoint_as_python_does(policy, folds, tmp_path):
    """A network of which the shapes decide: a sum that is short enough for float16."""
    norm = mx.sym.BatchNorm(dense(mx.sym.var("data")), name="norm")
    symbol, shapes = dense(mx.sym.sum(norm, axis=1, keepdims=True, name="total"), "last"), {"data": (4, 5)}
    mx.model.save_checkpoint(str(tmp_path / "net"), 2, symbol, *params_of(symbol, shapes))
    options = ["--policy", policy, "--shape", "data:4,5", *(["--for-inference"] if folds else [])]
    ended = mxmp_command("convert", "net", "2", "-o", "low", *options, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    prefix, out = str(tmp_path / "net"), str(tmp_path / "by_python")
    mxmp.symbol.convert_checkpoint(prefix, 2, out, policy, shapes, for_inference=folds)
    for suffix in ("-symbol.json", "-0002.params"):
        assert (tmp_path / f"low{suffix}").read_bytes() == (tmp_path / f"by_python{suffix}").read_bytes()


@pytest.mark.parametrize("prefix", ["missing", "missing\nfile"])
def test_an_error_on_the_command_line_is_one_line_and_exit_code_1(prefix, tmp_path):
    ended = mxmp_command("convert", prefix, "1", "-o", "low", cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.startswith("mxmp: error: ") and "missing" in ended.stderr
    assert ended.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_an_error_of_several_lines_is_one_line_on_the_command_line(tmp_path, monkeypatch):
    """Of a compiler, for example, whose words are quoted."""
    (tmp_path / "cxx").write_text("#!/bin/sh\necho two >&2\necho lines >&2\nexit 3\n")
    (tmp_path / "cxx").chmod(0o700)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = mxmp_command("build", cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.endswith("ended with 3: two lines\n") and ended.stderr.count("\n") == 1
