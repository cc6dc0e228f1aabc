"""How far a run is: a bar on a terminal, lines elsewhere, with as many figures as there is room for."""

from __future__ import annotations

import time
from typing import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_PAUSE = 10.0  # seconds between lines, at least


class Display(Progress):
    """Shows the present epoch while it is a context manager."""

    def __init__(self, console: Console) -> None:
        counts = TextColumn("{task.completed}/{task.total}")
        columns = TextColumn("{task.description}"), BarColumn(20), counts, TimeRemainingColumn(), _Figures()
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._printed = 0.0

    def begin(self, epoch: int, steps: int, done: int) -> None:
        """Begin an epoch, counted from 1, some of whose steps may be done."""
        self.add_task(f"epoch {epoch}", total=steps, completed=done, figures="")
        self._printed = time.monotonic()

    def step(self, figures: Mapping[str, str]) -> None:
        """Show a step: what it gave by name, the most important first."""
        task = self.tasks[-1]
        self.update(task.id, advance=1, figures="  ".join(f"{name} {figure}" for name, figure in figures.items()))
        if self.disable and (task.finished or time.monotonic() > self._printed + _PAUSE):
            self._printed = time.monotonic()
            line = f"{task.description}  {int(task.completed)}/{int(task.total or 0)}  {task.fields['figures']}"
            self.console.print(line, no_wrap=True, overflow="ellipsis", markup=False, highlight=False)


class _Figures(ProgressColumn):
    """What the last step gave, cut off at the edge of the terminal."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")
