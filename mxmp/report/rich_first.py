"""Imports rich before others do, and leaves Python's random numbers as they were.

``rich.style`` draws one of them when it is imported, which may be in the midst of a seeded run.
"""

import random

_STATE = random.getstate()
import rich.style  # noqa: E402, F401

random.setstate(_STATE)
