"""Whether the operators of a net keep their names, so that they can be found again and named in a policy."""

from __future__ import annotations

from typing import AbstractSet

from mxnet import gluon

from ...errors import ConvertError
from ...graph import Graph


def require_same_names(net: gluon.Block, names: AbstractSet[str], traced_again: Graph) -> None:
    """Raise a ConvertError unless all operators of a net have names that they had when it was traced before."""
    for node in traced_again.operators():
        if node.name not in names:
            raise ConvertError(
                f"block '{net.name}': operators in it get other names each time it is traced, {node} for example, so "
                f"that no policy can name them. Make it with a prefix: {type(net).__name__}(prefix='net_')."
            )
