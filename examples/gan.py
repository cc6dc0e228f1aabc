"""A GAN on one loss scale
=======================

Trains a DCGAN in mixed precision. Each of its two networks has a trainer, and both share one loss scale. If one of them
has to skip a step, the scale falls for both. The scale moves once in a step, when ``update`` is called.

Run ``python gan.py --epochs 2 --channels 8``. It learns scikit-learn's handwritten digits, and draws its own digits to
``gan.png``::

    epoch 1: loss of the discriminator 1.140, of the generator 0.685, loss scale 64, 2 steps skipped
    epoch 2: loss of the discriminator 0.864, of the generator 1.045, loss scale 32, 3 steps skipped

References:
    Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial
    Networks", 2015, https://arxiv.org/abs/1511.06434
"""

import argparse

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from matplotlib.image import imsave
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Train a DCGAN.")
parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--channels", type=int, default=32, help="width of the networks")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
np.random.seed(args.seed)
mx.random.seed(args.seed)
NOISE, WIDTH = 64, args.channels


def conv(channels, kernel, stride):
    """Return a convolution without a bias, which BatchNorm has."""
    return nn.Conv2D(channels, kernel, stride, 1, use_bias=False)


def double(F, x):
    """Copy pixels; an image grows without a checkerboard of a transposed convolution."""
    return F.UpSampling(x, scale=2, sample_type="nearest")


generator = nn.HybridSequential(prefix="generator_")  # (N, NOISE) to images (N, 1, 16, 16) from -1 to 1
with generator.name_scope():
    generator.add(nn.Dense(2 * WIDTH * 16, use_bias=False), nn.HybridLambda(lambda F, x: F.reshape(x, (0, -1, 4, 4))))
    for channels in (WIDTH, WIDTH):
        generator.add(nn.BatchNorm(), nn.Activation("relu"), nn.HybridLambda(double), conv(channels, 3, 1))
    generator.add(nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(1, 3, 1, 1), nn.Activation("tanh"))
discriminator = nn.HybridSequential(prefix="discriminator_")  # images to logits (N, 1), large for real ones
with discriminator.name_scope():
    discriminator.add(nn.Conv2D(WIDTH, 4, 2, 1), nn.LeakyReLU(0.2))
    discriminator.add(conv(2 * WIDTH, 4, 2), nn.BatchNorm(), nn.LeakyReLU(0.2), nn.Conv2D(1, 4), nn.Flatten())

shared = mxmp.gluon.SharedLossScale("dynamic")
trainers = []
for net in (generator, discriminator):
    net.initialize(mx.init.Normal(0.02), ctx=ctx)
    net.hybridize(static_alloc=True)
    mxmp.gluon.convert(net, args.policy)
    trainers.append(mxmp.gluon.Trainer(net, "adam", {"learning_rate": 5e-4, "beta1": 0.5}, loss_scale=shared))

images = mx.nd.contrib.BilinearResize2D(mx.nd.array(load_digits().images[:, None] / 8 - 1), height=16, width=16)
batches = gluon.data.DataLoader(gluon.data.ArrayDataset(images), args.batch_size, shuffle=True, last_batch="discard")
cross_entropy = gluon.loss.SigmoidBinaryCrossEntropyLoss()
for epoch in range(1, args.epochs + 1):
    means = [mx.metric.Loss(), mx.metric.Loss()]
    for real in (batch.as_in_context(ctx) for batch in batches):
        noise = mx.nd.random.normal(shape=(args.batch_size, NOISE), ctx=ctx)
        with autograd.record():
            drawn = generator(noise)
            judged, caught = discriminator(real), discriminator(drawn.detach())
            loss = cross_entropy(judged, mx.nd.ones_like(judged)) + cross_entropy(caught, mx.nd.zeros_like(caught))
            with trainers[1].scale_loss(loss) as scaled:
                scaled.backward()
        trainers[1].step(args.batch_size)
        means[0].update(None, loss)
        with autograd.record():
            judged = discriminator(drawn)
            loss = cross_entropy(judged, mx.nd.ones_like(judged))
            with trainers[0].scale_loss(loss) as scaled:
                scaled.backward()
        trainers[0].step(args.batch_size)
        means[1].update(None, loss)
        shared.update()  # once for both trainers
    judge, draw = (mean.get()[1] for mean in means)
    text = f"epoch {epoch}: loss of the discriminator {judge:.3f}, of the generator {draw:.3f}"
    skipped = max(trainer.skipped_steps for trainer in trainers)
    print(f"{text}, loss scale {shared.loss_scale.value:g}, {skipped} steps skipped", flush=True)

drawn = generator(mx.nd.random.normal(shape=(64, NOISE), ctx=ctx)).asnumpy()
imsave("gan.png", drawn.reshape(8, 8, 16, 16).transpose(0, 2, 1, 3).reshape(128, 128), cmap="gray")
for net in (generator, discriminator):
    net.save_parameters(f"{net.prefix}0000.params")  # in float32
