"""Files that are written whole or not at all, several of them as one.

Each file is written under a temporary name in its folder, ``<name>.<16 hex digits>.tmp``, and takes its
place when all are complete and on the disk. A process that was killed leaves such files; the next one
that writes a file of that name removes them. It knows those in use by their lock (flock), so that
processes and threads that write the same file do not disturb each other: the last one wins.

Files that belong together, such as a checkpoint's, take their places one after the other, so a kill can
leave new files beside old ones. Their manifest, ``<prefix>-<epoch>.manifest.json``, has the size and the
SHA-256 of each. `require_set` refuses files that do not fit it. MXNet does not look at it. All epochs share the
file of the symbol, so the manifest also has a hash of the network without the names of its operators: these
often count on from one save to the next (``reshape0``, ``reshape1``).
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
import shutil
import stat
import time
from glob import escape, glob
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .errors import CheckpointError

Records = Dict[str, Optional[Dict[str, Any]]]  # of a manifest: size and hash by name; None: of an older set

_TRIES = 100  # of a temporary name; the first one is free but for a race with a process that cleans
_WRITING: Set[str] = set()  # temporary names of this process, locked; a save within another writes to one as it is


@contextlib.contextmanager
def replacing(*paths: str, manifest: Optional[str] = None) -> Iterator[Tuple[str, ...]]:
    """Yield a temporary name beside each path; the files take their places, all of them, when the block ends well.

    With ``manifest``, the name of a file, that is written too, and `require_set` refuses the files after a kill
    among the renames. A file that is written alone has its record renewed in the manifest that lists it.

    If the block raises, or one file cannot take its place, nothing is left behind and what stood at
    the paths is as it was. What a link leads to is replaced, not the link. A file that existed keeps
    its permissions, a new one gets those of the process's umask. When this returns, files and names are
    on the disk, as far as the file system says so. An OSError says that a path is no file that can be
    written, or that nothing was written to one; a missing folder is a CheckpointError.
    """
    records: Records = {}
    if manifest is None and len(paths) == 1 and os.path.basename(paths[0]) in _read_records(manifest_of(paths[0])):
        manifest = manifest_of(paths[0])
        records = _read_records(manifest)
    elif manifest is not None:
        records = dict.fromkeys(_read_records(manifest))  # a file that this save does not write is older
    targets = tuple(os.path.realpath(path) for path in (*paths, *([] if manifest is None else [manifest])))
    for target in targets:
        _require_writable(target)
    with contextlib.ExitStack() as stack:
        for target in targets:
            _remove_abandoned(target)
        modes = [stat.S_IMODE(os.stat(each).st_mode) if os.path.lexists(each) else None for each in targets]
        names = tuple(
            target if target in _WRITING else stack.enter_context(_temporary(target, mode))
            for target, mode in zip(targets, modes)
        )
        yield names[: len(paths)]
        if manifest is not None:
            for path, name in zip(paths, names):
                records[os.path.basename(path)] = _record(name, path.endswith("-symbol.json"))
            with open(names[-1], "w", encoding="utf-8") as file:
                json.dump({"mxmp": "the files of one checkpoint", "files": records}, file, indent=1)
        for name, mode in zip(names, modes):
            _finish(name, mode)
        finished = [(name, target) for name, target in zip(names, targets) if name != target]
        if manifest is not None and modes[-1] is None:
            finished.insert(0, finished.pop())  # first, where no older one is there that refuses a mixture meanwhile
        with _locked_folder(targets[0], fcntl.LOCK_EX), _restoring([target for _, target in finished]):
            for name, target in finished:
                os.replace(name, target)
        _flush_folders(targets)


@contextlib.contextmanager
def saving(what: str, *paths: str, manifest: Optional[str] = None) -> Iterator[Tuple[str, ...]]:
    """Do what `replacing` does, with one CheckpointError that says what could not be written, and why.

    A file that is saved within the block, under one of the temporary names, fails as part of this one.
    """
    try:
        with replacing(*paths, manifest=manifest) as names:
            yield names
    except (CheckpointError, OSError) as e:
        cause = e.__cause__ if isinstance(e, CheckpointError) else e
        if not isinstance(cause, OSError):
            raise
        raise CheckpointError(f"{what} cannot be written: {cause.strerror or cause}") from cause


def manifest_of(path: str) -> str:
    """Return the name of the manifest of the set to which a file of parameters or states belongs."""
    return f"{os.path.splitext(path)[0]}.manifest.json"


def require_set(manifest: str, *paths: str) -> None:
    """Check that files were saved together, as far as a manifest lists them; without a manifest nothing is checked.

    Raises:
        CheckpointError: If the content of a file is not that of which the manifest has the hash.
    """
    if not os.path.lexists(manifest):
        return
    with _locked_folder(manifest, fcntl.LOCK_SH):  # not while they are replaced
        records = _read_records(manifest)
        wrong = [path for path in paths if not _fits(path, records)]
        left = {path: name for path in wrong for name in _left_beside(path) if _fits(path, records, name)}
    if not records:
        raise CheckpointError(f"{manifest}: it is damaged; delete it to load the files that it was about as they are.")
    if wrong:
        moves = "".join(
            f"rename {os.path.relpath(name, os.path.dirname(path) or '.')} to {os.path.basename(path)}, "
            for path, name in left.items()
        )
        raise CheckpointError(
            f"{wrong[0]}: it does not fit {manifest}, so it was not saved together with the other files of this "
            f"checkpoint: a save was cut off, or the file was written again. Restore the files that were saved "
            f"together{moves and f' ({moves[:-2]})'}, or delete the manifest to load those that are there."
        )


def cache_folder() -> Optional[str]:
    """Return mxmp's part of the user's cache folder, ``$XDG_CACHE_HOME`` or ``~/.cache``; None if there is none."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG Base Directory Specification: ignore it
        folder = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(folder, "mxmp") if os.path.isabs(folder) else None


def is_local(path: str) -> bool:
    """Return whether a path that MXNet is given is one of this machine's, not a URI such as ``s3://...``."""
    return "://" not in os.fspath(path)


def require_file(path: str) -> None:
    """Raise a CheckpointError unless a path is a file to read: a pipe may never give anything."""
    if not os.path.isfile(path):
        found = "a folder" if os.path.isdir(path) else "a pipe or a device" if os.path.exists(path) else None
        raise CheckpointError(f"{path}: {f'it is {found}, not a file' if found else 'there is no such file'}.")


def require_folder(path: str) -> None:
    """Check, before any work, that the folder of a file or prefix exists."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CheckpointError(f"{path}: there is no folder {folder}; make it first.")


def require_new(*paths: str, force: bool) -> None:
    """Check, before any work, that the files that ``-o`` names can be made: in a folder, and not there, or may go.

    Raises:
        CheckpointError: If not; it names the first that cannot.
    """
    for path in paths:
        require_folder(path)
        if os.path.isdir(path):
            raise CheckpointError(f"{path}: it is a folder; give another name to -o.")
        if os.path.lexists(path) and not force:
            raise CheckpointError(f"{path}: it exists; give another name to -o, or --force to overwrite it.")


def _read_records(manifest: str) -> Records:
    """Return the records of a manifest by the name of the file; none of a file that is missing or no manifest."""
    try:
        with open(manifest, encoding="utf-8") as file:
            records = json.load(file)["files"]
        return records if all(record is None or "sha256" in record for record in records.values()) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _record(path: str, is_symbol: bool) -> Dict[str, Any]:
    """Return the size and the hash of a file, of a symbol's that of its network too."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
        record = {"size": file.tell(), "sha256": digest.hexdigest()}
        if is_symbol:
            file.seek(0)
            with contextlib.suppress(ValueError, RecursionError):
                network = json.dumps(json.load(file, object_hook=_without_name), sort_keys=True)
                record["network_sha256"] = hashlib.sha256(network.encode()).hexdigest()
    return record


def _without_name(node: Dict[str, Any]) -> Dict[str, Any]:
    """Return a node of a symbol's JSON without its name, unless it is a variable; any other object as it is."""
    return {key: value for key, value in node.items() if key != "name" or node.get("op", "null") == "null"}


def _fits(path: str, records: Records, name: Optional[str] = None) -> bool:
    """Return whether a file, under its own name or another, fits its record; True if it has none or cannot be read."""
    name = name or path
    base = os.path.basename(path)
    if base not in records or not os.path.isfile(name):
        return True
    record = records[base]
    if record is None:
        return False
    network = record.get("network_sha256")
    try:
        if network is None and os.path.getsize(name) != record.get("size"):
            return False
        found = _record(name, network is not None)
    except OSError:
        return True  # the reader says why
    return found["sha256"] == record["sha256"] or (network is not None and found.get("network_sha256") == network)


def _left_beside(path: str) -> List[str]:
    """Return the files that a process which was killed has left beside a path."""
    names = glob(f"{escape(os.path.realpath(path))}.*")
    return [name for name in names if re.fullmatch(r"\.[0-9a-f]{16}\.(tmp|old)", name[len(os.path.realpath(path)) :])]


@contextlib.contextmanager
def _locked_folder(path: str, kind: int) -> Iterator[None]:
    """Lock the folder of a file, so that a set is not replaced by two at once, nor checked meanwhile.

    Whoever cannot have the lock within a second goes on without.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            number = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
            stack.callback(_unlock, number)
            for _ in range(_TRIES):
                if _lock(number, kind):
                    break
                time.sleep(0.01)
        yield


def _require_writable(path: str) -> None:
    """Raise if a path is not one where a file may be written or replaced."""
    require_folder(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"{path} is no regular file, so none can take its place")
    if os.path.lexists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, f"{path} is write-protected")


@contextlib.contextmanager
def _temporary(path: str, mode: Optional[int]) -> Iterator[str]:
    """Make an empty file beside a path, locked, and remove it if it is there still at the end."""
    name, number = _create(path)
    _WRITING.add(name)
    try:
        if mode is not None:
            os.fchmod(number, mode | stat.S_IRUSR | stat.S_IWUSR)  # before there is anything to read in it
        yield name
    finally:
        _remove(name)
        _WRITING.discard(name)
        _unlock(number)


def _create(path: str) -> Tuple[str, int]:
    """Return the name of a new empty file beside a path, and its locked descriptor."""
    for _ in range(_TRIES):
        name = f"{path}.{secrets.token_hex(8)}.tmp"
        number = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        if _lock(number, fcntl.LOCK_EX) and os.path.lexists(name):
            return name, number
        os.close(number)  # one that cleans has come between
    raise OSError(errno.EAGAIN, f"temporary files beside {path} are removed as soon as they are made")


def _lock(number: int, kind: int) -> bool:
    """Lock an open file if no other has; return False if one has. True where the file system has no locks."""
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _unlock(number: int) -> None:
    """Close an open file, its lock gone for processes that were forked meanwhile too."""
    with contextlib.suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_UN)
    os.close(number)


def _remove_abandoned(path: str) -> None:
    """Remove what processes that were killed have left beside a path."""
    folder, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.[0-9a-f]{16}\.(tmp|old)")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.path for entry in entries if pattern.fullmatch(entry.name)]:
            _remove_unless_locked(name)


def _remove_unless_locked(name: str) -> None:
    with contextlib.suppress(OSError):
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use, or cannot be known
            os.remove(name)
        finally:
            os.close(number)  # and with it the lock


def _finish(name: str, mode: Optional[int]) -> None:
    """Flush a file to the disk and set its permissions; raise if nothing was written to it."""
    with open(name, "rb+") as file:
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENODATA, "nothing was written; is the disk full?")
        os.fsync(file.fileno())
        if mode is not None:
            os.fchmod(file.fileno(), mode)


def _flush_folders(paths: Sequence[str]) -> None:
    """Flush the folders of files to the disk, where the file system can."""
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        with contextlib.suppress(OSError):
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


@contextlib.contextmanager
def _restoring(paths: Sequence[str]) -> Iterator[None]:
    """Put back what stands at some paths now, if the block raises."""
    kept: List[Tuple[str, Optional[str]]] = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            kept.append((path, stack.enter_context(_second_name(path)) if os.path.lexists(path) else None))
        try:
            yield
        except BaseException:
            for path, name in kept:
                if name is not None:
                    os.replace(name, path)
                elif os.path.lexists(path):
                    os.remove(path)
            raise


@contextlib.contextmanager
def _second_name(path: str) -> Iterator[str]:
    """Give a file a second name, or copy it where the file system has no links; remove that at the end."""
    with contextlib.ExitStack() as stack:
        for _ in range(_TRIES):
            name = f"{path}.{secrets.token_hex(8)}.old"
            stack.callback(_remove, name)
            try:
                os.link(path, name)
            except OSError:
                shutil.copy2(path, name)
            if _lock_shared(name, stack):
                break
        yield name


def _lock_shared(name: str, stack: contextlib.ExitStack) -> bool:
    """Lock a second name, shared with others who write the same file; return False if it was removed before."""
    try:
        number = os.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not to be read, so one that cleans cannot lock it either
    stack.callback(os.close, number)
    for _ in range(_TRIES):  # its last writer may hold it still
        if _lock(number, fcntl.LOCK_SH):
            break
        time.sleep(0.01)
    return os.path.lexists(name)


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(name)
