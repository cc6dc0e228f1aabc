"""Policies that are found by measuring."""

from .search import SearchResult as SearchResult
from .search import SearchRow as SearchRow
from .search import Tolerance as Tolerance
from .search import search as search
