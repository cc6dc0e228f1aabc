"""Corrections of estimates, against the same regression solved in its other form."""

from __future__ import annotations

import numpy as np
import pytest

from mxmp.tune.speed.corrections import Measurements, correct, no_corrections

KINDS = ["BatchNorm", "BatchNorm", "Activation", "Convolution"]


def measured(seed=0, rows=3):
    random = np.random.RandomState(seed)
    changes = random.choice([-1.0, 0.0, 1.0], (rows, len(KINDS)))
    return Measurements(changes, random.normal(size=rows), random.normal(size=rows), random.uniform(0.1, 1, rows))


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_it_is_the_ridge_regression_on_savings_and_casts(rows):
    prior, given = no_corrections(np.array([1.0, 2.0, 0.5, 3.0]), KINDS), measured(rows=rows)
    found = correct(prior, given)
    weights = np.diag(given.noise**-2)
    features = np.hstack([-given.changes, given.casts[:, None]])
    covariance = np.eye(5)
    covariance[:4, :4] = prior.covariance
    spread = features @ covariance @ features.T + np.diag(given.noise**2)
    covariance *= max(1.0, np.linalg.solve(spread, given.missed) @ given.missed / rows)
    inverse = np.linalg.inv(features.T @ weights @ features + np.linalg.inv(covariance))
    solution = inverse @ features.T @ weights @ given.missed
    np.testing.assert_allclose(found.saving, solution[:4], atol=1e-9)
    np.testing.assert_allclose(found.covariance, inverse[:4, :4], atol=1e-9)
    assert found.casts == pytest.approx(np.clip(1 + solution[4], 0.2, 5.0))


def test_one_operator_found_slow_makes_its_others_suspect_and_no_other_operators():
    prior = no_corrections(np.ones(4), KINDS)
    change = np.array([[1.0, 0.0, 0.0, 0.0]])
    slow = Measurements(change, np.zeros(1), np.array([10.0]), np.array([0.1]))
    saving = correct(prior, slow).saving
    assert saving[0] == pytest.approx(-10, rel=0.02)
    assert -7 < saving[1] < -5
    np.testing.assert_allclose(saving[2:], 0.0, atol=1e-9)


def test_estimates_that_are_far_off_are_trusted_less():
    prior, change = no_corrections(np.full(4, 0.1), KINDS), np.array([1.0, 0.0, 0.0, 0.0])
    other = np.array([0.0, 0.0, 1.0, 0.0])
    for missed, deviation in ((0.1, 0.1), (10.0, 5.0)):
        found = correct(prior, Measurements(change[None], np.zeros(1), np.array([missed]), np.array([0.1])))
        assert found.deviation(other) >= deviation
    assert found.saving[0] == pytest.approx(-10, rel=0.01)


def test_what_was_measured_is_less_uncertain():
    prior = no_corrections(np.ones(4), KINDS)
    change = np.array([1.0, 0.0, 0.0, 0.0])
    after = correct(prior, Measurements(change[None], np.zeros(1), np.zeros(1), np.array([0.1])))
    assert prior.deviation(change) == 1.0
    assert after.deviation(change) < 0.11
    assert after.deviation(np.array([0.0, 0.0, 1.0, 0.0])) == pytest.approx(1.0)


def test_differences_within_the_noise_change_little():
    prior = no_corrections(np.full(4, 0.1), KINDS)
    noise = Measurements(np.array([[0.0, 0.0, 1.0, 0.0]]), np.zeros(1), np.array([1.0]), np.array([1.0]))
    assert abs(correct(prior, noise).saving).max() < 0.02


def test_casts_never_become_free():
    prior = no_corrections(np.full(4, 0.01), KINDS)
    cheap = Measurements(np.zeros((1, 4)), np.array([1.0]), np.array([-9.0]), np.array([0.01]))
    assert correct(prior, cheap).casts == 0.2
