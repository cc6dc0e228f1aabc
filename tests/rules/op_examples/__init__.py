"""Calls of every operator that has a rule: shapes and values of the inputs, and attributes."""

from .core import Example as Example
from .elementwise import ELEMENTWISE
from .kept import KEPT
from .products import PRODUCTS
from .reductions import REDUCTIONS
from .shapes import SHAPES
from .vision import VISION

EXAMPLES = PRODUCTS + REDUCTIONS + ELEMENTWISE + VISION + SHAPES + KEPT
