"""A broken run: attention scores overflow
=======================================

The queries and keys of a transformer have grown, as in long runs with a large learning rate. Their products leave
float16's range. Every step is skipped, and no loss scale helps. A ``Watch`` names the operator. With that operator in
float32 the same weights train on.

Run ``python broken_attention_overflow.py``. ``--run FOLDER`` keeps the broken run for ``mxmp report FOLDER``::

    O1: 5 of 5 steps skipped, loss scale 2
    O1,name:net_attention_scores=float32: 2 of 20 steps skipped, loss 2.205
    activation out of range: no loss scale mends this activation. forward: 'net_attention_scores' (batch_dot, float16)
    gives inf in 3,690 of 65,536 elements; its inputs reach 120.1 and 739.5, float16 ends at 65504; in float32 it
    reaches 1.485e+05. Keep it in float32 by the policy's overrides, 'name:net_attention_scores=float32', or scale the
    inputs down. If the loss has just grown, lower the learning rate instead.

References:
    Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023, https://arxiv.org/abs/2302.05442,
    section 2: attention logits that grow until training diverges.
"""

import argparse
import os

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from plots import curves  # next to this file

parser = argparse.ArgumentParser(description="Find the operator that overflows.")
parser.add_argument("--steps", type=int, default=20, help="of training, once mended")
parser.add_argument("--run", metavar="FOLDER", help="a new folder, to keep the broken run in")
args = parser.parse_args()
UNITS, BATCH_SIZE = 32, 16
digits = load_digits()
images, labels = digits.data.astype("float32"), digits.target.astype("float32")  # (N, 64), from 0 to 16
places = mx.nd.arange(64).reshape((1, 64))
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


class Transformer(gluon.HybridBlock):
    """A layer of a transformer with one head over the pixels of an image, and a classifier on the mean."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.pixels, self.places = nn.Embedding(17, UNITS), nn.Embedding(64, UNITS)
            self.norm = nn.LayerNorm(in_channels=UNITS)
            self.query, self.key, self.value = (nn.Dense(UNITS, flatten=False, in_units=UNITS) for _ in range(3))
            self.hidden = nn.Dense(2 * UNITS, flatten=False, in_units=UNITS, activation="relu")
            self.classes = nn.Dense(10, in_units=2 * UNITS)

    def hybrid_forward(self, F, pixels, places):
        """Return the scores (N, 10) of images (N, 64)."""
        x = self.norm(F.broadcast_add(self.pixels(pixels), self.places(places)))
        query = self.query(x) / UNITS**0.5
        scores = F.batch_dot(query, self.key(x), transpose_b=True, name="attention_scores")
        x = x + F.batch_dot(F.softmax(scores, axis=-1), self.value(x))
        return self.classes(F.mean(self.hidden(x), axis=1))


def make_net(policy):
    """Return the network with the same grown weights each time, converted to a policy, and its trainer."""
    mx.random.seed(0)
    net = Transformer()
    net.initialize(mx.init.Xavier())
    for layer in (net.query, net.key):
        layer.weight.set_data(layer.weight.data() * 200)  # the fault
    mxmp.gluon.convert(net, policy)
    return net, mxmp.gluon.Trainer(net, "adam", {"learning_rate": 0.003})


def train(net, trainer, steps):
    """Train on random batches; return the mean loss of the last one, and the loss scales."""
    draw, scales = np.random.RandomState(0), []
    for _ in range(steps):
        chosen = draw.choice(len(images), BATCH_SIZE)
        with autograd.record():
            loss = cross_entropy(net(mx.nd.array(images[chosen]), places), mx.nd.array(labels[chosen]))
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(BATCH_SIZE)
        scales.append(trainer.loss_scale.value)
    return loss.mean().asscalar(), scales


net, trainer = make_net("O1")
log = mxmp.diagnose.CSVLogger(args.run, every=1).attach(trainer) if args.run else None
with mxmp.diagnose.Watch(cross_entropy).attach(trainer) as watch:
    _, scales = train(net, trainer, 5)
    verdict = watch.verdict()
print(f"O1: {trainer.skipped_steps} of 5 steps skipped, loss scale {trainer.loss_scale.value:g}")
if log:
    log.close()
    with open(os.path.join(args.run, "report.json"), "w", encoding="utf-8") as file:
        file.write(mxmp.gluon.report(net).to_json())
    mxmp.diagnose.compare(net, (mx.nd.array(images[:16]), places), progress=False).save(f"{args.run}/compare.json")

policy = f"O1,{verdict.overrides}"
net, trainer = make_net(policy)
loss, mended = train(net, trainer, args.steps)
print(f"{policy}: {trainer.skipped_steps} of {args.steps} steps skipped, loss {loss:.3f}")
print(verdict)
lines = {"O1: every step is skipped": scales, "with the override": mended}
curves("broken_attention_overflow.png", "Attention scores that overflow", "step", loss_scale=lines)
