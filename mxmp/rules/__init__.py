"""Internal: the precisions that each MXNet operator may run in, by category, port and condition."""

from .core import ADDS as ADDS
from .core import ALLOW as ALLOW
from .core import CLEAR as CLEAR
from .core import DENY as DENY
from .core import DIVIDES as DIVIDES
from .core import ENDS as ENDS
from .core import EVERY as EVERY
from .core import GIVEN as GIVEN
from .core import INFER as INFER
from .core import MAGNIFIES as MAGNIFIES
from .core import MULTIPLIES as MULTIPLIES
from .core import NORMALIZES as NORMALIZES
from .core import OVER as OVER
from .core import RESTARTS as RESTARTS
from .core import SATURATES as SATURATES
from .core import SHIFTS as SHIFTS
from .core import SUBTRACTS as SUBTRACTS
from .core import TIMES as TIMES
from .core import Call as Call
from .core import Rule as Rule
from .core import RuleSet as RuleSet
from .core import value_of as value_of
from .table import RULES as RULES
