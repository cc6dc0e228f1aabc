"""Internal: results as checked values, and as plain blocks that a terminal, a page and a notebook draw.

`record.Record` is the base of all results; its `_sections` are made of the values in `blocks`. Jinja2 and rich are
imported when the first of them is shown.
"""

from .blocks import (
    BAR,
    NUMBER,
    PRECISION,
    SHARE,
    SPARK,
    Column,
    Facts,
    Figures,
    Histogram,
    Line,
    Lines,
    Network,
    Notes,
    Section,
    Table,
    figure,
    power,
    share,
    size,
    wrappable,
)
from .record import Record, Shown, reading, save_text

__all__ = [
    "BAR",
    "NUMBER",
    "PRECISION",
    "SHARE",
    "SPARK",
    "Column",
    "Facts",
    "Figures",
    "Histogram",
    "Line",
    "Lines",
    "Network",
    "Notes",
    "Record",
    "Section",
    "Shown",
    "Table",
    "figure",
    "power",
    "reading",
    "save_text",
    "share",
    "size",
    "wrappable",
]
