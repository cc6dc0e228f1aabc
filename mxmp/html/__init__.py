"""Internal: HTML from plain values: self-contained pages with tables, charts and the picture of a network.

Nothing here knows a report, a ledger or a comparison but by the dict that each gives, so that all of them can be shown
by one line: ``page(title, ledger_sections(ledger.to_dict()))`` for a file, `fragment` with the same for a notebook.
"""

from .charts import Line as Line
from .charts import lines as lines
from .histograms import histogram as histogram
from .network import Operator as Operator
from .network import network as network
from .page import Section as Section
from .page import cards as cards
from .page import facts as facts
from .page import fragment as fragment
from .page import grid as grid
from .page import notes as notes
from .page import page as page
from .sections import compare_sections as compare_sections
from .sections import ledger_sections as ledger_sections
from .sections import policy_sections as policy_sections
from .sections import report_sections as report_sections
from .sections import report_warnings as report_warnings
from .sections import run_lead as run_lead
from .sections import run_sections as run_sections
from .sections import steps_sections as steps_sections
from .tables import Column as Column
from .tables import table as table
