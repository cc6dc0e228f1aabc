"""Reports and pages written to files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from ..files import saving


def save_text(text: str, path: str) -> None:
    """Write a text to a file, which is replaced if it is there.

    Raises:
        CheckpointError: If it cannot be written.
    """
    with saving(str(path), str(path)) as (name,):
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")
