"""Internal: the precisions that each MXNet operator may run in, by category, port and condition."""

from .core import ALLOW as ALLOW
from .core import CLEAR as CLEAR
from .core import DENY as DENY
from .core import EVERY as EVERY
from .core import GIVEN as GIVEN
from .core import INFER as INFER
from .core import Call as Call
from .core import Rule as Rule
from .core import RuleSet as RuleSet
from .core import value_of as value_of
from .table import RULES as RULES
