"""What the emulation pass writes: where it rounds, and what it leaves alone."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.passes import Emulate
from mxmp.symbol import convert_graph, from_graph
from tests.graph.text import to_text
from tests.passes.oracle import LOW, Run, assert_rounded, few_bits, float16, float16_of_float32, grid

data, weight, other = (mx.sym.var(name) for name in ("data", "weight", "other"))


def emulate(converted):
    """Return the symbol that emulates a conversion."""
    return from_graph(Emulate(converted.facts)(converted.graph).graph)


def emulated_text(symbol, policy=LOW, shapes=None, types=None, params=()):
    """Return the emulated graph, its variables left out."""
    converted = convert_graph(symbol, policy, shapes, types, frozenset(params))
    lines = to_text(Emulate(converted.facts)(converted.graph).graph).splitlines()
    return [line for line in lines if " = null(" not in line]


def test_operators_on_the_grid_get_no_rounding():
    conv = mx.sym.Convolution(data, weight, kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    pooled = mx.sym.Pooling(mx.sym.relu(conv, name="relu"), kernel=(2, 2), pool_type="max", name="pool")
    parts = mx.sym.SliceChannel(mx.sym.Flatten(pooled, name="flat"), num_outputs=2, name="parts")
    symbol = mx.sym.FullyConnected(parts[0], other, num_hidden=2, no_bias=True, name="fc")
    assert emulated_text(symbol, shapes={"data": (2, 3, 8, 8)}) == [
        "data_cast_float16_as_float16 = Cast(data) {dtype: float16}",
        "data_cast_float16_as_float32 = Cast(data_cast_float16_as_float16) {dtype: float32}",
        "weight_cast_float16_as_float16 = Cast(weight) {dtype: float16}",
        "weight_cast_float16_as_float32 = Cast(weight_cast_float16_as_float16) {dtype: float32}",
        "conv = Convolution(data_cast_float16_as_float32, weight_cast_float16_as_float32) "
        "{kernel: (3, 3); no_bias: True; num_filter: 4}",
        "conv_as_float16 = Cast(conv) {dtype: float16}",
        "conv_as_float32 = Cast(conv_as_float16) {dtype: float32}",
        "relu = relu(conv_as_float32)",
        "pool = Pooling(relu) {kernel: (2, 2); pool_type: max} x2",
        "flat = Flatten(pool)",
        "parts = SliceChannel(flat) {num_outputs: 2} x2",
        "other_cast_float16_as_float16 = Cast(other) {dtype: float16}",
        "other_cast_float16_as_float32 = Cast(other_cast_float16_as_float16) {dtype: float32}",
        "fc_float16 = FullyConnected(parts, other_cast_float16_as_float32) "
        '{__mxmp_before__: {"name": "fc"}; no_bias: True; num_hidden: 2}',
        "fc_float16_as_float16 = Cast(fc_float16) {dtype: float16}",
        "fc = Cast(fc_float16_as_float16) {dtype: float32}",
        "return fc",
    ]


def test_float16_parameters_are_read_and_get_float16_gradients(rng):
    x, w = few_bits(rng, 4, 8), few_bits(rng, 3, 8)
    symbol = mx.sym.FullyConnected(data, weight, num_hidden=3, no_bias=True)
    head = few_bits(rng, 4, 3)
    found = Run(symbol, {"data": x, "weight": w}, Policy.parse("O2"), [head], wrt=("weight",), params=("weight",))
    assert found.inputs["weight"].dtype == np.float16
    assert found.outputs[0].dtype == np.float32
    assert_rounded(found.outputs[0], x @ w.T)
    assert found.grads["weight"].dtype == np.float16
    assert_rounded(found.grads["weight"], head.T @ x)


def test_float16_outputs_are_float16_arrays(rng):
    x, w = few_bits(rng, 4, 8), few_bits(rng, 3, 8)
    symbol = mx.sym.FullyConnected(data, weight, num_hidden=3, no_bias=True, name="fc")
    policy = Policy(compute_dtype="float16", output_dtype="float16")
    head = few_bits(rng, 4, 3)
    found = Run(symbol, {"data": x, "weight": w}, policy, [head], wrt=("weight",))
    assert found.outputs[0].dtype == np.float16
    assert_rounded(found.outputs[0], x @ w.T)
    assert_rounded(found.grads["weight"], head.T @ x)


NAMED = {
    "cast up": (mx.sym.FullyConnected(data, num_hidden=2, name="fc"), "float32"),
    "float16": (mx.sym.FullyConnected(data, num_hidden=2, name="fc"), "float16"),
    "behind an exact operator": (mx.sym.relu(mx.sym.FullyConnected(data, num_hidden=2), name="act"), "float32"),
    "two outputs": (mx.sym.Group([mx.sym.FullyConnected(data, num_hidden=2, name=n) for n in "ab"]), "float16"),
    "inner tensor": (mx.sym.FullyConnected(data, num_hidden=2, name="fc").get_internals(), "float32"),
    "float32 part": (mx.sym.softmax(mx.sym.FullyConnected(data, num_hidden=2), name="soft"), "float32"),
}


@pytest.mark.parametrize("symbol, dtype", NAMED.values(), ids=NAMED.keys())
def test_outputs_keep_their_names(symbol, dtype):
    types = dict.fromkeys(symbol.list_inputs(), "float32")
    converted = convert_graph(symbol, Policy(compute_dtype="float16", output_dtype=dtype), {"data": (2, 3)}, types)
    emulated = emulate(converted)
    assert emulated.list_outputs() == converted.symbol.list_outputs()
    assert emulated.list_inputs() == converted.symbol.list_inputs()


class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("mxmp_emulate_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Twice()


@pytest.mark.behaviour("custom operators")
def test_an_operator_without_rule_runs_in_float16_itself(rng):
    x = grid(rng, 100)
    low = mx.sym.Cast(data, dtype="float16", name="low")
    symbol = mx.sym.Custom(low, op_type="mxmp_emulate_twice", name="own")
    assert emulated_text(symbol, Policy()) == [
        "low_as_float16 = Cast(data) {dtype: float16}",
        "low_as_float32 = Cast(low_as_float16) {dtype: float32}",
        "low_as_float161 = Cast(low_as_float32) {dtype: float16}",
        "own = Custom(low_as_float161) {op_type: mxmp_emulate_twice}",
        "return own",
    ]
    found = Run(symbol, {"data": x}, Policy()).outputs[0]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x.astype(np.float16) * 2)


def test_narrowing_multicast_rounds_its_wide_inputs(rng):
    x, y = rng.standard_normal((2, 50))
    low = mx.sym.Cast(other, dtype="float16")
    symbol = mx.sym.amp_multicast(data, low, num_outputs=2, cast_narrow=True)
    found = Run(symbol, {"data": x, "other": y}, Policy())
    assert [output.dtype for output in found.outputs] == [np.float16] * 2
    np.testing.assert_array_equal(found.outputs, [float16(x), float16(y)])
    product = mx.sym.elemwise_mul(symbol[0], symbol[1])
    found = Run(product, {"data": x, "other": y}, Policy())
    np.testing.assert_array_equal(found.outputs[0], float16_of_float32(float16(x) * float16(y)))


@pytest.mark.parametrize("policy", [Policy(), Policy.parse("mixed_bfloat16")], ids=["float32", "bfloat16"])
def test_a_graph_without_float16_is_left_alone(policy):
    converted = convert_graph(mx.sym.relu(mx.sym.FullyConnected(data, num_hidden=2)), policy, {"data": (2, 3)})
    result = Emulate(converted.facts)(converted.graph)
    assert not result.modified
    assert result.graph is converted.graph


def test_gradients_behind_a_sum_are_rounded_once(monkeypatch):
    """Sparing a BatchNorm in front of a sum the second rounding of its gradient changes no bit."""
    conv = mx.sym.Convolution(data, weight, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True, name="conv")
    norm = mx.sym.BatchNorm(conv, name="norm", fix_gamma=False)
    again = mx.sym.Convolution(mx.sym.relu(norm + conv), other, kernel=(1, 1), num_filter=2, no_bias=True)

    def run():
        op = convert_graph(again, Policy.parse("O1"), {"data": (2, 3, 8, 8)}).on_cpu()
        mx.random.seed(0)
        shapes, _, aux = again.infer_shape(data=(2, 3, 8, 8))
        shapes = dict(zip(again.list_arguments(), shapes), **dict(zip(again.list_auxiliary_states(), aux)))
        arrays = {name: mx.nd.random.normal(shape=shapes[name]) for name in again.list_inputs()}
        for array in arrays.values():
            array.attach_grad()
        with mx.autograd.record():
            out = mx.nd.CachedOp(op)(*(arrays[name] for name in op.list_inputs()))
        out.backward(out * 300)
        return op, [out.asnumpy(), *(arrays[n].grad.asnumpy() for n in ("data", "weight", "other", "norm_gamma"))]

    monkeypatch.setattr("mxmp.rounding.available", lambda: False)
    spared, values = run()
    monkeypatch.setattr("mxmp.passes.emulate._SUMS", set())
    plain, expected = run()
    assert spared.tojson().count('"BlockGrad"') == 1 and "BlockGrad" not in plain.tojson()
    for found, wanted in zip(values, expected):
        assert np.abs(wanted).max() > 0
        np.testing.assert_array_equal(found, wanted)
