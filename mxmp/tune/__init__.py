"""Tuning: policies compared by speed, and one that is found by accuracy."""

from ..names import hooks as _hooks
from ..report.tuning import PolicySpeed as PolicySpeed
from ..report.tuning import SearchResult as SearchResult
from ..report.tuning import SearchRow as SearchRow
from ..report.tuning import SpeedComparison as SpeedComparison
from .accuracy import search as search
from .speed import compare_speed as compare_speed

globals().update(_hooks(__name__))
