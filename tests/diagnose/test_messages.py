"""What the functions of `mxmp.diagnose` say of the mistakes that users make most."""

import sys
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import (
    CSVLogger,
    TensorBoardLogger,
    Watch,
    compare,
    explain,
    measure_gradients,
    measure_ranges,
)
from mxmp.errors import CheckpointError, ConvertError, DependencyError, ParamsError, TrainerError
from tests import messages
from tests.diagnose.nets import DATA, LABEL, SOFTMAX, Listed, bucket, data, made, model
from tests.diagnose.test_subject import of_two_lengths

X, Y = DATA.asnumpy(), LABEL.asnumpy()
BATCH = {"data": DATA, "softmax_label": LABEL}
HEADLESS = (model()[0].get_internals()["second_output"], *model()[1:])


def net():
    return made(nn.Dense(3, in_units=5, prefix="net_"))


def frozen():
    return mxmp.gluon.freeze(net(), "O1")


def around(block):
    outer = nn.HybridSequential()
    outer.add(block)
    return outer


class TwoOutputs(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x, x + 1


class OfArrays(gluon.HybridBlock):
    """A net that runs on arrays, whose ``*`` broadcasts, and not on symbols."""

    def hybrid_forward(self, F, x, length):
        return x * F.expand_dims(length, 1)


def without_tensorboard(folder):
    missing = dict.fromkeys(["tensorboardX", "tensorboardX.event_file_writer"])
    with mock.patch.dict(sys.modules, missing):
        try:
            TensorBoardLogger(folder / "run")
        finally:
            assert not (folder / "run").exists()


def converted(ranges):
    return mxmp.gluon.convert(net(), "O1", ranges=ranges)(DATA)


TABLE = {
    # Networks, policies and batches.
    "a symbol": (lambda: compare(mx.sym.var("x"), DATA), ConvertError, "network is a Symbol; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "a converted symbol": (lambda: explain(tuple(mxmp.symbol.convert_model(*model(), "O1")), BATCH), ConvertError, "policy: the network is converted already, and its symbol does not say by which policy; give one to look at it under, such as 'O2': casts of the symbol are left out for that."),
    "a policy without low precision": (lambda: compare(net(), DATA, "O0"), ConvertError, "policy 'param=float32,compute=float32,output=float32' is float32, so there is nothing to compare; give one such as 'O2'."),
    "a frozen block": (lambda: compare(frozen(), DATA), ConvertError, "network: block '...' is frozen, so it has no float32 weights to compare with; give the net that it was made of, and the policy 'O2'."),
    "a frozen block in a net": (lambda: explain(around(frozen()), DATA), ConvertError, "network: block '...' is frozen, so it has no float32 weights to compare with; give the net that it was made of, and the policy 'O2'."),
    "a net without values": (lambda: compare(nn.Dense(3, prefix="net_"), DATA), ConvertError, "block 'net': parameter 'net_weight' has no values; load or train the net first, or run one batch if its shapes are not known yet."),
    "another shape": (lambda: measure_ranges(net(), X[:, :4]), ConvertError, "batches: block 'net' fails on 'data' of shape (4, 4), float32: block 'net': node 'net_fwd': MXNet cannot infer its shapes: ..."),
    "another shape for a symbol": (lambda: compare(model(), {"data": DATA[:, :4]}), ConvertError, "batches: 'data' has shape (4, 4), for which 'first_weight' of shape (6, 5) would have to be (6, 4): give batches of another shape, or the parameters of this network."),
    "integers": (lambda: compare(net(), np.ones((4, 5), "int64")), ConvertError, "batches: block '...' fails on 'data' of shape (4, 5), int64: ..."),
    "a net that runs on arrays": (lambda: explain(made(OfArrays(prefix="net_")), (DATA, LABEL)), ConvertError, "batches: block 'net' fails on 'data0' of shape (4, 5), float32, 'data1' of shape (4,), float32: block 'net': node 'net__mul0': MXNet cannot infer its shapes: ..."),
    "a dict for a net": (lambda: compare(net(), {"data": DATA}), ConvertError, "batches: a batch is a dict, which is for a symbol or Module; a Gluon net takes an array, a tuple or list of arrays in the order of its inputs, or a DataBatch."),
    "an unknown input": (lambda: compare(model(), {"data": DATA, "other": DATA}), ConvertError, "batches: the network has no input 'other'; expected one of data, softmax_label."),
    "an array without an axis": (lambda: measure_ranges(HEADLESS, [{"data": np.array(2.0)}]), ConvertError, "batches: input 'data' has shape (), unknown to MXNet; give shape (1,)."),
    "NaN in a batch": (lambda: compare(net(), DATA * np.nan), ConvertError, "batches: 'data' holds NaN, which hides all errors; see mxmp.diagnose.explain."),
    "an unknown bucket": (lambda: explain(of_two_lengths(mxmp.module.BucketingModule), bucket(data((4, 6, 6))), "O1"), ConvertError, "batches are of bucket 6, which is not bound; run one of them by the module first, or give batches of 8, 5."),
    "no parameters": (lambda: measure_ranges((HEADLESS[0], {}, {}), [{"data": DATA}]), ParamsError, "arg_params lacks 'first_weight', 'second_weight', which the symbol has; it is empty."),
    # Losses and labels.
    "no label": (lambda: explain(net(), X, loss=SOFTMAX), ConvertError, "loss takes 2 to 3 arguments; the net gives 1 output, and a batch has no label for it. Give batches with the labels that it reads, behind the net's inputs, or say how many there are by labels=."),
    "a label of another shape": (lambda: compare(net(), (X, np.zeros(3)), loss=SOFTMAX), ConvertError, "batches: the loss fails on an output of shape (4, 3) and a label of shape (3,): ..."),
    "too many labels": (lambda: explain(net(), (DATA, LABEL), labels=2), ConvertError, "labels=2: a batch has 2 arrays, labels included, and the net needs at least one; expected at most 1, or batches with the net's inputs before them."),
    "a constant loss": (lambda: explain(net(), (DATA, LABEL), loss=lambda out, label: mx.nd.ones(4)), ConvertError, "loss does not depend on the net's outputs, so there are no gradients; compute it of the outputs by operators of MXNet, without detach, asnumpy or autograd.pause."),
    "a loss of detached outputs": (lambda: measure_gradients(net(), (DATA, LABEL), loss=lambda out, label: SOFTMAX(out.detach(), label)), ConvertError, "loss does not depend on the net's outputs, so there are no gradients; compute it of the outputs by operators of MXNet, without detach, asnumpy or autograd.pause."),
    "a loss of one output for a net of two": (lambda: explain(made(TwoOutputs()), (DATA, LABEL), loss=SOFTMAX), ConvertError, "loss fails with AssertionError; the net gives 2 outputs, and loss got them as one list. Give a function that reads them, such as loss=lambda outputs, label: loss(outputs[0], label)."),
    "the class of a loss": (lambda: explain(net(), (DATA, LABEL), loss=gluon.loss.L2Loss), ConvertError, "loss is the class L2Loss; give an instance, such as L2Loss()."),
    "a text as a network": (lambda: explain("net", (DATA, LABEL), loss=SOFTMAX), ConvertError, "network is a str; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "no loss": (lambda: measure_gradients(net(), [DATA]), ConvertError, "measure_gradients: the loss of a Gluon net is missing; give it, such as loss=mx.gluon.loss.L2Loss()."),
    "gradients without a label": (lambda: measure_gradients(model(), [{"data": DATA}]), ConvertError, "batches: a batch lacks the label 'softmax_label', which gradients depend on; give it."),
    # Ranges, watches and logs.
    "a range of no output": (lambda: converted({"other_output": 1e6}), ConvertError, "ranges: the net has no output 'other_output'; measure the net that is converted. If its operators get other names each time it is traced, make it with a prefix."),
    "a whole file of ranges": (lambda: converted({"data": "random numbers", "ranges": {"net_fwd_output": 1.0}}), ConvertError, "ranges is all that `mxmp ranges --json` prints; give the part of it that it calls 'ranges'."),
    "a function as the loss of a watch": (lambda: Watch(lambda out: out), TrainerError, "Watch: loss is a function; expected a Block, such as gluon.loss.L2Loss(), whose calls are noted, as those of a function cannot be: put it into a Block, leave loss out, or call mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."),
    "a log of an optimizer": (lambda: Listed().attach(mx.optimizer.SGD()), TrainerError, "expected a trainer, a module or a LossScaleOptimizer of mxmp, found a SGD of mxnet.optimizer.optimizer; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."),
    "a loss for a log that is not attached": (lambda: Listed().log(loss=1.0), TrainerError, "log: this Listed is not attached; call attach(trainer) first."),
    "a log every 0 steps": (lambda: Listed(0), TrainerError, "Listed: every=0; expected a whole number of steps, 1 or more."),
    "a table in no folder": (lambda folder: CSVLogger(folder / "absent" / "mine.csv"), CheckpointError, ".../absent/mine.csv: there is no folder .../absent; make it first."),
    "no tensorboardX": (without_tensorboard, DependencyError, "tensorboardX cannot be imported (import of tensorboardX.event_file_writer halted; None in sys.modules); pip install './mxmp[tensorboard]'."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
