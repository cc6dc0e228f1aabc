"""Tuning: the policy with which a network is fastest on this machine."""

from .holds import HoldsFor as HoldsFor
from .result import Change as Change
from .result import Measured as Measured
from .result import TuneResult as TuneResult
from .store import load as load
from .tune import tune as tune
