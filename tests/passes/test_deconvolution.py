"""Transposed convolutions in emulated float16, whose weights are computed, against numpy."""

from __future__ import annotations

import itertools

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_graph
from tests.passes.oracle import EPS32, LOW, Run, assert_rounded, few_bits, float16, grid

NAMES = ("data", "weight", "bias")


def transposed(data, weight, bias, head, stride, pad, adj=None, dilate=None, groups=1):
    """Return a transposed convolution (N, C, ...) and its gradients by data, weight and bias, in float64."""
    rank = data.ndim - 2
    adj, dilate = adj or (0,) * rank, dilate or (1,) * rank
    kernel, filters = weight.shape[2:], weight.shape[1] * groups
    reach = [s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(stride, data.shape[2:], dilate, kernel)]
    inner = (..., *(slice(p, r - p + a) for p, r, a in zip(pad, reach, adj)))
    whole = np.zeros((len(data), filters, *(r + a for r, a in zip(reach, adj))))
    grad = np.zeros_like(whole)
    grad[inner] = head(whole[inner].shape)
    by_data, by_weight = np.zeros(data.shape), np.zeros(weight.shape)
    every = (0, *range(2, rank + 2))
    for group, tap in itertools.product(range(groups), itertools.product(*map(range, kernel))):
        ins = slice(group * len(weight) // groups, (group + 1) * len(weight) // groups)
        outs = slice(group * weight.shape[1], (group + 1) * weight.shape[1])
        starts = [t * d for t, d in zip(tap, dilate)]
        spots = (slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, stride, data.shape[2:]))
        window, values = (slice(None), outs, *spots), weight[(ins, slice(None), *tap)]
        whole[window] += np.einsum("nc...,co->no...", data[:, ins], values)
        by_data[:, ins] += np.einsum("no...,co->nc...", grad[window], values)
        by_weight[(ins, slice(None), *tap)] = np.tensordot(data[:, ins], grad[window], (every, every))
    out = whole[inner]
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * rank)
    return out, grad[inner], {"data": by_data, "weight": by_weight, "bias": grad[inner].sum(every)}


# Shape of the data, of the weight; options.
CASES = {
    "DCGAN": ((2, 8, 4, 4), (8, 4, 4, 4), {"stride": (2, 2), "pad": (1, 1)}),
    "16 channels": ((2, 16, 3, 3), (16, 16, 4, 4), {"stride": (2, 2), "pad": (1, 1)}),
    "one filter": ((2, 3, 4, 5), (3, 1, 3, 3), {"stride": (1, 1), "pad": (1, 1)}),
    "adjusted": ((2, 3, 3, 4), (3, 5, 3, 4), {"stride": (2, 3), "pad": (1, 0), "adj": (1, 2)}),
    "two groups": ((2, 6, 4, 3), (6, 2, 4, 4), {"stride": (2, 2), "pad": (1, 1), "groups": 2}),
    "dilated": ((2, 4, 4, 3), (4, 3, 3, 2), {"stride": (2, 1), "pad": (1, 0), "adj": (1, 0), "dilate": (2, 3)}),
    "dilated groups": ((2, 4, 4, 3), (4, 3, 3, 2), {"stride": (2, 1), "pad": (1, 0), "dilate": (2, 1), "groups": 2}),
    "row": ((2, 4, 5), (4, 6, 4), {"stride": (2,), "pad": (1,), "adj": (1,)}),
    "dilated row": ((2, 4, 5), (4, 6, 3), {"stride": (1,), "pad": (2,), "dilate": (2,)}),
    "volume": ((2, 4, 3, 2, 3), (4, 3, 2, 3, 2), {"stride": (2, 1, 2), "pad": (0, 1, 1), "adj": (1, 0, 1)}),
    "volume of 16 taps": ((1, 2, 2, 3, 2), (2, 3, 2, 4, 2), {"stride": (1, 2, 2), "pad": (0, 1, 0)}),
    "deep volume": ((2, 16, 2, 2, 2), (16, 16, 4, 4, 4), {"stride": (2, 2, 2), "pad": (1, 1, 1)}),
    "volume in groups": ((1, 4, 2, 3, 2), (4, 2, 2, 2, 2), {"stride": (2, 2, 2), "pad": (0, 0, 0), "groups": 2}),
}


def deconvolution(kernel, filters, groups=1, no_bias=False, **options):
    inputs = [mx.sym.var(name) for name in NAMES[: 2 if no_bias else 3]]
    return mx.sym.Deconvolution(
        *inputs, kernel=kernel, num_filter=filters, num_group=groups, no_bias=no_bias, name="up", **options
    )


def drawn(case, rng, bias=False, **more):
    """Return operands of a case, its symbol, and (output, head gradient, gradients) that are expected."""
    shape, kernel, options = CASES[case]
    filters = kernel[1] * options.get("groups", 1)
    values = {"data": few_bits(rng, *shape), "weight": few_bits(rng, *kernel)}
    if bias:
        values["bias"] = few_bits(rng, filters)
    expected = transposed(
        values["data"], values["weight"], values.get("bias"), lambda shape: few_bits(rng, *shape), **options
    )
    return values, deconvolution(kernel[2:], filters, no_bias=not bias, **options, **more), expected


@pytest.mark.parametrize("draw, slack", [(few_bits, 0), (grid, 1024 * 16 * EPS32)], ids=["few bits", "random"])
@pytest.mark.parametrize("shape, kernel, options", CASES.values(), ids=CASES.keys())
def test_it_and_its_gradients_are_right(shape, kernel, options, draw, slack, rng):
    x, w = draw(rng, *shape), draw(rng, *kernel)
    filters = kernel[1] * options.get("groups", 1)
    b = draw(rng, filters)
    out, head, grads = transposed(x, w, b, lambda shape: draw(rng, *shape), **options)
    symbol = deconvolution(kernel[2:], filters, **options)
    found = Run(symbol, {"data": x, "weight": w, "bias": b}, head_grads=[head], wrt=NAMES)
    assert_rounded(found.outputs[0], out, slack)
    for name in NAMES:
        assert_rounded(found.grads[name], grads[name], slack)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_target_shape_does_what_its_padding_does(rank, rng):
    x, w = few_bits(rng, 2, 4, *(3, 4, 2)[:rank]), few_bits(rng, 4, 3, *(4,) * rank)
    stride, pad = (2,) * rank, (1,) * rank
    out, head, grads = transposed(x, w, None, lambda shape: few_bits(rng, *shape), stride, pad, adj=pad)
    symbol = deconvolution((4,) * rank, 3, no_bias=True, stride=stride, target_shape=(7, 9, 5)[:rank])
    found = Run(symbol, {"data": x, "weight": w}, head_grads=[head], wrt=("data", "weight"))
    assert_rounded(found.outputs[0], out)
    assert_rounded(found.grads["weight"], grads["weight"])


@pytest.mark.parametrize("case", ["DCGAN", "dilated", "volume"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_a_cached_graph_trains_and_infers(static, case, rng):
    values, symbol, (out, head, grads) = drawn(case, rng)
    emulated = convert_graph(symbol, LOW, {"data": values["data"].shape}).on_cpu()
    call = mx.nd.CachedOp(emulated, [("static_alloc", static), ("static_shape", static)])
    arrays = {name: mx.nd.array(value) for name, value in values.items()}
    for array in arrays.values():
        array.attach_grad()
    for _ in range(2):
        np.testing.assert_array_equal(call(*(arrays[n] for n in emulated.list_inputs())).asnumpy(), float16(out))
        with mx.autograd.record():
            found = call(*(arrays[n] for n in emulated.list_inputs()))
        found.backward(mx.nd.array(head))
        np.testing.assert_array_equal(found.asnumpy(), float16(out))
        for name, array in arrays.items():
            np.testing.assert_array_equal(array.grad.asnumpy(), float16(grads[name]))


def test_it_works_inside_of_a_loop(rng):
    x, w = few_bits(rng, 3, 2, 4, 3, 3), few_bits(rng, 4, 3, 4, 4)
    options = {"stride": (2, 2), "pad": (1, 1)}

    def body(step, states):
        return mx.sym.Deconvolution(step, mx.sym.var("weight"), kernel=(4, 4), num_filter=3, **options), states

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), [])
    found = Run(out, {"data": x, "weight": w})
    exact = [transposed(each, w, None, np.zeros, **options)[0] for each in x]
    assert "float64" in found.converted.on_cpu().tojson()
    assert_rounded(found.outputs[0], np.stack(exact))
