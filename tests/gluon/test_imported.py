"""A net that was converted and exported, imported again as a SymbolBlock: it is like the net that was exported."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.diagnose import compare
from mxmp.gluon import convert, restore
from tests.gluon.nets import X, cnn, exported, imported, sequence, started, train

EXPORTED = ["O1", "O2", "O3", "O2,output_dtype=float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
MIXED = ["O1", "O2", "O3"]


def rounded(policy):
    """The net that is exported, with the values that its files hold."""
    net = cnn(policy)
    for param in net.collect_params().values():
        param.set_data(param.data().astype("float32"))
    return restore(net)


def trained(net, **options):
    train(net, **options)
    return net


def saved(net, folder):
    net.save_parameters(str(folder / "saved.params"))
    return mx.nd.load(str(folder / "saved.params"))


def of(net):
    return net(X).asnumpy()


@pytest.mark.parametrize("policy", ["float32", *MIXED])
@pytest.mark.parametrize("written", EXPORTED)
def test_an_imported_net_computes_trains_and_saves_as_the_exported_one(written, policy, tmp_path):
    block, net = convert(imported(exported(cnn(written), tmp_path)), policy), convert(rounded(written), policy)
    np.testing.assert_array_equal(of(block), of(net))
    np.testing.assert_array_equal(of(trained(block)), of(trained(net)))
    arrays, expected = saved(block, tmp_path), dict(restore(net).collect_params().items())
    assert {array.dtype for array in arrays.values()} == {np.float32} and len(arrays) == len(expected)
    for (_, array), (_, param) in zip(sorted(arrays.items()), sorted(expected.items())):
        np.testing.assert_array_equal(array.asnumpy(), param.data().asnumpy())
    np.testing.assert_array_equal(of(restore(block)), of(net))


@pytest.mark.parametrize("written", ["O2", "O3"])
def test_steps_below_a_float16_ulp_add_up_and_stay_under_another_policy(written, tmp_path):
    block = convert(imported(exported(cnn(written), tmp_path)), "O2")
    before, after = saved(block, tmp_path), saved(trained(block, steps=1, rate=1e-6), tmp_path)
    assert any((after[name] != before[name]).sum().asscalar() for name in after if name.endswith("weight"))
    for name, value in saved(convert(block, "O1"), tmp_path).items():
        np.testing.assert_array_equal(value.asnumpy(), after[name].asnumpy())


@pytest.mark.parametrize("policy", ["float32", *MIXED])
def test_an_imported_net_within_another(policy, tmp_path):
    nets = []
    for part in (imported(exported(cnn("O2"), tmp_path)), rounded("O2")):
        net = sequence(part, nn.Dense(2, in_units=5))
        net[1].initialize(mx.init.One())
        nets.append(trained(convert(net, policy)))
    np.testing.assert_array_equal(*map(of, nets))
    np.testing.assert_array_equal(*(of(restore(net)) for net in nets))


@pytest.mark.parametrize("source", ["current", "saved"])
@pytest.mark.parametrize("policy", MIXED)
def test_parameters_of_an_exported_net_are_loaded_into_a_converted_one(policy, source, tmp_path):
    symbol, params = exported(cnn("O2"), tmp_path)
    net, block = cnn(policy, "other_"), gluon.SymbolBlock(mx.sym.load(symbol), mx.sym.var("data"))
    of(net)
    convert(block, policy).load_parameters(params, ctx=mx.cpu(), cast_dtype=True, dtype_source="saved")
    mx.nd.save(params, {name.split("net_")[1]: value for name, value in mx.nd.load(params).items()})
    net.load_parameters(params, cast_dtype=True, dtype_source=source)
    expected = convert(rounded("O2"), policy)
    np.testing.assert_array_equal(of(block), of(expected))
    np.testing.assert_array_equal(of(trained(net)), of(trained(expected)))
    assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}


def test_an_imported_net_is_compared_and_left_as_it_was(tmp_path):
    block = imported(exported(cnn("O2"), tmp_path))
    params = {name: param.data() for name, param in block.collect_params().items()}
    ours, theirs = (compare(net, [X], "O1") for net in (block, rounded("O2")))
    assert [vars(row) for row in ours.rows] == [vars(row) for row in theirs.rows]
    assert all(block.collect_params()[name].data() is array for name, array in params.items())


class Pair(nn.HybridSequential):
    """Its inputs cannot be guessed, so that it is converted at its first call."""

    def hybrid_forward(self, F, pair):
        return self[0](pair[0]) + pair[1]


@pytest.mark.parametrize("policy", MIXED)
def test_parameters_are_loaded_into_a_net_whose_inputs_are_not_known(policy, tmp_path):
    net = convert(started(sequence(nn.Dense(3, in_units=4), kind=Pair)), policy)
    inputs, file = [mx.nd.ones((2, 4)), mx.nd.ones((2, 3))], str(tmp_path / "low.params")
    mx.nd.save(file, {f"0.{name}": mx.nd.ones(shape, dtype="float16") for name, shape in [("weight", (3, 4)), ("bias", 3)]})
    for _ in range(2):  # before its first call, and after it
        net.load_parameters(file, cast_dtype=True, dtype_source="saved")
        assert (net(inputs).asnumpy() == 6).all()
        assert {array.dtype for array in saved(net, tmp_path).values()} == {np.float32}
