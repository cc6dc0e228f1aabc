"""Name overrides that put single operators in one precision."""

from __future__ import annotations

from glob import escape
from typing import Iterable

from .. import dtypes
from ..policy import Policy


def pattern_of(name: str) -> str:
    """Return the pattern of names that stands for a node's name.

    What a pattern cannot hold is written as ``?``, which stands for any other character too.

    Example:
        >>> pattern_of("fc[1]"), pattern_of("a,b")
        ('fc[[]1]', 'a?b')
    """
    found = "".join("?" if character in ",=" else character for character in escape(name))
    inner = found.strip()
    start = len(found) - len(found.lstrip())
    return "?" * start + inner + "?" * (len(found) - start - len(inner))


def with_names(policy: Policy, patterns: Iterable[str], dtype: str = dtypes.FLOAT32) -> Policy:
    """Return a policy that has the operators of some patterns of names in a precision, and is the same otherwise."""
    return policy.replace(names={**dict(policy.names), **dict.fromkeys(patterns, dtype)})
