"""Calls of every operator that has a rule: shapes and values of the inputs, and attributes."""

from __future__ import annotations

from typing import Tuple

from .core import Example as Example
from .elementwise import ELEMENTWISE
from .kept import KEPT
from .losses import LOSSES
from .products import PRODUCTS
from .reductions import REDUCTIONS
from .rows import ROWS
from .shapes import SHAPES
from .vision import VISION

EXAMPLES: Tuple[Example, ...] = PRODUCTS + REDUCTIONS + ELEMENTWISE + VISION + SHAPES + ROWS + LOSSES + KEPT
