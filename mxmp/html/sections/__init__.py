"""What mxmp shows, section by section, each from the dict that its class gives."""

from .compare import compare_sections as compare_sections
from .ledger import ledger_sections as ledger_sections
from .report import policy_sections as policy_sections
from .report import report_sections as report_sections
from .report import report_warnings as report_warnings
from .run import run_lead as run_lead
from .run import run_sections as run_sections
from .steps import steps_sections as steps_sections
