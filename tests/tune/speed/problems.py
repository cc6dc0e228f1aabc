"""Problems with known costs and a clock of their own, for searches whose optimum is known by brute force."""

from __future__ import annotations

import itertools

import numpy as np

from mxmp.passes.decide import FLOAT32, LOW
from mxmp.policy import Policy
from mxmp.tune.speed.choices import Choices, Group
from mxmp.tune.speed.plan_search import NotRunnable, Proposal

BUILDING = 2.0  # seconds to build a network


class FakeProblem:
    """A network whose step takes the sum of its groups' seconds and of those that couple two groups.

    ``seconds`` has, for each group, those in float32 and in low precision; ``pairs`` those that two groups cost when
    they have the labels given. A group that is not chosen for is in low precision. Single runs are off by ``noise``.
    """

    def __init__(self, seconds, pairs=(), base=1.0, noise=0.0, seed=0, ops=None, broken=()):
        ops = ops or [f"op{number}" for number in range(len(seconds))]
        groups = [Group(op, (number,), False, False, (f"n{number}",)) for number, op in enumerate(ops)]
        self.choices = Choices(Policy.parse("mixed_bfloat16"), tuple(groups), {})
        self.seconds, self.pairs, self.base, self.noise = seconds, pairs, base, noise
        self.random = np.random.RandomState(seed)
        self.time = 0.0
        self.laps = 0
        self.built = []
        self.broken = set(broken)
        self.allowed = lambda key: True

    def now(self):
        return self.time

    def key(self, choice):
        return tuple(label or LOW for label in choice)

    def cost(self, choice):
        labels = self.key(choice)
        own = sum(pair[label == LOW] for pair, label in zip(self.seconds, labels))
        return self.base + own + sum(s for i, a, j, b, s in self.pairs if labels[i] == a and labels[j] == b)

    def build(self, choice):
        key = self.key(choice)
        if any(number in self.broken and label == LOW for number, label in enumerate(key)):
            raise NotRunnable("no kernel")
        self.time += BUILDING
        self.built.append(key)

        def lap():
            self.laps += 1
            seconds = self.cost(choice) * (1 + self.noise * self.random.standard_normal())
            self.time += seconds
            return seconds

        return lap

    def allows(self, choice):
        return self.allowed(self.key(choice))

    def moves(self, choice, trials):
        for number in range(len(choice)):
            for label in (FLOAT32, LOW):
                yield Proposal(f"{number}: {label}", (*choice[:number], label, *choice[number + 1 :]))

    def optimum(self):
        """Return the least cost over all choices."""
        return min(self.cost(labels) for labels in itertools.product((FLOAT32, LOW), repeat=len(self.seconds)))
