"""The state of a run in a folder: networks, optimizer states and history, written whole.

``run.json`` holds settings and history. Each network has ``<part>-symbol.json`` and
``<part>-0000.params``, which plain MXNet loads (`mx.model.load_checkpoint`), and ``<part>.states``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import click
import mxnet as mx

from examples.common.history import History
from examples.common.parts import Part

RECORD = "run.json"
Settings = Mapping[str, Any]


def save(folder: Path, parts: Mapping[str, Part], settings: Settings, history: History) -> None:
    """Write the state of a run; what the folder held of an earlier one is replaced by all of it, or kept.

    Args:
        folder: Where to; made if it is missing.
        parts: The networks by the names that their files are to have.
        settings: What decides on the run's course, as JSON data.
        history: The run so far.
    """
    new = folder / "unfinished"
    shutil.rmtree(new, ignore_errors=True)  # of a run that was killed
    new.mkdir(parents=True)
    try:
        for name, part in parts.items():
            symbol, params, states = _files(new, name)
            symbol.write_text(part.symbol.tojson(), encoding="utf-8")  # Symbol.save is silent on a full disk
            part.save_params(str(params))
            _require_whole(params)  # and so is mx.nd.save
            part.save_states(str(states))
        sums = {path.name: _checksum(path) for path in sorted(new.iterdir())}
        record = {"settings": settings, "files": sums, "history": dataclasses.asdict(history)}
        (new / RECORD).write_text(json.dumps(record, allow_nan=False), encoding="utf-8")
        for path in new.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for name in [*sums, RECORD]:
            os.replace(new / name, folder / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def load(folder: Path, parts: Mapping[str, Part], settings: Settings) -> History:
    """Bring networks and trainers to the state that `save` wrote to a folder, and return the run up to there.

    Nothing is loaded of a checkpoint that is damaged or of another run.
    """
    record = _read(folder / RECORD)
    _require_same(folder, record["settings"], json.loads(json.dumps(settings)))
    for name, checksum in record["files"].items():
        if not (folder / name).is_file():
            raise click.ClickException(f"{folder / name}: the file is missing, but {RECORD} belongs to it.")
        if _checksum(folder / name) != checksum:
            raise click.ClickException(f"{folder / name}: damaged, or of another run than {RECORD}.")
    history = History(**record["history"])
    for name, part in parts.items():
        _, params, states = _files(folder, name)
        part.load_params(str(params))
        part.load_states(str(states))
    return history


def require_free(folder: Path) -> None:
    """Raise a click.ClickException if a new run in a folder would replace the checkpoint of another."""
    if (folder / RECORD).exists():
        raise click.ClickException(
            f"{folder} holds the checkpoint of a run; --resume goes on with it, --force replaces it, --output takes "
            "another folder."
        )


def _read(path: Path) -> Dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        text = "there is no checkpoint; leave --resume out to start a run there."
        raise click.ClickException(f"{path}: {text}") from None
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{path}: it cannot be read: {e}") from e
    if not isinstance(record, dict) or not {"settings", "files", "history"} <= set(record):
        raise click.ClickException(f"{path}: it is no record of a run.")
    return record


def _require_same(folder: Path, found: Settings, wanted: Settings) -> None:
    """Raise if a run with these settings is not the one that a folder holds; name the first that differs."""
    for name in dict.fromkeys([*found, *wanted]):
        values = found.get(name), wanted.get(name)
        if values[0] != values[1]:
            one, other = (value if isinstance(value, str) else json.dumps(value) for value in values)
            raise click.ClickException(
                f"{folder / RECORD}: a checkpoint with {name} {one}, not {other}; resume with the same {name}, or "
                "start a run in another --output."
            )


def _files(folder: Path, part: str) -> Tuple[Path, Path, Path]:
    """Return the files of a network: symbol, parameters, optimizer states."""
    return folder / f"{part}-symbol.json", folder / f"{part}-0000.params", folder / f"{part}.states"


def _require_whole(params: Path) -> None:
    try:
        mx.nd.load(str(params))
    except mx.MXNetError as e:
        raise OSError(f"{params.name} was not written whole; is the disk full?") from e


def _checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())
