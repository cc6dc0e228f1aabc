"""What a job of two workers must have come to, whatever engine it ran on."""

import numpy as np

from tests.distributed.job import BATCH, STEPS, data

# A step was taken (1), skipped (0) or raised (-1), and the loss scale after it: 2**10 at first, doubled
# after 3 finite steps, halved by the inf of step 4, left alone by the loss of NaN of step 7.
HISTORY = list(zip([1, 1, 1, 1, 0, 1, 1, -1, 1, 1, 1, 1], [1024, 1024, *[2048] * 2, *[1024] * 4, *[2048] * 3, 4096]))


def results(folder, workers=2):
    """Return what each worker left."""
    return [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(workers)]


def check_training(folder, transport):
    first, second = results(folder)
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    np.testing.assert_array_equal(first["total"], 80000)
    assert first["history"].tolist() == [list(entry) for entry in HISTORY]
    # The share of a worker is rounded to float16: half a unit in the last place of each gradient.
    rtol = 1e-5 if transport == "float32" else 2.0**-10
    np.testing.assert_allclose(first["regression"], expected(first["regression"][0]), rtol=rtol, atol=rtol)


def expected(weight):
    """Return the weight before each step: gradient descent on the batches of both workers, by numpy."""
    seen = []
    for step in range(STEPS):
        seen.append(weight)
        batches = [[array.asnumpy().astype(np.float64) for array in data(rank, step, 5, 3)] for rank in range(2)]
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*batches))
        gradient = 2 * (inputs @ weight.T - targets).T @ inputs
        weight = weight - 0.05 * gradient / (2 * BATCH)
    return np.stack(seen)
