"""Detection with the Symbolic API: SSD
=====================================

Trains an SSD detector made of MXNet's MultiBox operators in mixed precision, with ``Module``. Targets, losses and boxes
are float32 under every policy. All loss heads share one loss scale. The network for detection is saved in float32, and
plain MXNet loads it.

Run ``python symbol_ssd.py --epochs 2 --images 256`` for digits on noise. ``--data`` takes a folder with ``train.rec``
and ``val.rec``, each with its ``.idx``. MXNet's ``im2rec.py`` writes such files::

    epoch 1: mean average precision 0.142, learning rate 0.00150, 0 steps skipped
    epoch 2: mean average precision 0.215, learning rate 0.00000, 0 steps skipped
"""

import argparse

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.utils.metrics import VOC07MApMetric

from plots import detections  # next to this file
from sample_data import scenes  # next to this file: for a first try

parser = argparse.ArgumentParser(description="Train an SSD detector with Module.")
parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec")
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


def make_networks():
    """Return the network for training and the one for detection."""
    layer, scores, boxes, anchors = mx.sym.var("data"), [], [], []
    for channels, sizes in (16, None), (32, None), (64, (0.3, 0.35)), (64, (0.4, 0.5)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=channels)
        layer = mx.sym.Activation(mx.sym.BatchNorm(layer, fix_gamma=False), act_type="relu")
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max")
        if sizes:  # this map predicts
            anchors.append(mx.sym.contrib.MultiBoxPrior(layer, sizes=sizes, ratios=(1, 2, 0.5)))
            for head, width in (scores, len(args.classes) + 1), (boxes, 4):
                filters = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=4 * width)
                head.append(mx.sym.reshape(mx.sym.transpose(filters, axes=(0, 2, 3, 1)), shape=(0, -1, width)))
    anchors, boxes = mx.sym.concat(*anchors, dim=1), mx.sym.flatten(mx.sym.concat(*boxes, dim=1))
    scores = mx.sym.transpose(mx.sym.concat(*scores, dim=1), axes=(0, 2, 1))
    wanted, mask, target = mx.sym.contrib.MultiBoxTarget(anchors, mx.sym.var("label"), scores, negative_mining_ratio=3)
    ignore = {"multi_output": True, "use_ignore": True, "ignore_label": -1, "normalization": "valid"}
    probs = mx.sym.SoftmaxOutput(scores, target, name="probs", **ignore)
    box_loss = mx.sym.MakeLoss(mx.sym.smooth_l1(mask * (boxes - wanted)), normalization="valid", name="box_loss")
    detection = mx.sym.contrib.MultiBoxDetection(mx.sym.softmax(scores, axis=1), boxes, anchors, name="detection")
    return mx.sym.Group([probs, box_loss, mx.sym.BlockGrad(detection)]), detection


if args.data is None:
    options = {"batch_size": args.batch_size, "shuffle": True, "last_batch_handle": "discard"}
    training, held_out = (
        mx.io.NDArrayIter(images, {"label": np.roll(boxes / [*[args.size] * 4, 1], 1, axis=2)}, **options)  # class, box
        for images, boxes in scenes(args.size, args.images)
    )
    batches = training.num_data // args.batch_size
else:
    options = {"batch_size": args.batch_size, "data_shape": (3, args.size, args.size), "mean": True, "std": True}
    paths = (f"{args.data}/{part}" for part in ("train", "val"))
    training, held_out = (
        mx.image.ImageDetIter(path_imgrec=f"{path}.rec", path_imgidx=f"{path}.idx", shuffle=True, **options)
        for path in paths
    )
    training.sync_label_shape(held_out)
    batches = -(-training.num_image // args.batch_size)  # the last one is padded

network, detection = make_networks()
module = mxmp.module.Module(network, label_names=["label"], context=ctx, policy=args.policy)
module.bind(training.provide_data, training.provide_label)
module.init_params(mx.init.Xavier())
schedule = mx.lr_scheduler.CosineScheduler(args.epochs * batches, base_lr=0.003)
adam = {"learning_rate": 0.003, "lr_scheduler": schedule, "rescale_grad": 1.0}  # the losses are means already
module.init_optimizer(optimizer="adam", optimizer_params=adam)

for epoch in range(1, args.epochs + 1):
    training.reset()
    for batch in training:
        module.forward_backward(batch)
        module.update()  # skipped, and the loss scale lowered, if a gradient is not finite
    held_out.reset()
    precision = VOC07MApMetric(0.5, args.classes)
    for batch in held_out:
        module.forward(batch, is_train=False)
        found, labels = module.get_outputs()[2], batch.label[0]  # class, score, box; class, box
        precision.update(found[:, :, 2:], found[:, :, :1], found[:, :, 1:2], labels[:, :, 1:5], labels[:, :, :1])
    text = f"epoch {epoch}: mean average precision {precision.get()[1][-1]:.3f}, learning rate {schedule.base_lr:.5f}"
    print(f"{text}, {module.skipped_steps} steps skipped", flush=True)
mx.model.save_checkpoint("ssd", 0, detection, *module.get_params())
detections(  # of the last batch held out
    "symbol_ssd.png", args.classes, batch.data[0], found[:, :, :1], found[:, :, 1:2], found[:, :, 2:] * args.size
)
