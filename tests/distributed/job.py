"""What workers run: ``python -m tests.distributed.job ENGINE TRANSPORT FOLDER PART ...``.

A PART is NAME or NAME=ARGUMENT; they run one after another, and each worker leaves a file in FOLDER/NAME.
"""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from mxmp.distributed import KVStore
from mxmp.errors import NonFiniteLossError
from mxmp.loss_scale import DynamicLossScale

BATCH = 4  # of a worker
STEPS = 8


def data(rank, step, features, outputs):
    """Return inputs and targets, the same at every call."""
    rng = np.random.RandomState(100 * rank + step)
    return mx.nd.array(rng.randn(BATCH, features)), mx.nd.array(rng.randn(BATCH, outputs))


def backward(net, trainer, batch, factor=1.0):
    inputs, targets = batch
    with autograd.record(), trainer.scale_loss(factor * ((net(inputs) - targets) ** 2).sum(axis=1)) as scaled:
        scaled.backward()


def mlp(seed):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(gluon.nn.Dense(16, in_units=8, activation="relu"), gluon.nn.Dense(4, in_units=16))
    net.initialize()
    mxmp.gluon.convert(net, "O2")
    return net


def flat(arrays):
    return np.concatenate([array.astype("float32").asnumpy().ravel() for array in arrays])


def state(net, trainer):
    """Return weights and masters."""
    masters = list(trainer.master_params())
    return {"weights": flat([p.data() for p in net.collect_params().values()]), "masters": flat(masters)}


def regression(rank, kvstore):
    """Fit a line in float32; return the weight before each step."""
    mx.random.seed(rank)  # worker 1 starts elsewhere, and is given worker 0's
    net = gluon.nn.Dense(3, in_units=5, use_bias=False)
    net.initialize(mx.init.Normal(1))
    options = {"learning_rate": 0.05}
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=kvstore, loss_scale=128)
    seen = []
    for step in range(STEPS):
        seen.append(net.weight.data().asnumpy())
        backward(net, trainer, data(rank, step, 5, 3))
        assert trainer.step(2 * BATCH)
    return {"regression": np.stack(seen)}


def skips(kvstore):
    """Train with an inf on worker 1 in step 4 and a loss of NaN there in step 7; return what became of each step."""
    net = mlp(seed=kvstore.rank)
    loss_scale = DynamicLossScale(init_scale=2.0**10, growth_interval=3)
    options = {"learning_rate": 0.01, "momentum": 0.9}
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=kvstore, loss_scale=loss_scale)
    history = []
    for step in range(12):
        backward(net, trainer, data(kvstore.rank, step, 8, 4), np.nan if (step, kvstore.rank) == (7, 1) else 1.0)
        if (step, kvstore.rank) == (4, 1):
            net[0].weight.grad()[:] = np.inf
        try:
            stepped = int(trainer.step(BATCH * kvstore.num_workers))
        except NonFiniteLossError:
            stepped = -1
        history.append((stepped, trainer.loss_scale.value))
    return {"history": np.array(history), **state(net, trainer)}


def train(kvstore, folder, transport):
    """Do both with one kvstore."""
    big = mx.nd.full((2, 2), 40000, dtype="float16")
    total = mx.nd.zeros((2, 2))
    kvstore.init("big", mx.nd.zeros((2, 2)))
    kvstore.pushpull("big", big, out=total)
    same = kvstore if transport == "float16" else kvstore.type  # the name means the job that was joined already
    return {"total": total.asnumpy(), **regression(kvstore.rank, same), **skips(kvstore)}


def train_in_float16(kvstore, folder, transport):
    """Do both with a second kvstore of the job that was joined already."""
    return train(KVStore(kvstore.type, "float16"), folder, "float16")


def resume(kvstore, folder, dies):
    """Train with a checkpoint at each step, from the last one; worker 1 dies in step 5 the first time, if it ``dies``."""
    net = mlp(seed=kvstore.rank)
    done = max((int(file.stem) for file in folder.glob("*.params")), default=-1) + 1
    if done:
        net.load_parameters(f"{folder}/{done - 1}.params")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore=kvstore)
    if done:
        trainer.load_states(f"{folder}/{done - 1}.states")
    for step in range(done, STEPS):
        backward(net, trainer, data(kvstore.rank, step, 8, 4))
        if dies == "dies" and (step, done, kvstore.rank) == (5, 0, 1):
            print(f"dies at {time.time()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(BATCH * kvstore.num_workers)
        if kvstore.rank == 0:
            trainer.save_states(f"{folder}/{step}.states")
            net.save_parameters(f"{folder}/{step}.part")
            os.replace(f"{folder}/{step}.part", f"{folder}/{step}.params")  # the last: it says that all is there
    return {"begun": np.array(done), "skipped": np.array(trainer.skipped_steps), **state(net, trainer)}


def float64(kvstore, folder, steps):
    """Sum float64 numbers, of which float32 would keep the first half."""
    sums = []
    kvstore.init("numbers", mx.nd.array([1 / 3], dtype="float64") * (kvstore.rank + 1))
    for step in range(int(steps)):
        number = mx.nd.array([step + (1 + kvstore.rank) / 7], dtype="float64")
        kvstore.pushpull("numbers", number)
        sums.append(number.asscalar())
    return {"sums": np.array(sums, dtype=np.float64)}


def network():
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
    output = mx.sym.FullyConnected(mx.sym.relu(hidden), num_hidden=3, name="fc2")
    return mx.sym.LinearRegressionOutput(output, mx.sym.var("label"), name="out")


def fit(module, batches, kvstore, seed, batch_size):
    """Train a module; return its parameters before and after."""
    module.bind([("data", (batch_size, 5))], [("label", (batch_size, 3))])
    mx.random.seed(seed)
    module.init_params(mx.init.Normal(0.5))
    module.init_optimizer(kvstore, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    before = {f"before_{name}": value.asnumpy() for name, value in module.get_params()[0].items()}
    for inputs, targets in batches:
        module.forward(mx.io.DataBatch([inputs], [targets]), is_train=True)
        module.backward()
        module.update()
    return {**before, **{name: value.asnumpy() for name, value in module.get_params()[0].items()}}


def module(kvstore, folder, transport):
    """Train a module in float32, its gradients scaled; the name stands for the job that was joined already."""
    made = mxmp.module.Module(network(), label_names=["label"], policy="O0", loss_scale=128)
    batches = [data(kvstore.rank, step, 5, 3) for step in range(STEPS)]
    return fit(made, batches, kvstore.type, 7 + kvstore.rank, BATCH)


JOBS = {job.__name__: job for job in (train, train_in_float16, resume, module, float64)}


def main():
    engine, transport, folder, *parts = sys.argv[1:]
    for part in parts:
        name, _, argument = part.partition("=")
        place = Path(folder, name)
        place.mkdir(exist_ok=True)
        kvstore = KVStore(engine, transport)
        np.savez(f"{place}/rank{kvstore.rank}.npz", **JOBS[name](kvstore, place, argument or transport))
        done = f"rank {kvstore.rank} of {kvstore.num_workers} is done"
        del kvstore
        gc.collect()  # the next part, and its trainers, find the job of those that are gone
    print(done)


if __name__ == "__main__":
    main()
