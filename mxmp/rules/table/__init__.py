"""The rule of every operator of MXNet 1.9.1 that a symbol can hold, one line per fact.

Operators with a rule run in low precision, or stay in float32 for the rule's reason. An operator without a rule stays
unchanged, and the report names it. Examples are ``Custom`` and operators of a library.

The kernels on CPU were found by running each operator, those of float16 on GPU by reading MXNet's source. Files that
comments name lie under src/operator at tag 1.9.1.
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
