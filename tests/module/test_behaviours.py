"""What a user can check of modules, by public names only. docs/behaviours.md lists it."""

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.errors import CheckpointError
from mxmp.loss_scale import DynamicLossScale
from tests.freeze import freeze
from tests.symbol.small import dense


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


@pytest.mark.behaviour(50)
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


@pytest.mark.behaviour(51)
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


@pytest.mark.behaviour(52)
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
