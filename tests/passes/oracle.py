"""What an emulated operator should give, in numpy, and a runner for converted symbols."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from mxmp import Policy
from mxmp.symbol import convert_graph
from tests.passes.graphs import step

EPS32 = 2.0**-24  # relative error of one float32 operation
LOW = Policy(compute_dtype="float16")


def float16(values) -> np.ndarray:
    """Return values rounded to float16, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16).astype(np.float64)


def assert_rounded(found: np.ndarray, exact: np.ndarray, slack: float = 0.0) -> None:
    """Check that values are the float16 of exact ones that a float32 sum may have moved a little.

    Args:
        found: The values; each must be a float16.
        exact: What they would be in exact arithmetic.
        slack: Error bound of the float32 arithmetic, 0 if it is exact. It matters only where it
            carries a value across the middle between two float16 values, so 1% may differ.
    """
    assert found.shape == exact.shape
    found = found.astype(np.float64)
    np.testing.assert_array_equal(float16(found), found)
    assert np.mean(found != float16(exact)) <= (0.01 if slack else 0)
    assert np.all(np.abs(found - exact) <= np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64) / 2 + slack)


def few_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return values of 8 bits: sums of some hundred products are exact in float32, not in float16."""
    return rng.integers(-127, 128, shape) / 16


def grid(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return normally distributed float16 values."""
    return float16(rng.standard_normal(shape))


class Run:
    """One training step of a converted symbol, emulated.

    Attributes:
        converted: The conversion.
        outputs: By position.
        grads: By input name, of the inputs asked for.
        inputs: The arrays that were bound, aux states as the step left them.
    """

    def __init__(self, symbol, inputs, policy=LOW, head_grads=None, wrt=(), params=()):
        """Convert, emulate and run."""
        shapes = {name: value.shape for name, value in inputs.items()}
        self.converted = convert_graph(symbol, policy, shapes, dict.fromkeys(inputs, "float32"), frozenset(params))
        low = self.converted.low_params
        self.inputs = {n: mx.nd.array(v, dtype="float16" if n in low else "float32") for n, v in inputs.items()}
        self.outputs, self.grads = step(self.converted.on_cpu(), self.inputs, wrt, head_grads)
