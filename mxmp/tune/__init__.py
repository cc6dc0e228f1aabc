"""Tuning: the policy with which a network is fastest on this machine."""

from .by_time import tune as tune
from .result import Measured as Measured
from .result import TuneResult as TuneResult
