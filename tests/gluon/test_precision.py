"""``precision``: regions around calls, in nets and in losses; ``set_policy``: blocks with a precision of their own."""

import functools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError, PolicyError
from mxmp.gluon import Trainer, convert, export, precision, report, restore, set_policy
from mxmp.module import Module
from mxmp.symbol import convert_symbol
from tests.freeze import freeze
from tests.gluon.nets import Function, initialized, sequence, started
from tests.gluon.trainer_tools import run_backward

X = mx.nd.array(np.random.RandomState(0).randn(4, 6))


def mlp():
    return started(sequence(nn.Dense(8, in_units=6, activation="tanh"), nn.Dense(3, in_units=8)))


def values(net, region=None):
    if region is None:
        return net(X).asnumpy()
    with precision(region):
        return net(X).asnumpy()


def dtypes(net):
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
    exact = mlp()
    for param, low in zip(exact.collect_params().values(), net.collect_params().values()):
        param.set_data(low.data().astype("float32"))
    assert not np.array_equal(values(net), values(exact))
    np.testing.assert_array_equal(values(net, "float32"), values(exact))


@pytest.mark.parametrize("recorded", [False, True])
def test_the_first_call_of_all_may_be_in_a_region(recorded):
    net = convert(mlp(), "O2")
    for _ in range(2):
        with autograd.record() if recorded else autograd.pause():
            within = values(net, "float32")
        assert net[0].weight.data().dtype == np.float16  # storage is the policy's
        np.testing.assert_allclose(within, values(net), atol=1e-3)
        assert not np.array_equal(within, values(net))


@pytest.fixture
def soft():
    """A net of which 'low' would store more parameters in float16 than the policy does."""
    norm = nn.LayerNorm(in_channels=32, gamma_initializer=mx.init.Uniform(1))
    return convert(started(sequence(nn.Dense(32, in_units=6), norm, nn.Dense(16, in_units=32))), "O2")


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


def test_a_symbol_block_follows_the_region():
    net = mlp()
    block = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=net.collect_params())
    convert(block, "O1")
    for region in ("policy", "float32", "policy"):
        assert np.array_equal(values(block, region), values(net)) == (region == "float32")


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
    def nested(net, F, x):
        with precision(outer):
            x = F.dot(x, x)
            with precision(inner):
                x = F.softmax(F.dot(x, x))
            return F.dot(x, x)

    net = convert(Function(nested), "O1")
    net(mx.nd.ones((2, 2)))
    assert dtypes(net) == expected


def test_one_object_is_entered_twice_and_nested_and_ends_with_an_exception():
    net = mlp()
    exact, converted = values(net), values(convert(net, "O1"))
    region, other = precision("float32"), precision("policy")
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"), region:
            with other, region:
                assert np.array_equal(values(net), exact)
            with region, other:
                assert np.array_equal(values(net), converted)
            assert np.array_equal(values(net), exact)
            raise ValueError("stop")
        assert np.array_equal(values(net), converted)


def test_regions_are_of_one_thread():
    net = mlp()
    exact, converted = values(net), values(convert(net, "O1"))
    with ThreadPoolExecutor() as pool, precision("float32"):
        assert np.array_equal(pool.submit(values, net).result(), converted)
        assert np.array_equal(values(net), exact)


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


def generator(net):
    yield values(net)


async def coroutine(net):
    return values(net)


LATE = {"generator": generator, "coroutine": coroutine, "partial": functools.partial(generator, None)}


@pytest.mark.parametrize("function", LATE.values(), ids=LATE)
def test_a_function_that_runs_after_its_call_is_not_decorated(function):
    with pytest.raises(PolicyError, match="is a generator or coroutine function, which runs after the call; open"):
        precision("float32")(function)


def failing(net, F, x):
    if F is mx.nd and net.fail:
        raise ValueError("stop")
    return net.dense(x)


def test_an_error_in_the_net_as_written_leaves_it_converted():
    net = started(Function(failing, dense=nn.Dense(3, in_units=6)))
    net.hybridize()
    converted = values(convert(net, "O1"))
    net.fail = True
    with pytest.raises(ValueError, match="stop"), autograd.record():
        values(net, "float32")
    assert net.dense._active and np.array_equal(values(net), converted)


# ---------------------------------------------------------------------- set_policy

SQUARE = mx.nd.ones((4, 4))


def dense(prefix):
    return nn.Dense(4, in_units=4, prefix=prefix)


def three():
    return started(sequence(dense("a_"), inner(), dense("d_")))


class PastTheParent(nn.HybridSequential):
    """It calls the blocks within a block of its, never that itself, as detectors do with their features."""

    def hybrid_forward(self, F, x):
        for block in self[0]:
            x = block(x)
        return x


class WithRegion(nn.HybridSequential):
    def hybrid_forward(self, F, x):
        with precision("low"):
            x = self[0](x)
        return self[1](x)


def inner(kind=nn.HybridSequential):
    return sequence(dense("b_"), dense("c_"), prefix="inner_", kind=kind)


def soft_net():
    return Function(lambda net, F, x: F.softmax(F.dot(x, x, name="dot"), name="soft"))


def symbol_block():
    return gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="b"), mx.sym.var("data"))


def low_layers(net, policy="O1", x=SQUARE):
    """Convert a net, and return the names of the nodes that run in float16, and of the others."""
    convert(net, policy)(x)
    rows = report(net).rows
    return [{row.name.replace("_fwd", "") for row in rows if row.precision == each} for each in ("float16", "float32")]


SETTINGS = {
    "param_dtype": "O2",
    "loss_scale": "O1,loss_scale=128",
    "ops": "O1,op:softmax=float16",
    "keep_batchnorm_fp32": "O1,keep_batchnorm_fp32=True",
    "last_layer_fp32": "O1,last_layer_fp32=True",
    "output_dtype": "O1,output_dtype=float16",
}


@pytest.mark.parametrize("field", SETTINGS)
def test_what_only_a_net_can_have_cannot_be_set_for_one_block(field):
    message = f"^set_policy: block 'a': {field}=.* cannot be set for one block; give .* and {field} to the net's policy"
    with pytest.raises(PolicyError, match=message):
        set_policy(dense("a_"), SETTINGS[field])


@pytest.mark.parametrize("policy, dtype", [("mixed_bfloat16", "bfloat16"), ("float32", "float32")])
def test_a_block_in_another_dtype_than_the_net_computes_in_is_refused(policy, dtype):
    net = sequence(set_policy(dense("a_"), "mixed_float16"))
    message = f"^block 'a': set_policy gave it compute_dtype='float16', but the net's policy has '{dtype}'; convert the net with"
    with pytest.raises(PolicyError, match=message):
        convert(net, policy)


@pytest.mark.behaviour("nested policies")
@pytest.mark.parametrize(
    "make, policies, low, high",
    [
        pytest.param(three, {"inner_": "float32"}, {"a", "d"}, {"b", "c"}, id="the blocks in a block"),
        pytest.param(
            three, {"net_": "float32", "inner_": "mixed_float16", "c_": "float32"}, {"b"}, {"a", "c", "d"}, id="innermost"
        ),
        pytest.param(lambda: sequence(dense("a_")), {"net_": "float32"}, set(), {"a"}, id="the net itself"),
        pytest.param(
            lambda: sequence(inner(), kind=PastTheParent), {"inner_": "float32"}, set(), {"b", "c"}, id="past the parent"
        ),
        pytest.param(
            lambda: sequence(inner(WithRegion)), {"inner_": "float32"}, {"b"}, {"c"}, id="a region is further in"
        ),
        pytest.param(soft_net, {"net_": "low"}, {"net_dot", "net_soft"}, set(), id="low forces"),
        pytest.param(soft_net, {"net_": "mixed_float16"}, {"net_dot"}, {"net_soft"}, id="mixed"),
        pytest.param(
            lambda: sequence(dense("a_"), dense("b_"), kind=nn.Sequential),
            {"net_": "float32", "b_": "mixed_float16"}, {"b"}, {"a"}, id="a plain block",
        ),
        pytest.param(symbol_block, {"": "float32"}, set(), {"b"}, id="a SymbolBlock"),
    ],
)  # fmt: skip
def test_blocks_compute_under_their_own_policies(make, policies, low, high):
    net = make()
    net.initialize(force_reinit=True)
    net.apply(lambda block: set_policy(block, policies.get(block.prefix)))
    assert low_layers(net) == [low, high]


@pytest.mark.parametrize("kind", [nn.HybridSequential, PastTheParent])
def test_it_is_further_in_than_a_region_around_the_call(kind):
    net = started(sequence(inner(), kind=kind))
    set_policy(net[0], "float32")
    convert(net, "O1")
    with precision("low"):
        within = net(SQUARE).asnumpy()
    assert np.array_equal(within, net(SQUARE).asnumpy())


@pytest.mark.parametrize(
    "policies, spec, low",
    [
        pytest.param({"inner_": "float32"}, "block:1.0=float16", {"a", "b", "d"}, id="a path further in"),
        pytest.param({"c_": "float32"}, "block:1=float16", {"a", "b", "d"}, id="a path further out"),
        pytest.param({"c_": "float32"}, "block:1*=float16", {"a", "b", "d"}, id="a pattern of both"),
        pytest.param({"inner_": "float32"}, "block:1=float16", {"a", "d"}, id="the same block"),
        pytest.param({"inner_": "mixed_float16"}, "block:1=float32", {"a", "b", "c", "d"}, id="as the policy decides"),
        pytest.param({"inner_": "mixed_float16"}, "op:FullyConnected=float32", set(), id="which decides by operator"),
        pytest.param({"inner_": "float32"}, "op:FullyConnected=float16", {"a", "d"}, id="an operator"),
        pytest.param({"inner_": "float32"}, "name:c_*=float16", {"a", "c", "d"}, id="a name"),
        pytest.param({"a_": "low"}, "name:a_*=float32", {"b", "c", "d"}, id="a name, against low"),
        pytest.param({"inner_": "low"}, "block:b_=float32", {"a", "c", "d"}, id="a prefix further in"),
        pytest.param({"net_": "mixed_float16"}, "block:b_=float32", {"a", "c", "d"}, id="in a block as the policy"),
    ],
)
def test_it_is_an_override_of_the_policy_like_others(policies, spec, low):
    net = three()
    net.apply(lambda block: set_policy(block, policies.get(block.prefix)))
    assert low_layers(net, f"O1,{spec}")[0] == low


def test_reports_and_errors_name_the_block_by_its_path():
    net = three()
    set_policy(net[1][0], "float32")
    low_layers(net)
    assert {row.name: row.reason for row in report(net).rows}["b_fwd"] == "block override '1.0' (set_policy)"
    without_kernel = sequence(dense("a_"), Function(lambda net, F, x: F.linalg.syrk(x, name="syrk")))
    set_policy(started(without_kernel)[1], "low")
    with pytest.raises(PolicyError, match=r"^block override '1' \(set_policy\) asks for float16 at node 'net_syrk'"):
        convert(without_kernel, "O1")(SQUARE)


def test_the_name_of_a_block_may_have_any_characters():
    net = three()
    net.register_child(started(dense("e_")), "x=1,y[0]")
    set_policy(net._children["x=1,y[0]"], "float32")
    assert low_layers(net) == [{"a", "b", "c", "d"}, {"e"}]


def test_a_symbol_block_within():
    block = set_policy(symbol_block(), "float32")
    graph, net = block._cached_graph[1].tojson(), sequence(dense("a_"), block)
    net.initialize()
    assert low_layers(net) == [{"a"}, {"b"}]
    assert block._cached_graph[1].tojson() == graph and "forward" not in vars(block)


def test_a_cell_that_is_unrolled():
    """It cannot be called."""
    cells = [gluon.rnn.RNNCell(4, input_size=4, prefix=prefix) for prefix in ("l_", "r_")]
    layers = {"cell": gluon.rnn.BidirectionalCell(*cells), "out": nn.Dense(4, in_units=16, prefix="out_")}
    net = started(Function(lambda net, F, x: net.out(net.cell.unroll(2, x, merge_outputs=True)[0]), **layers))
    assert low_layers(net, x=mx.nd.ones((2, 2, 4)))[0] > {"l_t0_i2h", "net_stack0", "net_bi_out", "out"}
    set_policy(net.cell, "float32")
    assert low_layers(net, x=mx.nd.ones((2, 2, 4)))[0] == {"out"}
    assert "unroll" not in vars(net.cell)


def test_a_block_that_stands_in_two_places_goes_by_what_calls_it():
    shared = dense("s_")
    net = started(sequence(sequence(shared, prefix="x_"), sequence(shared, prefix="y_")))
    set_policy(net[0], "float32")
    low_layers(net)
    assert [row.precision for row in report(net).rows] == ["float32", "float16"]
    set_policy(shared, "low")
    low_layers(net)
    assert [row.precision for row in report(net).rows] == ["float16", "float16"]


def test_converting_again_takes_notice_of_a_change():
    net = three()
    low_layers(net)
    set_policy(net[0], "float32")
    assert report(net).count == {"float16": 4}  # until it is converted again
    assert low_layers(net) == [{"b", "c", "d"}, {"a"}]
    set_policy(net[0], None)
    assert low_layers(net) == [{"a", "b", "c", "d"}, set()]


def test_restore_leaves_only_the_policies_of_blocks():
    net = set_policy(three(), "float32")
    exact, before = net(SQUARE).asnumpy(), [set(vars(block)) for block in (net, net[0], net[1])]
    convert(net, "O1")(SQUARE)
    restore(net)
    assert [set(vars(block)) for block in (net, net[0], net[1])] == before
    assert np.array_equal(net(SQUARE).asnumpy(), exact)


def test_a_region_in_the_forward_of_a_plain_block_holds_for_the_blocks_that_it_calls():
    class Part(gluon.Block):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, in_units=3)

        def forward(self, x):
            with precision("float32"):
                return self.dense(x)

    net, x = started(Part()), mx.nd.random.normal(shape=(4, 3))
    expected = net(x).asnumpy()
    convert(net, "O1")
    assert np.array_equal(net(x).asnumpy(), expected) and not np.array_equal(net.dense(x).asnumpy(), expected)


# ---------------------------------------------------------------------- Custom operators

HANDED = []  # what MXNet handed to a Custom operator's properties


@mx.operator.register("mxmp_tests_handed")
class _HandedProp(mx.operator.CustomOpProp):
    """Takes any attributes and notes them. One that takes none ends the process if there are any."""

    def __init__(self, **attrs):
        super().__init__(need_top_grad=True)
        HANDED.extend(key for key in attrs if key != "__subgraph_name__")  # MXNet's own, in bodies

    def create_operator(self, ctx, shapes, dtypes):
        return _Handed()


class _Handed(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert in_data[0].dtype == np.float32
        self.assign(out_data[0], req[0], in_data[0])


def custom(F, x):
    return F.Custom(F.dot(x, x), op_type="mxmp_tests_handed")


def in_region(region, F, x):
    with precision(region):
        return custom(F, x)


def in_scope(net, F, x):
    with precision("float32"), mx.AttrScope():
        return custom(F, x)


def in_body(net, F, x):
    return F.contrib.foreach(lambda each, _: (in_region("float32", F, each), []), F.expand_dims(x, axis=0), [])[0]


def around_body(net, F, x):
    with precision("float32"):
        return F.contrib.foreach(lambda each, _: (custom(F, each), []), F.expand_dims(x, axis=0), [])[0]


def custom_block():
    x = mx.sym.var("x")
    return gluon.SymbolBlock(custom(mx.sym, x), x)


CUSTOM = {  # a net, a policy, and the precision of the net's dot
    "a float32 region": (lambda: Function(lambda net, F, x: in_region("float32", F, x)), "O1", "float32"),
    "a low region": (lambda: Function(lambda net, F, x: in_region("low", F, x)), "O1", "float16"),
    "an AttrScope of MXNet": (lambda: Function(in_scope), "O1", "float32"),
    "a body": (lambda: Function(in_body), "O1", "float32"),
    "a region around a body": (lambda: Function(around_body), "O1", "float32"),
    "set_policy": (lambda: set_policy(Function(lambda net, F, x: custom(F, x)), "float32"), "O1", "float32"),
    "a block's override": (lambda: Function(lambda net, F, x: custom(F, x)), "O1,block:net_=float32", "float32"),
    "a SymbolBlock": (lambda: set_policy(custom_block(), "float32"), "O1", "float32"),
}


@pytest.mark.parametrize("make, policy, dot", CUSTOM.values(), ids=CUSTOM)
def test_a_custom_operator_gets_no_attribute_of_mxmp(make, policy, dot):
    net = convert(started(make()), policy)
    assert np.array_equal(net(SQUARE).asnumpy().reshape(4, 4), np.full((4, 4), 4))
    with precision("float32"):
        net(SQUARE).wait_to_read()
    rows = {row.op: row.precision for row in report(net).rows}
    assert rows["dot"] == dot and rows["Custom"] == "as it was"
    assert HANDED == []


def test_a_module_of_a_custom_operator_made_in_a_region():
    with precision("float32"):
        symbol = custom(mx.sym, mx.sym.var("data"))
    module = Module(symbol, label_names=None, policy="O1")
    module.bind([("data", (4, 4))], for_training=False)
    module.init_params()
    module.forward(mx.io.DataBatch([SQUARE]))
    assert (module.get_outputs()[0].asnumpy() == 4).all()
    assert HANDED == [] and module.report.rows[0].precision == "float32"


# ---------------------------------------------------------------------- low precision where an output cannot have it


def parts(F, x):
    """Return an operator's outputs, which have names of their own: ``parts_output0``, as no cast is called."""
    return list(F.SliceChannel(F.relu(x, name="relu"), num_outputs=2, name="parts"))


def parts_in_region(net, F, x):
    with precision("low"):
        return parts(F, x)


def symbol():
    return mx.sym.Group(parts(mx.sym, mx.sym.var("data")))


def net(function=lambda net, F, x: parts(F, x), policy=None):
    return sequence(set_policy(Function(function), policy))


ASKED = {
    "a name, of a net": lambda: convert(net(), "O1", names={"*parts": "float16"})(SQUARE),
    "a block": lambda: convert(net(), "O1", blocks={"0": "float16"})(SQUARE),
    "an operator": lambda: convert(net(), "O1", ops={"SliceChannel": "float16"})(SQUARE),
    "set_policy": lambda: convert(net(policy="low"), "O1")(SQUARE),
    "a region": lambda: convert(net(parts_in_region), "O1")(SQUARE),
    "a name, of a symbol": lambda: convert_symbol(symbol(), "O1,name:parts=float16"),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_low_precision_that_is_asked_for_by_name_and_cannot_be_is_an_error(ask):
    with pytest.raises(PolicyError) as caught:
        ask()
    # The node, the dtype, and what to do: leave it in float32, or have outputs in low precision.
    assert re.search(r"float16 at node '\w*parts' \(SliceChannel\).*float32", str(caught.value))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_is_met_where_outputs_may_be_in_low_precision_and_float32_where_nobody_asks(dtype):
    found = convert(net(), "O1", names={"*parts": dtype}, output_dtype=dtype)
    assert [output.dtype for output in found(SQUARE)] == [np.dtype(dtype)] * 2
    assert {row.op: row.precision for row in report(found).rows}["SliceChannel"] == dtype


def test_a_pattern_that_matches_nothing_is_an_error_within_a_hybridized_net_that_is_not_converted():
    inner = convert(sequence(Function(lambda net, F, x: F.relu(x))), "O1", names={"absent*": "float32"})
    outer = sequence(inner)
    outer.hybridize()
    with pytest.raises(PolicyError, match=r"absent\*"):
        outer(SQUARE)


# ---------------------------------------------------------------------- losses made of gradients (WGAN-GP) within a float32 region


POINTS = np.random.RandomState(0).randn(1, 4, 6).astype("float32")


def critic(net, F, x, first, second):
    """Linear layers of (1, N, in_units) that have right second derivatives, which Dense has in the last layer alone."""
    hidden = F.tanh(F.batch_dot(x, first, transpose_b=True))
    return net.score(F.sigmoid(F.batch_dot(hidden, second, transpose_b=True)))


def make_critic(policy=None, hybridized=False):
    score = nn.Dense(1, in_units=5, flatten=False)
    net = initialized(Function(critic, {"first": (1, 8, 6), "second": (1, 5, 8)}, score=score), mx.init.Xavier())
    net.hybridize(hybridized)
    return convert(net, policy) if policy else net


def penalty_of(net, x):
    with precision("float32"):
        score = net(x)
        (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
    return score, (slope.square().sum(axis=2).sqrt() - 1).square().mean()


def penalty_step(net, trainer):
    x = mx.nd.array(POINTS)
    x.attach_grad()
    with autograd.record():
        score, penalty = penalty_of(net, x)
        loss = score.mean() + 10 * penalty
    run_backward(trainer, loss)
    trainer.step(1)
    return penalty.asscalar()


@pytest.mark.behaviour("gradient penalty")
@pytest.mark.parametrize("hybridized", [False, True], ids=["plain", "hybridized"])
@pytest.mark.parametrize("policy", ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_training_equals_the_float32_net_bit_for_bit(policy, hybridized):
    """A scale of a power of two moves exponents alone."""
    net, reference = make_critic(policy, hybridized), make_critic()
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=1024)
    plain = gluon.Trainer(reference.collect_params(), "adam", {"learning_rate": 0.01})
    net(mx.nd.array(POINTS))  # the low precision graph is there too
    found = [penalty_step(net, trainer) for _ in range(5)]
    assert found == [penalty_step(reference, plain) for _ in range(5)] and found[-1] < found[0]
    values, expected = (freeze([p.data() for p in each.collect_params().values()]) for each in (net, reference))
    assert values == expected


def test_the_loss_itself_may_be_in_low_precision():
    """Gradients add up: those of the score through float16, those of the penalty through float32."""

    def gradients(with_score, with_penalty):
        net, x = make_critic("O1"), mx.nd.array(POINTS)
        x.attach_grad()
        with autograd.record():
            loss = net(x).mean() if with_score else mx.nd.zeros((1,))
            if with_penalty:
                loss = loss + penalty_of(net, x)[1]
        loss.backward()
        return [p.grad().asnumpy() for p in net.collect_params().values()]

    both = gradients(True, True)
    for total, score, penalty in zip(both, gradients(True, False), gradients(False, True)):
        np.testing.assert_allclose(total, score + penalty, rtol=1e-5, atol=1e-7)
    assert any(not np.array_equal(a, b) for a, b in zip(both, gradients(False, True)))
