"""How far estimates of costs are off, from measurements of whole choices: ridge regression.

There are fewer measurements than groups. So the smallest corrections are taken, each in proportion to the time of its
group, that explain what was measured as far as it is not noise; groups of one operator are expected to err in the same
way. That is the mean of a Gaussian process, whose covariance says how uncertain each correction still is. Where the
measurements as a whole are further from the estimates than that allows, as reference code is from a roofline, all
estimates are trusted less, by as much as is likeliest. Measured differences are medians over rounds in which both ran,
so that they need no filter against outliers of their own.

References:
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.1.2 and 5.4.1.
"""

from __future__ import annotations

from typing import Any, Hashable, NamedTuple, Sequence

import numpy as np

_ALIKE = 0.6  # share of the error of an estimate that groups of one operator have in common
_LEAST, _MOST = 0.2, 5.0  # how far the cost of casts is corrected


class Corrections(NamedTuple):
    """By how much more low precision saves than was estimated, in seconds of each group, and the factor of casts.

    ``covariance`` is that of what the savings are still off.
    """

    saving: np.ndarray[Any, Any]
    covariance: np.ndarray[Any, Any]
    casts: float = 1.0

    def deviation(self, change: np.ndarray[Any, Any]) -> float:
        """Return the standard deviation of what a change of the groups' low shares saves."""
        return float(np.sqrt(max(change @ self.covariance @ change, 0.0)))


class Measurements(NamedTuple):
    """What was measured, a row each.

    Attributes:
        changes: By how much the share of each group in low precision grew.
        casts: By how many seconds the estimate of casts grew.
        missed: By how many seconds more the time grew than estimated.
        noise: The standard deviation of that.
    """

    changes: np.ndarray[Any, Any]
    casts: np.ndarray[Any, Any]
    missed: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]


def no_corrections(spread: np.ndarray[Any, Any], kinds: Sequence[Hashable]) -> Corrections:
    """Return what is known before anything was measured.

    Args:
        spread: How far the saving of each group may be from its estimate.
        kinds: What groups have in common that err in the same way.
    """
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    rows = np.array([numbers[kind] for kind in kinds], dtype=int)
    shared = _ALIKE * (rows[:, None] == rows[None, :]) + (1 - _ALIKE) * np.eye(len(rows))
    return Corrections(np.zeros(len(rows)), np.outer(spread, spread) * shared)


def correct(prior: Corrections, measured: Measurements) -> Corrections:
    """Return the corrections that explain measurements."""
    # What low precision saves beyond the estimate takes from a time, what casts cost beyond it adds to it.
    features = np.hstack([-measured.changes, measured.casts[:, None]])
    size = features.shape[1]
    covariance = np.zeros((size, size))
    covariance[:-1, :-1] = prior.covariance
    covariance[-1, -1] = 1.0
    noise = np.diag(measured.noise**2)
    surprise = measured.missed @ np.linalg.pinv(features @ covariance @ features.T + noise) @ measured.missed
    covariance *= max(1.0, surprise / len(measured.missed))
    gain = covariance @ features.T @ np.linalg.pinv(features @ covariance @ features.T + noise)
    mean = gain @ measured.missed
    left = covariance - gain @ features @ covariance
    return Corrections(mean[:-1], left[:-1, :-1], float(np.clip(1 + mean[-1], _LEAST, _MOST)))
