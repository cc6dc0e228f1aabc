"""Candidates that take known times by a clock of their own."""

import numpy as np

from mxmp.tune.race import NotRunnable, Race

BUILDING = 2.0  # seconds to build a network
LONG = 1e6


class Track:
    """Candidates by name with their seconds, None for one that does not run; single runs are off by ``noise``.

    ``factor`` is called with a name before each run, and returns how many times as long that takes.
    """

    def __init__(self, noise=0.0, seed=0, **seconds):
        self.costs, self.noise = seconds, noise
        self.random = np.random.RandomState(seed)
        self.time, self.laps, self.built, self.asked = 0.0, 0, [], []
        self.allowed, self.factor = set(seconds), lambda name: 1

    def now(self):
        return self.time

    def build(self, name):
        self.time += BUILDING
        if self.costs[name] is None:
            raise NotRunnable("no kernel")
        self.built.append(name)

        def lap():
            seconds = self.factor(name) * self.costs[name] * (1 + self.noise * self.random.standard_normal())
            self.laps += 1
            self.time += seconds
            return seconds

        return lap

    def allows(self, name):
        self.asked.append(name)
        return name in self.allowed

    def race(self, seconds=LONG, **options):
        rivals = [name for name in self.costs if name == "untuned"]
        return Race(list(self.costs), self.build, seconds, rivals=rivals, allows=self.allows, now=self.now, **options).run()


def failing(workload, policy, fused=True):
    """Take the place of ``Workload.start`` where nothing runs."""
    raise NotRunnable("there is no memory left")
