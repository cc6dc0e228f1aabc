"""Score an exported network with plain MXNet, as a program without mxmp would.

Usage: score_exported.py SYMBOL.json WEIGHTS.params TEST.npz (arrays 'images' and 'labels');
prints {"accuracy": ...}.
"""

from __future__ import annotations

import json
import sys
import warnings

import mxnet as mx
import numpy as np
from mxnet import gluon


def score(symbol_file: str, params_file: str, test_file: str) -> float:
    """Return the accuracy of an exported network, 0 to 1."""
    with warnings.catch_warnings():
        # MXNet infers dtypes before it has seen the input, and takes float32 for it.
        warnings.filterwarnings("ignore", message="Cannot decide type", category=UserWarning)
        net = gluon.SymbolBlock.imports(symbol_file, ["data"], params_file, ctx=mx.cpu())
    with np.load(test_file) as test:
        predicted = net(mx.nd.array(test["images"])).asnumpy().argmax(axis=1)
        return float((predicted == test["labels"]).mean())


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(json.dumps({"accuracy": score(*sys.argv[1:])}))
    # Where MXNet does not import by itself, `python -m mxmp run` ran this; that is no part of mxmp which converts.
    sys.exit("mxmp was used, so this proves nothing" if "mxmp.symbol" in sys.modules else 0)
