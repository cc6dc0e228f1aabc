"""Internal: results as checked values, and as plain blocks that a terminal, a page and a notebook draw.

`record.Record` is the base of all results; its `_sections` are made of the values in `blocks`. Jinja2 and rich are
imported when the first of them is shown.
"""

from .blocks import BAR as BAR
from .blocks import BYTES as BYTES
from .blocks import NUMBER as NUMBER
from .blocks import PRECISION as PRECISION
from .blocks import SHARE as SHARE
from .blocks import SPARK as SPARK
from .blocks import Column as Column
from .blocks import Facts as Facts
from .blocks import Figures as Figures
from .blocks import Histogram as Histogram
from .blocks import Line as Line
from .blocks import Lines as Lines
from .blocks import Network as Network
from .blocks import Notes as Notes
from .blocks import Operator as Operator
from .blocks import Section as Section
from .blocks import Table as Table
from .blocks import figure as figure
from .blocks import power as power
from .blocks import share as share
from .blocks import size as size
from .record import Record as Record
from .record import save_text as save_text
