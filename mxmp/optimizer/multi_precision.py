"""Where pickles of version 0.1 look for these classes."""

from ..masters.optimizer import MasterState as MasterState
from ..masters.optimizer import MultiPrecision as MultiPrecision
