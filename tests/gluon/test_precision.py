"""``precision``: regions around calls and in hybrid_forward, nested, reused, as decorators."""

from __future__ import annotations

import asyncio
import contextvars
import threading
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


def values(net, x=X):
    return net(x).asnumpy()


def precisions(net):
    return [row.precision for row in report(net).rows]


@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("policy", ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_region_around_a_call_holds_for_that_call(first, policy, recorded):
    net = mlp()
    exact = values(net)
    convert(net, policy)
    for turn in (0, 1, 2, 3):
        inside = (turn % 2 == 0) == (first == "inside")
        with precision("float32" if inside else "policy"), autograd.record() if recorded else autograd.pause():
            found = values(net)
        assert np.array_equal(found, exact) == inside


def test_report_and_export_are_of_calls_outside_of_regions(tmp_path):
    net = mlp()
    convert(net, "O1")
    net(X)
    with precision("float32"):
        net(X)
    assert set(precisions(net)) == {"float16"}
    symbol, _ = export(net, str(tmp_path / "net"))
    assert '"Cast"' in Path(symbol).read_text()


def test_converting_within_a_region_is_as_outside():
    net = mlp()
    with precision("float32"):
        convert(net, "O1")
    assert set(precisions(net)) == {"float16"}


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_a_region_of_a_net_with_low_parameters(first):
    """The net's float16 parameters are read in float32 within the region."""
    net = mlp()
    convert(net, "O2")
    if first == "outside":
        net(X)
    with precision("float32"):
        within = values(net)
    outside = values(net)
    stored = {name: p.data().astype("float32") for name, p in net.collect_params().items()}
    reference = mlp(prefix=net.prefix)
    for name, param in reference.collect_params().items():
        param.set_data(stored[name])
    expected = values(reference)
    assert not np.array_equal(outside, expected)
    with precision("float32"):
        again = values(net)
    np.testing.assert_array_equal(again, expected)
    if first == "outside":
        np.testing.assert_array_equal(within, expected)


class Late(gluon.HybridBlock):
    """Its input cannot be guessed, so that conversion waits for the first call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
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
        outside = net([X]).asnumpy()
        np.testing.assert_allclose(within, outside, atol=1e-3)
    assert np.dtype(net.out.weight.dtype) == np.float16 and not np.array_equal(within, outside)


@pytest.fixture
def soft():
    """A net of which 'low' would store more parameters in float16 than the policy does."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    norm = nn.LayerNorm(in_channels=32, gamma_initializer=mx.init.Uniform(1))
    net.add(nn.Dense(32, in_units=6), norm, nn.Dense(16, in_units=32))
    net.initialize(mx.init.Xavier())
    return convert(net, "O2")


def stored(net):
    return {name: np.dtype(param.dtype).name for name, param in net.collect_params().items()}


def low_call(net):
    with precision("low"):
        return values(net)


def test_a_low_region_stores_nothing(soft):
    before = stored(soft)
    outside = values(soft)
    assert stored(soft) == before and set(before.values()) == {"float16", "float32"}
    assert not np.array_equal(low_call(soft), outside)
    assert stored(soft) == before and np.array_equal(values(soft), outside)


def test_a_first_call_in_a_low_region_stores_what_the_policy_wants(soft):
    low_call(soft)
    reference = {name: "float32" if "layernorm" in name else "float16" for name in stored(soft)}
    assert stored(soft) == reference


def test_an_existing_trainer_goes_on_after_a_low_region(soft):
    """Losses in regions train too, and the trainer's optimizer keeps its states."""
    trainer = Trainer(soft.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, loss_scale=8)
    for region in ("policy", "low", "policy"):
        before = [param.data().asnumpy() for param in soft.collect_params().values()]
        with autograd.record():
            with precision(region):
                loss = soft(X).square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        assert trainer.step(1)
        weights = [param.data().asnumpy() for param in soft.collect_params(".*weight").values()]
        assert not any(np.array_equal(a, b) for a in weights for b in before if a.shape == b.shape)


def test_one_record_may_hold_both_kinds_of_calls(soft):
    """The gradients of both calls reach every parameter."""

    def gradients(*calls):
        with autograd.record():
            sum(call().sum() for call in calls).backward()
        return [param.grad().asnumpy().astype("float32") for param in soft.collect_params().values()]

    def outside():
        return soft(X)

    def inside():
        with precision("low"):
            return soft(X)

    both = gradients(outside, inside)
    for total, first, second in zip(both, gradients(outside), gradients(inside)):
        np.testing.assert_allclose(total, first + second, rtol=2e-3, atol=2e-3)


def test_export_after_a_low_region_writes_the_policys_graph(soft, tmp_path):
    def written(name):
        symbol, params = export(soft, str(tmp_path / name))
        return Path(symbol).read_text(), {
            name: (a.dtype, a.asnumpy().tobytes()) for name, a in mx.nd.load(params).items()
        }

    values(soft)
    before = written("before")
    low_call(soft)
    assert written("after") == before


def test_export_needs_a_call_outside_of_regions(soft, tmp_path):
    low_call(soft)
    with pytest.raises(ConvertError, match="block 'net' has not been called yet outside of precision regions"):
        export(soft, str(tmp_path / "net"))


def test_a_symbol_block_follows_the_region():
    net = mlp()
    exact = values(net)
    block = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=net.collect_params())
    convert(block, "O1")
    assert not np.array_equal(values(block), exact)
    with precision("float32"), autograd.record():
        assert np.array_equal(values(block), exact)
    assert not np.array_equal(values(block), exact)


class Fan(gluon.Block):
    """A plain block with a region around one of the blocks in it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
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
    found = [out.asnumpy() for out in net(X)]
    assert [np.array_equal(a, b) for a, b in zip(found, exact)] == [False, True]


@pytest.mark.behaviour("nested policies")
@pytest.mark.parametrize(
    "outer, inner, expected",
    [
        ("float32", "low", ["float32", "float16", "float32"]),
        ("low", "float32", ["float16", "float32", "float16"]),
        ("float32", "policy", ["float32", "float16", "float32"]),
    ],
)
def test_regions_nest_and_the_innermost_decides(outer, inner, expected):
    class Nested(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            with precision(outer):
                x = F.dot(x, x)
                with precision(inner):
                    x = F.dot(x, x)
                return F.dot(x, x)

    net = Nested()
    convert(net, "O1")
    net(mx.nd.ones((2, 2)))
    assert precisions(net) == expected


def test_policy_switches_a_region_off_again():
    """Within 'policy' the rules decide: softmax stays float32, where 'low' would force it."""

    class Off(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            with precision("float32"), precision("policy"):
                return F.softmax(F.dot(x, x))

    net = Off()
    convert(net, "O1")
    net(mx.nd.ones((2, 2)))
    assert precisions(net) == ["float16", "float32"]


@pytest.mark.filterwarnings("ignore:precision:UserWarning")
def test_one_object_is_entered_twice_and_nested():
    region, other = precision("float32"), precision("low")
    for _ in range(2):
        with region:
            with other, region:
                assert current_region() == "float32"
            with region, other:
                assert current_region() == "low"
            assert current_region() == "float32"
        assert current_region() is None


def test_a_region_ends_with_an_exception():
    with pytest.raises(ValueError, match="stop"):
        with precision("float32"):
            raise ValueError("stop")
    assert current_region() is None


def test_regions_are_of_one_thread():
    found = []
    region = precision("float32")

    def look():
        with precision("low"):
            found.append(current_region())
        found.append(current_region())

    with region:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert current_region() == "float32"
    assert found == ["low", None]


@pytest.mark.parametrize("region, other", [("float32", "policy"), ("policy", "float32")])
def test_a_thread_is_given_the_graph_of_its_own_region(region, other, monkeypatch):
    """The first thread is held up where its call has chosen a graph and not run it yet."""
    net = mlp()
    exact = values(net)
    convert(net, "O1")
    chosen, finished, found = threading.Event(), threading.Event(), {}
    first = threading.current_thread()

    def holding_up(data):
        def hold_up(*args):
            if threading.current_thread() is first:
                chosen.set()
                finished.wait(0.2)  # in vain, if the other call has to wait for this one
            return data(*args)

        return hold_up

    def call(region):
        with precision(region):
            found[region] = values(net)

    def call_meanwhile():
        chosen.wait(10)
        call(other)
        finished.set()

    for each in (region, other):
        call(each)
    for owner in (gluon.Parameter,):
        monkeypatch.setattr(owner, "data", holding_up(owner.data))
    thread = threading.Thread(target=call_meanwhile)
    thread.start()
    call(region)
    thread.join()
    assert chosen.is_set() and finished.is_set()
    assert np.array_equal(found["float32"], exact) and not np.array_equal(found["policy"], exact)


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
    net = mlp()
    exact = values(net)
    convert(net, "O1")

    @precision("float32")
    def evaluate(x):
        """Say so."""
        return values(net, x)

    assert evaluate.__name__ == "evaluate" and evaluate.__doc__ == "Say so."
    for _ in range(2):
        assert np.array_equal(evaluate(X), exact) and not np.array_equal(values(net), exact)


def generator(x):
    yield values(mlp(), x)


async def coroutine(x):
    return values(mlp(), x)


async def asynchronous_generator(x):
    yield values(mlp(), x)


LAZY = [generator, coroutine, asynchronous_generator]


class Decorated(nn.Dense):
    @precision("float32")
    def hybrid_forward(self, F, x, weight, bias=None):
        return super().hybrid_forward(F, x, weight, bias)


def test_a_decorated_hybrid_forward_is_a_region():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=6), Decorated(2, in_units=4))
    net.initialize()
    convert(net, "O1")
    assert precisions(net) == ["float16", "float32"]


def test_another_error_of_mxnet_passes_as_it_is():
    with pytest.raises(mx.MXNetError, match="dot"):
        with precision("float32"):
            mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).asnumpy()


def test_an_error_in_the_net_as_written_leaves_it_converted():
    class Failing(gluon.HybridBlock):
        fail = False

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.inner = nn.Dense(3, in_units=6)

        def hybrid_forward(self, F, x):
            if F is mx.nd and self.fail:
                raise ValueError("stop")
            return self.inner(x)

    net = Failing()
    net.initialize()
    net.hybridize()
    convert(net, "O1")
    converted = values(net)
    net.fail = True
    with pytest.raises(ValueError, match="stop"), precision("float32"), autograd.record():
        net(X)
    assert net.inner._active and np.array_equal(values(net), converted)


def test_restore_after_a_region():
    net = mlp()
    exact, before = values(net), set(vars(net))
    convert(net, "O1")
    with precision("float32"), autograd.record():
        net(X)
    restore(net)
    assert set(vars(net)) == before and np.array_equal(values(net), exact)


class OfList(gluon.HybridBlock):
    """A block whose inputs cannot be guessed from its signature."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=3)

    def hybrid_forward(self, F, inputs):
        return self.dense(inputs[0] + inputs[1])


def test_storage_is_the_policys_though_a_region_came_first():
    net = OfList()
    net.initialize()
    convert(net, "O2")
    x = [mx.nd.ones((2, 3)), mx.nd.ones((2, 3))]
    with autograd.record(), precision("float32"):
        net(x)
    assert net.dense.weight.data().dtype == np.float16
    with autograd.record():
        net(x)
    assert net.dense.weight.data().dtype == np.float16


def test_a_region_without_a_converted_net_warns():
    net = mlp()
    with pytest.warns(UserWarning, match=r"precision\('float32'\): no converted net was called within this region"):
        with precision("float32"):
            net(X)
    convert(net, "O1")
    with precision("float32"):
        net(X)
    with precision("low"), precision("float32"):
        mx.sym.relu(mx.sym.var("data"))


def test_coroutines_have_regions_of_their_own():
    net, order = mlp(), []
    convert(net, "O1")
    outside = values(net)

    async def within(name, region):
        with precision(region):
            await asyncio.sleep(0)
            order.append(name)
            found = values(net)
            await asyncio.sleep(0)
            assert current_region() == region
            return found

    async def main():
        return await asyncio.gather(within("a", "float32"), within("b", "low"), within("c", "float32"))

    exact, low, again = asyncio.run(main())
    assert order == ["a", "b", "c"] and np.array_equal(exact, again) and not np.array_equal(exact, low)
    assert current_region() is None and np.array_equal(values(net), outside)
    assert net(mx.sym.var("data")).attr("__mxmp_precision__") is None
