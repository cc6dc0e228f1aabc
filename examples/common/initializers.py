"""First values of parameters that do not know theirs."""

from __future__ import annotations

from mxnet import gluon

_ONES = ("gamma", "var")
_WEIGHT = "weight"


def name_initializers(params: gluon.ParameterDict) -> None:
    """Give parameters made from a symbol the initializers that their names ask for; weights keep the default's.

    Module's initializers know parameters by their names, Gluon's do not: they would draw the gammas of a
    BatchNorm at random, as if they were weights.

    Args:
        params: Of a block, before it is initialized; those that have an initializer keep it.
    """
    for name, param in params.items():
        if param.init is None and not name.endswith(_WEIGHT):
            param.init = "ones" if name.endswith(_ONES) else "zeros"
