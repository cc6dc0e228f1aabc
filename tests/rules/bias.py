"""Measures the bias of bfloat16 kernels: how much too large or too small their results are on average.

Each example runs on 5,000 random values or more in bfloat16 and in float32, from the same inputs, and
so does its gradient; those that only move values stop earlier. As a program, for kernels that may abort, it prints two lines of JSON per example:
its number, and the bias of each output and gradient::

    python -m tests.rules.bias
"""

import json
import math
from collections import defaultdict

import numpy as np

from mxmp import dtypes
from tests.rules.op_examples import EXAMPLES
from tests.rules.run_examples import Bound, chosen

VALUES = 5_000
"""Random values in the largest input of an example, over all its runs."""

RUNS = 50
"""The fewest runs of an example, for those whose outputs are small."""

EQUAL_RUNS = 10
"""After so many runs whose results are float32's to the bit an example counts as one that moves values."""

RANDOM = {"_shuffle": "two runs shuffle apart"}

BOUND = 0.1
"""The largest bias of a kernel that rounds, in units of bfloat16's eps.

Truncation loses half a unit in the last place on average, 0.25 to 0.5 eps of a value: 0.2 to 0.4 was measured,
and more in gradients. Rounding loses nothing on average; its single errors scatter by 0.3 eps at most, so that
the mean of 50, the fewest that an example gives, is within 0.05 by chance, and within 0.1 in all but one of
fifty cases. Inputs are the same each time, and none is such a case.
"""


def measured():
    """Return the numbers of the examples that the table runs in bfloat16."""
    return [number for number in chosen(dtypes.BFLOAT16) if EXAMPLES[number].op not in RANDOM]


def bias(example):
    """Return how far each output and gradient is from float32's on average, in units of bfloat16's eps.

    The mean of the errors, each counted positive away from zero, over the mean of the magnitudes: a mean
    relative error in which values near zero weigh little.
    """
    rng = np.random.default_rng(0)
    low, wide = Bound(example, dtypes.BFLOAT16), Bound(example, dtypes.FLOAT32)
    size = max(math.prod(example.shapes[port]) for port in example.data_ports)
    sums, equal = defaultdict(float), True
    for run in range(max(RUNS, math.ceil(VALUES / size))):
        if equal and run == EQUAL_RUNS:
            break
        inputs = [_input(rng, example, port) for port in range(len(example.shapes))]
        seed = int(rng.integers(1 << 30))
        found, expected = (_results(bound, inputs, np.random.default_rng(seed)) for bound in (low, wide))
        equal = equal and all(map(np.array_equal, found, expected))
        for number, (one, right) in enumerate(zip(found, expected)):
            error = np.sign(right) * (one.astype(np.float64) - right)
            sums[number] += np.array([error.sum(), np.abs(right).sum()])
    eps = dtypes.limits(dtypes.BFLOAT16).eps
    return [float(error / (total or 1) / eps) for error, total in sums.values()]


def _results(bound, inputs, rng):
    """Return outputs and gradients in float32, for random gradients of the outputs."""
    results = bound.run(inputs, lambda output: _spread(rng, output.shape))
    return [array for arrays in results for array in arrays if array.dtype == np.float32]


def _input(rng, example, port):
    """Return random data with all of bfloat16's significands, and indices and their like as the example has them."""
    kind = example.kinds.get(port, "data")
    if kind not in ("data", "positive"):
        return example.arrays()[port]
    values = _spread(rng, example.shapes[port])
    return values if kind == "data" else np.abs(values)


def _spread(rng, shape):
    """Return values of both signs with magnitudes from 1/4 to 4, which bfloat16 has too."""
    values = np.exp2(rng.uniform(-2, 2, shape)) * rng.choice((-1, 1), shape)
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


if __name__ == "__main__":
    for number in measured():
        print(number, flush=True)
        print(json.dumps(bias(EXAMPLES[number])), flush=True)
