"""Show how far long work is, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

from ..display import terminal  # noqa: F401  # which imports rich, and puts Python's random numbers back

# isort: split
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def shown(name: str, items: Iterable[T], counted: Any = None) -> Iterator[T]:
    """Yield items while a bar on stderr shows how many were used, if that is a terminal.

    Args:
        name: The work that is done with them.
        items: The items.
        counted: Their number, or something of that length; None, or something without one, if it is not known.
    """
    total = len(counted) if hasattr(counted, "__len__") else counted if isinstance(counted, int) else None
    with showing_progress(sys.stderr.isatty()) as show:
        # An iterator has no length: the bar moves to and fro, and the number in the text tells how far it is.
        for number, item in enumerate(items):
            show(f"{name} {number}", number / total if total else None)
            yield item


@contextlib.contextmanager
def showing_progress(shown: bool) -> Iterator[Callable[[str, Optional[float]], None]]:
    """Yield a function of the next task and the share that is done, which a bar on stderr shows if asked to."""
    # rich would write control sequences into a file or a pipe.
    if not shown:
        yield lambda name, share: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(name: str, share: Optional[float]) -> None:
            bar.update(task, description=name, total=share and 1.0, completed=min(share or 0.0, 1.0), refresh=True)

        yield show
