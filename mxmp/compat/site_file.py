"""The file in site-packages that has Python import mxmp before MXNet, whatever a program imports first.

Python runs a line of a ``.pth`` file that begins with ``import``, each time it starts (the module ``site`` of the
standard library). Ours puts a finder at the head of ``sys.meta_path``, which waits for the names of MXNet and
GluonCV. It needs no file beside it, and does nothing once mxmp is uninstalled.
"""

from __future__ import annotations

import os
import sysconfig
from typing import NoReturn, Optional

from .. import files
from ..errors import MxmpError, SiteError
from .finder import PACKAGES

NAME = "mxmp_site.pth"
SWITCH = "MXMP_SITE"
"""The environment variable that leaves MXNet to itself, if it is 0."""

_MARK = "# mxmp: "  # Python passes over such a line; a file without it is another's
_HEAD = f"{_MARK}written by `mxmp site on`, removed by `mxmp site off`; {SWITCH}=0 switches it off.\n"

# What the finder does when it is asked for MXNet: it hands out what the others find, with a loader that imports mxmp
# first and then asks the others anew. It imports nothing itself: Python asks a finder under the lock of all imports,
# for which another thread may wait in the middle of importing mxmp. The whole of mxmp, not a part: the lock of a part
# is taken before that of the whole, and mxmp's own imports take them the other way round. `busy` has the threads that
# ask the others, some of which ask all again. Whatever is wrong with mxmp, MXNet is imported as without it.
_ACTION = f"""\
import _thread, os, sys

def find(name, path=None, target=None):
    me = _thread.get_ident()
    if me in busy:
        return None
    busy.append(me)
    try:
        for finder in sys.meta_path:
            found = hasattr(finder, "find_spec") and finder.find_spec(name, path, target)
            if found:
                return found
    finally:
        busy.remove(me)

class Loader:
    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec):
        try:
            import mxmp
        except Exception:
            pass
        found = find(spec.name)
        if found:
            self._loader = found.loader
        if spec.loader is self:
            spec.loader = self._loader
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)

spec = None if os.environ.get({SWITCH!r}) == "0" else find(name, path, target)
if spec and hasattr(spec.loader, "exec_module"):
    spec.loader = Loader(spec.loader)
"""

# One line, short and without a module of its own: it is compiled at every start, `_ACTION` when it is needed. Python
# runs it twice in a virtual environment.
_LINE = (
    'import sys; any(getattr(each, "__name__", "") == "MxmpSite" for each in sys.meta_path) or '
    'sys.meta_path.insert(0, type("MxmpSite", (), {"find_spec": '
    f"lambda name, path=None, target=None, busy=[]: None if name not in {PACKAGES!r} else "
    f'(lambda own: exec({_ACTION!r}, own) or own["spec"])'
    '({"name": name, "path": path, "target": target, "busy": busy})}))\n'
)


def path() -> str:
    """Return where the file stands: in the folder of pure Python packages of this environment."""
    return os.path.join(sysconfig.get_path("purelib"), NAME)


def is_on() -> bool:
    """Return whether the file is there as this version of mxmp writes it."""
    return _read() == _HEAD + _LINE


def is_outdated() -> bool:
    """Return whether the file is there as another version of mxmp wrote it."""
    text = _read()
    return text is not None and text.startswith(_MARK) and text != _HEAD + _LINE


def write() -> None:
    """Write the file, whole or not at all; one that is there as it should be is left as it is."""
    _require_ours()
    if is_on():
        return
    try:
        with files.replacing(path()) as (name,), open(name, "w", encoding="ascii") as file:
            file.write(_HEAD + _LINE)
    except (OSError, MxmpError) as e:
        _fail("written", e)


def remove() -> bool:
    """Remove the file, if there is one, and return whether there was."""
    _require_ours()
    try:
        os.remove(path())
    except FileNotFoundError:
        return False
    except OSError as e:
        _fail("removed", e)
    return True


def _read() -> Optional[str]:
    try:
        with open(path(), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as e:
        _fail("read", e)


def _require_ours() -> None:
    text = _read()
    if text is not None and not text.startswith(_MARK):
        raise SiteError(f"{path()} was not written by mxmp; remove it yourself if you do not need it.")


def _fail(what: str, error: Exception) -> NoReturn:
    reason = getattr(error, "strerror", None) or error
    advice = "Run the command as the owner of this folder, or use a virtual environment (python -m venv)."
    if os.path.isdir(path()):
        advice = "Remove the folder."
    raise SiteError(f"{path()} cannot be {what}: {reason}. {advice}") from error
