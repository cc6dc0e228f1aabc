"""A broken run: gradients vanish
==============================

An SSD detector is trained in float16 without a loss scale. Its loss is a mean over all default boxes, and most of them
are background. So most gradients are so small that float16 loses bits of them. Nothing is skipped, and the loss falls.
``measure_gradients`` counts the gradients by powers of two, and gives the scale that keeps them.

Run ``python broken_vanishing_gradients.py``::

    loss scale 1: 30% of the gradients become 0, 70% are subnormal
    loss scale 1: loss 0.03039 to 0.00602
    loss scale 16384: 0% of the gradients become 0, 5% are subnormal
    loss scale 16384: loss 0.03039 to 0.00604
    largest scale for these gradients: 5.36871e+08

References:
    Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, section 3.2: the same in an
    SSD of theirs, which diverges without a loss scale.
"""

import argparse

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.model_zoo import SSD
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from plots import magnitudes  # next to this file

parser = argparse.ArgumentParser(description="Find gradients that vanish.")
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
SIZE, BATCH_SIZE, EDGE = 64, 8, 24
WEIGHT = 1 / 16  # of this task among others
cross_entropy, huber, find_targets = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss(), SSDTargetGenerator()
digits = load_digits()


def draw_scenes(draw):
    """Return images with a digit each on noise, boxes (N, 1, 4) in pixels, and classes (N, 1, 1)."""
    images = draw.uniform(-0.5, 0.5, (BATCH_SIZE, 3, SIZE, SIZE))
    corners, chosen = draw.randint(SIZE - EDGE + 1, size=(BATCH_SIZE, 2)), draw.choice(len(digits.images), BATCH_SIZE)
    for image, (left, top), number in zip(images, corners, chosen):
        image[:, top : top + EDGE, left : left + EDGE] += np.kron(digits.images[number], np.ones((3, 3))) / 8
    boxes = np.concatenate([corners, corners + EDGE], axis=1)[:, None]
    return mx.nd.array(images), mx.nd.array(boxes), mx.nd.array(digits.target[chosen].reshape(-1, 1, 1))


def find_loss(outputs, label):
    """Return the loss of a batch, from the outputs of the net in training, and from boxes and classes."""
    (scores, offsets, anchors), (boxes, classes) = outputs, label
    with autograd.pause():
        wanted, wanted_offsets, mask = find_targets(anchors, scores, boxes, classes)
    of_classes = cross_entropy(scores, mx.nd.maximum(wanted, 0), (wanted >= 0).expand_dims(2))
    return (of_classes + huber(offsets * mask, wanted_offsets * mask)).mean() * WEIGHT


def make_net():
    """Return a small SSD with the same weights each time, converted to O1."""
    mx.random.seed(0)
    base = nn.HybridSequential(prefix="")
    for channels, name in (16, "map1_"), (32, "map2_"), (64, "map3_"), (64, "map4_"):
        base.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(prefix=name))
    sizes = 20, 26, 40
    net = SSD(base, SIZE, ["map3_fwd", "map4_fwd"], [], sizes, [(1, 2, 0.5)] * 2, (8, 16), digits.target_names)
    net.initialize(mx.init.Xavier())
    return mxmp.gluon.convert(net, "O1")


def train(loss_scale):
    """Train on scenes of digits, and print the loss."""
    net, draw, losses = make_net(), np.random.RandomState(0), []
    trainer = mxmp.gluon.Trainer(net, "adam", {"learning_rate": 0.004}, loss_scale=loss_scale)
    for _ in range(args.steps):
        images, *label = draw_scenes(draw)
        with autograd.record():
            loss = find_loss(net(images), label)
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(1)
        losses.append(loss.asscalar())
    print(f"loss scale {loss_scale:g}: loss {losses[0]:.5f} to {losses[-1]:.5f}")


def subnormal_share(scale):
    """Return the share of gradients that float16 has with fewer bits, or not at all: up to 2**-14, its least normal."""
    return sum(share for exponent, share in total.shares.items() if exponent + np.log2(scale) <= -14)


images, *label = draw_scenes(np.random.RandomState(0))
net = make_net()
net(images)  # which tells the shapes of its parameters
total = mxmp.diagnose.measure_gradients(net, (images, label), loss=find_loss).total
least = next(scale for scale in 2.0 ** np.arange(40) if subnormal_share(scale) < 0.05)
for scale in (1.0, least):
    lost, subnormal = total.share_lost(scale), subnormal_share(scale)
    print(f"loss scale {scale:g}: {lost:.0%} of the gradients become 0, {subnormal - lost:.0%} are subnormal")
    train(scale)
print(f"largest scale for these gradients: {total.largest_scale():g}")
magnitudes("broken_vanishing_gradients.png", "Gradients of the activations", total.shares, zero=-25, subnormal=-14)
