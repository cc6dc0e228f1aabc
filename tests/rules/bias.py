"""Measures the bias of bfloat16 kernels: how much too large or too small their results are on average.

Each example runs on 10,000 random values or more in bfloat16 and in float32, from the same inputs, and
so does its gradient; those that only move values stop earlier. As a program, for kernels that may abort, it prints two lines of JSON per example:
its number, and the bias of each output and gradient::

    python -m tests.rules.bias
"""

from __future__ import annotations

import json
import math
from typing import Dict, List, Tuple

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np

from mxmp import dtypes
from tests.rules.examples import EXAMPLES, Example
from tests.rules.run_examples import build, chosen

VALUES = 10_000
"""Random values in the largest input of an example, over all its runs."""

RUNS = 100
"""The fewest runs of an example, for those whose outputs are small."""

EQUAL_RUNS = 10
"""After so many runs whose results are float32's to the bit an example counts as one that moves values."""

RANDOM = {"_shuffle": "two runs shuffle apart"}

BOUND = 0.1
"""The largest bias of a kernel that rounds, in units of bfloat16's eps.

Truncation loses half a unit in the last place on average, 0.25 to 0.5 eps of a value: 0.2 to 0.4 was measured,
and more in gradients. Rounding loses nothing on average; its single errors scatter by 0.3 eps at most, so that
the mean of 100, the fewest that an example gives, is within 0.03 by chance, and within 0.1 in all but one of
a thousand cases. Inputs are the same each time.
"""

Results = Dict[str, np.ndarray]


def measured() -> List[int]:
    """Return the numbers of the examples that the table runs in bfloat16."""
    return [number for number in chosen(dtypes.BFLOAT16, "sound") if EXAMPLES[number].op not in RANDOM]


def bias(example: Example, values: int = VALUES, runs: int = RUNS) -> Dict[str, float]:
    """Return how far outputs and gradients are from float32's on average, in units of bfloat16's eps.

    The mean of the errors, each counted positive away from zero, over the mean of the magnitudes: a mean
    relative error in which values near zero weigh little.

    Args:
        example: The call.
        values: How many random values its largest input has, over all runs.
        runs: The fewest runs.
    """
    rng = np.random.default_rng(0)
    low, wide = _Runner(example, dtypes.BFLOAT16), _Runner(example, dtypes.FLOAT32)
    size = max(math.prod(example.shapes[port]) for port in example.data_ports)
    sums: Dict[str, np.ndarray] = {}
    equal = True
    for run in range(max(runs, math.ceil(values / size))):
        if equal and run == EQUAL_RUNS:
            break
        inputs = [_input(rng, example, port) for port in range(len(example.shapes))]
        seed = int(rng.integers(1 << 30))
        found, expected = low.run(inputs, seed), wide.run(inputs, seed)
        equal = equal and all(np.array_equal(found[name], right) for name, right in expected.items())
        for name, right in expected.items():
            error = np.sign(right) * (found[name].astype(np.float64) - right)
            sums[name] = sums.get(name, 0) + np.array([error.sum(), np.abs(right).sum()])
    eps = dtypes.limits(dtypes.BFLOAT16).eps
    return {name: float(error / (total or 1) / eps) for name, (error, total) in sums.items()}


class _Runner:
    """An example bound in one dtype."""

    def __init__(self, example: Example, dtype: str) -> None:
        symbol = build(example, dtype, up=True)
        pairs = enumerate(zip(example.shapes, example.dtypes))
        self.arrays = {f"in{port}": mx.nd.zeros(shape, dtype=kind) for port, (shape, kind) in pairs}
        trained = [f"in{port}" for port in example.data_ports] if example.differentiable else []
        self.gradients = {name: mx.nd.zeros(self.arrays[name].shape) for name in trained}
        self.executor = symbol.bind(
            mx.cpu(),
            {name: self.arrays[name] for name in symbol.list_arguments()},
            self.gradients,
            {name: "write" if name in trained else "null" for name in symbol.list_arguments()},
            {name: self.arrays[name] for name in symbol.list_auxiliary_states()},
        )

    def run(self, inputs: List[np.ndarray], seed: int) -> Results:
        """Return the outputs in float32 and the gradients, for output gradients drawn from a seed."""
        for port, values in enumerate(inputs):
            mx.nd.array(values, dtype=values.dtype).copyto(self.arrays[f"in{port}"])
        outputs = self.executor.forward(is_train=True)
        results = {f"output {index}": output.asnumpy() for index, output in enumerate(outputs)}
        if self.gradients:
            rng = np.random.default_rng(seed)
            self.executor.backward([mx.nd.array(_spread(rng, output.shape), dtype=output.dtype) for output in outputs])
        results.update({f"gradient of {name}": array.asnumpy() for name, array in self.gradients.items()})
        return {name: values for name, values in results.items() if values.dtype == np.float32}


def _input(rng: np.random.Generator, example: Example, port: int) -> np.ndarray:
    """Return random data with all of bfloat16's significands, and indices and their like as the example has them."""
    kind, shape = example.kinds.get(port, "data"), example.shapes[port]
    if kind == "data":
        return _spread(rng, shape)
    if kind == "positive":
        return np.abs(_spread(rng, shape))
    return example.arrays()[port]


def _spread(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return values of both signs with magnitudes from 1/4 to 4, which bfloat16 has too."""
    values = np.exp2(rng.uniform(-2, 2, shape)) * rng.choice((-1, 1), shape)
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


if __name__ == "__main__":
    for number in measured():
        print(number, flush=True)
        print(json.dumps(bias(EXAMPLES[number])), flush=True)
