"""Second derivatives of MXNet 1.9.1 against differences, and the refusal of those that are wrong."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import TrainerError
from mxmp.scaling.recorded_graph import check
from mxmp.scaling.second_derivative import second_derivative_error

F = mx.nd
VALUES = np.random.RandomState(0).uniform(0.3, 0.9, (1, 2, 3)).astype("float32")
FIRST = F.array(np.random.RandomState(1).randn(1, 3, 3))
LAST = F.array(np.random.RandomState(2).randn(1, 1, 3))

RIGHT = {
    "batch_dot": lambda x: F.sin(F.batch_dot(x, FIRST)),
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "exp": F.exp,
    "log": F.log,
    "sqrt": F.sqrt,
    "square": lambda x: F.sin(F.square(x)),
    "abs": lambda x: F.sin(F.abs(x)),
    "elemwise_add": lambda x: F.elemwise_add(F.sin(x), F.cos(x)),
    "add scalar": lambda x: F.sin(x + 1),
    "transpose": lambda x: F.transpose(F.transpose(F.sin(x), axes=(0, 2, 1)), axes=(0, 2, 1)),
}
WRONG = {
    "FullyConnected": lambda x: F.sin(F.FullyConnected(x, FIRST[0], num_hidden=3, no_bias=True, flatten=False)),
    "clip": lambda x: F.clip(F.sin(x), 0, 2),
    "Dropout": lambda x: F.sin(F.Dropout(F.sin(x), p=0.5)),
}


def penalty(function, values, variable):
    """Return the sum of squares of the gradient with respect to ``variable`` of a layer between two products."""
    mx.random.seed(0)
    x, last = F.array(values), LAST.copy()
    leaf = {"x": x, "last": last}[variable]
    x.attach_grad()
    last.attach_grad()
    with autograd.record():
        out = F.batch_dot(function(x), last, transpose_b=True)
        (slope,) = autograd.grad(out, [x], create_graph=True, retain_graph=True)
        return F.square(slope).sum(), leaf


def gradients(function, variable):
    """Return the gradient of the penalty."""
    loss, leaf = penalty(function, VALUES, variable)
    loss.backward()
    return leaf.grad.asnumpy()


def differences(function):
    found = np.zeros_like(VALUES)
    for index in np.ndindex(*VALUES.shape):
        sides = []
        for change in (5e-3, -5e-3):
            moved = VALUES.copy()
            moved[index] += change
            sides.append(penalty(function, moved, "x")[0].asscalar())
        found[index] = (sides[0] - sides[1]) / 1e-2
    return found


def is_right(function):
    expected = differences(function)
    # Of the sum's rounding (1e-7) divided by the difference (1e-2), and of its second order.
    return np.allclose(gradients(function, "x"), expected, rtol=1e-2, atol=2e-3 * np.abs(expected).max() + 1e-3)


@pytest.mark.parametrize("function", RIGHT.values(), ids=RIGHT.keys())
def test_those_that_are_right_are_let_through(function):
    assert is_right(function)
    assert check([penalty(function, VALUES, "x")[0]], scaled=False) is None


@pytest.mark.parametrize("name", WRONG)
def test_those_that_are_wrong_are_refused(name):
    function = WRONG[name]
    assert not gradients(function, "last").any()  # what comes behind it is lost
    assert gradients(RIGHT["tanh"], "last").any()
    with pytest.raises(TrainerError, match=f"second derivatives: in MXNet 1.9.1 those of {name} are wrong"):
        check([mx.nd.ones((1,)), penalty(function, VALUES, "x")[0]], scaled=False)


def test_relu_is_refused():
    with pytest.raises(TrainerError, match="those of relu end the process"):
        check([penalty(lambda x: F.relu(F.sin(x)), VALUES, "x")[0]], scaled=False)


def test_a_last_layer_may_be_fully_connected():
    x, weight = F.ones((2, 3)), F.array([[1.0, 2.0, 3.0]])
    x.attach_grad()
    weight.attach_grad()
    with autograd.record():
        out = F.FullyConnected(x, weight, num_hidden=1, no_bias=True)
        (slope,) = autograd.grad(out, [x], create_graph=True, retain_graph=True)
        loss = F.square(slope).sum()
    assert check([loss], scaled=False) is None
    loss.backward()
    np.testing.assert_array_equal(weight.grad.asnumpy(), 2 * 2 * weight.asnumpy())  # of two rows


def test_losses_without_second_derivatives_are_let_through():
    x = F.ones((2, 3))
    x.attach_grad()
    with autograd.record():
        loss = F.relu(F.FullyConnected(x, x, num_hidden=2, no_bias=True)).clip(0, 1).sum()
    assert check([loss, x, F.ones((1,))], scaled=False) is None


def test_other_errors_are_none_of_its_business():
    assert second_derivative_error(mx.MXNetError("Check failed: something else")) is None
    assert second_derivative_error(ValueError("no")) is None
