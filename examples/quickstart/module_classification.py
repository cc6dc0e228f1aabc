"""Train an image classifier with Module in mixed precision; save it in float32, for plain MXNet.

``python module_classification.py`` trains on digits that it draws; ``--data FOLDER --classes N`` on train.rec and
val.rec, each with its .idx, as MXNet's im2rec.py writes them. Of --dtype, float16 is emulated on a CPU.
"""

import argparse
import logging
import os

import mxmp  # before mxnet
import mxnet as mx
import numpy as np

POLICIES = {"float32": "O0", "float16": "O1", "bfloat16": "mixed_bfloat16"}
SIZE, BATCH_SIZE = 32, 32
DIGITS = 0x7B6F, 0x2C97, 0x73E7, 0x73CF, 0x5BC9, 0x79CF, 0x79EF, 0x7292, 0x7BEF, 0x7BCF  # 5 rows of 3 pixels each


def draw_digits(count):
    """Return batches of digits on noise: images (3, SIZE, SIZE), from 0 to 1, and labels."""
    images, labels = np.random.uniform(0, 0.5, (count, 3, SIZE, SIZE)), np.random.randint(10, size=count)
    for image, label in zip(images, labels):
        pixels = np.array([DIGITS[label] >> bit & 1 for bit in reversed(range(15))]).reshape(5, 3)
        digit = np.kron(pixels, np.ones(np.random.randint(4, 7, 2)))  # each pixel becomes a rectangle
        top, left = (np.random.randint(SIZE - edge + 1) for edge in digit.shape)
        image[:, top : top + digit.shape[0], left : left + digit.shape[1]] += 0.5 * digit
    return mx.io.NDArrayIter(images, labels, BATCH_SIZE, shuffle=True)


def make_network(classes):
    """Return a small convolutional network, or your own."""
    layer = mx.sym.var("data")
    for stage, channels in enumerate((16, 32, 64)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"conv{stage}")
        layer = mx.sym.Activation(mx.sym.BatchNorm(layer, fix_gamma=False, name=f"norm{stage}"), act_type="relu")
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(layer, num_hidden=classes, name="dense"), name="softmax")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="FOLDER")
parser.add_argument("--classes", type=int, default=10, metavar="N")
parser.add_argument("--epochs", type=int, default=5, metavar="N")
parser.add_argument("--ctx", choices=["cpu", "gpu"], default="gpu" if mx.context.num_gpus() else "cpu")
parser.add_argument("--dtype", choices=POLICIES, help="default: float16, or bfloat16 on a CPU where it is fast")
args = parser.parse_args()
if args.ctx == "gpu" and not mx.context.num_gpus():
    parser.error("--ctx gpu: MXNet finds no GPU here; --ctx cpu trains without one")
fast = args.ctx == "cpu" and mxmp.diagnose.check_devices("bfloat16")[-1].ok
policy = mxmp.Policy.parse(POLICIES[args.dtype or ("bfloat16" if fast else "float16")])
if args.data and not os.path.isfile(f"{args.data}/train.rec"):
    parser.error(f"--data {args.data}: there is no train.rec in it")
logging.basicConfig(level=logging.INFO, format=f"{policy.compute_dtype} %(message)s")
np.random.seed(0)
if args.data:
    shared = {"batch_size": BATCH_SIZE, "data_shape": (3, SIZE, SIZE), "resize": SIZE, "scale": 1 / 255}
    training = mx.io.ImageRecordIter(path_imgrec=f"{args.data}/train.rec", shuffle=True, **shared)
    held_out = mx.io.ImageRecordIter(path_imgrec=f"{args.data}/val.rec", **shared)
else:
    training, held_out = draw_digits(1024), draw_digits(256)

module = mxmp.module.Module(make_network(args.classes), context=mx.Context(args.ctx), policy=policy)
module.fit(
    training,
    held_out,
    eval_metric=["accuracy", "ce"],
    initializer=mx.init.Xavier(),
    optimizer="adam",
    optimizer_params={"learning_rate": 0.002},
    num_epoch=args.epochs,
    batch_end_callback=mx.callback.Speedometer(BATCH_SIZE, 10, auto_reset=False),
    epoch_end_callback=mx.callback.do_checkpoint("module_classification"),
)
