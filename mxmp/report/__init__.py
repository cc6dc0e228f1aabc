"""Results as records that are shown without MXNet: of conversions, measurements, comparisons, and whole runs."""

from ..names import refuse_call
from ..passes.decide import Reason
from .make import Decisions, Removed, activation_bytes, make_report, report_converted, variable_bytes
from .report import DROPPED, FOLDED, Cast, Report, Row, legend, merge, operator_table, policy_name
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
    "policy_name",
    "read_run",
    "report_converted",
    "variable_bytes",
]

refuse_call(__name__)
