"""What a conversion decided and why, in casts and bytes, as a table, a page or JSON."""

from ..names import refuse_call
from ..passes.decide import Reason
from .counts import activation_bytes, variable_bytes
from .make import Decisions, Removed, make_report, report_converted
from .report import DROPPED, FOLDED, Cast, Report, Row, legend, merge, operator_table
from .run import RUN_FILES, Run, read_run

__all__ = [
    "DROPPED",
    "FOLDED",
    "RUN_FILES",
    "Cast",
    "Decisions",
    "Reason",
    "Removed",
    "Report",
    "Row",
    "Run",
    "activation_bytes",
    "legend",
    "make_report",
    "merge",
    "operator_table",
    "read_run",
    "report_converted",
    "variable_bytes",
]

refuse_call(__name__)
