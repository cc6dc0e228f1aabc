"""Blocks as HTML: a self-contained page, and the fragment that a notebook shows.

Jinja2 fills in the templates and escapes every value, so that hostile names are text. Style and script are within the
page, so that nothing is loaded from a network.
"""

from __future__ import annotations

import functools
import math
import re
from itertools import groupby
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import jinja2
from markupsafe import Markup, escape

from ..errors import visible
from . import blocks, charts, network

_FOLDER = Path(__file__).parent / "templates"


def page(title: str, sections: Sequence[blocks.Section], lead: str = "") -> str:
    """Return one self-contained HTML file.

    Args:
        title: The title of the page, as plain text.
        sections: The parts of the page, from top to bottom.
        lead: A line under the title.
    """
    return _framed("page", title, sections, lead)


def fragment(title: str, sections: Sequence[blocks.Section], lead: str = "") -> str:
    """Return a piece of HTML for a cell of a notebook, without a frame. Its styles do not change other elements."""
    return _framed("fragment", title, sections, lead)


def _framed(template: str, title: str, sections: Sequence[blocks.Section], lead: str) -> str:
    parts = [(_anchor(section.title), section, _drawn(section.blocks)) for section in sections]
    values = {"title": title, "lead": blocks.wrappable(lead), "sections": parts}
    return _environment().get_template(f"{template}.html.j2").render(values)


def _drawn(section_blocks: Sequence[blocks.Block]) -> List[Tuple[str, List[Any]]]:
    """Return pairs (macro of the template, its arguments), one for blocks of a kind that follow each other."""
    groups = groupby(section_blocks, key=lambda block: type(block).__name__.lower())
    return [(kind, [_DRAWN.get(kind, lambda block: block)(block) for block in group]) for kind, group in groups]


@functools.lru_cache(maxsize=None)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(_FOLDER)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(breakable=_breakable, powers=_powers)
    # A notebook's style sheet has rules for tables and lists with a higher rank than '.mxmp td'. Ours have to win.
    style, dark = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "dark.css"))
    style = re.sub(r"\.mxmp(?![\w-])", ".mxmp.mxmp.mxmp", style).replace("/* dark.css */", dark)
    environment.globals["style"] = Markup(style)
    return environment


def _breakable(text: str) -> Markup:
    """Return a text that may wrap behind underscores, slashes, dots and commas, but not in a number or at its unit."""
    text = re.sub(r"(?<=\d) (?=%|(?:[kMGT]B|bytes|ms)\b)", "\N{NO-BREAK SPACE}", visible(text))
    parts = re.split(r"(?<=[_/.,])(?=[^_/.,\s])(?!(?<=\d[.,])\d)", text)
    return Markup("<wbr>").join(map(escape, parts))


def _powers(text: str) -> Markup:
    """Return a label such as '2^16' with the exponent raised."""
    base, caret, exponent = text.partition("^")
    return escape(base) + (Markup("<sup>{}</sup>").format(exponent.replace("-", "−")) if caret else "")


def _anchor(title: str) -> str:
    """Return the name of a section for links within the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _table(block: blocks.Table) -> Dict[str, Any]:
    """Return a table for the template. A cell is its text, its key for sorting, and the values of its drawing."""
    block = block.without_empty_columns()
    columns = [_cells(column, [row[i] for row in block.rows]) for i, column in enumerate(block.columns)]
    return {"block": block, "rows": list(zip(*columns))}


def _cells(column: blocks.Column, values: Sequence[Any]) -> List[Tuple[str, Optional[str], Any]]:
    """Return the cells of a column."""
    if column.kind == blocks.SPARK:
        exponents = [int(key) for counts in values for key in counts or {}] or [0]
        sparks = [charts.draw_spark(each or {}, (min(exponents), max(exponents)), column.dtype) for each in values]
        return [(spark["label"], None, spark) for spark in sparks]
    if not column.is_numeric:
        return [(column.text(value), None, None) for value in values]
    # As JavaScript reads numbers. NaN has no order.
    keys = ["" if value is None or value != value else str(float(value)).replace("inf", "Infinity") for value in values]
    largest = max((value for value in values if value is not None and abs(value) < math.inf), default=0.0)
    parts = [round(min(value / largest, 1.0), 3) if value and value > 0 < largest else 0 for value in values]
    return list(zip(map(column.text, values), keys, parts))


# The functions that turn blocks into values for the template. Other blocks are such values themselves.
_DRAWN: Dict[str, Callable[[Any], Any]] = {
    "lines": charts.draw_lines,
    "histogram": charts.draw_histogram,
    "network": network.draw,
    "table": _table,
}
