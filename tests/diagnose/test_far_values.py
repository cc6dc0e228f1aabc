"""What a verdict says of values that are far out of range, of parameters, and of scaled gradients."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.diagnose import Verdict, explain, find_nonfinite

X, LABELS = mx.nd.array(np.linspace(-1, 1, 48).reshape(8, 6)), mx.nd.arange(8) % 4
SOFTMAX, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()


def dense(weight):
    net = gluon.nn.Dense(4, in_units=6, prefix="net_")
    net.initialize(mx.init.Constant(weight))
    return net


def layers(weight):
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(32, in_units=6, activation="relu"), gluon.nn.Dense(1, in_units=32))
    net.initialize(mx.init.Constant(weight))
    return net


@pytest.mark.parametrize("weight", [1e30, 1e5])
def test_a_parameter_out_of_float16s_range_is_a_fault_of_parameters(weight):
    verdict = explain(dense(weight), (X, LABELS), "O1", loss=SOFTMAX)

    assert (verdict.kind, verdict.node.where, verdict.node.name) == ("parameters", "parameter", "net_weight")
    assert f"parameter 'net_weight' is inf in float16 in 24 of 24 elements: it reaches {weight:.4g}" in verdict.text


def test_overrides_keep_what_reads_a_parameter_out_of_range_in_float32():
    overrides = explain(dense(1e5), (X, LABELS), "O1", loss=SOFTMAX).overrides

    assert overrides == "name:net_fwd=float32"
    assert explain(dense(1e5), (X, LABELS), f"O1,{overrides}", loss=SOFTMAX).kind == "no fault found"


@pytest.mark.parametrize(
    ("net", "inputs", "loss", "policy", "diverged"),
    [
        (dense(1.0), X * 1e30, SOFTMAX, "O1", False),  # data
        (layers(1e25), X + 2, L2, "O0", True),
        (layers(200.0), X + 2, L2, "O1", True),  # gradients beyond 64 times float16's range
        (layers(6e4), X + 2, lambda out, y: SOFTMAX(out, y * 0), "O1", True),  # outputs
        (dense(3e3), X * 30, SOFTMAX, "O1", False),
    ],
)
def test_values_far_out_of_range_are_said_to_be_those_of_a_run_that_diverges(net, inputs, loss, policy, diverged):
    verdict = explain(net, (inputs, LABELS), policy, loss=loss)

    assert verdict.kind == ("activation out of range" if policy == "O1" else "float32 model broken")
    assert ("a run that diverges" in verdict.text) is diverged
    assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_a_gradient_in_float32_is_said_at_the_loss_scale_of_the_one_beside_it():
    scale = 2.0**18
    found = find_nonfinite(dense(0.1), (X, LABELS), "O1", loss=SOFTMAX, loss_scale=scale)

    # Softmax of equal logits: the gradient of a right class is 1/4 - 1
    assert found.where == "backward"
    assert found.float32.magnitude == pytest.approx(0.75 * scale, rel=1e-3)
    assert found.inputs[0].magnitude == pytest.approx(found.float32.magnitude, rel=1e-3)


def test_nan_in_a_label_that_the_loss_clips_is_named_though_the_step_is_finite():
    labels = mx.nd.array([0, 1, np.nan, 2, 3, 0, 1, 2])
    verdict = explain(dense(0.1), (X, labels), "O1", loss=SOFTMAX)

    assert (verdict.kind, verdict.node.name, verdict.node.rows) == ("data", "label", (2,))
    assert "input 'label' holds NaN in 1 of 8 elements, in row 2" in verdict.text
