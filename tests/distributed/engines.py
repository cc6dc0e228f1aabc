"""Engines without a network: what the other workers have is known beforehand."""

import mxnet as mx

from mxmp.distributed import Engine


class Twins(Engine):
    """Worker 0 of several that all do the same."""

    kind = "dist_sync"
    rank = 0

    def __init__(self, size=2):
        self.size = size
        self.arrays = {}

    def broadcast(self, key, array):
        assert key not in self.arrays, "MXNet knows every key once"
        self.arrays[key] = array

    def sum(self, key, array, priority):
        assert array is self.arrays[key], "MXNet may still be sending the array of the step before"
        total = array.copy()
        for _ in range(1, self.size):
            total += array  # in the dtype that travels, as a server does
        total.copyto(array)


class Second(Twins):
    """Worker 1 of two; worker 0 has a value of 5 everywhere, and no gradients."""

    rank = 1

    def broadcast(self, key, array):
        super().broadcast(key, array)
        array[:] = 5

    def sum(self, key, array, priority):
        assert array is self.arrays[key]


class WithBadLoss(Twins):
    """A worker whose twin has the same gradients, but lost its loss in the given steps.

    The flag is the last key that is asked for.
    """

    def __init__(self, bad_steps):
        super().__init__(2)
        self.bad_steps = set(bad_steps)
        self.step = 0

    def sum(self, key, array, priority):
        if key == list(self.arrays)[-1] and array.shape == (1,):
            array += mx.nd.array([float(self.step in self.bad_steps)])
            self.step += 1
        else:
            super().sum(key, array, priority)
