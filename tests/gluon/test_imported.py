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
def test_an_imported_net_gives_what_the_exported_one_gives_under_any_policy(written, policy, tmp_path):
    block = convert(imported(exported(tmp_path, written)), policy)
    np.testing.assert_array_equal(of(block), of(convert(rounded(written), policy)))


@pytest.mark.parametrize("policy", ["float32", *MIXED])
@pytest.mark.parametrize("written", EXPORTED)
def test_an_imported_net_trains_and_saves_as_the_exported_one(written, policy, tmp_path):
    block = trained(convert(imported(exported(tmp_path, written)), policy))
    net = trained(convert(rounded(written), policy))
    np.testing.assert_array_equal(of(block), of(net))
    found, expected = saved(block, tmp_path), dict(restore(net).collect_params().items())
    assert {array.dtype for array in found.values()} == {np.float32}
    assert len(found) == len(expected)
    for param, value in zip(sorted(expected), (found[name] for name in sorted(found))):
        np.testing.assert_array_equal(value.asnumpy(), expected[param].data().asnumpy())


@pytest.mark.parametrize("written", ["O2", "O3"])
def test_steps_below_a_float16_ulp_add_up_in_an_imported_net(written, tmp_path):
    block = convert(imported(exported(tmp_path, written)), "O2")
    before = saved(block, tmp_path)
    after = saved(trained(block, steps=1, rate=1e-6), tmp_path)
    moved = [name for name in after if (after[name] != before[name]).sum().asscalar()]
    assert any(name.endswith("weight") for name in moved)


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


@pytest.mark.parametrize("policy", MIXED)
@pytest.mark.parametrize("written", ["O1", "O2"])
def test_restore_gives_the_float32_net_that_was_exported(written, policy, tmp_path):
    block = trained(convert(imported(exported(tmp_path, written)), policy))
    net = trained(convert(rounded(written), policy))
    np.testing.assert_array_equal(of(restore(block)), of(restore(net)))


def test_another_policy_keeps_what_was_trained(tmp_path):
    block = trained(convert(imported(exported(tmp_path, "O2")), "O2"), rate=1e-5)
    before = saved(block, tmp_path)
    after = saved(convert(block, "O1"), tmp_path)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name].asnumpy(), value.asnumpy())


@pytest.mark.parametrize("policy", ["float32", *MIXED])
def test_an_imported_net_within_another(policy, tmp_path):
    outer = nn.HybridSequential()
    outer.add(imported(exported(tmp_path, "O2")), nn.Dense(2, in_units=5))
    outer[1].initialize(mx.init.One())
    expected = rounded("O2")
    plain = nn.HybridSequential()
    plain.add(expected, nn.Dense(2, in_units=5))
    plain[1].initialize(mx.init.One())
    found, wanted = trained(convert(outer, policy)), trained(convert(plain, policy))
    np.testing.assert_array_equal(of(found), of(wanted))
    np.testing.assert_array_equal(of(restore(found)), of(restore(wanted)))


@pytest.mark.parametrize("source", ["current", "saved"])
@pytest.mark.parametrize("policy", MIXED)
def test_parameters_of_an_exported_net_are_loaded_into_a_converted_one(policy, source, tmp_path):
    files = exported(tmp_path, "O2")
    net = convert(make("other_"), policy)
    of(net)
    mx.nd.save(files[1], {name.split("net_")[1]: value for name, value in mx.nd.load(files[1]).items()})
    net.load_parameters(files[1], cast_dtype=True, dtype_source=source)
    np.testing.assert_array_equal(of(trained(net)), of(trained(convert(rounded("O2"), policy))))
    assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}


@pytest.mark.parametrize("policy", MIXED)
def test_parameters_are_loaded_into_an_imported_graph_that_is_converted(policy, tmp_path):
    symbol, params = exported(tmp_path, "O2")
    block = convert(gluon.SymbolBlock(mx.sym.load(symbol), mx.sym.var("data")), policy)
    block.load_parameters(params, ctx=mx.cpu(), cast_dtype=True, dtype_source="saved")
    np.testing.assert_array_equal(of(block), of(convert(rounded("O2"), policy)))


def test_an_imported_net_is_compared_and_left_as_it_was(tmp_path):
    block = imported(exported(tmp_path, "O2"))
    params = {name: param.data() for name, param in block.collect_params().items()}
    found, expected = (compare(net, [X], "O1") for net in (block, rounded("O2")))
    assert [vars(row) for row in found.rows] == [vars(row) for row in expected.rows]
    assert all(block.collect_params()[name].data() is array for name, array in params.items())


class Sized(gluon.HybridBlock):
    """Its inputs cannot be guessed, so that it is converted at its first call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, pair):
        return self.dense(pair[0]) + pair[1]


@pytest.mark.parametrize("policy", MIXED)
def test_parameters_are_loaded_into_a_net_whose_inputs_are_not_known(policy, tmp_path):
    net = Sized(prefix="net_")
    net.initialize()
    net = convert(net, policy)
    inputs = [mx.nd.ones((2, 4)), mx.nd.ones((2, 3))]
    file = str(tmp_path / "low.params")
    low = {"dense.weight": mx.nd.ones((3, 4)).astype("float16"), "dense.bias": mx.nd.ones(3).astype("float16")}
    mx.nd.save(file, low)
    for _ in range(2):  # before its first call, and after it
        net.load_parameters(file, cast_dtype=True, dtype_source="saved")
        assert (net(inputs).asnumpy() == 6).all()
        assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}
