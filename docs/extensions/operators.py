"""The directive ``operators``: tables of the rules of `mxmp.rules`, as they are when the pages are built."""

import functools
import re

from docutils.core import publish_doctree
from docutils.parsers.rst import Directive
from mxmp.dtypes import BFLOAT16, FLOAT16
from mxmp.rules import RULES, conditions
from mxmp.rules.core import EVERY, GIVEN

HEADINGS = ("operator", "float32 when, or why", "never cast; no kernel")


def float32_if(rule):
    """Return when, or why, an operator runs in float32."""
    if rule.reason:
        return rule.reason
    if rule.condition is None:
        return ""
    if isinstance(rule.condition, functools.partial) or not rule.condition.__doc__:
        scalars = " or ".join(f"``{name}``" for name in rule.scalars)
        text = f"where the low precision dtype turns {scalars} into inf, 0, 1, -1 or its largest value"
        return f"{text}; where bfloat16 rounds it" if rule.preserves_grid else text
    first = rule.condition.__doc__.split("\n")[0]
    text = re.sub(r"`*(MAX_\w+)`*", lambda match: str(getattr(conditions, match.group(1))), first)
    return f"for {text.replace('Forbid ', '', 1).rstrip('.')}"


def calls(rule):
    """Return the attributes of the calls that a rule is for."""
    return ", ".join(f"``{key}``" if value == GIVEN else f"``{key}={value}``" for key, value in rule.when)


def kept(rule):
    """Return the inputs and outputs that are never cast."""
    if rule.keep is EVERY:
        return "all"
    parts = [(name, numbers) for name, numbers in (("input", rule.keep), ("output", rule.keep_outputs)) if numbers]
    text = "; ".join(f"{name}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" for name, numbers in parts)
    return "; ".join(filter(None, (text, rule.gives_indices and "positions")))


def lacks(rule):
    """Return the dtypes that MXNet 1.9.1 has no sound kernel for: float16's are on GPUs, bfloat16's on CPUs."""
    names = {FLOAT16: "float16 (GPU)", BFLOAT16: "bfloat16 (CPU)"}
    return ", ".join(text for dtype, text in names.items() if dtype not in rule.dtypes)


def rows(category):
    """Return the rows of a category: operators of which the rules say the same share one."""
    merged = {}
    for rule in RULES:
        if rule.category == category:
            merged.setdefault((calls(rule), float32_if(rule), kept(rule), lacks(rule)), []).append(rule.op)
    for (when, why, never_cast, dtypes), ops in sorted(merged.items(), key=lambda item: item[1][0].lower()):
        names = ", ".join(f"``{op}``" for op in sorted(ops, key=str.lower))
        notes = (never_cast, dtypes and f"no {dtypes}")
        yield (f"{names} with {when}" if when else names, why, "; ".join(filter(None, notes)))


class Operators(Directive):
    """A table of the operators of one category, its argument."""

    required_arguments = 1

    def run(self):
        """Return the table."""
        lines = [".. list-table::", "   :header-rows: 1", "   :class: operators", "   :widths: 40 35 25", ""]
        for row in (HEADINGS, *rows(self.arguments[0])):
            for number, cell in enumerate(row):
                lines.append(f"   {'*' if number == 0 else ' '} - {cell}")
        return list(publish_doctree("\n".join(lines)).children)


def setup(app):
    """Add the directive."""
    app.add_directive("operators", Operators)
    return {"parallel_read_safe": True}
