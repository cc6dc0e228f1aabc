"""A channel of zeros in front of the first convolutions in bfloat16; without it is the oracle, in float32."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.devices.amx import AmxStatus
from mxmp.symbol import rewrite, to_graph
from tests.passes.graphs import converted, step, without_rounding

DATA = mx.sym.var("data")
SHAPE = (2, 3, 12, 12)


def layer(data, name="first", channels=16, kernel=(3, 3), **attrs):
    return mx.sym.Convolution(data, num_filter=channels, kernel=kernel, name=name, **attrs)


def network(**attrs):
    return layer(mx.sym.Activation(layer(DATA, **attrs), act_type="relu"), "second")


# Networks that get a channel, and what they read.
PADDED = {
    "three": (network(), SHAPE),
    "seven by seven": (network(kernel=(7, 7), stride=(2, 2), pad=(3, 3)), SHAPE),
    "one": (network(channels=10), (2, 1, 12, 12)),
    "fifteen": (network(kernel=(5, 1), no_bias=True), (2, 15, 12, 12)),
    "two readers": (layer(DATA, "a") + layer(DATA, "b"), SHAPE),
    "the data is an output": (mx.sym.Group([network(), mx.sym.identity(DATA)]), SHAPE),
}
STAYS = {
    "even": (network(), (2, 4, 12, 12)),
    "seventeen": (network(), (2, 17, 12, 12)),
    "1 x 1": (layer(DATA, kernel=(1, 1)), SHAPE),
    "groups": (network(channels=3, num_group=3), SHAPE),
    "one axis": (layer(DATA, kernel=(3,)), (2, 3, 12)),
    "computed in bfloat16": (layer(layer(DATA, channels=3, kernel=(1, 1)), "second"), SHAPE),
    "unknown": (network(), None),
}


def on_cpu(symbol, shape, policy="mixed_bfloat16", **options):
    return converted(symbol, {"data": shape} if shape else {}, policy).on_cpu(**options)


def padded(symbol):
    return [node.name for node in to_graph(symbol).nodes if node.name.endswith("data_padded")]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "param=bfloat16,compute=bfloat16"])
@pytest.mark.parametrize("symbol, shape", PADDED.values(), ids=PADDED)
def test_a_channel_of_zeros_changes_neither_values_nor_gradients(symbol, shape, policy):
    result = converted(symbol, {"data": shape}, policy)
    assert not padded(result.symbol)  # what is reported, saved and counted
    after = result.on_cpu(trains=True)
    assert padded(after) and after.list_arguments() == symbol.list_arguments()
    for batch in (2, 5):
        given = (batch, *shape[1:])
        shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=given)[0]))
        values = {name: np.random.RandomState(0).randn(*each).astype("float32") for name, each in shapes.items()}
        (expected, *_), gradients = step(symbol, values)
        (output, *_), found = step(without_rounding(after), values)
        for one, other in [(expected, output), *((gradients[name], found[name]) for name in gradients)]:
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * np.abs(one).max())


@pytest.mark.parametrize("symbol, shape", STAYS.values(), ids=STAYS)
def test_the_rest_stays(symbol, shape):
    assert not padded(on_cpu(symbol, shape))


def test_other_policies_and_amx_stay(monkeypatch):
    assert not padded(on_cpu(network(), SHAPE, "O1")) and not padded(on_cpu(network(), SHAPE, "float32"))
    monkeypatch.setattr(rewrite, "amx_status", lambda: AmxStatus(True, "made up"))
    assert not padded(on_cpu(network(), SHAPE))


def test_each_of_two_layers_that_share_a_weight_has_its_own():
    weight = mx.sym.var("weight")
    symbol = layer(DATA, "a", weight=weight) * layer(DATA + 1, "b", weight=weight)
    assert len(padded(on_cpu(symbol, SHAPE, trains=True))) == 2
