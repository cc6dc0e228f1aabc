"""``precision``: regions around calls and in hybrid_forward, nested, reused, as decorators."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError, PolicyError
from mxmp.gluon import Trainer, convert, export, precision, report, restore
from mxmp.gluon.regions import current_region

X = mx.nd.array(np.random.RandomState(0).randn(4, 6))


def mlp(**kwargs):
    mx.random.seed(0)
    net = nn.HybridSequential(**kwargs)
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6, activation="tanh"), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def values(net, region=None):
    if region is None:
        return net(X).asnumpy()
    with precision(region):
        return net(X).asnumpy()


def precisions(net):
    return [row.precision for row in report(net).rows]


@pytest.mark.parametrize("first_inside", [True, False])
@pytest.mark.parametrize("policy", ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_region_around_a_call_holds_for_that_call(first_inside, policy):
    net = mlp()
    exact, before = values(net), set(vars(net))
    with precision("float32"):  # it is none of the conversion's
        convert(net, policy)
    for recorded in (False, True):
        for inside in (first_inside, not first_inside, first_inside):
            with autograd.record() if recorded else autograd.pause():
                assert np.array_equal(values(net, "float32" if inside else "policy"), exact) == inside
    restore(net)
    assert set(vars(net)) == before and np.array_equal(values(net), exact)


@pytest.mark.parametrize("first", ["float32", "policy"])
def test_a_region_of_a_net_with_low_parameters(first):
    """The net's float16 parameters are read in float32 within the region."""
    net = convert(mlp(), "O2")
    values(net, first)
    exact = mlp(prefix=net.prefix)
    for name, param in exact.collect_params().items():
        param.set_data(net.collect_params()[name].data().astype("float32"))
    assert not np.array_equal(values(net), values(exact))
    np.testing.assert_array_equal(values(net, "float32"), values(exact))


class Late(gluon.HybridBlock):
    """Its input cannot be guessed, so that conversion waits for the first call."""

    def __init__(self):
        super().__init__()
        self.out = nn.Dense(3)

    def hybrid_forward(self, F, pair):
        return self.out(pair[0])


@pytest.mark.parametrize("recorded", [False, True])
def test_the_first_call_of_all_may_be_in_a_region(recorded):
    net = Late()
    net.initialize()
    convert(net, "O2")
    for _ in range(2):
        with precision("float32"), autograd.record() if recorded else autograd.pause():
            within = net([X]).asnumpy()
        assert net.out.weight.data().dtype == np.float16  # storage is the policy's
        outside = net([X]).asnumpy()
        np.testing.assert_allclose(within, outside, atol=1e-3)
        assert not np.array_equal(within, outside)


@pytest.fixture
def soft():
    """A net of which 'low' would store more parameters in float16 than the policy does."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    norm = nn.LayerNorm(in_channels=32, gamma_initializer=mx.init.Uniform(1))
    net.add(nn.Dense(32, in_units=6), norm, nn.Dense(16, in_units=32))
    net.initialize(mx.init.Xavier())
    return convert(net, "O2")


def stored_as_the_policy_wants(net):
    return all((param.dtype == np.float16) != ("layernorm" in name) for name, param in net.collect_params().items())


def test_a_low_region_changes_neither_storage_nor_export(soft, tmp_path):
    low = values(soft, "low")
    assert stored_as_the_policy_wants(soft)
    with pytest.raises(ConvertError, match="block 'net' has not been called yet outside of precision regions"):
        export(soft, str(tmp_path / "net"))
    outside, exported = values(soft), []
    for _ in range(2):
        symbol, params = export(soft, str(tmp_path / "net"))
        exported.append((Path(symbol).read_text(), Path(params).read_bytes()))
        np.testing.assert_array_equal(values(soft, "low"), low)
    assert exported[0] == exported[1] and '"Cast"' in exported[0][0]
    assert stored_as_the_policy_wants(soft) and not np.array_equal(low, outside)
    np.testing.assert_array_equal(values(soft), outside)


def test_an_existing_trainer_goes_on_after_a_low_region(soft):
    """Losses in regions train too, and the trainer's optimizer keeps its states."""
    trainer = Trainer(soft.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, loss_scale=8)
    weights = soft.collect_params(".*weight").values()
    for region in ("policy", "low", "policy"):
        before = [param.data().asnumpy() for param in weights]
        with autograd.record():
            with precision(region):
                loss = soft(X).square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        assert trainer.step(1)
        assert not any(np.array_equal(param.data().asnumpy(), value) for param, value in zip(weights, before))


def test_one_record_may_hold_both_kinds_of_calls(soft):
    """The gradients of both calls reach every parameter."""

    def gradients(*regions):
        with autograd.record():
            losses = []
            for region in regions:
                with precision(region):
                    losses.append(soft(X).sum())
            sum(losses).backward()
        return [param.grad().asnumpy().astype("float32") for param in soft.collect_params().values()]

    for total, first, second in zip(gradients("policy", "low"), gradients("policy"), gradients("low")):
        np.testing.assert_allclose(total, first + second, rtol=2e-3, atol=2e-3)


def test_a_symbol_block_follows_the_region():
    net = mlp()
    block = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=net.collect_params())
    convert(block, "O1")
    for region in ("policy", "float32", "policy"):
        assert np.array_equal(values(block, region), values(net)) == (region == "float32")


class Fan(gluon.Block):
    """A plain block with a region around one of the blocks in it."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Dense(4, in_units=6), nn.Dense(4, in_units=6)

    def forward(self, x):
        with precision("float32"):
            high = self.high(x)
        return self.low(x), high


def test_a_region_in_a_plain_block():
    net = Fan()
    net.initialize()
    exact = [out.asnumpy() for out in net(X)]
    convert(net, "O1")
    assert [np.array_equal(out.asnumpy(), value) for out, value in zip(net(X), exact)] == [False, True]


@pytest.mark.behaviour("nested policies")
@pytest.mark.parametrize(
    "outer, inner, expected",
    [
        ("float32", "low", ["float32", "float16", "float16", "float32"]),
        ("low", "float32", ["float16", "float32", "float32", "float16"]),
        ("float32", "policy", ["float32", "float16", "float32", "float32"]),  # the rules keep softmax
    ],
)
def test_regions_nest_and_the_innermost_decides(outer, inner, expected):
    class Nested(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            with precision(outer):
                x = F.dot(x, x)
                with precision(inner):
                    x = F.softmax(F.dot(x, x))
                return F.dot(x, x)

    net = convert(Nested(), "O1")
    net(mx.nd.ones((2, 2)))
    assert precisions(net) == expected


@pytest.mark.filterwarnings("ignore:precision:UserWarning")
def test_one_object_is_entered_twice_and_nested_and_ends_with_an_exception():
    region, other = precision("float32"), precision("low")
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"), region:
            with other, region:
                assert current_region() == "float32"
            with region, other:
                assert current_region() == "low"
            assert current_region() == "float32"
            raise ValueError("stop")
        assert current_region() is None


def test_regions_are_of_one_thread():
    with ThreadPoolExecutor() as pool, precision("float32"):
        mx.sym.var("x")
        assert pool.submit(current_region).result() is None and current_region() == "float32"


@pytest.mark.parametrize("region, other", [("float32", "policy"), ("policy", "float32")])
def test_a_thread_is_given_the_graph_of_its_own_region(region, other, monkeypatch):
    """The first thread is held up where its call has chosen a graph and not run it yet."""
    net = mlp()
    expected = {"float32": values(net)}
    expected["policy"] = values(convert(net, "O1"))
    values(net, "float32")
    chosen, finished, first, data = threading.Event(), threading.Event(), threading.current_thread(), gluon.Parameter.data

    def hold_up(*args):
        if threading.current_thread() is first:
            chosen.set()
            finished.wait(0.2)  # in vain, if the other call has to wait for this one
        return data(*args)

    def call_meanwhile():
        chosen.wait(10)
        outputs = values(net, other)
        finished.set()
        return outputs

    monkeypatch.setattr(gluon.Parameter, "data", hold_up)
    with ThreadPoolExecutor() as pool:
        meanwhile = pool.submit(call_meanwhile)
        np.testing.assert_array_equal(values(net, region), expected[region])
        np.testing.assert_array_equal(meanwhile.result(), expected[other])
    assert chosen.is_set() and not np.array_equal(expected["float32"], expected["policy"])


def test_other_attributes_are_kept():
    with mx.AttrScope(ctx_group="dev1"), precision("float32"):
        assert mx.sym.relu(mx.sym.var("x")).attr("ctx_group") == "dev1"


def test_a_generator_may_end_within_a_region_of_its_caller():
    def within_float32():
        with precision("float32"):
            yield mx.sym.var("x")

    generator = within_float32()
    next(generator)
    with precision("low"):
        next(generator, None)
        assert current_region() == "low"
    assert current_region() is None


def test_a_region_that_is_left_elsewhere_is_an_error():
    region = precision("float32").__enter__()
    mx.sym.var("x")
    with pytest.raises(PolicyError, match=r"^precision\('float32'\): it is left in another thread, task or generator"):
        contextvars.Context().run(region.__exit__, None, None, None)
    region.__exit__(None, None, None)


def test_a_decorated_function_runs_in_its_region():
    @precision("float32")
    def evaluate(net):
        """Say so."""
        return values(net)

    net = mlp()
    exact = values(net)
    convert(net, "O1")
    assert evaluate.__name__ == "evaluate" and evaluate.__doc__ == "Say so."
    for _ in range(2):
        assert np.array_equal(evaluate(net), exact) and not np.array_equal(values(net), exact)


class Decorated(nn.Dense):
    @precision("float32")
    def hybrid_forward(self, F, x, weight, bias=None):
        return super().hybrid_forward(F, x, weight, bias)


def test_a_decorated_hybrid_forward_is_a_region():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=6), Decorated(2, in_units=4))
    net.initialize()
    assert precisions(convert(net, "O1")) == ["float16", "float32"]


def test_another_error_of_mxnet_passes_as_it_is():
    with pytest.raises(mx.MXNetError, match="dot"), precision("float32"):
        mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).asnumpy()


class Failing(nn.HybridSequential):
    fail = False

    def hybrid_forward(self, F, x):
        if F is mx.nd and self.fail:
            raise ValueError("stop")
        return super().hybrid_forward(F, x)


def test_an_error_in_the_net_as_written_leaves_it_converted():
    net = Failing()
    net.add(nn.Dense(3, in_units=6))
    net.initialize()
    net.hybridize()
    converted = values(convert(net, "O1"))
    net.fail = True
    with pytest.raises(ValueError, match="stop"), autograd.record():
        values(net, "float32")
    assert net[0]._active and np.array_equal(values(net), converted)


def test_a_region_without_a_converted_net_warns():
    net = mlp()
    with pytest.warns(UserWarning, match=r"precision\('float32'\): no converted net was called within this region"):
        values(net, "float32")
    values(convert(net, "O1"), "float32")
    with precision("low"), precision("float32"):
        mx.sym.relu(mx.sym.var("data"))


def test_coroutines_have_regions_of_their_own():
    net, order = convert(mlp(), "O1"), []
    outside = values(net)

    async def within(region):
        with precision(region):
            await asyncio.sleep(0)
            order.append(region)
            outputs = values(net)
            await asyncio.sleep(0)
            assert current_region() == region
            return outputs

    async def main():
        return await asyncio.gather(within("float32"), within("low"), within("float32"))

    exact, low, again = asyncio.run(main())
    assert order == ["float32", "low", "float32"] and np.array_equal(exact, again) and not np.array_equal(exact, low)
    assert current_region() is None and np.array_equal(values(net), outside)
    assert net(mx.sym.var("data")).attr("__mxmp_precision__") is None
