"""Show how far long work is, on a terminal."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def showing_progress(shown: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function of what is done next and the share that is done, which a bar on stderr shows if asked to."""
    if not shown:
        yield lambda name, share: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda name, share: bar.update(task, description=name, completed=min(share, 1.0), refresh=True)
