"""``precision``: regions around calls and in hybrid_forward, nested, reused, as decorators."""

from __future__ import annotations

import threading
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import PolicyError
from mxmp.gluon import convert, export, precision, report, restore
from mxmp.gluon.precision import current_region

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


def test_the_report_is_of_calls_outside_of_regions():
    net = mlp()
    convert(net, "O1")
    net(X)
    with precision("float32"):
        net(X)
    assert set(precisions(net)) == {"float16"}


def test_export_writes_the_graph_outside_of_regions(tmp_path):
    net = mlp()
    convert(net, "O1")
    net(X)
    with precision("float32"):
        net(X)
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


def test_other_attributes_are_kept():
    with mx.AttrScope(ctx_group="dev1"), precision("float32"):
        assert mx.sym.relu(mx.sym.var("x")).attr("ctx_group") == "dev1"


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


def test_a_region_of_another_low_dtype_is_an_error_at_the_call():
    net = mlp()
    convert(net, "O1")
    with pytest.raises(PolicyError, match="region asks for bfloat16 .* compute_dtype is float16"):
        with precision("bfloat16"):
            net(X)
    assert values(net).shape == (4, 3)


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
