"""Tuning: policies compared by speed, and one that is found by accuracy."""

from ..display import terminal  # noqa: F401  # before rich, see there
from ..names import hooks as _hooks
from .accuracy import search as search
from .records import PolicySpeed as PolicySpeed
from .records import SearchResult as SearchResult
from .records import SearchRow as SearchRow
from .records import SpeedComparison as SpeedComparison
from .speed import compare_speed as compare_speed

globals().update(_hooks(__name__))
