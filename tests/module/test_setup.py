"""How a module is set up, and calls and arguments that are refused."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import ConvertError, LossScaleError, PassError, PolicyError, TrainerError
from mxmp.module import Module
from mxmp.optimizer import LossScaleOptimizer
from tests.module.tools import TWO, batches, bits, convnet, mlp, plain, ready, train, values


def test_the_optimizer_is_as_plain_mxnet_makes_it():
    """Names decide over weight decay, attributes over learning rates, the batch over rescale_grad."""
    symbol = mlp()
    weight = mx.sym.var("fc_weight", lr_mult=0.5)
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=4, name="fc"), name="softmax"
    )
    ours, theirs = ready(symbol, policy="float32"), plain(symbol)
    inner = ours._optimizer.inner
    assert (inner.lr_mult, inner.wd_mult) == (theirs._optimizer.lr_mult, theirs._optimizer.wd_mult)
    assert inner.wd_mult and inner.lr_mult == {"fc_weight": 0.5}
    assert inner.idx2name == theirs._optimizer.idx2name
    assert inner.rescale_grad == theirs._optimizer.rescale_grad == 1 / 8
    train(ours, batches()[:1])
    assert inner.rescale_grad == 1 / 8


def test_an_optimizer_instance_is_used_and_its_rescale_grad_questioned():
    sgd = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / 8)
    module = ready(optimizer=sgd, options={})
    assert module._optimizer.inner is sgd
    with pytest.warns(UserWarning, match="rescale_grad is 1.0, not 1/batch_size = 0.125"):
        module.init_optimizer(optimizer=mx.optimizer.SGD(), force_init=True)
    with pytest.raises(TrainerError, match="optimizer is 3; expected a name"):
        ready(optimizer=3, options={})


def test_weights_are_never_updated_inside_the_kvstore():
    module = ready(context=TWO, kvstore="device", policy="O1")
    assert module._update_on_kvstore is False
    assert plain(context=TWO, kvstore="device")._update_on_kvstore is True  # what MXNet would do


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # MXNet's load_optimizer_states leaves it open
def test_where_the_kvstore_updates_all_is_mxnets(monkeypatch, tmp_path):
    """Only a distributed kvstore would; a local one can as well."""
    monkeypatch.setattr("mxmp.module.setup.updates_on_kvstore", lambda *args: True)
    ours = ready(policy="float32", context=TWO, kvstore="device")
    theirs = plain(context=TWO, kvstore="device")
    for module in (ours, theirs):
        train(module, batches())
    assert ours._update_on_kvstore and bits(values(ours)) == bits(values(theirs))
    for module in (ours, theirs):
        module.save_optimizer_states(str(tmp_path / "states"))
        module.load_optimizer_states(str(tmp_path / "states"))
    with pytest.raises(TrainerError, match="unscale cannot be used where the kvstore updates"):
        ours.unscale()


def test_a_module_whose_parameters_are_all_fixed_steps_without_them():
    module = ready(fixed_param_names=["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"])
    before = values(module)
    module.forward_backward(batches()[0])
    assert module.clip_global_norm(1.0) == 0.0 and module.update()
    assert bits(values(module)) == bits(before)


def test_a_module_without_a_scale_is_as_lenient_as_mxnet():
    module = ready(policy="float32")
    module.forward_backward(batches()[0])
    assert module.update() and module.update()
    with pytest.raises(TrainerError, match="bound without a loss scale; set it before bind"):
        module.loss_scale = 8
    module.loss_scale = None


@pytest.mark.parametrize("call", ["update", "install_monitor", "reshape", "init_params", "backward"])
def test_calls_before_bind_are_errors(call):
    module = Module(mlp())
    argument = {"install_monitor": [None], "reshape": [[]]}.get(call, [])
    with pytest.raises(TrainerError, match=f"{call}: .*call bind first"):
        getattr(module, call)(*argument)


def test_init_optimizer_before_init_params_is_an_error():
    module = Module(mlp())
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    with pytest.raises(TrainerError, match="init_optimizer: the module is not ready; call init_params first"):
        module.init_optimizer()


def test_bad_arguments_are_named():
    with pytest.raises(PolicyError, match="unknown policy 'O9'"):
        Module(mlp(), policy="O9")
    with pytest.raises(LossScaleError, match="unknown loss scale 'much'"):
        Module(mlp(), loss_scale="much")
    with pytest.raises(PolicyError, match="matches no node|has no operator"):
        ready(policy="O1,name:nothing*=float32")
    with pytest.raises(PassError, match="no Custom operator 'nothing'"):
        ready(loss_heads=["nothing"])
    with pytest.raises(TrainerError, match="inputs_need_grad=True needs for_training=True"):
        Module(mlp()).bind([("data", (8, 6))], for_training=False, inputs_need_grad=True)
    with pytest.raises(TrainerError, match="shared_module is .*; expected a bound and initialized"):
        Module(mlp()).bind([("data", (8, 6))], shared_module=plain())


def test_a_network_that_does_not_convert_names_the_node_and_binds_nothing():
    data = mx.sym.var("data")
    symbol = mx.sym.elemwise_add(mx.sym.Cast(data, dtype="int32"), data, name="culprit")
    module = Module(symbol, label_names=None)
    with pytest.raises(ConvertError, match="node 'culprit'"):
        module.bind([("data", (2, 3))])
    assert not module.binded


def test_an_async_kvstore_is_refused():
    from mxmp.train.kvstores import updates_on_kvstore

    class Store:
        type = "dist_async"

    with pytest.raises(TrainerError, match="kvstore 'dist_async' updates weights inside the all-reduce"):
        updates_on_kvstore(Store(), capable=True, checked=True, low=False)
    assert updates_on_kvstore(Store(), capable=True, checked=False, low=False)


def test_gradient_compression_with_a_scale_is_refused():
    with pytest.raises(TrainerError, match="compression_params compares gradients with a threshold"):
        ready(context=TWO, kvstore="device", compression_params={"type": "2bit", "threshold": 0.5})


def test_the_report_says_what_runs_in_low_precision():
    module = ready(convnet(), shape=(8, 1, 6, 6))
    rows = {row.name: row.precision for row in module.report.rows}
    assert rows["conv"] == "float16" and rows["softmax"] == "float32"
    assert str(module.policy) == str(ready().policy)


def test_a_module_takes_the_scale_of_keras_optimizer():
    optimizer = LossScaleOptimizer(mx.optimizer.SGD(rescale_grad=1 / 8), dynamic=False, initial_scale=64)
    module = ready(optimizer=optimizer, options={}, loss_scale=1)
    assert module.loss_scale.value == 64
    train(module, batches()[:1])
    assert module.skipped_steps == 0


def test_outputs_of_several_contexts_are_joined_along_their_batch():
    """A layout tells which axis that is, whatever the policy puts behind the output."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, flatten=False, name="fc")
    symbol = mx.sym.BlockGrad(data, attr={"__layout__": "LNC"})
    module = Module(symbol, label_names=None, context=TWO, policy="O1,output=float16", loss_scale=None)
    module.bind([mx.io.DataDesc("data", (3, 4, 5), layout="LNC")], for_training=False)
    module.init_params()
    values = mx.nd.random.normal(shape=(3, 4, 5))
    module.forward(mx.io.DataBatch([values]), is_train=False)
    (output,) = module.get_outputs()
    weight, bias = (module.get_params()[0][f"fc_{name}"].asnumpy() for name in ("weight", "bias"))
    np.testing.assert_allclose(output.asnumpy(), values.asnumpy() @ weight.T + bias, atol=2e-3)
