"""Train a GluonCV SSD detector in mixed precision; export it in float32, for plain MXNet.

``python gluon_ssd.py`` trains on rectangles that it draws; ``--data FOLDER --classes NAME ...`` on train.rec and
val.rec, each with its .idx, as MXNet's im2rec.py writes them. Of --dtype, float16 is emulated on a CPU.
"""

import argparse
import time

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv import data, loss, model_zoo, utils
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from mxnet import autograd, gluon
from mxnet.gluon import nn

POLICIES = {"float32": "O0", "float16": "O1", "bfloat16": "mixed_bfloat16"}
SIZE, BATCH_SIZE = 64, 16


def draw_rectangles(count):
    """Return a data set of red, green or blue rectangles on noise: images, and rows of a box and its class."""
    images, labels = np.random.uniform(-1, 1, (count, 3, SIZE, SIZE)), np.zeros((count, 1, 5))
    for image, label in zip(images, labels):
        color, (width, height) = np.random.randint(3), np.random.randint(12, 33, 2)
        left, top = np.random.randint(0, (SIZE - width, SIZE - height))
        image[color, top : top + height, left : left + width] += 1
        label[0] = left, top, left + width, top + height, color
    return gluon.data.ArrayDataset(images.astype("float32"), labels.astype("float32"))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="FOLDER")
parser.add_argument("--classes", nargs="+", default=["red", "green", "blue"], metavar="NAME")
parser.add_argument("--epochs", type=int, default=4, metavar="N")
parser.add_argument("--ctx", choices=["cpu", "gpu"], default="gpu" if mx.context.num_gpus() else "cpu")
parser.add_argument("--dtype", choices=POLICIES, help="default: float16, or bfloat16 on a CPU where it is fast")
args = parser.parse_args()
if args.ctx == "gpu" and not mx.context.num_gpus():
    parser.error("--ctx gpu: MXNet finds no GPU here; --ctx cpu trains without one")
fast = args.ctx == "cpu" and mxmp.diagnose.check_devices("bfloat16")[-1].ok
policy, ctx = mxmp.Policy.parse(POLICIES[args.dtype or ("bfloat16" if fast else "float16")]), mx.Context(args.ctx)
np.random.seed(0)
if args.data:
    resize = data.transforms.presets.ssd.SSDDefaultValTransform(SIZE, SIZE)
    sets = [data.RecordFileDetection(f"{args.data}/{each}.rec").transform(resize) for each in ("train", "val")]
else:
    sets = draw_rectangles(512), draw_rectangles(128)
pad = data.batchify.Tuple(data.batchify.Stack(), data.batchify.Pad(pad_val=-1))
training, held_out = (gluon.data.DataLoader(each, BATCH_SIZE, shuffle=True, batchify_fn=pad) for each in sets)
base = nn.HybridSequential(prefix="")  # or the name of one of GluonCV's networks
for channels, name in (16, "map1_"), (32, "map2_"), (64, "map3_"), (64, "map4_"):
    base.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(prefix=name))
net = model_zoo.SSD(base, SIZE, ["map3_fwd", "map4_fwd"], [], (16, 32, 48), [(1, 2, 0.5)] * 2, (8, 16), args.classes)
net.initialize(mx.init.Xavier(), ctx=ctx)
mxmp.gluon.convert(net, policy)
find_targets, multibox_loss = SSDTargetGenerator(negative_mining_ratio=-1), loss.SSDMultiBoxLoss()
trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003}, loss_scale=policy.loss_scale)
for epoch in range(args.epochs):
    start, avg, ap = time.time(), mx.metric.Loss(), utils.metrics.VOCMApMetric(0.5, net.classes)
    for images, labels in training:
        images, labels = images.as_in_context(ctx), labels.as_in_context(ctx)
        with autograd.record():
            scores, boxes, anchors = net(images)
            with autograd.pause():
                classes, offsets, _ = find_targets(anchors, scores, labels[:, :, :4], labels[:, :, 4:5])
            losses, _, _ = multibox_loss(scores, boxes, classes, offsets)
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        trainer.step(1)  # the loss is a mean already
        avg.update(None, losses)
    speed = avg.num_inst / (time.time() - start)
    for images, labels in held_out:
        classes, scores, boxes = net(images.as_in_context(ctx))
        ap.update(boxes, classes, scores, labels[:, :, :4], labels[:, :, 4:5])
    print(f"{policy.compute_dtype} epoch {epoch}: loss {avg.get()[1]:.3f}, AP {ap.get()[1][-1]:.3f}, {speed:.0f} img/s")
mxmp.gluon.restore(net).hybridize()
net(mx.nd.zeros((1, 3, SIZE, SIZE), ctx))
net.export("gluon_ssd")
