"""The state of a run in a folder: networks, optimizer states and history, written whole.

``run.json`` holds settings and history. Each network has ``<part>-symbol.json`` and
``<part>-0000.params``, which plain MXNet loads (`mx.model.load_checkpoint`), and ``<part>.states``.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import click
from mxmp.arrays_file import check_arrays_file
from mxmp.files import replacing

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
    folder.mkdir(parents=True, exist_ok=True)
    names = [path.name for part in parts for path in _files(folder, part)]
    with replacing(*(str(folder / name) for name in [*names, RECORD])) as files:
        for number, part in enumerate(parts.values()):
            symbol, params, states = files[3 * number : 3 * number + 3]
            Path(symbol).write_text(part.symbol.tojson(), encoding="utf-8")  # Symbol.save is silent on a full disk
            part.save_params(params)
            check_arrays_file(params)  # and mx.nd.save on one that the last bytes do not fit on
            part.save_states(states)
        sums = {name: _checksum(Path(file)) for name, file in zip(names, files)}
        record = {"settings": settings, "files": sums, "history": history.to_dict()}
        Path(files[-1]).write_text(json.dumps(record), encoding="utf-8")


def load(folder: Path, parts: Mapping[str, Part], settings: Settings) -> History:
    """Bring networks and trainers to the state that a folder holds, and return the run up to there.

    Args:
        folder: What `save` wrote to.
        parts: As for `save`.
        settings: Likewise; the same as then.

    Raises:
        click.ClickException: If there is no checkpoint, it is of another run, or it is damaged. Then
            nothing is loaded.
    """
    record = _read(folder)
    _require_same(folder, record["settings"], json.loads(json.dumps(settings)))
    for name, checksum in record["files"].items():
        if not (folder / name).is_file():
            raise click.ClickException(f"{folder / name}: the file is missing, but {RECORD} belongs to it.")
        if _checksum(folder / name) != checksum:
            raise click.ClickException(f"{folder / name}: damaged, or of another run than {RECORD}.")
    history = History.from_dict(record["history"])
    for name, part in parts.items():
        _, params, states = _files(folder, name)
        part.load_params(str(params))
        part.load_states(str(states))
    return history


def require_free(folder: Path) -> None:
    """Raise if a new run in a folder would replace the checkpoint of another.

    Raises:
        click.ClickException: If so; it says what there is.
    """
    if (folder / RECORD).exists():
        raise click.ClickException(
            f"{folder} holds the checkpoint of a run; --resume goes on with it, --force replaces it, --output takes "
            "another folder."
        )


def _read(folder: Path) -> Dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise click.ClickException(
            f"{path}: there is no checkpoint; leave --resume out to start a run there."
        ) from None
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{path}: it cannot be read: {e}") from e
    if not isinstance(record, dict) or not {"settings", "files", "history"} <= set(record):
        raise click.ClickException(f"{path}: it is no record of a run.")
    return record


def _require_same(folder: Path, found: Settings, wanted: Settings) -> None:
    """Raise if a run with these settings is not the one that a folder holds; name the first that differs."""
    for name in dict.fromkeys([*found, *wanted]):
        if found.get(name) != wanted.get(name):
            raise click.ClickException(
                f"{folder / RECORD}: a checkpoint with {name} {_text(found.get(name))}, not {_text(wanted.get(name))}; "
                f"resume with the same {name}, or start a run in another --output."
            )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _files(folder: Path, part: str) -> Tuple[Path, Path, Path]:
    """Return the files of a network: symbol, parameters, optimizer states."""
    return folder / f"{part}-symbol.json", folder / f"{part}-0000.params", folder / f"{part}.states"


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file, read in pieces."""
    result = 0
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            result = zlib.crc32(piece, result)
    return result
