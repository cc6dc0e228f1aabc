"""``mxmp doctor``: examines the machine and prints what was found."""

from __future__ import annotations

import json

import click
from rich import box
from rich.table import Table
from rich.text import Text

from ...diagnose import examine
from ...policy import Policy
from .output import stdout

_FILE = 100  # columns of a file or pipe; sentences wrap
_STYLES = {True: "", None: "yellow", False: "red"}


def run(policy: Policy, as_json: bool) -> bool:
    """Print what was found, and return whether a device runs the policy in hardware."""
    found = examine(policy)
    if as_json:
        checks = [vars(check) for check in found.checks]
        values = {"policy": found.policy, "dtype": found.dtype, "ok": found.ok, "devices": found.devices}
        click.echo(json.dumps({**values, "checks": checks}, indent=2))
        return found.ok
    table = Table(title=Text(f"mxmp doctor: {found.policy}"), box=box.SQUARE)
    for column in ("what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in found.checks:
        table.add_row(*(Text(cell, style=_STYLES[check.ok]) for cell in (check.what, check.found, check.advice)))
    console = stdout(_FILE)
    console.print(table)
    console.print(str(found))
    return found.ok
