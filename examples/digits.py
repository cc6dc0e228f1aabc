"""One network in float32, float16 and bfloat16
============================================

Trains the CIFAR ResNet-20 of He et al., 2015, https://arxiv.org/abs/1512.03385, section 4.2, on handwritten digits.
Each precision has the same first weights and the same batches. A table and a plot compare them. MXNet's ``SymbolBlock``
then scores the bfloat16 network. On a CPU float16 is emulated, so only its accuracy counts.

Run ``python digits.py``, or ``make demo``. On two busy cores of a Xeon with AMX::

    float32          99.50%  0.1406  1,095,016   0  0      1
    float16 O1       99.33%  0.6882  1,095,016  25  4  16384
    float16 O2       99.33%  0.6401    553,780   2  4  16384
    bfloat16 (auto)  98.99%  0.1249  1,095,016  25  0      1
"""

import argparse
import os
import time

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.model_zoo import cifar_resnet20_v1
from matplotlib.figure import Figure
from mxmp.diagnose import check_devices, fastest_policy, runs_bfloat16
from mxnet import autograd, gluon
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

TITLES = {"float32": "float32", "O1": "float16 O1", "O2": "float16 O2", "mixed_bfloat16": "bfloat16"}
parser = argparse.ArgumentParser(description="Train a ResNet-20 on handwritten digits in several precisions.")
for name, default in (("--epochs", 12), ("--batch-size", 64), ("--seed", 0)):
    parser.add_argument(name, type=int, default=default)
parser.add_argument("--out", default="output", help="folder to write to")
parser.add_argument("--modes", nargs="+", default=list(TITLES), metavar="POLICY")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
console = Console()
policies, auto = {mode: mxmp.Policy.parse(mode) for mode in args.modes}, fastest_policy([mx.cpu()])
console.print(check_devices("float16")[-1].message, auto.chosen, sep="\n")
modes = [mode for mode in args.modes if policies[mode].compute_dtype != "bfloat16" or runs_bfloat16()]

digits = load_digits()
images = digits.images[:, None].repeat(2, axis=2).repeat(2, axis=3).astype("float32") / 16
parts = train_test_split(images, digits.target, test_size=597, stratify=digits.target, random_state=0)
train_images, test_images, train_labels, test_labels = parts
steps = args.epochs * (len(train_images) // args.batch_size)


def batches():
    """Yield all batches, the same for each mode, of images that are shifted by up to a pixel each way."""
    draw = np.random.RandomState(args.seed)
    for _ in range(args.epochs):
        order = draw.permutation(len(train_images))
        for start in range(0, len(order) - args.batch_size + 1, args.batch_size):
            chosen = order[start : start + args.batch_size]
            shifts = draw.randint(-1, 2, (args.batch_size, 2))
            shifted = [np.roll(image, shift, axis=(1, 2)) for image, shift in zip(train_images[chosen], shifts)]
            yield mx.nd.array(np.stack(shifted)), mx.nd.array(train_labels[chosen])


def make(mode):
    """Return a network in one mode, its trainer, and a list for loss, scale, seconds and outcome of each step."""
    mx.random.seed(args.seed)
    net = cifar_resnet20_v1(classes=10)
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(train_images[:1]))
    net.hybridize(static_alloc=True, static_shape=True)
    mxmp.gluon.convert(net, mode)
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=0.1, warmup_steps=steps // 10)
    sgd = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule}
    # So short that a run of a few hundred steps shows the scale grow, overflow and back off; 2000 is usual.
    scale = mxmp.loss_scale.DynamicLossScale(growth_interval=20) if policies[mode].loss_scale == "dynamic" else None
    return net, mxmp.gluon.Trainer(net, "sgd", sgd, loss_scale=scale), []


runs = {mode: make(mode) for mode in modes}
for images, labels in track(batches(), "training", steps, console=console, disable=not console.is_terminal):
    for net, trainer, history in runs.values():  # in turns, so that a busy machine slows all alike
        start, scale = time.perf_counter(), trainer.loss_scale.value
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels)
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(args.batch_size)
        history.append((loss.mean().asscalar(), scale, time.perf_counter() - start, not trainer.last_step_skipped))
    if not console.is_terminal and len(history) % (steps // args.epochs) == 0:  # in a file: the losses of each epoch
        console.print(f"step {len(history)} of {steps}:", *(f"{key} {run[2][-1][0]:.4f}" for key, run in runs.items()))
LEGEND = "O1: weights in float32. O2: in float16, with float32 masters."
table = Table("mode", "accuracy", "s/step", "params B", "casts", "skipped", "scale", caption=LEGEND)
figure = Figure(figsize=(9, 7), tight_layout=True)
top, bottom = figure.subplots(2, 1, sharex=True)
for number, (mode, (net, trainer, history)) in enumerate(runs.items()):
    history = np.array(history, dtype=float)
    accuracy = (net(mx.nd.array(test_images)).asnumpy().argmax(axis=1) == test_labels).mean()
    size = sum(param.data().size * np.dtype(param.dtype).itemsize for param in net.collect_params().values())
    casts = mxmp.gluon.report(net).casts if policies[mode].is_mixed else 0
    title = TITLES.get(mode, mode) + " (auto)" * (policies[mode] == auto)
    cells = title, f"{accuracy:.2%}", f"{np.median(history[:, 2]):.4f}", f"{size:,}", f"{casts}"
    table.add_row(*cells, f"{trainer.skipped_steps}", f"{trainer.loss_scale.value:g}")
    style = {"color": f"C{number}", "linestyle": (0, (5, number)), "label": TITLES.get(mode, mode)}
    top.plot([history[max(0, i - 9) : i + 1, 0].mean() for i in range(len(history))], **style)
    bottom.step(range(len(history)), history[:, 1], where="mid", **style)
    skipped = np.flatnonzero(history[:, 3] == 0)
    bottom.plot(skipped, history[skipped, 1], "x", color=style["color"])
    if policies[mode].compute_dtype == "bfloat16":  # plain MXNet has no float16 products on a CPU
        symbol_file, params_file = mxmp.gluon.export(net, os.path.join(args.out, "digits"))
        plain = gluon.SymbolBlock.imports(symbol_file, ["data"], params_file)
        same = (plain(mx.nd.array(test_images)).asnumpy().argmax(axis=1) == test_labels).mean() == accuracy
        console.print(f"exported {symbol_file}; plain MXNet scores it {'the same' if same else 'NOT the same'} as here")
top.set(ylabel="training loss, mean of 10 steps", title="ResNet-20 on handwritten digits", yscale="log")
bottom.set(ylabel="loss scale", xlabel="step")
bottom.set_yscale("log", base=2)
top.legend(), bottom.legend()
figure.savefig(os.path.join(args.out, "digits.png"), dpi=120)
console.print(table, f"Loss curves and loss scales: {os.path.join(args.out, 'digits.png')}", sep="\n")
console.print("Next: `mxmp doctor` for this machine, docs/guides/gluon.md for a loop of yours, examples/ to copy from")
