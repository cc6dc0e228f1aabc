"""Export of nets for inference alone."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError
from mxmp.gluon import convert, export, restore
from mxmp.symbol import load_checkpoint, to_graph


class Net(nn.HybridSequential):
    """Two convolutions with BatchNorm, one with dropout before it, and a dense layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5))
            self.add(nn.Conv2D(4, 3, groups=2), nn.BatchNorm(scale=False), nn.LeakyReLU(0.1), nn.Dense(3))


def trained():
    """Return a net whose statistics are those of random data, a batch, and the net's output."""
    net = Net(prefix="net_")
    net.initialize(mx.init.Xavier())
    mx.random.seed(0)
    np.random.seed(0)
    x = mx.nd.random.normal(shape=(2, 3, 8, 8))
    for _ in range(3):
        with autograd.record():
            net(x)
    return net, x, net(x).asnumpy()


def values(net):
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def exported(net, folder, **options):
    symbol_file, params_file = export(net, str(folder / "net"), for_inference=True, **options)
    return gluon.SymbolBlock.imports(symbol_file, ["data"], params_file), to_graph(load_checkpoint(str(folder / "net"), 0).symbol)


@pytest.mark.parametrize("policy", ["O1", "O2", "float16"])
def test_a_converted_net(policy, tmp_path):
    net, x, expected = trained()
    convert(net, policy)
    usual = net(x).asnumpy()
    before = values(net)
    block, graph = exported(net, tmp_path)
    assert not {"BatchNorm", "Dropout"} & {node.op for node in graph.operators()}
    assert set(block.collect_params()) == {"net_conv0_weight", "net_conv0_bias", "net_conv1_weight", "net_conv1_bias",
                                           "net_dense0_weight", "net_dense0_bias"}  # fmt: skip
    convert(block, policy)  # on a CPU this emulates float16
    scale = np.abs(expected).max()
    assert np.abs(block(x).asnumpy() - expected).max() < 0.005 * scale
    assert np.array_equal(net(x).asnumpy(), usual)
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("how", ["hybridized", "converted to float32"])
def test_a_float32_net(how, tmp_path):
    net, x, expected = trained()
    if how != "hybridized":
        convert(net, "float32")
    net.hybridize()
    net(x)
    block, graph = exported(net, tmp_path)
    assert [node.op for node in graph.operators()].count("Convolution") == 2
    assert "BatchNorm" not in {node.op for node in graph.operators()}
    np.testing.assert_allclose(block(x).asnumpy(), expected, atol=1e-5)


def test_weights_are_folded_from_their_exact_values(tmp_path):
    """A net under O2 stores float16; the values before that rounding are what is folded."""
    net, x, _ = trained()
    net.hybridize()
    net(x)
    export(net, str(tmp_path / "exact"), for_inference=True)
    exact = load_checkpoint(str(tmp_path / "exact"), 0).arg_params
    convert(net, "O2")
    net(x)
    export(net, str(tmp_path / "low"), for_inference=True)
    for name, array in load_checkpoint(str(tmp_path / "low"), 0).arg_params.items():
        assert array.dtype == np.float16
        np.testing.assert_array_equal(array.asnumpy(), exact[name].asnumpy().astype(np.float16))


def test_patterns_of_other_parts_of_a_net_are_no_error(tmp_path):
    """Each part of a plain Block is exported by itself."""
    outer = gluon.nn.Sequential()
    first, x, _ = trained()
    outer.add(first, nn.Dense(2, prefix="last_"))
    outer[1].initialize()
    convert(outer, "O1,name:last_fwd=float32")
    outer(x)
    block, graph = exported(first, tmp_path)
    assert "BatchNorm" not in {node.op for node in graph.operators()}
    assert convert(block, "O1")(x).shape == (2, 3)


def test_a_net_that_was_not_called_is_refused(tmp_path):
    net = Net(prefix="net_")
    net.initialize()
    with pytest.raises(ConvertError, match="'net_?' has no graph yet; convert it, or hybridize it, and run one batch"):
        export(net, str(tmp_path / "net"), for_inference=True)
    convert(net, "O1")
    with pytest.raises(ConvertError, match="has not been called yet"):
        export(net, str(tmp_path / "net"), for_inference=True)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_refused(tmp_path):
    net, x, _ = trained()
    net.hybridize()
    net(x)
    with pytest.raises(ConvertError, match="there is no folder"):
        export(net, str(tmp_path / "missing" / "net"), for_inference=True)


def test_a_plain_block_is_refused(tmp_path):
    net = gluon.nn.Sequential()
    net.add(trained()[0])
    with pytest.raises(ConvertError, match="is not converted"):
        export(net, str(tmp_path / "net"), for_inference=True)
    convert(net, "O1")
    with pytest.raises(ConvertError, match="has no graph of its own; export the converted blocks in it: net"):
        export(net, str(tmp_path / "net"), for_inference=True)
    restore(net)


def test_the_net_trains_on(tmp_path):
    net, x, _ = trained()
    convert(net, "O1")
    net(x)
    export(net, str(tmp_path / "net"), for_inference=True)
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert np.abs(net.collect_params()["net_batchnorm0_gamma"].grad().asnumpy()).max() > 0
