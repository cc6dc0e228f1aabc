"""What an emulated operator should give, in numpy, and a runner for converted symbols."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np

from mxmp import Policy
from mxmp.symbol import Converted, convert_graph

EPS32 = 2.0**-24  # relative error of one float32 operation
FLOAT16 = np.finfo(np.float16)
LOW = Policy(compute_dtype="float16")


def float16(values: Any) -> np.ndarray:
    """Return values rounded to float16, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16).astype(np.float64)


def float16_of_float32(values: Any) -> np.ndarray:
    """Return the float16 of the float32 of values: what one float32 operation leaves."""
    with np.errstate(over="ignore"):
        return float16(np.asarray(values).astype(np.float32))


def ulp(values: np.ndarray) -> np.ndarray:
    """Return the distance between the float16 values around given ones."""
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(values), FLOAT16.tiny)
        return np.exp2(np.floor(np.log2(size)) - 10)


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
    assert np.all(np.abs(found - exact) <= ulp(exact) / 2 + slack)


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

    def __init__(
        self,
        symbol: Any,
        inputs: Mapping[str, np.ndarray],
        policy: Policy = LOW,
        head_grads: Optional[List[np.ndarray]] = None,
        wrt: Tuple[str, ...] = (),
        params: Tuple[str, ...] = (),
        train: bool = True,
    ) -> None:
        """Convert, emulate and run."""
        shapes = {name: value.shape for name, value in inputs.items()}
        types = {name: "float32" for name in inputs}
        self.converted: Converted = convert_graph(symbol, policy, shapes, types, frozenset(params))
        emulated = self.converted.on_cpu()
        low = self.converted.low_params
        self.inputs = {n: mx.nd.array(v, dtype="float16" if n in low else "float32") for n, v in inputs.items()}
        grads = {name: mx.nd.zeros_like(self.inputs[name]) for name in wrt}
        executor = emulated.bind(
            mx.cpu(),
            {name: self.inputs[name] for name in emulated.list_arguments()},
            grads,
            {name: "write" if name in wrt else "null" for name in emulated.list_arguments()},
            {name: self.inputs[name] for name in emulated.list_auxiliary_states()},
        )
        results = executor.forward(is_train=train)
        self.outputs = [result.asnumpy() for result in results]
        if wrt:
            given = zip(head_grads or [], results)
            executor.backward([mx.nd.array(grad, dtype=result.dtype) for grad, result in given])
        self.grads: Dict[str, np.ndarray] = {name: grad.asnumpy() for name, grad in grads.items()}


def forced(*ops: str) -> Policy:
    """Return a policy that puts operators in float16 that gain nothing by it."""
    return Policy(compute_dtype="float16", ops={op: "float16" for op in ops})
