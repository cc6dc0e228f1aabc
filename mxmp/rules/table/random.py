"""Samplers: their parameters stay as they are, their samples have a dtype of their own."""

from __future__ import annotations

from ..core import INFER
from .build import Rules, kept

_SAMPLES = "samples have a dtype of their own"

RANDOM: Rules = (
    *kept(INFER, "_random_uniform _random_normal _random_gamma _random_exponential _random_poisson", _SAMPLES),
    *kept(INFER, "_random_negative_binomial _random_generalized_negative_binomial _random_randint", _SAMPLES),
    *kept(INFER, "_random_uniform_like _random_normal_like _random_gamma_like", _SAMPLES),
    *kept(INFER, "_random_exponential_like _random_poisson_like _random_negative_binomial_like", _SAMPLES),
    *kept(INFER, "_random_generalized_negative_binomial_like", _SAMPLES),
    *kept(INFER, "_sample_uniform _sample_normal _sample_gamma _sample_exponential _sample_poisson", _SAMPLES),
    *kept(INFER, "_sample_negative_binomial _sample_generalized_negative_binomial", _SAMPLES),
    *kept(INFER, "_sample_multinomial _sample_unique_zipfian", _SAMPLES),
    *kept(INFER, "_npi_uniform _npi_uniform_n _npi_normal _npi_normal_n _npi_gamma _npi_exponential", _SAMPLES),
    *kept(INFER, "_npi_bernoulli _npi_multinomial _npi_choice", _SAMPLES),
    *kept(INFER, "_npi_gumbel _npi_logistic _npi_rayleigh _npi_pareto _npi_powerd _npi_weibull", _SAMPLES),
)
