"""Train an image classifier with Gluon in mixed precision; export it in float32, for plain MXNet.

``python gluon_classification.py`` trains on digits that it draws; ``--data FOLDER --classes N`` on train.rec and
val.rec, each with its .idx, as MXNet's im2rec.py writes them. Of --dtype, float16 is emulated on a CPU.
"""

import argparse
import os
import time

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

POLICIES = {"float32": "O0", "float16": "O1", "bfloat16": "mixed_bfloat16"}
SIZE, BATCH_SIZE = 32, 32
DIGITS = 0x7B6F, 0x2C97, 0x73E7, 0x73CF, 0x5BC9, 0x79CF, 0x79EF, 0x7292, 0x7BEF, 0x7BCF  # 5 rows of 3 pixels each


def draw_digits(count):
    """Return a data set of digits on noise: images (3, SIZE, SIZE), from 0 to 1, and labels."""
    images, labels = np.random.uniform(0, 0.5, (count, 3, SIZE, SIZE)), np.random.randint(10, size=count)
    for image, label in zip(images, labels):
        pixels = np.array([DIGITS[label] >> bit & 1 for bit in reversed(range(15))]).reshape(5, 3)
        digit = np.kron(pixels, np.ones(np.random.randint(4, 7, 2)))  # each pixel becomes a rectangle
        top, left = (np.random.randint(SIZE - edge + 1) for edge in digit.shape)
        image[:, top : top + digit.shape[0], left : left + digit.shape[1]] += 0.5 * digit
    return gluon.data.ArrayDataset(images.astype("float32"), labels)


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
policy, ctx = mxmp.Policy.parse(POLICIES[args.dtype or ("bfloat16" if fast else "float16")]), mx.Context(args.ctx)
if args.data and not os.path.isfile(f"{args.data}/train.rec"):
    parser.error(f"--data {args.data}: there is no train.rec in it")
np.random.seed(0)
if args.data:
    sets = [gluon.data.vision.ImageRecordDataset(f"{args.data}/{part}.rec") for part in ("train", "val")]
    sets = [each.transform_first(lambda x: mx.nd.image.to_tensor(mx.image.imresize(x, SIZE, SIZE))) for each in sets]
else:
    sets = draw_digits(1024), draw_digits(256)
training, held_out = (gluon.data.DataLoader(each, BATCH_SIZE, shuffle=True) for each in sets)

net = nn.HybridSequential()  # or your own
for channels in (16, 32, 64):
    net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
net.add(nn.Dense(args.classes))
net.initialize(mx.init.Xavier(), ctx=ctx)
net.hybridize()
mxmp.gluon.convert(net, policy)
trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.002}, loss_scale=policy.loss_scale)
for epoch in range(args.epochs):
    start, avg, hits = time.time(), mx.metric.Loss(), mx.metric.Accuracy()
    for images, labels in training:
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images.as_in_context(ctx)), labels.as_in_context(ctx))
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(len(images))
        avg.update(None, loss)
    speed = avg.num_inst / (time.time() - start)
    for images, labels in held_out:
        hits.update(labels, net(images.as_in_context(ctx)))
    print(f"{policy.compute_dtype} epoch {epoch}: loss {avg.get()[1]:.3f}, acc. {hits.get()[1]:.3f}, {speed:.0f} img/s")
mxmp.gluon.restore(net)(mx.nd.zeros((1, 3, SIZE, SIZE), ctx))
net.export("gluon_classification")
