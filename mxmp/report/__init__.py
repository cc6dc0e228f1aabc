"""What a conversion decided and why, in casts and bytes, as a table or JSON."""

from ..names import refuse_call
from . import rich_first  # noqa: F401  # the first import of the package
from .counts import activation_bytes as activation_bytes
from .counts import variable_bytes as variable_bytes
from .make import Decisions as Decisions
from .make import make_report as make_report
from .make import report_converted as report_converted
from .report import DROPPED as DROPPED
from .report import FOLDED as FOLDED
from .report import Removed as Removed
from .report import Report as Report
from .report import Row as Row
from .report import legend as legend
from .report import merge as merge
from .run import RUN_FILES as RUN_FILES
from .run import Run as Run
from .run import read_run as read_run

refuse_call(__name__)
