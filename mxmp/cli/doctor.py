"""``mxmp doctor``: whether this machine runs a policy in hardware, and what to do about it."""

from __future__ import annotations

import json

import click
from rich import box
from rich.table import Table
from rich.text import Text

from ..diagnose import Diagnosis, examine
from .options import make_policy
from .output import stdout

_STYLES = {True: "", None: "yellow", False: "red"}


@click.command()
@click.option("--policy", "text", default="O1", show_default=True, help="The policy; its compute dtype counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, text: str, as_json: bool) -> None:
    """Say whether this machine runs a policy in hardware, and what to do about what does not.

    Looks at the versions, at what GPUs MXNet has code for, at this machine's devices and at the
    environment variables that matter. The exit code is 1 if no device runs the policy in hardware,
    as float16 on a machine without a GPU, and 0 otherwise.

    \b
    Example:
      mxmp doctor --policy mixed_bfloat16
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    found = examine(make_policy(text, (), None, None))
    if as_json:
        checks = [check._asdict() for check in found.checks]
        values = {"policy": found.policy, "dtype": found.dtype, "ok": found.ok, "devices": found.devices}
        click.echo(json.dumps({**values, "checks": checks}, indent=2))
    else:
        _print(found)
    ctx.exit(0 if found.ok else 1)


def _print(found: Diagnosis) -> None:
    table = Table(title=Text(f"mxmp doctor: {found.policy}"), box=box.SQUARE)
    for column in ("what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in found.checks:
        table.add_row(*(Text(cell, style=_STYLES[check.ok]) for cell in (check.what, check.found, check.advice)))
    console = stdout()
    console.print(table)
    console.print(str(found))
