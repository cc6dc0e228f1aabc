"""Train an SSD detector with Module in mixed precision; save it in float32, for plain MXNet.

``python symbol_ssd.py`` trains on rectangles that it draws; ``--data FOLDER --classes N`` on train.rec and
val.rec, each with its .idx, as MXNet's im2rec.py writes them. Of --dtype, float16 is emulated on a CPU.
"""

import argparse
import logging

import mxmp  # before mxnet
import mxnet as mx
import numpy as np

POLICIES = {"float32": "O0", "float16": "O1", "bfloat16": "mixed_bfloat16"}
SIZE, BATCH_SIZE = 64, 16


def draw_rectangles(count):
    """Return batches of red, green or blue rectangles on noise: images, and rows of a class and its box."""
    images, labels = np.random.uniform(-1, 1, (count, 3, SIZE, SIZE)), np.zeros((count, 1, 5))
    for image, label in zip(images, labels):
        color, (width, height) = np.random.randint(3), np.random.randint(12, 33, 2)
        left, top = np.random.randint(0, (SIZE - width, SIZE - height))
        image[color, top : top + height, left : left + width] += 1
        label[0] = color, left / SIZE, top / SIZE, (left + width) / SIZE, (top + height) / SIZE
    return mx.io.NDArrayIter(images, {"label": labels}, BATCH_SIZE, shuffle=True)


def make_networks(classes):
    """Return the network for training and the one for detection."""
    layer, scores, boxes, anchors = mx.sym.var("data"), [], [], []
    for channels, sizes in (16, None), (32, None), (64, (0.25, 0.35)), (64, (0.5, 0.7)):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=channels)
        layer = mx.sym.Activation(mx.sym.BatchNorm(layer, fix_gamma=False), act_type="relu")
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max")
        if sizes:  # this map predicts
            anchors.append(mx.sym.contrib.MultiBoxPrior(layer, sizes=sizes, ratios=(1, 2, 0.5)))
            for head, width in (scores, classes + 1), (boxes, 4):
                filters = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=4 * width)
                head.append(mx.sym.reshape(mx.sym.transpose(filters, axes=(0, 2, 3, 1)), shape=(0, -1, width)))
    anchors, boxes = mx.sym.concat(*anchors, dim=1), mx.sym.flatten(mx.sym.concat(*boxes, dim=1))
    scores = mx.sym.transpose(mx.sym.concat(*scores, dim=1), axes=(0, 2, 1))
    wanted, mask, target = mx.sym.contrib.MultiBoxTarget(anchors, mx.sym.var("label"), scores, negative_mining_ratio=3)
    kwargs = {"multi_output": True, "use_ignore": True, "ignore_label": -1, "normalization": "valid"}
    probs = mx.sym.SoftmaxOutput(scores, target, name="probs", **kwargs)
    box_loss = mx.sym.MakeLoss(mx.sym.smooth_l1(mask * (boxes - wanted)), normalization="valid", name="box_loss")
    class_loss = mx.sym.BlockGrad(-mx.sym.log(mx.sym.pick(probs, target, axis=1)) * (target >= 0), name="class_loss")
    detection = mx.sym.contrib.MultiBoxDetection(mx.sym.softmax(scores, axis=1), boxes, anchors, name="detection")
    return mx.sym.Group([probs, box_loss, class_loss]), detection


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="FOLDER")
parser.add_argument("--classes", type=int, default=3, metavar="N")
parser.add_argument("--epochs", type=int, default=5, metavar="N")
parser.add_argument("--ctx", choices=["cpu", "gpu"], default="gpu" if mx.context.num_gpus() else "cpu")
parser.add_argument("--dtype", choices=POLICIES, help="default: float16, or bfloat16 on a CPU where it is fast")
args = parser.parse_args()
if args.ctx == "gpu" and not mx.context.num_gpus():
    parser.error("--ctx gpu: MXNet finds no GPU here; --ctx cpu trains without one")
fast = args.ctx == "cpu" and mxmp.diagnose.check_devices("bfloat16")[-1].ok
policy = mxmp.Policy.parse(POLICIES[args.dtype or ("bfloat16" if fast else "float16")])
logging.basicConfig(level=logging.INFO, format=f"{policy.compute_dtype} %(message)s")
np.random.seed(0)
if args.data:
    paths = (f"{args.data}/{part}." for part in ("train", "val"))
    image = {"batch_size": BATCH_SIZE, "data_shape": (3, SIZE, SIZE), "shuffle": True, "mean": True, "std": True}
    training, held_out = (mx.image.ImageDetIter(path_imgrec=x + "rec", path_imgidx=x + "idx", **image) for x in paths)
    training.sync_label_shape(held_out)
else:
    training, held_out = draw_rectangles(512), draw_rectangles(128)
network, detection = make_networks(args.classes)
module = mxmp.module.Module(network, label_names=["label"], context=mx.Context(args.ctx), policy=policy)
losses = [mx.metric.Loss(name, output_names=[f"{name}_output"]) for name in ("class_loss", "box_loss")]
adam = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.003, "rescale_grad": 1.0}}  # losses are means
speed = mx.callback.Speedometer(BATCH_SIZE, 10, auto_reset=False)
module.fit(
    training, held_out, losses, batch_end_callback=speed, initializer=mx.init.Xavier(), num_epoch=args.epochs, **adam
)
mx.model.save_checkpoint("symbol_ssd", 0, detection, *module.get_params())
