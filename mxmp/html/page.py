"""Pages and fragments of sections: what is complete in itself, for a browser, and what a notebook shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

from ..errors import visible
from .templating import render

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own.

    Attributes:
        title: The heading.
        blocks: What is in it: what `table`, `lines`, `histogram`, `network`, `facts` and `notes` return.
        lead: A sentence or two that say what is to be seen.
    """

    title: str
    blocks: Tuple[Markup, ...]
    lead: str = ""


def page(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """Return one self-contained HTML file: style and script are within it, and nothing is loaded from a network.

    Args:
        title: What the page is about; text, as all else that is given.
        sections: Its parts, from top to bottom.
        lead: A line under the title.
    """
    return _framed("page", title, sections, lead)


def fragment(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """Return the same as a piece of HTML, for a cell of a notebook: no frame, and styles that touch nothing else."""
    return _framed("fragment", title, sections, lead)


def facts(pairs: Sequence[Tuple[str, str]]) -> Markup:
    """Return a list of things, each with what is to be said about it."""
    return render("facts", pairs=pairs)


def cards(pairs: Sequence[Tuple[str, str, str]]) -> Markup:
    """Return the figures that matter most, each (what it is, the figure, a remark or '')."""
    return render("cards", cards=pairs)


def grid(blocks: Sequence[Markup]) -> Markup:
    """Return some charts, side by side where there is room."""
    return render("grid", blocks=blocks)


def notes(kind: str, sentences: Sequence[str]) -> Markup:
    """Return sentences to be noticed.

    Args:
        kind: What they are: 'Warning', 'Advice' or the like, the word that stands before them.
        sentences: One to a line.
    """
    return render("notes", kind=kind, sentences=[visible(each) for each in sentences])


def _framed(template: str, title: str, sections: Sequence[Section], lead: str) -> str:
    named = list(zip(_anchors(sections), sections))
    return str(render(template, title=visible(title), lead=_breakable(lead), sections=named))


def _breakable(text: str) -> str:
    """Return a text that may wrap behind its commas."""
    return re.sub(r",(?=\S)", ", ", visible(text))


def _anchors(sections: Sequence[Section]) -> List[str]:
    """Return a name for each section that the page's own links lead to."""
    seen: Dict[str, int] = {}
    found = []
    for section in sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found
