"""What a machine can do, and where the precision of a network is lost."""

from .ranges import measure_ranges as measure_ranges
