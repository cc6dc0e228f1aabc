"""What the functions of `mxmp.diagnose` refuse, and what they say of it."""

import sys
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp import diagnose
from mxmp.diagnose import (
    Comparison,
    CSVLogger,
    Explanation,
    Magnitudes,
    NonFinite,
    TensorBoardLogger,
    Watch,
    check,
    compare,
    explain,
    measure_gradients,
    measure_ranges,
)
from mxmp.errors import (
    CheckpointError,
    ConvertError,
    DependencyError,
    LossScaleError,
    ParamsError,
    PolicyError,
    TrainerError,
)
from mxmp.symbol import convert_model, convert_symbol
from tests import messages
from tests.diagnose.nets import (
    DATA,
    L2,
    LABEL,
    SOFTMAX,
    Listed,
    bucket,
    chain,
    classifier,
    data,
    linear,
    made,
    model,
    trainer_of,
)
from tests.diagnose.test_subject import of_two_lengths

X, Y = DATA.asnumpy(), LABEL.asnumpy()
BATCH = {"data": DATA, "softmax_label": LABEL}
HEADLESS = (model()[0].get_internals()["second_output"], *model()[1:])
TRAINER = trainer_of(made(nn.Dense(2, in_units=2)))


def given(call, *args):
    return lambda: call(*args)


def net():
    return made(nn.Dense(3, in_units=5, prefix="net_"))


class OfArrays(gluon.HybridBlock):
    """A net that runs on arrays, whose ``*`` broadcasts, and not on symbols."""

    def hybrid_forward(self, F, x, length):
        return x * F.expand_dims(length, 1)


def without_gradient():
    norm = mx.sym.multi_sum_sq(linear(mx.sym.var("data"), "first", 6), num_arrays=1, name="norm")
    return norm, {"first_weight": mx.nd.ones((6, 5)), "first_bias": mx.nd.ones(6)}, {}


def without_activation():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="a")
    return measure_gradients((symbol, {"a_weight": mx.nd.ones((4, 5))}, {}), {"data": DATA})


def with_label():
    """Return a network whose label has a shape that nothing tells."""
    label = mx.sym.Reshape(mx.sym.var("label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 5)), label, name="soft"), {}, {}


def normed(size):
    arrays = [{name: mx.nd.ones(size) for name in names} for names in (("n_gamma", "n_beta"), ("n_moving_mean", "n_moving_var"))]
    return mx.sym.BatchNorm(mx.sym.var("data"), name="n"), *arrays


def convert(**ranges):
    return convert_symbol(HEADLESS[0], "O1", {"data": (4, 5)}, ranges=ranges)


def converted_net(ranges):
    return mxmp.gluon.convert(net(), "O1", ranges=ranges)(DATA)


def attached():
    return Listed().attach(trainer_of(made(nn.Dense(2, in_units=2))))


def closed():
    log = attached()
    log.close()
    return log


def on_a_path(kind, make):
    """Return a call with a path in a new folder that is prepared first."""

    def call(folder):
        path = make(folder)
        kind(path)

    return call


def a_file(folder, name="run", text=""):
    (folder / name).write_text(text)
    return folder / name


def a_folder(folder):
    (folder / "folder.csv").mkdir()
    return folder / "folder.csv"


def without_tensorboard(folder):
    missing = dict.fromkeys(["tensorboardX", "tensorboardX.event_file_writer"])
    with mock.patch.dict(sys.modules, missing):
        try:
            TensorBoardLogger(folder / "run")
        finally:
            assert not (folder / "run").exists()


def without_bfloat16(ask):
    with mock.patch("mxmp.diagnose.subject.runs_bfloat16", lambda: False):
        ask(classifier(), DATA, "mixed_bfloat16")


OF_BUCKETS = of_two_lengths(mxmp.module.BucketingModule)
def ask_of_dtype(ask, dtype, layer, hybridize):
    block = made(nn.BatchNorm(in_channels=5) if layer == "BatchNorm" else nn.Dense(3, in_units=5))
    block.hybridize(hybridize)
    return ask(block, np.ones((4, 5), dtype))


FOR_EACH = {
    name: [
        (f"{name} of {what}", (given(call, ask), error, text))
        for what, call, error, text in [
            ("nothing", lambda ask: ask(None, DATA), ConvertError, "network is a NoneType; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
            ("a list", lambda ask: ask([net], DATA), ConvertError, "network is a list of 1; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
            ("a symbol", lambda ask: ask(mx.sym.var("x"), DATA), ConvertError, "network is a Symbol; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
            ("a number", lambda ask: ask(3, {"data": DATA}), ConvertError, "network is a int; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
            ("a converted symbol", lambda ask: ask(tuple(convert_model(*model(), "O1")), BATCH), ConvertError, "policy: the network is converted already, and its symbol does not say by which policy; give one to look at it under, such as 'O2': casts of the symbol are left out for that."),
            ("a loss scale of 0", lambda ask: ask(net(), (DATA, LABEL), loss=SOFTMAX, loss_scale=0), LossScaleError, "loss_scale is 0; expected a positive and finite number."),
            ("bfloat16 where it does not run", without_bfloat16, ConvertError, "policy: it computes in bfloat16, and MXNet runs none on this processor (...). Take one with AVX-512, or a policy of float16, which is emulated."),
            ("another shape", lambda ask: ask(net(), X[:, :4]), ConvertError, "batches: block 'net' fails on 'data' of shape (4, 4), float32: block 'net': node 'net_fwd': MXNet cannot infer its shapes: Shape inconsistent, Provided = [3,5], inferred shape=(3,4)."),
            ("too few arrays", lambda ask: ask(made(OfArrays(prefix="net_")), X), ConvertError, "batches: block 'net' fails on 'data' of shape (4, 5), float32: ...missing 1 required positional argument: 'length'..."),
            ("a label of another shape", lambda ask: ask(net(), (X, np.zeros(9)), loss=L2), ConvertError, "batches: the loss fails on an output of shape (4, 3) and a label of shape (9,): NDArray.Reshape: Check failed: shape_.Size() >= shape.Size() (9 vs. 12) : target shape size is larger than the current shape"),
            ("no label", lambda ask: ask(net(), X, loss=SOFTMAX), ConvertError, "loss takes 2 to 3 arguments; the net gives 1 output, and a batch has no label for it. Give batches with the labels that it reads, behind the net's inputs, or say how many there are by labels=."),
        ]
    ]
    for name, ask in {"compare": compare, "explain": explain}.items()
}
DTYPES = {
    f"{name}: {dtype}{' hybridized' if hybridize else ''} for {layer}": (
        given(ask_of_dtype, ask, dtype, layer, hybridize),
        ConvertError,
        f"batches: block '...' fails on 'data' of shape (4, 5), {dtype}: ...",
    )
    for name, ask in {"compare": compare, "explain": explain, "ranges": measure_ranges}.items()
    for dtype, layer in (("int64", "Dense"), ("uint8", "Dense"), ("int32", "BatchNorm"))
    for hybridize in (False, True)
}


RESULTS = {
    f"{kind.__name__}: {what}": (call, error, text)
    for kind in (Comparison, NonFinite, Explanation)
    for what, call, error, text in [
        ("an empty object", given(kind.from_json, "{}"), ConvertError, "this is no ... of mxmp: expected 'record': ..., found None..."),
        ("no JSON", on_a_path(kind.load, lambda folder: a_file(folder, "other.json", "{")), CheckpointError, "...other.json: this is no ...: it is no JSON..."),
        ("no file", on_a_path(kind.load, lambda folder: folder / "nowhere.json"), CheckpointError, "...nowhere.json cannot be read: No such file..."),
    ]
}
TABLE = {
    **dict(each for several in FOR_EACH.values() for each in several),
    **{
        f"{ask.__name__} of a net that runs on arrays": (given(lambda ask: ask(made(OfArrays(prefix="net_")), (DATA, LABEL)), ask), ConvertError, "batches: block 'net' fails on 'data0' of shape (4, 5), float32, 'data1' of shape (4,), float32: block 'net': node 'net__mul0': MXNet cannot infer its shapes: ...")
        for ask in (compare, explain)
    },
    # Batches.
    "a policy without low precision": (lambda: compare(net(), DATA, "O0"), ConvertError, "policy 'param=float32,compute=float32,output=float32' is float32, so there is nothing to compare; give one such as 'O2'."),
    "an unknown policy": (lambda: compare(net(), DATA, "O9"), PolicyError, "unknown policy 'O9'; the nearest are O3, O2, O1."),
    "an unknown policy of a machine": (lambda: diagnose.doctor("O7"), PolicyError, "unknown policy 'O7'; the nearest are O3, O2, O1."),
    "no batches": (lambda: compare(net(), None), ConvertError, "batches is a NoneType; expected a DataLoader, a DataIter, a list of batches, or one batch: an array, a tuple or list of arrays, a DataBatch, or, for a symbol or Module, a dict of arrays by input."),
    "empty batches": (lambda: compare(net(), []), ConvertError, "batches is empty; give one batch at least."),
    "a dict for a net": (lambda: compare(net(), {"data": DATA}), ConvertError, "batches: a batch is a dict, which is for a symbol or Module; a Gluon net takes an array, a tuple or list of arrays in the order of its inputs, or a DataBatch."),
    "a text in a batch": (lambda: compare(net(), [("text",)]), ConvertError, "batches: a batch holds a str; expected an array, a tuple or list of arrays, a DataBatch, or, for a symbol or Module, a dict of arrays by input."),
    "three arrays in a list": (lambda: compare(net(), [DATA, DATA, LABEL], loss=SOFTMAX), ConvertError, "batches: the loss fails on an output of shape (4, 3) and a label of shape (4, 5) and a label of shape (4,): ..."),
    "NaN in a batch": (lambda: compare(net(), DATA * np.nan), ConvertError, "batches: 'data' holds NaN, which hides all errors; see mxmp.diagnose.explain."),
    "a context for a net": (lambda: compare(net(), DATA, ctx=mx.cpu()), ConvertError, "ctx is for a symbol with parameters; a Gluon net runs where its inputs are. Leave ctx out."),
    "a loss that is a number": (lambda: compare(net(), (DATA, LABEL), loss=3), ConvertError, "loss is a int; expected a function of the net's outputs and the labels."),
    "a loss that gives a number": (lambda: compare(net(), (DATA, LABEL), loss=lambda output, label: 1.0), ConvertError, "loss gave float; expected the loss of the batch, an NDArray of any shape."),
    "a loss that does not depend on the net": (lambda: compare(net(), (DATA, LABEL), loss=lambda output, label: mx.nd.ones(1)), ConvertError, "gradients: MXNet cannot run the network backward: Check failed: !AGInfo: :IsNone(*i): Cannot differentiate node because it is not in a computational graph. You need to set is_recording to true or use autograd.record() to save computational graphs for backward. If you want to differentiate the same graph twice, you need to pass retain_graph=True to backward."),
    "a net without values": (lambda: compare(nn.Dense(3, prefix="net_"), DATA), ConvertError, "block 'net': parameter 'net_weight' has no values; load or train the net first, or run one batch if its shapes are not known yet."),
    "another shape for a symbol": (lambda: compare(model(), {"data": DATA[:, :4]}), ConvertError, "batches: 'data' has shape (4, 4), for which 'first_weight' of shape (6, 5) would have to be (6, 4): give batches of another shape, or the parameters of this network."),
    "a batch of no rows": (lambda: compare(model(), {"data": DATA[:0]}), ConvertError, "batches: an array has shape (0, 5), so that there is nothing to run."),
    "an array of texts": (lambda: compare(model(), {"data": np.array([["a"] * 5])}), ConvertError, "batches: an array has dtype <U1; expected numbers."),
    "a loss for a symbol": (lambda: compare(model(), {"data": DATA}, loss=SOFTMAX), ConvertError, "loss is for a Gluon net; a symbol or Module has its loss heads. Leave loss out."),
    "a label without data": (lambda: compare(model(), {"softmax_label": LABEL}), ConvertError, "batches: a batch lacks the input 'data'; give it, also if it is a label."),
    "an unknown input": (lambda: compare(model(), {"data": DATA, "other": DATA}), ConvertError, "batches: the network has no input 'other'; expected one of data, softmax_label."),
    "a module that is not bound": (lambda: compare(mx.mod.Module(model()[0]), {"data": DATA}), ConvertError, "the Module is not bound, or has no parameters; call bind and set_params."),
    "an operator without a gradient": (lambda: compare(without_gradient(), {"data": DATA}, "O1"), ConvertError, "MXNet cannot run the network in one piece: Operator multi_sum_sq is non-differentiable because it didn't register FGradient attribute."),
    "a text of no operators": (lambda: compare(model(), {"data": DATA}).text(0), ConvertError, "worst=0: expected a whole number from 1 on, or None for all."),
    "a text of half an operator": (lambda: compare(model(), {"data": DATA}).text(1.5), ConvertError, "worst=1.5: expected a whole number from 1 on, or None for all."),
    "a text of True": (lambda: compare(model(), {"data": DATA}).text(True), ConvertError, "worst=True: expected a whole number from 1 on, or None for all."),
    "a batch of an unknown bucket": (lambda: explain(OF_BUCKETS, bucket(data((4, 6, 6))), "O1"), ConvertError, "batches are of bucket 6, which is not bound; run one of them by the module first, or give batches of 8, 5."),
    "integers beside a shape that does not fit": (lambda: compare(made(chain(nn.Embedding(3, 4), nn.Dense(2, in_units=5), nn.Sequential())), Y), ConvertError, "batches: block 'net' fails on 'data' of shape (4,), float32: ...Shape inconsistent, Provided = [2,5], inferred shape=(2,4)."),
    **DTYPES,
    # Ranges and gradients.
    "no batches asked for": (lambda: measure_ranges(net(), [DATA], max_batches=0), ConvertError, "max_batches is 0; expected how many batches to read, 1 or more."),
    "a loader without labels": (lambda: measure_gradients(net(), [DATA], loss=SOFTMAX), ConvertError, "loss takes 2 to 3 arguments; the net gives 1 output, and a batch has no label for it. Give batches with the labels that it reads, behind the net's inputs, or say how many there are by labels=."),
    "no loss": (lambda: measure_gradients(net(), [DATA]), ConvertError, "measure_gradients: the loss of a Gluon net is missing; give it, such as loss=mx.gluon.loss.L2Loss()."),
    "ranges of a net without values": (lambda: measure_ranges(nn.Dense(2, prefix="net_"), [DATA]), ConvertError, "block 'net': parameter 'net_weight' has no values; load or train the net first, or run one batch if its shapes are not known yet."),
    "nothing to train": (lambda: measure_gradients(made(nn.Activation("relu", prefix="net_")), [(DATA, LABEL)], loss=SOFTMAX), ConvertError, "network has no parameter to train, so there are no gradients."),
    "a loader of another shape": (lambda: measure_ranges(net(), [DATA[:, :3]]), ConvertError, "batches: block 'net' fails on 'data' of shape (4, 3), float32: block 'net': node 'net_fwd': MXNet cannot infer its shapes: Shape inconsistent, Provided = [3,5], inferred shape=(3,3)."),
    "gradients of another shape": (lambda: measure_gradients(net(), [(DATA[:, :3], LABEL)], loss=SOFTMAX), ConvertError, "batches: block 'net' fails on 'data' of shape (4, 3), float32: block 'net': node 'net_fwd': MXNet cannot infer its shapes: Shape inconsistent, Provided = [3,5], inferred shape=(3,3)."),
    "a label of another size": (lambda: measure_gradients(net(), [(DATA, LABEL[:3])], loss=SOFTMAX), ConvertError, "batches: the loss fails on an output of shape (4, 3) and a label of shape (3,): Shape inconsistent, Provided = [3], inferred shape=[4]"),
    "a loss that gives a float": (lambda: measure_gradients(net(), [(DATA, None)], loss=lambda output, label: 3.0), ConvertError, "loss gave float; expected the loss of the batch, an NDArray of any shape."),
    "a module in place of its symbol": (lambda: measure_ranges(mx.mod.Module(mx.sym.relu(mx.sym.var("data")), label_names=None), [DATA]), ConvertError, "the Module is not bound, or has no parameters; call bind and set_params."),
    "no batches to measure": (lambda: measure_ranges(HEADLESS, []), ConvertError, "batches is empty; give one batch at least."),
    "an input that is not there": (lambda: measure_ranges(HEADLESS, [{"y": DATA}]), ConvertError, "batches: the network has no input 'y'; expected one of data."),
    "batches of another shape": (lambda: measure_ranges(HEADLESS, [{"data": DATA[:, :4]}]), ConvertError, "batches: 'data' has shape (4, 4), for which 'first_weight' of shape (6, 5) would have to be (6, 4): give batches of another shape, or the parameters of this network."),
    "an array without an axis as an input": (lambda: measure_ranges(HEADLESS, [{"data": np.array(2.0)}]), ConvertError, "batches: input 'data' has shape (), unknown to MXNet; give shape (1,)."),
    "a text as an input": (lambda: measure_ranges(HEADLESS, [{"data": "text"}]), ConvertError, "batches: a batch holds a str; expected an array, a tuple or list of arrays, a DataBatch, or, for a symbol or Module, a dict of arrays by input."),
    "a batch without inputs": (lambda: measure_ranges(HEADLESS, [{}]), ConvertError, "batches: a batch lacks the input 'data'; give it, also if it is a label."),
    "no parameters": (lambda: measure_ranges((HEADLESS[0], {}, {}), [{"data": DATA}]), ParamsError, "arg_params lacks 'first_weight', 'second_weight', which the symbol has; it is empty."),
    "parameters of another network": (lambda: measure_ranges((HEADLESS[0], {**HEADLESS[1], "second_weight": mx.nd.ones((2, 6))}, {}), [{"data": DATA}]), ConvertError, "batches: 'data' has shape (4, 5), for which 'second_weight' of shape (2, 6) would have to be (3, 6): give batches of another shape, or the parameters of this network."),
    "a norm of another network": (lambda: measure_ranges(normed(6), [{"data": DATA}]), ConvertError, "batches: 'data' has shape (4, 5), for which 'n_gamma' of shape (6,) would have to be (5,), 'n_beta' of shape (6,) would have to be (5,), 'n_moving_mean' of shape (6,) would have to be (5,) and 1 more: give batches of another shape, or the parameters of this network."),
    "a file in place of a symbol": (lambda: measure_ranges(("net.json", {}, {}), [{"data": DATA}]), ConvertError, "network is a tuple of 3; expected ..."),
    "a label of unknown shape": (lambda: measure_ranges(with_label(), [{"data": DATA}]), ConvertError, "batches: a batch lacks the input 'label'; give it, also if it is a label."),
    "gradients without a label": (lambda: measure_gradients(model(), [{"data": DATA}]), ConvertError, "batches: a batch lacks the label 'softmax_label', which gradients depend on; give it."),
    "a network without an activation": (without_activation, ConvertError, "network has no output in floating point that an operator reads: nothing is measured."),
    "a range of no output": (lambda: convert(first=1.0), ConvertError, "ranges: the symbol has no output 'first'; the nearest are first_weight, first_output."),
    "a range that is a text": (lambda: convert(first_output="large"), ConvertError, "ranges: 'first_output' is 'large'; expected its largest magnitude, a number from 0 on."),
    "a range that is NaN": (lambda: convert(first_output=float("nan")), ConvertError, "ranges: 'first_output' is nan; expected its largest magnitude, a number from 0 on."),
    "a range of no output of a net": (lambda: converted_net({"other_output": 1e6}), ConvertError, "ranges: the net has no output 'other_output'; measure the net that is converted. If its operators get other names each time it is traced, make it with a prefix."),
    "a file in place of ranges": (lambda: converted_net("ranges.json"), ConvertError, "ranges is a str; expected what mxmp.diagnose.measure_ranges returns, a dict of largest magnitudes by output; of a file give what it holds."),
    "a whole file of ranges": (lambda: converted_net({"data": "random numbers", "ranges": {"net_fwd_output": 1.0}}), ConvertError, "ranges is all that `mxmp ranges --json` prints; give the part of it that it calls 'ranges'."),
    "a call that lacks its loader": (lambda: measure_ranges(net()), TypeError, "measure_ranges() missing 1 required positional argument: 'batches'"),
    "a range of a net that is a text": (lambda: converted_net({"net_fwd_output": "large"}), ConvertError, "ranges: 'net_fwd_output' is 'large'; expected its largest magnitude, a number from 0 on."),
    **{f"a scale of {scale}": (given(Magnitudes().share_lost, scale), LossScaleError, "scale is ...; expected a power of two.") for scale in (0, -2.0, 3, float("inf"), float("nan"))},
    # Nets with their trainers, watches and logs.
    "a trainer in place of a net": (lambda: check(TRAINER, net()), TrainerError, "check: net is a Trainer; expected a gluon.Block."),
    "no trainer": (lambda: check(net(), None), TrainerError, "check: trainer is a NoneType; expected a gluon.Trainer."),
    "no nets": (lambda: check([], TRAINER), TrainerError, "check: net is empty; give one at least."),
    "a watch of a number": (lambda: Watch().attach(3), TrainerError, "Watch: expected a trainer or module of mxmp, found a int of builtins; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."),
    "a number as the loss of a watch": (lambda: Watch(3), TrainerError, "Watch: loss is a int; expected a Block, such as gluon.loss.L2Loss(), whose calls are noted, as those of a function cannot be: put it into a Block, leave loss out, or call mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."),
    "a trainer as the loss of a watch": (lambda: Watch(TRAINER), TrainerError, "Watch: loss is a Trainer; expected a Block, such as gluon.loss.L2Loss(), whose calls are noted, as those of a function cannot be: put it into a Block, leave loss out, or call mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."),
    "a function as the loss of a watch": (lambda: Watch(lambda out: out), TrainerError, "Watch: loss is a function; expected a Block, such as gluon.loss.L2Loss(), whose calls are noted, as those of a function cannot be: put it into a Block, leave loss out, or call mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."),
    "an observer that is a text": (lambda: mxmp.estimator.MixedPrecisionHandler("O1", observers=["watch"]), TrainerError, "observers holds a str, which has no attach; expected a mxmp.diagnose.Watch or a log of steps."),
    **{f"a log every {every!r} steps": (given(Listed, every), TrainerError, "Listed: every=...; expected a whole number of steps, 1 or more.") for every in (0, -1, 1.5, True, None, "1")},
    "a log of an optimizer": (lambda: Listed().attach(mx.optimizer.SGD()), TrainerError, "expected a trainer, a module or a LossScaleOptimizer of mxmp, found a SGD of mxnet.optimizer.optimizer; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."),
    "a loss for a log that is not attached": (lambda: Listed().log(loss=1.0), TrainerError, "log: this Listed is not attached; call attach(trainer) first."),
    "a log that is closed": (lambda: closed().attach(TRAINER), TrainerError, "attach: this Listed is closed; make another."),
    **{f"a loss of a log that is {loss!r}": (given(lambda loss: attached().log(loss=loss), loss), TrainerError, "log: loss is a...; expected a number, an NDArray, or a list of them.") for loss in ("0.5", None, [], [None], {"loss": 1.0})},
    **{f"a table at {path!r}": (given(CSVLogger, path), CheckpointError, "CSVLogger: path is ...; expected the folder of a run or a file that ends in .csv.") for path in ("", None, 3, b"run")},
    "a table in no folder": (on_a_path(CSVLogger, lambda folder: folder / "absent" / "mine.csv"), CheckpointError, ".../absent/mine.csv: there is no folder .../absent; make it first."),
    "a table in a file": (on_a_path(CSVLogger, lambda folder: a_file(folder) / "run"), CheckpointError, ".../run/run: the folder cannot be made: Not a directory."),
    "a table in place of a folder": (on_a_path(CSVLogger, a_folder), CheckpointError, ".../folder.csv cannot be written: Is a directory."),
    **{f"event files at {path!r}": (given(TensorBoardLogger, path), CheckpointError, "TensorBoardLogger: folder is ...; expected the folder of the event files.") for path in ("", None, 3)},
    "event files in a file": (on_a_path(TensorBoardLogger, a_file), CheckpointError, ".../run: its event file cannot be written: File exists."),
    "no tensorboardX": (without_tensorboard, DependencyError, "tensorboardX cannot be imported (import of tensorboardX.event_file_writer halted; None in sys.modules); pip install './mxmp[tensorboard]'."),
    **RESULTS,
    "a damaged comparison": (lambda: Comparison.from_dict({"record": "comparison", "version": 1}), ConvertError, "the comparison is damaged: policy is missing; expected a value."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
