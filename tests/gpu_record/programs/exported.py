"""Exports a converted net: ``python -m tests.gpu_record.programs.exported MODE FOLDER FACTS``."""

from __future__ import annotations

import sys

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx

from tests.gpu_record.programs.common import write
from tests.gpu_record.programs.nets import CTX, small


def main(mode: str, folder: str, facts_path: str) -> None:
    """Convert a net, run it once, export it."""
    case = small()
    case.net.initialize(ctx=CTX)
    mxmp.gluon.convert(case.net, mode)
    case.net.hybridize()
    case.net(*(mx.nd.ones(shape, ctx=CTX) for shape in case.shapes))
    write(facts_path, {"files": mxmp.gluon.export(case.net, f"{folder}/{mode}")})


if __name__ == "__main__":
    main(*sys.argv[1:])
