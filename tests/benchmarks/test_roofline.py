"""The estimate on paper: multiply-adds against products of ones, bytes and times against numbers counted by hand."""

from __future__ import annotations

import json
import math

import mxnet as mx
import numpy as np
import pytest

import symbols
from benchmarks import roofline, work
from benchmarks.roofline import CARDS, CASES, Card, estimate, kernels

DATA = mx.sym.var("data")
OTHER = mx.sym.var("other")

# Padding is left out: a product with it has fewer terms at the edges, which is not what is counted.
PRODUCTS = {
    "convolution": (mx.sym.Convolution(DATA, num_filter=6, kernel=(3, 2), stride=(2, 1), no_bias=True), (2, 4, 9, 8)),
    "grouped": (mx.sym.Convolution(DATA, num_filter=6, kernel=(3, 3), num_group=2, no_bias=True), (2, 4, 9, 8)),
    "dilated": (mx.sym.Convolution(DATA, num_filter=3, kernel=(3,), dilate=(2,), no_bias=True), (2, 4, 9)),
    "deconvolution": (
        mx.sym.Deconvolution(DATA, num_filter=6, kernel=(3, 2), stride=(2, 1), no_bias=True),
        (2, 4, 5, 3),
    ),
    "grouped deconvolution": (mx.sym.Deconvolution(DATA, num_filter=6, kernel=(2, 2), num_group=2), (2, 4, 5, 3)),
    "fully connected": (mx.sym.FullyConnected(DATA, num_hidden=5, no_bias=True), (3, 4, 2)),
    "each row": (mx.sym.FullyConnected(DATA, num_hidden=5, flatten=False, no_bias=True), (3, 4, 2)),
    "dot": (mx.sym.dot(DATA, OTHER, transpose_b=True), (3, 4), (5, 4)),
    "batch_dot": (mx.sym.batch_dot(DATA, OTHER, transpose_a=True), (2, 4, 3), (2, 4, 5)),
    "gemm2": (mx.sym.linalg.gemm2(DATA, OTHER, transpose_b=True), (2, 3, 4), (2, 5, 4)),
    # Heads of one unit: the scores are divided by its square root.
    "scores": (mx.sym.contrib.interleaved_matmul_selfatt_qk(DATA, heads=2), (5, 3, 6)),
    "mix": (mx.sym.contrib.interleaved_matmul_selfatt_valatt(DATA, OTHER, heads=2), (5, 3, 12), (6, 5, 5)),
}


def counted(symbol, *shapes, policy="O0"):
    return kernels(symbol, dict(zip(("data", "other"), shapes)), policy)


@pytest.mark.parametrize("name", PRODUCTS)
def test_multiply_adds_are_the_sum_of_a_product_of_ones(name):
    """Each multiply-add of ones adds 1 to the output."""
    symbol, *shapes = PRODUCTS[name]
    known = dict(zip(("data", "other"), shapes))
    bound = symbol.simple_bind(mx.cpu(), grad_req="null", **known)
    for array in bound.arg_arrays:
        array[:] = 1
    (forward,) = [kernel for kernel in counted(symbol, *shapes) if kernel.phase == work.FORWARD]
    assert forward.macs == bound.forward()[0].sum().asscalar() > 0


@pytest.mark.parametrize("mode, bidirectional", [("lstm", False), ("gru", True), ("rnn_tanh", False)])
def test_an_rnn_multiplies_each_weight_at_each_step(mode, bidirectional):
    layer = {"lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU, "rnn_tanh": mx.gluon.rnn.RNN}[mode]
    options = {"activation": "tanh"} if mode == "rnn_tanh" else {}
    net = layer(6, num_layers=2, bidirectional=bidirectional, input_size=5, **options)
    weights = sum(np.prod(param.shape) for param in net.collect_params().values() if len(param.shape) == 2)
    symbol = mx.sym.RNN(
        DATA, state=mx.sym.zeros((4 if bidirectional else 2, 3, 6)), parameters=mx.sym.var("p"), mode=mode,
        state_size=6, num_layers=2, bidirectional=bidirectional,
        **({"state_cell": mx.sym.zeros((2, 3, 6))} if mode == "lstm" else {}),
    )  # fmt: skip
    found = counted(symbol, (7, 3, 5))
    assert sum(kernel.macs for kernel in found if kernel.phase == work.FORWARD) == 7 * 3 * weights


def test_networks_have_the_multiply_adds_that_are_known_of_them():
    """4.1e9 an image for ResNet-50 with strides in the 3x3; BERT base: 12 h^2 a token and layer, and the attention."""
    resnet = CASES["ResNet-50, 64"]
    forward = [k for k in kernels(symbols.get_symbol(resnet.network), resnet.shapes, "O0") if k.phase == work.FORWARD]
    assert sum(kernel.macs for kernel in forward) / 64 == pytest.approx(4.1e9, rel=0.01)
    bert = CASES["BERT base, 32"]
    forward = [k for k in kernels(symbols.get_symbol(bert.network), bert.shapes, "O0") if k.phase == work.FORWARD]
    layers = 32 * 128 * 12 * (12 * 768**2 + 2 * 128 * 768)
    assert sum(kernel.macs for kernel in forward) == layers + 32 * (768**2 + 2 * 768)  # pooler and classifier


@pytest.mark.parametrize("policy", ["O0", "O1", "O2"])
def test_a_step_of_resnet50_calls_as_many_convolutions_as_the_record_of_one(policy):
    """As recorded: 53 forward, 53 gradients of weights and 52 of data; 3 products of the last layer."""
    case = CASES["ResNet-50, 64"]
    found = [k for k in kernels(symbols.get_symbol(case.network), case.shapes, policy) if k.macs]
    phases = {phase: sum(k.launches for k in found if k.phase == phase) for phase in (work.FORWARD, work.BACKWARD)}
    assert phases == {work.FORWARD: 53 + 1, work.BACKWARD: 53 + 52 + 2}


def two_layers():
    hidden = mx.sym.Activation(mx.sym.FullyConnected(DATA, num_hidden=16, name="one"), act_type="relu", name="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=2, name="two"), name="softmax")


WEIGHTS = 16 * 8 + 16 + 2 * 16 + 2


def test_the_bytes_of_a_step_in_float32():
    """By hand, of 4 rows of 8 numbers: the first layer has no gradient of its data."""
    found = {}
    for kernel in kernels(two_layers(), {"data": (4, 8), "softmax_label": (4,)}, "O0"):
        found.setdefault((kernel.name, kernel.phase), []).append(kernel[2:])
    one, two = 32 + 16 * 8 + 16 + 64, 64 + 2 * 16 + 2 + 8
    assert found == {
        ("one", "forward"): [(4 * 8 * 16, 4 * one, "tf32", 1)],
        ("one", "backward"): [(4 * 8 * 16, 4 * one, "tf32", 1), (0, 4 * (16 + 64), "float32", 1)],  # weight, bias
        ("relu", "forward"): [(0, 4 * 2 * 64, "float32", 1)],
        ("relu", "backward"): [(0, 4 * 3 * 64, "float32", 1)],
        ("two", "forward"): [(4 * 16 * 2, 4 * two, "tf32", 1)],
        ("two", "backward"): [(2 * 4 * 16 * 2, 2 * 4 * two, "tf32", 2), (0, 4 * (2 + 8), "float32", 1)],
        ("softmax", "forward"): [(0, 4 * (8 + 4 + 8), "float32", 1)],
        ("softmax", "backward"): [(0, 4 * (8 + 8 + 4 + 8), "float32", 1)],
        ("update", "update"): [(0, 4 * 5 * WEIGHTS, "float32", 1)],  # weight and momentum twice, gradient
    }


@pytest.mark.parametrize("policy, item, update", [("O1", 4, 24), ("O2", 2, 22)])
def test_mixed_precision_halves_the_bytes_of_products_and_checks_the_gradients(policy, item, update):
    shapes = {"data": (4, 8), "softmax_label": (4,)}
    plain, mixed = (kernels(two_layers(), shapes, name) for name in ("O0", policy))
    for name in ("one", "relu", "two"):
        before, after = ([k for k in found if k.name == name] for found in (plain, mixed))
        assert [k.moved for k in before] == [2 * k.moved for k in after]
        assert [k.macs for k in before] == [k.macs for k in after]
        assert all(k.peak == work.FLOAT16 for k in after if k.macs)
    assert mixed[-1].moved == update * WEIGHTS and mixed[-1].launches == plain[-1].launches + 1
    names = [k.name for k in mixed if k.phase == work.FORWARD]
    assert any("one_weight_cast" in name for name in names) == (item == 4)  # O2 stores what O1 casts


@pytest.mark.parametrize("policy, launches", [("O0", 41), ("O1", 3 + 1), ("O1,loss_scale=none", 3)])
def test_weights_are_updated_together(policy, launches):
    """ResNet-50 has 161: MXNet updates 4 in a launch, mxmp 60, and checks the gradients for a loss scale."""
    case = CASES["ResNet-50, 64"]
    assert kernels(symbols.get_symbol(case.network), case.shapes, policy)[-1].launches == launches


def test_gradients_of_several_readers_are_added():
    """The ReLU's output is read by three."""
    net = mx.sym.Activation(mx.sym.FullyConnected(DATA, num_hidden=4, name="one"), act_type="relu", name="relu")
    net = mx.sym.add_n(net, mx.sym.exp(net), mx.sym.square(net))
    found = [kernel for kernel in counted(net, (2, 3)) if kernel.name == "relu_output"]
    assert [kernel.moved for kernel in found] == [4 * 4 * 8]


def test_an_embedding_reads_rows_and_writes_a_whole_gradient():
    net = mx.sym.Embedding(DATA, input_dim=100, output_dim=4, name="embed")
    forward, backward = [kernel for kernel in counted(net, (2, 3)) if kernel.name == "embed"]
    assert (forward.moved, backward.moved) == (4 * 2 * 24, 4 * (24 + 400))


def test_no_gradient_passes_what_stops_it():
    net = mx.sym.BlockGrad(mx.sym.FullyConnected(DATA, num_hidden=4, name="one"))
    assert {kernel.phase for kernel in counted(mx.sym.exp(net), (2, 3)) if kernel.phase != work.UPDATE} == {"forward"}


def test_a_kernel_takes_as_long_as_the_slower_of_its_two_sides():
    card = Card(float32=1e9, tf32=1.6e9, float16=4e9, bandwidth=1e6, source="")
    products = work.Kernel("a", work.FORWARD, 10**9, 10**6)
    copies = work.Kernel("b", work.FORWARD, 0, 3 * 10**6, launches=2)
    times = {peak: estimate([products._replace(peak=peak)], card, 0) for peak in ("float32", "tf32", "float16")}
    assert times == {"float32": 2.0, "tf32": 1.25, "float16": 1.0}
    assert estimate([copies], card, 0) == 3.0
    assert estimate([products, copies], card, 0.25) == pytest.approx(5.75)


def test_a_fused_rnn_in_float16_takes_no_tensor_cores():
    """MXNet asks cuDNN for its default math then (rnn-inl.h)."""
    case = CASES["LSTM, 32"]
    symbol = symbols.get_symbol(case.network, **case.arguments)
    for policy, peak in {"O0": "tf32", "O1,op:RNN=float16": "float32"}.items():
        found = kernels(symbol, case.shapes, policy)
        assert {k.peak for k in found if k.macs and k.name == "lstm_rnn"} == {peak}
        assert {k.peak for k in found if k.macs and k.name == "pred"} == {"tf32" if policy == "O0" else "float16"}


def test_an_operator_that_is_not_counted_is_refused():
    with pytest.raises(ValueError, match=r"node 'sum' \(_linalg_gemm\): what it computes is not counted"):
        counted(mx.sym.linalg.gemm(DATA, OTHER, mx.sym.var("c", shape=(3, 5)), name="sum"), (3, 4), (4, 5))
    loop, _ = mx.sym.contrib.foreach(lambda row, state: (mx.sym.exp(row), state), DATA, [], name="loop")
    with pytest.raises(ValueError, match=r"\(_foreach\): what it computes is not counted"):
        counted(loop, (3, 4))


def test_bfloat16_is_refused():
    with pytest.raises(ValueError, match="policy='mixed_bfloat16': MXNet has no bfloat16 kernels for GPUs"):
        counted(mx.sym.exp(DATA), (2, 3), policy="mixed_bfloat16")


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match=r"node 'exp' \(exp\): its shape is unknown"):
        kernels(mx.sym.exp(DATA, name="exp"), {}, "O0")


def test_cards_are_those_of_their_data_sheets():
    """The tensor cores of V100 and T4 do 8 times as much as float32, those of A100 16 times, in TF32 8 times."""
    for name, ratios in {"V100": (8, 8), "T4": (8, 8), "A100": (16, 2), "A100, no TF32": (16, 16)}.items():
        card = CARDS[name]
        assert (card.float16 / card.float32, card.float16 / card.tf32) == pytest.approx(ratios, rel=0.02)
        assert CARDS[name].source.startswith("https://") and "nvidia.com" in CARDS[name].source


def test_roofline_writes_seconds_table_and_plot(tmp_path, capsys):
    assert roofline.main(["--networks", "LSTM, 32", "--latency", "0", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "roofline.json").read_text())
    seconds, totals = result["seconds"]["LSTM, 32"]["T4"], result["totals"]["LSTM, 32"]
    assert seconds["O1"] < seconds["float32"] and result["latency"] == 0
    # At least as long as all bytes, and as all multiply-adds, take.
    card, total = CARDS["T4"], totals["float32"]
    assert seconds["float32"] >= max(total["bytes"] / card.bandwidth, 2 * total["multiply_adds"] / card.float32)
    assert math.isclose(totals["O1"]["multiply_adds"], total["multiply_adds"])
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert "nobody has measured" in " ".join(capsys.readouterr().out.split())
