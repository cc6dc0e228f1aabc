"""Comparison of symbols' JSON whatever the versions of their entries, which each trace of a net counts further."""

from __future__ import annotations

import re

_KEYS = re.compile(r'"(?:inputs|heads)": ')
"""What stands before entries in JSON as nnvm writes it, and in no text, where quotes are escaped."""

_ENTRIES = re.compile(r"[\[\]\d,\s]*")
_VERSION = re.compile(r", \d+\]")


def same_but_for_versions(text: str, other: str) -> bool:
    """Return whether two graphs, in JSON as MXNet writes it, are the same but for the versions of entries."""
    if text == other:
        return True
    pieces, others = _KEYS.split(text), _KEYS.split(other)
    if len(pieces) != len(others) or pieces[0] != others[0]:
        return False
    return all(_unversioned(a) == _unversioned(b) for a, b in zip(pieces[1:], others[1:]) if a != b)


def _unversioned(piece: str) -> str:
    """Return JSON that begins with entries without their versions."""
    end = _ENTRIES.match(piece).end()  # type: ignore[union-attr]  # nothing at all matches too
    return _VERSION.sub("]", piece[:end]) + piece[end:]
