"""Layouts of oneDNN that meet in BatchNorm's backward pass: what is expected of each convolution, and the copies."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.devices.amx import AmxStatus
from mxmp.gluon import convert
from mxmp.passes import Layouts, SeparateLayouts, WidenSlowKernels
from mxmp.passes.cpu.layouts import BLOCKED, DEFAULT, LAST, OWN, Convolution
from mxmp.passes.facts import bfloat16_entries
from mxmp.symbol import rewrite
from tests.passes.graphs import converted

# What oneDNN 2.4.4 gave as (output, gradient) with AMX, and without: DNNL_VERBOSE=1 of a forward and a backward pass.
RECORDED = {
    "3 to 16, 3x3": (Convolution(3, 16), (LAST, DEFAULT), (DEFAULT, DEFAULT)),
    "3 to 16, 1x1": (Convolution(3, 16, pointwise=True), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "8 to 16, 1x1": (Convolution(8, 16, pointwise=True), (BLOCKED, DEFAULT), (BLOCKED, DEFAULT)),
    "8 to 24, 3x3": (Convolution(8, 24), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "16 to 16, 3x3": (Convolution(16, 16), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "16 to 32, 3x3": (Convolution(16, 32), (LAST, LAST), (BLOCKED, BLOCKED)),
    "16 to 32, 1x1": (Convolution(16, 32, pointwise=True), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "16 to 32, 3x3, dilated": (Convolution(16, 32, dilated=True), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "24 to 32, 3x3": (Convolution(24, 32), (LAST, DEFAULT), (DEFAULT, DEFAULT)),
    "24 to 32, 1x1": (Convolution(24, 32, pointwise=True), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "32 to 48, 3x3": (Convolution(32, 48), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "48 to 64, 3x3": (Convolution(48, 64), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "64 to 64, 1x1": (Convolution(64, 64, pointwise=True), (LAST, LAST), (BLOCKED, BLOCKED)),
    "depthwise, 32": (Convolution(1, 1, 32), (BLOCKED, BLOCKED), (BLOCKED, BLOCKED)),
    "depthwise, 24": (Convolution(1, 1, 24), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "32 groups of 4": (Convolution(4, 4, 32), (OWN, OWN), (OWN, OWN)),
    "64 groups, 8 to 16": (Convolution(8, 16, 64), (OWN, OWN), (OWN, OWN)),
    "32 groups of 16": (Convolution(16, 16, 32), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "32 groups of 32": (Convolution(32, 32, 32), (LAST, LAST), (BLOCKED, BLOCKED)),
}


@pytest.mark.parametrize("convolution, with_amx, without", RECORDED.values(), ids=RECORDED.keys())
def test_a_convolution_chooses_the_layouts_that_were_recorded(convolution, with_amx, without):
    assert (convolution.output(amx=True), convolution.gradient(amx=True)) == with_amx
    assert (convolution.output(amx=False), convolution.gradient(amx=False)) == without


def conv(data, channels, kernel=3, groups=1):
    pad = (kernel // 2,) * 2
    return mx.sym.Convolution(
        data, num_filter=channels, kernel=(kernel, kernel), pad=pad, num_group=groups, no_bias=True
    )


def block(data, channels, kernel=3, groups=1):
    return mx.sym.Activation(mx.sym.BatchNorm(conv(data, channels, kernel, groups)), act_type="relu")


def separated(net, amx):
    """Return the operators that copies were put behind or in front of, of a network for 32 channels in."""
    result = converted(net, {"data": (2, 32, 8, 8)}, "mixed_bfloat16")
    layouts = Layouts(bfloat16_entries(result.graph, result.facts), amx)
    widened = WidenSlowKernels(layouts)(result.graph).graph
    graph = SeparateLayouts(layouts)(widened).graph
    added = [node for node in graph.nodes if "_layout_bfloat16" in node.name]
    assert len(graph.nodes) == len(widened.nodes) + 2 * len(added)  # each copy is two casts
    return [node.name.split("_layout_")[0] for node in added]


def chain(*layers):
    """Return a network of blocks of (channels, kernel, groups), and a convolution of 64 channels behind them."""
    with mx.name.NameManager():
        data = mx.sym.Variable("data")
        for layer in layers:
            data = block(data, *layer)
        return conv(data, 64)


@pytest.mark.parametrize(
    "layers, amx, found",
    [
        ([(32, 3, 1), (32, 3, 1)], True, []),  # channels last throughout
        ([(32, 3, 1), (32, 3, 1)], False, []),  # blocks throughout
        ([(16, 3, 1), (16, 3, 1)], True, ["batchnorm0_output"]),  # given channels last, its gradient in blocks
        ([(32, 3, 32), (32, 1, 1)], True, ["batchnorm0_output"]),  # depthwise gives blocks, what follows channels last
        ([(32, 1, 1), (32, 3, 32)], True, ["batchnorm0_output", "batchnorm1_output"]),
        ([(32, 1, 1), (32, 3, 32)], False, []),
        ([(24, 3, 1), (24, 3, 1)], True, []),  # the default layout meets any other
        ([(128, 3, 1), (128, 3, 32), (64, 3, 1)], True, ["batchnorm0_output"]),
    ],
)
def test_copies_come_where_layouts_differ(layers, amx, found):
    assert separated(chain(*layers), amx) == found


def test_operators_that_run_in_float32_between_casts_hide_no_layout():
    with mx.name.NameManager():
        data = mx.sym.relu(conv(mx.sym.Variable("data"), 64))
        net = conv(mx.sym.BatchNorm(conv(data, 32, kernel=1)), 64)
    assert separated(net, amx=False) == []  # blocks throughout


@pytest.mark.parametrize("window", [{"global_pool": True, "kernel": (1, 1)}, {"kernel": (8, 8)}])
def test_pooling_of_whole_images_reads_the_default_layout(window):
    with mx.name.NameManager():
        data = block(mx.sym.Variable("data"), 64)
        net = conv(mx.sym.Pooling(data, pool_type="avg", **window), 32)
    assert separated(net, amx=True) == ["pooling0_input"]


def test_a_batch_norm_in_float32_and_an_unknown_shape_get_no_copies():
    net = chain((32, 3, 32), (32, 1, 1))
    result = converted(net, {"data": (2, 32, 8, 8)}, "mixed_bfloat16,op:BatchNorm=float32")
    assert not SeparateLayouts(Layouts(bfloat16_entries(result.graph, result.facts), True))(result.graph).modified
    assert not SeparateLayouts(Layouts({}, True))(converted(net, {}, "mixed_bfloat16").graph).modified


def test_only_what_trains_gets_copies(monkeypatch):
    result = converted(chain((32, 3, 32), (32, 1, 1)), {"data": (2, 32, 8, 8)}, "mixed_bfloat16")
    monkeypatch.setattr(rewrite, "amx_status", lambda: AmxStatus(True, ""))
    assert not [name for name in result.on_cpu().get_internals().list_outputs() if "_layout_" in name]
    assert [name for name in result.on_cpu(trains=True).get_internals().list_outputs() if "_layout_" in name]


@pytest.mark.bfloat16
@pytest.mark.parametrize("amx", [True, False])
def test_copies_change_no_gradient(monkeypatch, amx):
    """A copy is exact; only the order of sums within BatchNorm's kernels may differ."""
    x = mx.nd.array(np.random.RandomState(0).randn(2, 16, 8, 8))
    found = []
    for separate in (True, False):
        if not separate:
            monkeypatch.setattr(SeparateLayouts, "run", lambda self, graph: graph)
        monkeypatch.setattr(rewrite, "amx_status", lambda: AmxStatus(amx, ""))
        net = nn.HybridSequential()
        net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(32, 3), nn.BatchNorm())
        mx.random.seed(1)
        net.initialize(mx.init.Xavier())
        convert(net, "mixed_bfloat16")
        x.attach_grad()
        with autograd.record():
            loss = (net(x) * x.sum(axis=1, keepdims=True)[:, :, 1:-1, 1:-1]).sum()
        loss.backward()
        found.append(x.grad.asnumpy())
    assert np.abs(found[0] - found[1]).max() <= 0.05 * np.abs(found[1]).max()
