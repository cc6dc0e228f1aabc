"""``mxmp report``: what a run left, as a page to look at."""

from __future__ import annotations

from typing import Optional

import click

from .. import work
from .options import out_option, require_new


@click.command()
@click.argument("run", type=click.Path())
@out_option("The HTML file to write.", required=True)
@click.option("--title", metavar="TEXT", help="The page's title; the name of RUN unless given.")
def report(run: str, out: str, title: Optional[str], force: bool) -> None:
    """Write what is known of a run as one HTML page.

    RUN is a folder with any of these files, or one of them: report.json (a report's to_json),
    ledger.json (of gradients), compare.json (errors by layer), steps.csv (loss and scale). The page shows
    the network with its precisions and casts, tables that sort and filter, and charts. It is complete in
    itself: nothing is loaded from a network. Its warnings and advice are printed too.

    \b
    Example:
      mxmp report runs/resnet50 -o resnet50.html
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    require_new(out, force=force)
    work.run("report", run, out, title)
