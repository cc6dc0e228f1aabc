"""What a monitor of a module in mixed precision sees."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.module import BucketingModule, Module
from tests.module.tools import batches, convnet, mlp, params_of

POLICIES = ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
DATA, LABEL = [("data", (8, 3, 6, 6))], [("softmax_label", (8,))]
# Two roundings per layer over a handful of layers, relative to the largest value.
RTOL = {"mixed_bfloat16": 0.08}


def branches():
    """A network with a sum behind BatchNorm, several outputs of one operator, and an output read further on."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=4, no_bias=True, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn") + mx.sym.relu(x, name="relu")
    first, second = mx.sym.SliceChannel(x, num_outputs=2, name="split")
    y = mx.sym.FullyConnected(first * second, num_hidden=4, name="fc")
    return mx.sym.Group([mx.sym.SoftmaxOutput(y, name="softmax"), mx.sym.BlockGrad(y, name="logits")])


class Kept(mx.mon.Monitor):
    """Keeps the arrays that it sees."""

    def __init__(self, **kwargs):
        super().__init__(1, stat_func=lambda array: array.copy(), **kwargs)

    def seen(self):
        return [(name, array.dtype, array.asnumpy()) for _, name, array in self.queue]


def run(module, symbol, monitor, training=True, data=None):
    """Return what a monitor sees of one step: (name, dtype, array) in order."""
    if not module.binded:
        module.bind(DATA, LABEL, for_training=training)
        module.init_params(arg_params=params_of(symbol, data=(8, 3, 6, 6), softmax_label=(8,))[0], allow_missing=True)
        module.install_monitor(monitor)
    batch = batches(8, shape=(3, 6, 6))[0] if data is None else data
    monitor.tic()
    module.forward(batch, is_train=training)
    if training:
        module.backward()
    found = monitor.seen()
    weights = [name for _, name, _ in monitor.toc()][len(found) :]
    return found, weights


def names_of(seen):
    return {name for name, _, _ in seen if not name.startswith("sum_grad")}  # MXNet's name for sums of gradients


@pytest.mark.parametrize(
    "make, monitor_all",
    # With monitor_all MXNet's own backward pass of the other one hangs, with and without mxmp.
    [(convnet, False), (convnet, True), (branches, False)],
    ids=["convnet", "convnet_inputs_too", "branches"],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_monitor_sees_the_network_as_it_was_written(policy, monitor_all, make):
    symbol = make()
    wanted, weights = run(mx.mod.Module(symbol), symbol, Kept(monitor_all=monitor_all))
    found, own = run(Module(symbol, policy=policy, loss_scale=8), symbol, Kept(monitor_all=monitor_all))
    assert names_of(found) == names_of(wanted)
    assert own == weights
    assert {dtype for _, dtype, _ in found} == {np.float32}
    forward = {name: value for name, _, value in wanted if "backward" not in name and "grad" not in name}
    for name, _, value in found:
        if name in forward:
            bound = RTOL.get(policy, 0.01) * max(1, np.abs(forward[name]).max())
            np.testing.assert_allclose(value, forward[name], atol=bound, err_msg=name)


@pytest.mark.parametrize("policy", ["O1", "O3"])
def test_outputs_come_once_and_in_order(policy):
    symbol = branches()
    wanted, _ = run(mx.mod.Module(symbol), symbol, Kept(pattern=r"(?!.*(backward|grad)).*"))
    found, _ = run(Module(symbol, policy=policy, loss_scale=8), symbol, Kept(pattern=r"(?!.*(backward|grad)).*"))
    names = [name for name, _, _ in found]
    assert sorted(names) == sorted(name for name, _, _ in wanted) and len(set(names)) == len(names)


def test_values_are_what_float16_holds():
    """The operators of an emulated graph give float32; what counts is what that is rounded to."""
    symbol = convnet()
    found, _ = run(Module(symbol, policy="O1", loss_scale=8), symbol, Kept(pattern="(conv|bn|relu|fc)_output"))
    assert [name for name, _, _ in found] == ["conv_output", "bn_output", "relu_output", "fc_output"]
    for name, _, value in found:
        assert np.array_equal(value, value.astype(np.float16)), name


def test_an_overflow_is_seen():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="fc")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    module, monitor = Module(symbol, policy="O1", loss_scale=8), Kept(pattern="fc_output")
    module.bind([("data", (2, 3))], [("softmax_label", (2,))])
    module.init_params(arg_params={"fc_weight": mx.nd.ones((4, 3)) * 30000})
    module.install_monitor(monitor)
    found, _ = run(module, symbol, monitor, data=mx.io.DataBatch([mx.nd.ones((2, 3)) * 2], [mx.nd.zeros(2)]))
    assert np.isinf(found[0][2]).all()


def test_statistics_of_stored_weights_are_float32():
    """MXNet's own statistic, a norm, overflows in float16."""
    module, symbol = Module(mlp(), policy="O2", loss_scale=8), mlp()
    module.bind([("data", (8, 6))], LABEL)
    params = params_of(symbol, data=(8, 6), softmax_label=(8,))[0]
    module.init_params(arg_params={**params, "fc1_weight": mx.nd.ones((8, 6)) * 60000})
    monitor = mx.mon.Monitor(1, pattern="fc1_weight|loss_scale")
    module.install_monitor(monitor)
    monitor.tic()
    module.forward(batches(8)[0], is_train=True)
    (found,) = monitor.toc()
    assert found[1] == "fc1_weight" and float(found[2]) == pytest.approx(60000, rel=1e-3)


def test_each_bucket_is_seen_by_its_names():
    def generate(key):
        return mlp(), ("data",), ("softmax_label",)

    module, monitor = BucketingModule(generate, default_bucket_key=8, policy="O1", loss_scale=8), Kept()
    module.bind([("data", (8, 6))], LABEL)
    module.init_params()
    module.install_monitor(monitor)
    for key in (8, 4):
        batch = mx.io.DataBatch(
            [mx.nd.ones((key, 6))],
            [mx.nd.zeros(key)],
            bucket_key=key,
            provide_data=[mx.io.DataDesc("data", (key, 6))],
            provide_label=[mx.io.DataDesc("softmax_label", (key,))],
        )
        monitor.tic()
        module.forward(batch, is_train=True)
        names = [name for name, _, _ in monitor.seen()]
        monitor.toc()
        assert names == ["fc1_output", "relu1_output", "fc2_output", "softmax_output"]


def test_a_reshape_leaves_one_report_of_each_weight():
    symbol, monitor = mlp(), mx.mon.Monitor(1, pattern="fc1_weight")
    module = Module(symbol, policy="O1", loss_scale=8)
    module.bind([("data", (8, 6))], LABEL)
    module.init_params()
    module.install_monitor(monitor)
    for size in (8, 4, 2):
        monitor.tic()
        module.forward(batches(size)[0], is_train=True)
        assert [name for _, name, _ in monitor.toc()] == ["fc1_weight"]
