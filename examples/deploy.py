"""Deployment: freeze, plain MXNet, ONNX
=====================================

Deploys a trained network. ``freeze`` folds BatchNorm, leaves dropout out, and stores the weights in the policy's dtype.
``export`` writes the network for plain MXNet, which needs no mxmp. ``mxmp.onnx`` writes ONNX for other runtimes.

Run ``python deploy.py --steps 40``. ``--policy O2`` is float16, and ``mixed_bfloat16`` is bfloat16 where it runs::

    trained, float32: 95.48% right
    frozen: 95.48% right
    deployed-symbol.json, deployed-0000.params: 1,089,514 bytes, float32
    plain MXNet: 95.48% right
    ONNX Runtime: 95.48% right
"""

import argparse
import os

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from plots import pictures  # next to this file

parser = argparse.ArgumentParser(description="Deploy a network.")
parser.add_argument("--network", default="cifar_resnet20_v1", help="a name of GluonCV's model zoo")
parser.add_argument("--policy", help="default: what is fastest on this machine, float32 or bfloat16")
parser.add_argument("--steps", type=int, default=80, help="of training before")
args = parser.parse_args()
np.random.seed(0)
mx.random.seed(0)

digits = load_digits()
images = digits.images[:, None].repeat(2, axis=2).repeat(2, axis=3).astype("float32") / 16
train_images, images, train_labels, labels = train_test_split(images, digits.target, test_size=597, random_state=0)
images = mx.nd.array(images)
shape = {"data": images.shape}

net = get_model(args.network, classes=10, pretrained=False)  # or yours, with load_parameters
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})
for _ in range(args.steps):
    chosen = np.random.choice(len(train_images), 64)
    with autograd.record():
        scores = net(mx.nd.array(train_images[chosen]))
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, mx.nd.array(train_labels[chosen]))
    loss.backward()
    trainer.step(64)


def score(name, call):
    """Print how many of the digits held out are right."""
    scores = np.asarray(call(images).asnumpy(), dtype="float32")
    print(f"{name}: {(scores.argmax(axis=1) == labels).mean():.2%} right", flush=True)


score("trained, float32", net)
frozen = mxmp.gluon.freeze(net, args.policy)  # the net stays as it is
score("frozen", frozen)
pictures("deploy.png", images[:15, 0].asnumpy(), frozen(images[:15]).asnumpy().argmax(axis=1))
files = mxmp.gluon.export(frozen, "deployed")
dtype = {array.dtype.__name__ for array in mx.nd.load(files[1]).values() if hasattr(array.dtype, "__name__")}
print(f"{', '.join(files)}: {os.path.getsize(files[1]):,} bytes, {', '.join(sorted(dtype))}")

# In a program without mxmp. MXNet has no float16 kernels on a CPU: there a float16 model is for GPUs and for ONNX.
if "float16" not in dtype or mx.context.num_gpus():
    plain = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    plain.hybridize(backend="MKLDNN", static_alloc=True, static_shape=True)  # all three, to be fused as when frozen
    score("plain MXNet", plain)

if "bfloat16" in mxmp.gluon.report(frozen).policy:  # which MXNet's exporter to ONNX does not know
    mxmp.gluon.export(mxmp.gluon.freeze(net, "float32"), "deployed")
symbol, arg_params, aux_params = mx.model.load_checkpoint("deployed", 0)
mxmp.onnx.export_model(symbol, arg_params, aux_params, "deployed.onnx", shape)
try:
    import onnxruntime
except ImportError:
    print("deployed.onnx is written; onnxruntime, which would run it, is not installed")
else:
    session = onnxruntime.InferenceSession("deployed.onnx", providers=["CPUExecutionProvider"])
    score("ONNX Runtime", lambda batch: mx.nd.array(session.run(None, {"data": batch.asnumpy()})[0]))
