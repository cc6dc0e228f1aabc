"""Files that are written whole or not at all, also several of them together.

Each file is written under a temporary name in its folder, ``<name>.<16 hex digits>.tmp``. It takes its place when all
are complete and on the disk. A killed process leaves such temporary files; the next save of a file of that name removes
them. A save locks its temporary files (flock), so that no other save removes them.

The files of a set, such as a checkpoint, take their places one after the other. So a kill can leave new files next to
old ones. The manifest of a set, ``<prefix>-<epoch>.manifest.json``, has a hash of each file. `require_set` refuses
files that do not fit it. MXNet does not read it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from glob import escape, glob
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from .errors import CheckpointError

Records = Dict[str, Optional[Dict[str, Any]]]  # by name of the file; None for a file of an older set

_NO_NETWORK = ValueError, TypeError, KeyError, AttributeError, RecursionError  # JSON that is no symbol
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp\Z")


@contextlib.contextmanager
def replacing(*paths: str, manifest: Optional[str] = None) -> Iterator[Tuple[str, ...]]:
    """Yield a temporary name next to each path; all files take their places when the block ends without an exception.

    ``manifest`` is the name of a file that is written too; with it `require_set` refuses the files if a kill came
    between the renames. A file that is written by itself gets a new record in the manifest that lists it.

    If the block raises, no temporary file is left, and the files at the paths are unchanged. An interrupt between the
    renames waits for the last. The target of a link is replaced, not the link. A file that existed keeps its
    permissions. A new file gets those of the process's umask. At the end files and names are on the disk, as far as the
    file system says so. An OSError says that a path cannot be written, or that nothing was written to it. A missing
    folder is a CheckpointError.
    """
    manifest, records = _manifest_of_save(paths, manifest)
    targets = [os.path.realpath(path) for path in (paths if manifest is None else (*paths, manifest))]
    for target in targets:
        _require_writable(target)
    # If there is no older manifest to refuse a mixture, the new one takes its place before its files.
    manifest_first = manifest is not None and not os.path.lexists(targets[-1])
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(_temporary(target)) for target in targets]
        yield tuple(names[: len(paths)])
        if manifest is not None:
            for path, name in zip(paths, names):
                records[os.path.basename(path)] = _record(name, path)
            with open(names[-1], "w", encoding="utf-8") as file:
                json.dump({"mxmp": "the files of one checkpoint", "files": records}, file, indent=1)
        for name, target in zip(names, targets):
            _finish(name, target)
        renames = [(name, target) for name, target in zip(names, targets) if name != target]
        with _locked_folder(targets[0], fcntl.LOCK_EX):
            if manifest_first:
                renames.insert(0, renames.pop())
            _rename_all(renames)
        for folder in dict.fromkeys(map(os.path.dirname, targets)):
            _flush_folder(folder)


@contextlib.contextmanager
def saving(what: str, *paths: str, manifest: Optional[str] = None) -> Iterator[Tuple[str, ...]]:
    """Replace files as `replacing` does, with one CheckpointError that says which files could not be written, and why.

    A file that is saved within the block under one of the temporary names fails as part of this save.
    """
    try:
        with replacing(*paths, manifest=manifest) as names:
            yield names
    except (CheckpointError, OSError) as e:
        cause = e.__cause__ if isinstance(e, CheckpointError) else e
        if not isinstance(cause, OSError):  # not a failed write, but a failed read within the block
            raise
        raise CheckpointError(f"{what} cannot be written: {cause.strerror or cause}") from cause


def manifest_of(path: str) -> str:
    """Return the name of the manifest for the set of a file of parameters or states."""
    return f"{os.path.splitext(path)[0]}.manifest.json"


def require_set(manifest: str, *paths: str) -> None:
    """Check that files were saved together, if a manifest lists them.

    Raises:
        CheckpointError: If the content of a file does not have the hash in the manifest.
    """
    if not os.path.lexists(manifest):
        return
    with _locked_folder(manifest, fcntl.LOCK_SH):  # not while they are replaced
        records = _read_records(manifest)
        wrong = [path for path in paths if not _fits(path, records)]
    if not records:
        raise CheckpointError(f"{manifest}: the manifest is damaged; to load its files without a check, delete it.")
    if wrong:
        raise CheckpointError(
            f"{wrong[0]}: it does not fit {manifest}, so it was not saved together with the other files of this "
            f"checkpoint: a save was cut off, or the file was written again. Restore the files that were saved "
            f"together; or to load the present files, delete the manifest."
        )


def cache_folder() -> Optional[str]:
    """Return mxmp's part of the user's cache folder, ``$XDG_CACHE_HOME`` or ``~/.cache``; None if there is none."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG Base Directory Specification: ignore it
        folder = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(folder, "mxmp") if os.path.isabs(folder) else None


def is_local(path: str) -> bool:
    """Return whether a path for MXNet is on this machine, not a URI such as ``s3://...``."""
    return "://" not in os.fspath(path)


def path_of(fname: Any) -> str:
    """Return the path that a user gave as ``fname``; raise a CheckpointError if it is no path."""
    if not isinstance(fname, (str, os.PathLike)):
        raise CheckpointError(f"fname is {fname!r}; expected the path of a file.")
    return os.fspath(fname)


class _MissingFileError(CheckpointError, FileNotFoundError):
    """A file to load is missing."""


def require_file(path: str) -> None:
    """Raise a CheckpointError unless a path is a file. A pipe is refused: reading it might never end."""
    if not os.path.exists(path):
        raise _MissingFileError(f"{path}: there is no such file.")
    if not os.path.isfile(path):
        raise CheckpointError(f"{path}: it is {_kind(path)}, not a file.")


def require_folder(path: str) -> None:
    """Check, before any work, that the folder of a file or prefix exists."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CheckpointError(f"{path}: there is no folder {folder}; make it first.")


def _manifest_of_save(paths: Sequence[str], manifest: Optional[str]) -> Tuple[Optional[str], Records]:
    """Return the manifest that a save writes, or None, and its records of other files."""
    if manifest is not None:
        return manifest, dict.fromkeys(_read_records(manifest))  # older than this set, so they do not fit it
    manifest = manifest_of(paths[0])
    records = _read_records(manifest)
    if os.path.basename(paths[0]) in records:
        return manifest, records
    return None, {}


def _read_records(manifest: str) -> Records:
    """Return the records of a manifest by the name of the file; none if it is missing or damaged."""
    try:
        with open(manifest, encoding="utf-8") as file:
            records = json.load(file)["files"]
        sound = all(record is None or isinstance(record, dict) for record in records.values())
        return records if sound else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _record(name: str, path: str) -> Dict[str, Any]:
    """Return the size and the hash of a file that is, or will be, at a path; of a symbol the hash of its network.

    All epochs share the file of the symbol. Operators without a name of their own get new names from one save to the
    next (``reshape0``, ``reshape1``), so names are not part of the hash. Names in the bodies of loops come from those
    names.
    """
    if path.endswith("-symbol.json"):
        with contextlib.suppress(*_NO_NETWORK), open(name, encoding="utf-8") as file:
            network = json.dumps(json.load(file, object_hook=_without_names), sort_keys=True)
            return {"network_sha256": hashlib.sha256(network.encode()).hexdigest()}
    digest = hashlib.sha256()
    with open(name, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def _without_names(data: Dict[str, Any]) -> Dict[str, Any]:
    """Return a node of a symbol's JSON, or its attributes, without names; parameters and inputs keep theirs."""
    for body in data.get("subgraphs", ()):
        for node in body["nodes"]:
            node.pop("name", None)
    names = {"__subgraph_name__"} | ({"name"} if data.get("op", "null") != "null" else set())
    return {key: value for key, value in data.items() if key not in names}


def _fits(path: str, records: Records) -> bool:
    """Return whether a file fits its record. True if there is no record or no file, which its reader reports."""
    base = os.path.basename(path)
    if base not in records or not os.path.isfile(path):
        return True
    return records[base] == _record(path, path)


@contextlib.contextmanager
def _locked_folder(path: str, kind: int) -> Iterator[None]:
    """Lock the folder of a file, so that no two saves replace a set at once, and no new file is removed."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system may have no locks
            number = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
            stack.callback(os.close, number)
            fcntl.flock(number, kind)
            stack.callback(fcntl.flock, number, fcntl.LOCK_UN)  # so that no forked process keeps the lock
        yield


def _require_writable(path: str) -> None:
    """Raise an error if no file can be written or replaced at a path."""
    require_folder(path)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"{path} is {_kind(path)}, not a file")
    if os.path.lexists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, f"{path} is write-protected")


def _kind(path: str) -> str:
    return "a folder" if os.path.isdir(path) else "a pipe or a device"


@contextlib.contextmanager
def _temporary(target: str) -> Iterator[str]:
    """Make an empty, locked file next to a target, and remove it at the end if it still exists.

    If the target is a temporary file of a save around this one, it is written directly: that save replaces the file.
    """
    if _TEMPORARY.search(target):
        yield target
        return
    name = f"{target}.{secrets.token_hex(8)}.tmp"
    with _locked_folder(target, fcntl.LOCK_EX):
        _remove_left_over(target)
        file = open(name, "xb")
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
    try:
        if os.path.lexists(target):  # before it has any content
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode) | stat.S_IRUSR | stat.S_IWUSR)
        yield name
    finally:
        file.close()
        with contextlib.suppress(OSError):
            os.remove(name)


def _remove_left_over(target: str) -> None:
    """Remove the temporary files of a target that killed processes have left."""
    for name in glob(f"{escape(target)}.*"):
        is_temporary = _TEMPORARY.fullmatch(name[len(target) :])
        if not is_temporary or not os.path.isfile(name):
            continue
        with contextlib.suppress(OSError), open(name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use, or cannot be known
            os.remove(name)


def _finish(name: str, target: str) -> None:
    """Flush a file to the disk and give it the target's permissions; raise if nothing was written to it."""
    with open(name, "rb+") as file:
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENODATA, "nothing was written; is the disk full?")
        os.fsync(file.fileno())
        if os.path.lexists(target):
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))


def _rename_all(renames: Sequence[Tuple[str, str]]) -> None:
    """Rename files, each (name, target); an interrupt waits until all are renamed."""
    try:
        for name, target in renames:
            os.replace(name, target)
    except (KeyboardInterrupt, SystemExit):
        _rename_all([(name, target) for name, target in renames if os.path.lexists(name)])
        raise


def _flush_folder(folder: str) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # not every file system flushes folders
        number = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, number)
        os.fsync(number)
