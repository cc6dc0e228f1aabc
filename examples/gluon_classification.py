"""Image classification with Gluon
=================================

Trains any classifier of GluonCV's model zoo in mixed precision. Three lines differ from Gluon's own loop: ``convert``,
the trainer, and ``scale_loss``. Several devices, clipping, a learning rate schedule and resuming work as in float32.

Run ``python gluon_classification.py --policy O1`` for scikit-learn's handwritten digits. ``--data`` takes a folder with
``train.rec`` and ``val.rec``, or with the folders ``train/CLASS`` and ``val/CLASS``::

    epoch 1: loss 1.677, accuracy 0.5980, 24 images/s, loss scale 128, 1 steps skipped
    epoch 5: loss 0.053, accuracy 0.9715, 58 images/s, loss scale 128, 1 steps skipped
    epoch 10: loss 0.002, accuracy 0.9899, 16 images/s, loss scale 128, 1 steps skipped
"""

import argparse
import os
import time

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from mxnet.gluon.data import ArrayDataset, DataLoader
from mxnet.gluon.data.vision import ImageFolderDataset, ImageRecordDataset, transforms

from plots import confusion  # next to this file
from sample_data import digits  # next to this file: for a first try

parser = argparse.ArgumentParser(description="Train an image classifier with Gluon.")
parser.add_argument("--network", default="cifar_resnet20_v1", help="a name of GluonCV's model zoo")
parser.add_argument("--data", metavar="FOLDER", help="with train.rec and val.rec, or train/CLASS and val/CLASS")
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--size", type=int, default=16, help="pixels of an image, each way")
parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
parser.add_argument("--ctx", nargs="+", default=["gpu:0" if mx.context.num_gpus() else "cpu:0"])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", type=int, default=0, metavar="EPOCH", help="go on after this epoch")
args = parser.parse_args()


def read(part):
    """Return the images of a folder, scaled to one size."""
    file = os.path.join(args.data, f"{part}.rec")
    images = ImageRecordDataset(file) if os.path.isfile(file) else ImageFolderDataset(os.path.join(args.data, part))
    return images.transform_first(transforms.Compose([transforms.Resize(args.size), transforms.ToTensor()]))


if args.data:
    sets = read("train"), read("val")
else:
    sets = tuple(ArrayDataset(*part) for part in digits(args.size, channels=3))
training = DataLoader(sets[0], args.batch_size, shuffle=True, last_batch="discard")
held_out = DataLoader(sets[1], args.batch_size)

ctx = [mx.Context(kind, int(number)) for kind, number in (name.split(":") for name in args.ctx)]
mx.random.seed(args.seed)
net = get_model(args.network, classes=args.classes, pretrained=False)
net.initialize(mx.init.Xavier(), ctx=ctx)
net.hybridize(static_alloc=True)
mxmp.gluon.convert(net, args.policy)  # 1: the net computes in float16 from here on

steps = args.epochs * len(training)
schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=args.lr, warmup_steps=steps // 10)
sgd = {"learning_rate": args.lr, "momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule}
trainer = mxmp.gluon.Trainer(net, "sgd", sgd)  # 2: keeps the loss scale, and float32 masters where weights are float16
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

if args.resume:  # to the bit: parameters, momentum, masters, schedule and loss scale
    net.load_parameters(f"classifier-{args.resume:04d}.params", ctx=ctx)
    trainer.load_states(f"classifier-{args.resume:04d}.states")

for epoch in range(args.resume + 1, args.epochs + 1):
    np.random.seed([args.seed, epoch])  # the order of the images depends on the epoch alone
    mx.random.seed(1000 * args.seed + epoch)  # and so does dropout
    start, mean_loss, accuracy, answers = time.time(), mx.metric.Loss(), mx.metric.Accuracy(), []
    for images, labels in training:
        images, labels = (gluon.utils.split_and_load(each, ctx, even_split=False) for each in (images, labels))
        with autograd.record():
            losses = [cross_entropy(net(x), y) for x, y in zip(images, labels)]
            with trainer.scale_loss(losses) as scaled:  # 3: gradients too small for float16 are kept
                autograd.backward(scaled)
        trainer.clip_global_norm(5.0, args.batch_size)  # of the true gradients, their mean over the batch
        trainer.step(args.batch_size)  # skipped, and the scale lowered, if a gradient is not finite
        mean_loss.update(None, losses)
    speed = mean_loss.num_inst / (time.time() - start)
    for images, labels in held_out:
        scores = net(images.as_in_context(ctx[0])).as_in_context(mx.cpu())
        accuracy.update(labels, scores)
        answers.append((labels.asnumpy(), scores.asnumpy().argmax(axis=1)))
    text = f"epoch {epoch}: loss {mean_loss.get()[1]:.3f}, accuracy {accuracy.get()[1]:.4f}, {speed:.0f} images/s"
    print(f"{text}, loss scale {trainer.loss_scale.value:g}, {trainer.skipped_steps} steps skipped", flush=True)
    net.save_parameters(f"classifier-{epoch:04d}.params")  # in float32, whatever they are stored in
    trainer.save_states(f"classifier-{epoch:04d}.states")
    confusion("gluon_classification.png", *np.concatenate(answers, axis=1))
