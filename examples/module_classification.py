"""Image classification with Module
==================================

Trains a convolutional network of the Symbolic API in mixed precision. The module takes a policy, and ``fit`` is MXNet's
own. The loss scale, float32 masters and skipped steps are inside. Checkpoints are float32, and plain MXNet loads them.

Run ``python module_classification.py`` for scikit-learn's handwritten digits. ``--data`` takes a folder with
``train.rec`` and ``val.rec``, or with the four unpacked files of MNIST or Fashion-MNIST::

    Epoch[0] Validation-accuracy=0.431250
    Epoch[1] Validation-accuracy=0.939063
    Epoch[2] Validation-accuracy=0.979688
    Epoch[9] Validation-accuracy=0.990625
    loss scale 256, 1 steps skipped
"""

import argparse
import logging
import os
import sys

import mxmp  # before mxnet
import mxnet as mx
import numpy as np

from plots import confusion  # next to this file
from sample_data import digits  # next to this file: for a first try

parser = argparse.ArgumentParser(description="Train an image classifier with Module.")
parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec, or MNIST's idx files")
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
parser.add_argument("--ctx", nargs="+", default=["gpu:0" if mx.context.num_gpus() else "cpu:0"])
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", type=int, default=0, metavar="EPOCH", help="go on after this epoch")
args = parser.parse_args()
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
np.random.seed(args.seed)
mx.random.seed(args.seed)


def read():
    """Return batches of images to train on and of images held out."""
    if args.data is None:
        training, held_out = digits(16)
        batches = mx.io.NDArrayIter(*training, args.batch_size, shuffle=True, last_batch_handle="discard")
        return batches, mx.io.NDArrayIter(*held_out, args.batch_size)
    files = [os.path.join(args.data, name) for name in ("train.rec", "val.rec")]
    if os.path.isfile(files[0]):
        options = {"data_shape": (3, 32, 32), "resize": 32, "scale": 1 / 255, "batch_size": args.batch_size}
        return tuple(mx.io.ImageRecordIter(path_imgrec=file, shuffle=file == files[0], **options) for file in files)
    names = [os.path.join(args.data, name) for name in ("train", "t10k")]
    return tuple(
        mx.io.MNISTIter(
            image=f"{name}-images-idx3-ubyte",
            label=f"{name}-labels-idx1-ubyte",
            batch_size=args.batch_size,
            shuffle=name == names[0],
            seed=args.seed,
            silent=True,
        )
        for name in names
    )


def make_network():
    """Return a small convolutional network, or your own."""
    layer = mx.sym.var("data")
    for stage, channels in enumerate((16, 32, 64)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"conv{stage}")
        layer = mx.sym.Activation(mx.sym.BatchNorm(layer, fix_gamma=False, name=f"norm{stage}"), act_type="relu")
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max")
    layer = mx.sym.FullyConnected(layer, num_hidden=args.classes, name="dense")
    return mx.sym.SoftmaxOutput(layer, name="softmax")


training, held_out = read()
ctx = [mx.Context(kind, int(number)) for kind, number in (name.split(":") for name in args.ctx)]
precision = {"context": ctx, "policy": args.policy}  # only the policy differs from MXNet's own module
if args.resume:
    module = mxmp.module.Module.load("classifier", args.resume, load_optimizer_states=True, **precision)
else:
    module = mxmp.module.Module(make_network(), **precision)
module.fit(
    training,
    held_out,
    eval_metric=["accuracy", "ce"],
    initializer=mx.init.Xavier(),
    optimizer="adam",
    optimizer_params={"learning_rate": 0.002},
    begin_epoch=args.resume,
    num_epoch=args.epochs,
    epoch_end_callback=mx.callback.module_checkpoint(module, "classifier", save_optimizer_states=True),
)
print(f"loss scale {module.loss_scale.value:g}, {module.skipped_steps} steps skipped")
answers = []
for (scores,), _, batch in module.iter_predict(held_out):
    answers.append((batch.label[0].asnumpy()[: len(scores)], scores.asnumpy().argmax(axis=1)))
confusion("module_classification.png", *np.concatenate(answers, axis=1))
