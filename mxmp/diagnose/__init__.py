"""Finds where a network loses precision, and whether a machine runs it in hardware."""

from ..devices.amx import amx_status as amx_status
from ..devices.auto import fastest_policy as fastest_policy
from ..devices.check import check_devices as check_devices
from ..devices.speed import runs_bfloat16 as runs_bfloat16
from ..names import hooks as _hooks
from ..processors import AmxStatus as AmxStatus
from ..report import Run as Run
from ..report import read_run as read_run
from ..report.comparison import Comparison as Comparison
from ..report.comparison import NodeComparison as NodeComparison
from ..report.comparison import OutputComparison as OutputComparison
from ..report.doctor import CheckReport as CheckReport
from ..report.doctor import DoctorReport as DoctorReport
from ..report.doctor import Finding as Finding
from ..report.explanation import Explanation as Explanation
from ..report.explanation import NonFinite as NonFinite
from ..report.explanation import ValueRange as ValueRange
from ..report.gradients import Gradients as Gradients
from ..report.gradients import Magnitudes as Magnitudes
from ..report.gradients import Ranges as Ranges
from ..report.run import Steps as Steps
from .check import check as check
from .compare import compare as compare
from .explain import explain as explain
from .log import CSVLogger as CSVLogger
from .log import StepLogger as StepLogger
from .log import StepRecord as StepRecord
from .log import TensorBoardLogger as TensorBoardLogger
from .machine import doctor as doctor
from .measure import measure_gradients as measure_gradients
from .measure import measure_ranges as measure_ranges
from .watch import Watch as Watch

globals().update(_hooks(__name__))
