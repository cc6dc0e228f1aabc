"""Train one of the papers' image classifiers with Module, in float32 or in mixed precision.

Any classifier of ``symbols.NETWORKS`` learns scikit-learn's handwritten digits, or the images of ``train.rec`` and
``val.rec`` in ``--data``. From the clone: ``python -m symbols.examples.train lenet --size 28 --epochs 2``::

    Epoch[0] Train-accuracy=0.655428
    Epoch[0] Validation-accuracy=0.916118
    Epoch[1] Train-accuracy=0.938322
    Epoch[1] Validation-accuracy=0.917763
    loss scale 4096, 1 steps skipped
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any, Tuple

import mxmp
import mxnet as mx
import numpy as np
import symbols
from examples.sample_data import digits


def read(size: int, batch_size: int, folder: str | None = None) -> Tuple[Any, Any]:
    """Return batches (N, 3, size, size) to train on and batches held out."""
    if folder is None:
        training, held_out = digits(size, channels=3)
        batches = mx.io.NDArrayIter(*training, batch_size, shuffle=True)
        return batches, mx.io.NDArrayIter(*held_out, batch_size)
    options = {"data_shape": (3, size, size), "resize": size, "scale": 1 / 255, "batch_size": batch_size}
    files = [os.path.join(folder, name) for name in ("train.rec", "val.rec")]
    return tuple(mx.io.ImageRecordIter(path_imgrec=file, shuffle=file == files[0], **options) for file in files)


def main() -> None:
    """Read the options, train and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=sorted(symbols.NETWORKS), metavar="NETWORK")
    parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--size", type=int, default=32, help="pixels of an image, each way")
    parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    np.random.seed(args.seed)
    mx.random.seed(args.seed)
    training, held_out = read(args.size, args.batch_size, args.data)
    network = symbols.get_symbol(args.network, num_classes=args.classes)
    module = mxmp.module.Module(network, policy=args.policy, context=mx.gpu() if mx.context.num_gpus() else mx.cpu())
    module.fit(
        training,
        held_out,
        initializer=mx.init.Xavier(),
        optimizer_params={"learning_rate": args.lr, "momentum": 0.9},
        num_epoch=args.epochs,
    )
    module.save_checkpoint(args.network, args.epochs)  # in float32
    print(f"loss scale {module.loss_scale.value:g}, {module.skipped_steps} steps skipped")


if __name__ == "__main__":
    main()
