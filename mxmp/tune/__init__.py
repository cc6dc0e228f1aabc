"""Tuning: policies that are found by measuring, for speed or for accuracy."""

from ..display import terminal  # noqa: F401  # before rich, see there
from ..names import hooks as _hooks
from .by_accuracy import SearchResult as SearchResult
from .by_accuracy import SearchRow as SearchRow
from .by_accuracy import Tolerance as Tolerance
from .by_accuracy import search as search
from .by_time import tune as tune
from .candidates import Change as Change
from .plan import HoldsFor as HoldsFor
from .plan import TuneResult as TuneResult
from .plan import load as load
from .race import Measured as Measured

globals().update(_hooks(__name__))
