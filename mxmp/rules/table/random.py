"""Operators that draw samples: neither their parameters nor their samples are cast."""

from __future__ import annotations

from ..core import INFER
from .build import Rules, never_cast

_SAMPLERS = """
    _random_uniform _random_normal _random_gamma _random_exponential _random_poisson _random_negative_binomial
    _random_generalized_negative_binomial _random_randint _random_uniform_like _random_normal_like _random_gamma_like
    _random_exponential_like _random_poisson_like _random_negative_binomial_like
    _random_generalized_negative_binomial_like _sample_uniform _sample_normal _sample_gamma _sample_exponential
    _sample_poisson _sample_negative_binomial _sample_generalized_negative_binomial _sample_multinomial
    _sample_unique_zipfian _npi_uniform _npi_uniform_n _npi_normal _npi_normal_n _npi_gamma _npi_exponential
    _npi_bernoulli _npi_multinomial _npi_choice _npi_gumbel _npi_logistic _npi_rayleigh _npi_pareto _npi_powerd
    _npi_weibull
"""

RANDOM: Rules = never_cast(INFER, _SAMPLERS, "samples have a dtype of their own")
