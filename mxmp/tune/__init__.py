"""Tuning: the policy with which a network is fastest on this machine."""

from .result import Measured as Measured
from .result import TuneResult as TuneResult
from .tune import tune as tune
