"""A net that was converted and exported, imported again as a SymbolBlock: it is like the net that was exported."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.diagnose import compare
from mxmp.gluon import Trainer, convert, export, restore

X = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (4, 3, 6, 6)))
EXPORTED = ["O1", "O2", "O3", "O2,output_dtype=float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
MIXED = ["O1", "O2", "O3"]


def make(prefix="net_"):
    mx.random.seed(2)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu"))
        net.add(nn.Flatten(), nn.Dense(5, in_units=64))
    net.initialize(mx.init.Xavier())
    return net


def exported(folder, policy, for_inference=False):
    net = convert(make(), policy)
    net(X)
    return export(net, str(folder / "net"), for_inference=for_inference)


def imported(files):
    return gluon.SymbolBlock.imports(files[0], ["data"], files[1], ctx=mx.cpu())


def rounded(policy):
    """The net that is exported, with the values that its files hold."""
    net = convert(make(), policy)
    for param in net.collect_params().values():
        param.set_data(param.data().astype("float32"))
    return restore(net)


def trained(net, steps=3, rate=0.01):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9}, loss_scale=8)
    for _ in range(steps):
        with autograd.record(), trainer.scale_loss((net(X) ** 2).mean()) as scaled:
            scaled.backward()
        trainer.step(1)
    return net


def saved(net, folder):
    net.save_parameters(str(folder / "saved.params"))
    return mx.nd.load(str(folder / "saved.params"))


def of(net):
    return net(X).asnumpy()


@pytest.mark.parametrize("policy", ["float32", *MIXED])
@pytest.mark.parametrize("written", EXPORTED)
def test_an_imported_net_computes_trains_and_saves_as_the_exported_one(written, policy, tmp_path):
    block, net = convert(imported(exported(tmp_path, written)), policy), convert(rounded(written), policy)
    np.testing.assert_array_equal(of(block), of(net))
    np.testing.assert_array_equal(of(trained(block)), of(trained(net)))
    arrays, expected = saved(block, tmp_path), dict(restore(net).collect_params().items())
    assert {array.dtype for array in arrays.values()} == {np.float32} and len(arrays) == len(expected)
    for (_, array), (_, param) in zip(sorted(arrays.items()), sorted(expected.items())):
        np.testing.assert_array_equal(array.asnumpy(), param.data().asnumpy())
    np.testing.assert_array_equal(of(restore(block)), of(net))


@pytest.mark.parametrize("written", ["O2", "O3"])
def test_steps_below_a_float16_ulp_add_up_and_stay_under_another_policy(written, tmp_path):
    block = convert(imported(exported(tmp_path, written)), "O2")
    before, after = saved(block, tmp_path), saved(trained(block, steps=1, rate=1e-6), tmp_path)
    assert any((after[name] != before[name]).sum().asscalar() for name in after if name.endswith("weight"))
    for name, value in saved(convert(block, "O1"), tmp_path).items():
        np.testing.assert_array_equal(value.asnumpy(), after[name].asnumpy())


@pytest.mark.parametrize("policy", ["float32", *MIXED])
@pytest.mark.parametrize("written", ["O1", "O2", "O3"])
def test_an_imported_net_for_inference_runs_under_any_policy(written, policy, tmp_path):
    block = convert(imported(exported(tmp_path, written, for_inference=True)), policy)
    np.testing.assert_allclose(of(block), of(make()), atol=5e-3)
    assert {array.dtype for array in saved(block, tmp_path).values()} == {np.float32}


@pytest.mark.parametrize("written", ["O2", "O3"])
def test_an_imported_net_is_folded(written, tmp_path):
    block = convert(imported(exported(tmp_path, written)), "O1")
    block(X)
    folded = imported(export(block, str(tmp_path / "folded"), for_inference=True))
    assert not any("running" in name for name in folded.collect_params())
    np.testing.assert_allclose(of(convert(folded, "O1")), of(make()), atol=5e-3)


@pytest.mark.parametrize("policy", ["float32", *MIXED])
def test_an_imported_net_within_another(policy, tmp_path):
    nets = []
    for part in (imported(exported(tmp_path, "O2")), rounded("O2")):
        net = nn.HybridSequential()
        net.add(part, nn.Dense(2, in_units=5))
        net[1].initialize(mx.init.One())
        nets.append(trained(convert(net, policy)))
    np.testing.assert_array_equal(*map(of, nets))
    np.testing.assert_array_equal(*(of(restore(net)) for net in nets))


@pytest.mark.parametrize("source", ["current", "saved"])
@pytest.mark.parametrize("policy", MIXED)
def test_parameters_of_an_exported_net_are_loaded_into_a_converted_one(policy, source, tmp_path):
    symbol, params = exported(tmp_path, "O2")
    net, block = convert(make("other_"), policy), gluon.SymbolBlock(mx.sym.load(symbol), mx.sym.var("data"))
    of(net)
    convert(block, policy).load_parameters(params, ctx=mx.cpu(), cast_dtype=True, dtype_source="saved")
    mx.nd.save(params, {name.split("net_")[1]: value for name, value in mx.nd.load(params).items()})
    net.load_parameters(params, cast_dtype=True, dtype_source=source)
    expected = convert(rounded("O2"), policy)
    np.testing.assert_array_equal(of(block), of(expected))
    np.testing.assert_array_equal(of(trained(net)), of(trained(expected)))
    assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}


def test_an_imported_net_is_compared_and_left_as_it_was(tmp_path):
    block = imported(exported(tmp_path, "O2"))
    params = {name: param.data() for name, param in block.collect_params().items()}
    ours, theirs = (compare(net, [X], "O1") for net in (block, rounded("O2")))
    assert [vars(row) for row in ours.rows] == [vars(row) for row in theirs.rows]
    assert all(block.collect_params()[name].data() is array for name, array in params.items())


class Sized(gluon.HybridBlock):
    """Its inputs cannot be guessed, so that it is converted at its first call."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, pair):
        return self.dense(pair[0]) + pair[1]


@pytest.mark.parametrize("policy", MIXED)
def test_parameters_are_loaded_into_a_net_whose_inputs_are_not_known(policy, tmp_path):
    net, inputs, file = Sized(), [mx.nd.ones((2, 4)), mx.nd.ones((2, 3))], str(tmp_path / "low.params")
    net.initialize()
    convert(net, policy)
    mx.nd.save(file, {f"dense.{name}": mx.nd.ones(shape, dtype="float16") for name, shape in [("weight", (3, 4)), ("bias", 3)]})
    for _ in range(2):  # before its first call, and after it
        net.load_parameters(file, cast_dtype=True, dtype_source="saved")
        assert (net(inputs).asnumpy() == 6).all()
        assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}
