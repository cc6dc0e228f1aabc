"""How far a run is: a bar on a terminal, lines elsewhere, with as many figures as there is room for."""

from __future__ import annotations

import time
from typing import Any, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_BAR = 20
_OTHERS = len("epoch 100") + _BAR + len("0:00:00") + 4  # a line without counts and figures; 4 spaces between columns
_PAUSE = 10.0  # seconds between lines, at least


class Display:
    """Shows the present epoch while it is a context manager.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = TextColumn("{task.description:9}"), BarColumn(_BAR), TextColumn("{task.completed}/{task.total}")
        self._progress = Progress(
            *columns, TimeRemainingColumn(), _Figures(console), console=console, disable=not console.is_terminal
        )
        self._printed = 0.0

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._progress.stop()

    def begin(self, epoch: int, steps: int, done: int) -> None:
        """Begin an epoch, counted from 1, some of whose steps may be done."""
        self._progress.add_task(f"epoch {epoch}", total=steps, completed=done, figures={})
        self._printed = time.monotonic()

    def advance(self, figures: Mapping[str, str]) -> None:
        """Show a step.

        Args:
            figures: What it gave, by name, the most important first.
        """
        task = self._progress.tasks[-1]
        self._progress.update(task.id, advance=1, figures=figures)
        if not self._console.is_terminal and (task.finished or time.monotonic() > self._printed + _PAUSE):
            self._printed = time.monotonic()
            begin = f"{task.description}  {_counts(task)}  "
            self._console.print(begin + fit(figures, self._console.width - len(begin)), markup=False, highlight=False)


def fit(figures: Mapping[str, str], width: int) -> str:
    """Return figures with their names, at most so many characters.

    If there are too many, names lose what is before a slash, and then the last figures are left out.

    Args:
        figures: What to show, by name.
        width: Characters.
    """
    pairs = [f"{name} {figure}" for name, figure in figures.items()]
    if len("  ".join(pairs)) > width:
        pairs = [pair.rpartition("/")[2] for pair in pairs]
    while pairs and len("  ".join(pairs)) > width:
        pairs.pop()
    return "  ".join(pairs)


class _Figures(ProgressColumn):
    """As many figures as the others leave room for."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        width = self._console.width - _OTHERS - len(_counts(task))
        return Text(fit(task.fields["figures"], width), no_wrap=True)


def _counts(task: Task) -> str:
    return f"{int(task.completed)}/{int(task.total or 0)}"
