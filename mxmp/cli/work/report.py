"""``mxmp report``: reads the files of a run and writes its page."""

from __future__ import annotations

import os
from typing import Optional

from ...files import require_new
from ...report import read_run
from .output import pairs_table, stdout


def run(path: str, out: str, title: Optional[str], force: bool) -> None:
    """Write the page of a run, and print what is in it and what was missing."""
    require_new(out, force)
    found = read_run(path)
    found.to_html(out, title)
    pairs = [("written", out)]
    if found.missing and os.path.isdir(path):
        pairs.append(("not there", ", ".join(found.missing)))
    stdout().print(pairs_table(pairs))
