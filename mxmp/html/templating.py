"""The templates of this package, filled in by Jinja2; every value is escaped, and so are hostile names."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup as Markup

FOLDER = Path(__file__).parent / "templates"


@functools.lru_cache(maxsize=None)
def environment() -> Environment:
    """Return the environment of the templates; Jinja2 is imported here, when the first of them is used."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(FOLDER)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters.update(breakable=_breakable, powers=_powers)
    return found


def render(name: str, **values: Any) -> Markup:
    """Return what a template, named without its endings, gives for some values, as text that is not escaped again."""
    from markupsafe import Markup

    return Markup(environment().get_template(f"{name}.html.j2").render(**values))


def _breakable(text: str) -> Markup:
    """Return a name that may wrap behind its underscores, slashes and dots."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_/.])(?=[^_/.])", text))


def _powers(text: str) -> Markup:
    """Return a label such as '2^16' with the exponent raised."""
    from markupsafe import Markup, escape

    base, caret, exponent = text.partition("^")
    return escape(base) + (Markup("<sup>{}</sup>").format(exponent.replace("-", "−")) if caret else "")
