"""The rule of every operator of MXNet 1.9.1 that a symbol can hold, one line per fact.

Operators that stand here run in low precision, or stay in float32, for the reason given; an operator that does not
stand here (one of a library, or ``Custom``) is left as it is and named in the report.

What MXNet has kernels for was found by running each operator; that float16 has them on GPU too, by
reading its source. Files that comments name lie under src/operator at tag 1.9.1.
"""

from __future__ import annotations

from ..core import RuleSet
from .elementwise import ELEMENTWISE
from .never_cast import NEVER_CAST
from .products import PRODUCTS
from .reductions import REDUCTIONS
from .shapes import SHAPES

RULES = RuleSet(PRODUCTS + ELEMENTWISE + REDUCTIONS + SHAPES + NEVER_CAST)
"""The rules of mxmp."""
