"""Show how far long work is, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def shown(what: str, items: Iterable[T], counted: Any = None) -> Iterator[T]:
    """Yield items while a bar on stderr shows how many were used, if that is a terminal.

    Args:
        what: What is done with them.
        items: The items.
        counted: Their number, or something of that length; None, or something without one, if it is not known.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    total: Optional[int] = counted if isinstance(counted, int) else None
    if hasattr(counted, "__len__"):
        total = len(counted)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)


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
