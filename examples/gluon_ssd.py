"""Detection with Gluon: SSD
==========================

Trains an SSD detector of GluonCV in mixed precision, with GluonCV's targets, loss and metric. Boxes are encoded,
decoded and suppressed in float32 under every policy. The losses of all heads share one loss scale.

Run ``python gluon_ssd.py --policy O1`` for handwritten digits on noise. ``--data`` takes a folder with ``train.rec``
and ``val.rec``, or the folder ``VOCdevkit`` of PASCAL VOC. ``--classes`` takes the names::

    epoch 1: loss 0.287, mean average precision 0.673, 0 steps skipped
    epoch 2: loss 0.141, mean average precision 0.907, 0 steps skipped
    epoch 12: loss 0.023, mean average precision 0.985, 0 steps skipped
"""

import argparse
import os

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.data import RecordFileDetection, VOCDetection, batchify
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform, SSDDefaultValTransform
from gluoncv.loss import SSDMultiBoxLoss
from gluoncv.model_zoo import SSD
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from gluoncv.utils.metrics import VOC07MApMetric
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.gluon.data import ArrayDataset, DataLoader
from tqdm import tqdm

from plots import detections  # next to this file
from sample_data import scenes  # next to this file: for a first try

parser = argparse.ArgumentParser(description="Train GluonCV's SSD.")
parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec, or VOCdevkit")
parser.add_argument("--classes", nargs="+", default=list("0123456789"), metavar="NAME")
parser.add_argument("--size", type=int, default=64, help="pixels of an image, each way")
parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--images", type=int, default=1024, help="to draw for an epoch")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
np.random.seed(args.seed)
mx.random.seed(args.seed)

if args.data is None:
    sets = [ArrayDataset(*part) for part in scenes(args.size, args.images)]
else:
    if os.path.isfile(f"{args.data}/train.rec"):
        sets = [RecordFileDetection(f"{args.data}/{part}.rec") for part in ("train", "val")]
    else:
        VOCDetection.CLASSES = args.classes
        sets = [VOCDetection(args.data, [(2007, part)]) for part in ("trainval", "test")]
    sets[0] = sets[0].transform(SSDDefaultTrainTransform(args.size, args.size))
    sets[1] = sets[1].transform(SSDDefaultValTransform(args.size, args.size))
pad = batchify.Tuple(batchify.Stack(), batchify.Pad(pad_val=-1))
training = DataLoader(sets[0], args.batch_size, shuffle=True, batchify_fn=pad, last_batch="discard")
held_out = DataLoader(sets[1], args.batch_size, batchify_fn=pad)

base = nn.HybridSequential(prefix="")  # or the name of one of GluonCV's networks
for channels, name in (16, "map1_"), (32, "map2_"), (64, "map3_"), (64, "map4_"):
    base.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(prefix=name))
sizes = [args.size * part for part in (0.3, 0.4, 0.6)]
net = SSD(base, args.size, ["map3_fwd", "map4_fwd"], [], sizes, [(1, 2, 0.5)] * 2, (8, 16), args.classes)
net.initialize(mx.init.Xavier(), ctx=ctx)
mxmp.gluon.convert(net, args.policy)
find_targets, multibox_loss = SSDTargetGenerator(negative_mining_ratio=-1), SSDMultiBoxLoss()
schedule = mx.lr_scheduler.CosineScheduler(args.epochs * len(training), base_lr=0.003)
trainer = mxmp.gluon.Trainer(net, "adam", {"learning_rate": 0.003, "lr_scheduler": schedule})

for epoch in range(1, args.epochs + 1):
    mean_loss, precision = mx.metric.Loss(), VOC07MApMetric(0.5, args.classes)
    for images, labels in tqdm(training, desc=f"epoch {epoch}", leave=False):
        images, labels = images.as_in_context(ctx), labels.as_in_context(ctx)
        with autograd.record():
            scores, boxes, anchors = net(images)
            with autograd.pause():
                classes, offsets, _ = find_targets(anchors, scores, labels[:, :, :4], labels[:, :, 4:5])
            losses, _, _ = multibox_loss(scores, boxes, classes, offsets)
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        trainer.step(1)  # the loss is a mean already
        mean_loss.update(None, losses)
    for images, labels in held_out:
        classes, scores, boxes = net(images.as_in_context(ctx))
        precision.update(boxes, classes, scores, labels[:, :, :4], labels[:, :, 4:5])
    text = f"epoch {epoch}: loss {mean_loss.get()[1]:.3f}, mean average precision {precision.get()[1][-1]:.3f}"
    print(f"{text}, {trainer.skipped_steps} steps skipped", flush=True)
net.save_parameters("ssd.params")
detections("gluon_ssd.png", args.classes, images, classes, scores, boxes)  # of the last batch held out
