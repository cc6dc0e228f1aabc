"""A broken run: one image holds NaN
=================================

One image of 1797 has NaN pixels. Its step is skipped, like a step that overflows. No loss is NaN, because MXNet's ReLU
makes 0 of NaN. A ``Watch`` tells the two apart, and names input and row. The script leaves the image out and goes on.

Run ``python broken_nan_image.py``::

    step 6 was skipped: scale too high
    step 22 was skipped: data
    left out: image 737
    57 batches, 2 steps skipped, last loss 0.022
    data: input 'data' holds NaN in 3 of 2,048 elements, in row 23. No precision of this network and no scale mends
    that: look at how this batch is read and prepared, and at other nets that it came through.
"""

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from plots import pictures  # next to this file

BATCH_SIZE = 32
digits = load_digits()
images, labels = (digits.images[:, None] / 16).astype("float32"), digits.target.astype("float32")
images[737, 0, 3, 2:5] = np.nan  # the fault

mx.random.seed(0)
net = nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(nn.Conv2D(16, 3, in_channels=1), nn.BatchNorm(in_channels=16), nn.Activation("relu"))
    net.add(nn.Conv2D(16, 3, in_channels=16, activation="relu"), nn.Dense(10, in_units=16 * 4 * 4))
net.initialize(mx.init.Xavier())
mxmp.gluon.convert(net, "O1")
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = mxmp.gluon.Trainer(net, "sgd", {"learning_rate": 0.1})


def train_step(chosen):
    """Take a step with these images, and return the loss of each."""
    with autograd.record():
        loss = cross_entropy(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    trainer.step(len(chosen))
    return loss


order, verdict = np.random.RandomState(0).permutation(len(images)), "There is no corrupt image."
with mxmp.diagnose.Watch(cross_entropy).attach(trainer) as watch:
    for number, start in enumerate(range(0, len(order), BATCH_SIZE), 1):
        chosen = order[start : start + BATCH_SIZE]
        loss = train_step(chosen)
        if trainer.last_step_skipped:
            found = watch.verdict()
            print(f"step {number} was skipped: {found.kind}")
            if found.kind == "data":
                verdict, rows = found, list(found.node.rows)
                print(f"left out: image {', '.join(map(str, chosen[rows]))}")
                loss = train_step(np.delete(chosen, rows))
print(f"{number} batches, {trainer.skipped_steps} steps skipped, last loss {loss.mean().asscalar():.3f}")
print(verdict)
pictures("broken_nan_image.png", images[730:745, 0], [f"image {number}" for number in range(730, 745)])
