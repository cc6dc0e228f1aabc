"""Name overrides that put single operators in one precision, and nets whose operators have names to keep."""

from __future__ import annotations

from glob import escape
from typing import AbstractSet, Iterable

from mxnet import gluon

from .. import dtypes
from ..errors import TuneError
from ..graph import Graph
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


def require_same_names(net: gluon.Block, names: AbstractSet[str], traced_again: Graph) -> None:
    """Raise a TuneError unless all operators of a net have names that they had when it was traced before."""
    for node in traced_again.operators():
        if node.name not in names:
            raise TuneError(
                f"block '{net.name}': operators in it get other names each time it is traced, {node} for example, so "
                f"that no policy can name them. Make it with a prefix: {type(net).__name__}(prefix='net_')."
            )
