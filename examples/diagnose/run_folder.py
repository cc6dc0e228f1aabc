"""What a script leaves of its broken run with ``--run FOLDER``, for ``mxmp report FOLDER -o page.html``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Iterator, Optional

import click
from mxmp.diagnose import Comparison, CSVLogger, Ledger

_HELP = "Folder to keep the broken run in, for mxmp report."


def _new(ctx: click.Context, param: click.Parameter, folder: Optional[Path]) -> Optional[Path]:
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise click.BadParameter(f"{folder} is not empty; give another folder.", ctx, param)
    return folder


_KIND: Any = click.Path(file_okay=False, path_type=Path)
run_option = click.option("--run", "folder", type=_KIND, callback=_new, help=_HELP)


@contextlib.contextmanager
def logged(folder: Optional[Path], trainer: Any, ledger: Optional[Ledger] = None) -> Iterator[Optional[CSVLogger]]:
    """Log the steps of a trainer to a folder, and give the log; None without a folder."""
    if folder is None:
        yield None
        return
    with CSVLogger(folder, every=1, ledger=ledger).attach(trainer) as log:
        yield log


def keep(folder: Optional[Path], report: Any, ledger: Any = None, comparison: Optional[Comparison] = None) -> None:
    """Write a conversion's report, a ledger and a comparison to a folder, if there is one."""
    if folder is None:
        return
    (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    if ledger is not None:
        ledger.save(str(folder / "ledger.json"))
    if comparison is not None:
        comparison.save(str(folder / "compare.json"))
    click.echo(f"the run: mxmp report {folder} -o page.html")
