"""Tuning: policies that are found by measuring, for speed or for accuracy."""

from ..display import terminal  # noqa: F401  # before rich, see there
from ..names import hooks as _hooks
from .by_accuracy import SearchResult as SearchResult
from .by_accuracy import SearchRow as SearchRow
from .by_accuracy import Tolerance as Tolerance
from .by_accuracy import search as search
from .by_time import tune as tune
from .holds import HoldsFor as HoldsFor
from .result import Change as Change
from .result import Measured as Measured
from .result import TuneResult as TuneResult
from .store import load as load

globals().update(_hooks(__name__))
