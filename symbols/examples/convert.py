"""Convert a float32 checkpoint to float16 or bfloat16, and score both.

The checkpoint is one that ``train.py`` beside this file wrote, or any other of a classifier. From the clone:
``python -m symbols.examples.convert lenet 2 lenet-half --size 28 --policy O2``::

    lenet: 91.96% right, 1,728,848 bytes
    lenet-half: 91.96% right, 864,688 bytes
"""

from __future__ import annotations

import argparse
import os

import mxmp
import mxnet as mx
from symbols.examples.train import read


def main() -> None:
    """Read the options, convert and score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefix")
    parser.add_argument("epoch", type=int)
    parser.add_argument("out", help="prefix of the files to write")
    parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec")
    parser.add_argument("--size", type=int, default=32, help="pixels of an image, each way")
    parser.add_argument("--policy", default="O2", help="O2 stores float16")
    args = parser.parse_args()
    _, held_out = read(args.size, 1, args.data)
    shapes = {"data": (1, 3, args.size, args.size)}
    mxmp.symbol.convert_checkpoint(args.prefix, args.epoch, args.out, args.policy, shapes)
    for prefix in (args.prefix, args.out):
        symbol, arg_params, aux_params = mxmp.symbol.load_checkpoint(prefix, args.epoch)  # as another program reads it
        module = mx.mod.Module(mxmp.symbol.on_cpu(symbol))  # MXNet's own; a CPU emulates float16
        module.bind(held_out.provide_data, held_out.provide_label, for_training=False)
        module.set_params(arg_params, aux_params)
        held_out.reset()
        ((_, accuracy),) = module.score(held_out, "acc")
        size = os.path.getsize(f"{prefix}-{args.epoch:04d}.params")
        print(f"{prefix}: {accuracy:.2%} right, {size:,} bytes")


if __name__ == "__main__":
    main()
