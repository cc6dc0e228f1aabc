"""Tuning: policies that are found by measuring, for speed or for accuracy."""

from .by_time import tune as tune
from .holds import HoldsFor as HoldsFor
from .result import Change as Change
from .result import Measured as Measured
from .result import TuneResult as TuneResult
from .search import SearchResult as SearchResult
from .search import SearchRow as SearchRow
from .search import Tolerance as Tolerance
from .search import search as search
from .store import load as load
