"""Several processes, several machines
===================================

Trains one network in several processes. MXNet's parameter server sums their gradients. ``KVStore("dist_sync")`` sends
them in float32. All workers start with worker 0's weights, share one loss scale, and skip the same steps.

Run ``python several_machines.py --epochs 2``. It starts two workers, a server and a scheduler on this machine. For
several machines start the script with ``mxmp launch -n 8 -s 2 --hosts 10.0.0.1,10.0.0.2 python several_machines.py``::

    [worker 0] epoch 1: loss 1.9022, loss scale 4096, 1 steps skipped
    [worker 1] epoch 1: loss 1.8886, loss scale 4096, 1 steps skipped
    [worker 1] epoch 2: loss 0.5367, loss scale 2048, 2 steps skipped
    [worker 0] epoch 2: loss 0.5461, loss scale 2048, 2 steps skipped
"""

import argparse
import os
import sys

import mxmp  # before mxnet
import mxmp.launch
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from plots import curves  # next to this file

parser = argparse.ArgumentParser(description="Train in several processes.")
parser.add_argument("--workers", type=int, default=2, help="to start on this machine")
parser.add_argument("--policy", default="O1", help="O0 is float32; O1, O2, mixed_bfloat16, ...")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

if "DMLC_ROLE" not in os.environ:  # started by hand: start the job, each worker of which runs this script
    job = mxmp.launch.plan_processes([sys.executable, *sys.argv], args.workers)
    sys.exit(mxmp.launch.run(job).code)

workers = mxmp.distributed.KVStore("dist_sync")
ctx = mx.gpu(workers.rank) if mx.context.num_gpus() else mx.cpu()
mx.random.seed(args.seed)
net = nn.HybridSequential()
for channels in (16, 32):
    net.add(nn.Conv2D(channels, 3, padding=1), nn.Activation("relu"), nn.MaxPool2D())
net.add(nn.Dense(10))
net.initialize(mx.init.Xavier(), ctx=ctx)
mxmp.gluon.convert(net, args.policy)
trainer = mxmp.gluon.Trainer(net, "adam", {"learning_rate": 0.005}, kvstore=workers)

digits = load_digits()
images, labels = digits.images[:, None].astype("float32") / 16, digits.target.astype("float32")
count = args.batch_size // workers.num_workers  # this worker's part of each batch
draw, steps = np.random.RandomState(args.seed), len(images) // args.batch_size
cross_entropy, history = gluon.loss.SoftmaxCrossEntropyLoss(), []
for epoch in range(1, args.epochs + 1):
    order, losses = draw.permutation(len(images)), []  # the same on all workers
    for step in range(steps):  # all workers make as many: one that makes fewer keeps the others waiting
        start = step * args.batch_size + workers.rank * count
        chosen = order[start : start + count]
        with autograd.record():
            loss = cross_entropy(net(mx.nd.array(images[chosen], ctx)), mx.nd.array(labels[chosen], ctx))
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(args.batch_size)  # gradients are summed over all workers
        losses.append(loss.mean().asscalar())
    history += losses
    text = f"epoch {epoch}: loss {np.mean(losses):.4f}"
    print(f"{text}, loss scale {trainer.loss_scale.value:g}, {trainer.skipped_steps} steps skipped", flush=True)
net.save_parameters(f"worker-{workers.rank}.params")  # the same on all; one of them would do
if workers.rank == 0:
    curves("several_machines.png", f"Worker 0 of {workers.num_workers}", "step", loss=history)
