"""``mxmp report``: reads the files of a run and writes its page."""

from __future__ import annotations

import os
from typing import Optional

from ...report import read_run
from .output import pairs_table, stdout


def run(path: str, out: str, title: Optional[str]) -> None:
    """Write the page of a run, and print its warnings and advice, and what was missing."""
    found = read_run(path)
    found.to_html(out, title)
    pairs = [("written", out)]
    pairs += [("warning", each) for each in found.warnings] + [("advice", each) for each in found.advice]
    if found.missing and os.path.isdir(path):
        pairs.append(("not there", ", ".join(found.missing)))
    stdout().print(pairs_table(pairs))
