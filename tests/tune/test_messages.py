"""Every message of mxmp.tune: bad arguments, networks, batches and metrics."""

import math
import threading

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError, PolicyError, TuneError
from mxmp.gluon import freeze
from mxmp.tune import PolicySpeed, SpeedComparison, compare_speed, search
from mxmp.tune.accuracy import Tolerance
from tests import messages
from tests.cli.checkpoints import network
from tests.tune.networks import chain, classifier, convnet, dense, energy, make_module, model, two_graphs

DATA, IMAGES = mx.nd.ones((2, 4)), mx.nd.ones((2, 3, 8, 8))


def searched(net=None, evaluate=lambda net: net(DATA).shape[0], tolerance=0.1, policy="O2", **options):
    return search(dense() if net is None else net, evaluate, tolerance, policy, **options)


def compared(policies=("float32",), **options):
    return compare_speed(convnet(), [IMAGES], policies, **options)


def given(policies):
    return lambda: compared(policies)


def locked():
    net = dense()
    net.lock = threading.Lock()
    return net


def speeds():
    return SpeedComparison(False, (PolicySpeed("float32", 1.0),), "a processor", "AMX", True)


def too_large(higher):
    net = chain("big_", lambda: [nn.Dense(1, in_units=4)], mx.init.Constant(1e5))
    return search(net, lambda net: float(net(DATA)[0].asscalar()), 1.0, "float16", higher_is_better=higher)


def without_data():
    loss = mx.sym.LinearRegressionOutput(mx.sym.var("w") * 2, mx.sym.var("label"))
    return loss, {"w": mx.nd.ones((2, 4))}, {}


def gives(*values):
    waiting = iter(values)
    return Tolerance(dense(), lambda net: [net(DATA), next(waiting)][1], 0.1)


SEARCH = {
    "float32": (lambda: searched(policy="float32"), TuneError,
        "policy 'param=float32,compute=float32,output=float32' is float32, so there is nothing to search; give "
        "one such as 'O2'."),
    "a pattern of nothing": (lambda: searched(policy="O2,name:nothing=float32"), PolicyError,
        "names: 'nothing' matches no node; expected one of net_dense0_fwd, net_dense0_relu_fwd, net_dense1_fwd."),
    "3 evaluations": (lambda: searched(max_evaluations=3), TuneError,
        "max_evaluations=3: expected a whole number from 4 on."),
    "10.0 evaluations": (lambda: searched(max_evaluations=10.0), TuneError,
        "max_evaluations=10.0: expected a whole number from 4 on."),
    "tolerance -1": (lambda: searched(tolerance=-1), TuneError,
        "tolerance=-1: expected a finite number from 0 on, in the unit of the metric."),
    "tolerance nan": (lambda: searched(tolerance=math.nan), TuneError,
        "tolerance=nan: expected a finite number from 0 on, in the unit of the metric."),
    "tolerance 1%": (lambda: searched(tolerance="1%"), TuneError,
        "tolerance='1%': expected a finite number from 0 on, in the unit of the metric."),
    "no function": (lambda: searched(evaluate=0.5), TuneError,
        "evaluate is a float; expected a function of the network."),
    "lower": (lambda: searched(higher_is_better="lower"), TuneError,
        "higher_is_better='lower': expected True or False."),
    "for_inference yes": (lambda: searched(for_inference="yes"), TuneError,
        "for_inference='yes': expected True or False."),
    "a folded net": (lambda: searched(for_inference=True), TuneError,
        "for_inference: BatchNorm is folded in models, not in a HybridSequential; give its symbol with its "
        "parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."),
    "batches of a net": (lambda: searched(batches=[]), TuneError,
        "batches is for a symbol with parameters or a Module; a net has the inputs of evaluate."),
    "float16 by name": (
        lambda: search(*energy(), 0.01, "O2,name:*_mul0=float16"), TuneError,
        "with all 3 operators in float32 that can be kept there, the metric is nan; it has to be at least "
        "-0.01, as it is 0 in float32. What is left: float16 is asked for by name of 'energy__mul0' "
        "(elemwise_mul)."),
    "outputs too large": (
        lambda: too_large(True), TuneError,
        "with all 1 operators in float32 that can be kept there, the metric is inf; it has to be at least "
        "399999, as it is 400000 in float32. What is left: the outputs come in float16."),
    "outputs too large, lower": (
        lambda: too_large(False), TuneError,
        "with all 1 operators in float32 that can be kept there, the metric is inf; it has to be at most "
        "400001, as it is 400000 in float32. What is left: the outputs come in float16."),
    "net not called": (
        lambda: searched(evaluate=lambda net: 0.0), ConvertError,
        "evaluate did not call block 'net' (HybridSequential), so nothing is known of what it runs; call the "
        "net that evaluate is given."),
    "no values": (
        lambda: searched(chain("net_", lambda: [nn.Dense(4)]), lambda net: 0.0), ConvertError,
        "block 'net': parameter 'net_dense0_weight' has no values; load or train the net first, or run one "
        "batch if its shapes are not known yet."),
    "not bound": (
        lambda: searched(mx.mod.Module(network()), batches=[]), ConvertError,
        "the Module is not bound, or has no parameters; call bind and set_params."),
    "no batches": (lambda: searched(make_module(network())), ConvertError,
        "batches is a NoneType; expected a DataLoader, a DataIter, a list of batches, or one batch: ..."),
    "no input": (lambda: searched(make_module(network()), lambda module: 0.0, batches=[{}]), ConvertError,
        "batches: a batch lacks the input 'data'; give it, also if it is a label."),
    "a number": (lambda: searched(3), ConvertError,
        "network is a int; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is "
        "bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "a pair": (lambda: searched((1, 2)), ConvertError,
        "network is a tuple of 2; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that "
        "is bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "metric nan": (lambda: gives(math.nan), TuneError,
        "evaluate gave nan in float32; the network is broken before its precision is changed."),
    "metric inf": (lambda: gives(math.inf), TuneError,
        "evaluate gave inf in float32; the network is broken before its precision is changed."),
    "metric -inf": (lambda: gives(-math.inf), TuneError,
        "evaluate gave -inf in float32; the network is broken before its precision is changed."),
    "no metric": (lambda: gives(None), TuneError,
        "evaluate gave None; expected a number, such as an accuracy or a loss."),
    "metric of text": (lambda: gives("0.9"), TuneError,
        "evaluate gave a str; expected a number, such as an accuracy or a loss."),
    "metric of a bool": (lambda: gives(True), TuneError,
        "evaluate gave a bool; expected a number, such as an accuracy or a loss."),
    "metric of numpy": (lambda: gives(np.ones(1)), TuneError,
        "evaluate gave a ndarray; expected a number, such as an accuracy or a loss."),
    "metric of MXNet": (lambda: gives(DATA), TuneError,
        "evaluate gave a NDArray; expected a number, such as an accuracy or a loss."),
    "metrics that differ": (
        lambda: gives(0.9, 0.7), TuneError,
        "evaluate gave 0.9 and then 0.7 for the same network in float32, which is more apart than the "
        "tolerance 0.1; take the same data and seeds in each call, or a tolerance beyond that noise."),
}  # fmt: skip
SPEED = {
    "a symbol of labels alone": (
        lambda: compare_speed(without_data(), {"label": DATA}, ["O1"], True), TuneError,
        "network: no input of it is data, so that a batch has nothing to time."),
    "a symbol without inputs": (
        lambda: compare_speed((mx.sym.ones((2, 2)) * mx.sym.var("w"), {"w": mx.nd.ones((2, 2))}, {}), {}, ["O1"]), TuneError,
        "network: no input of it is data, so that a batch has nothing to time."),
    "no policy": (lambda: compared(["01"]), PolicyError, "unknown policy '01'; the nearest are O1, O0."),
    **{f"policies {policies!r}": (given(policies), TuneError,
        f"policies is {policies!r}; expected policies or their names, such as ['float32', 'auto'].")
       for policies in ([], 3, ["O1", 3], {"O1": "O1"})},
    "names": (lambda: compared(["float32", "O1,name:typo*=float32"]), PolicyError,
        "names: 'typo*' matches no node; expected one of ..."),
    "0 seconds": (lambda: compared(seconds=0), TuneError, "seconds is 0; expected a positive number."),
    "seconds of text": (lambda: compared(seconds="60"), TuneError, "seconds is '60'; expected a positive number."),
    "nan seconds": (lambda: compared(seconds=math.nan), TuneError, "seconds is nan; expected a positive number."),
    "an optimizer": (lambda: compared(optimizer=mx.optimizer.SGD()), TuneError,
        "optimizer is <...SGD object at ...>; expected the name of an optimizer of MXNet, such as 'sgd'."),
    "an unknown optimizer": (lambda: compared(optimizer="sgdd"), TuneError,
        "optimizer is 'sgdd'; expected the name of an optimizer of MXNet, such as 'sgd'."),
    "a frozen block": (lambda: compare_speed(freeze(dense(), "float32"), [DATA]), TuneError,
        "network: block '...' is frozen under a policy; give the net that it was made of."),
    "the loss of a net": (lambda: compared(loss=True), TuneError,
        "loss is a bool; expected a function of the net's outputs and the label, or None."),
    "the loss of a model": (lambda: compare_speed(model(), [{"data": IMAGES}], loss=gluon.loss.L2Loss()), TuneError,
        "loss is a L2Loss; a symbol has its loss heads in it: give True for training steps, or None."),
    "no loss head": (lambda: compare_speed(make_module(classifier(loss=False)), [{"data": IMAGES}], loss=True), TuneError,
        "loss: no output (fc_output) is of a loss head, such as SoftmaxOutput; leave it out."),
    "nothing": (lambda: compare_speed(convnet(), []), ConvertError, "batches is empty; give one batch at least."),
    "no network": (lambda: compare_speed(3, [IMAGES]), ConvertError,
        "network is a int; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is "
        "bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "no values": (lambda: compare_speed(nn.Dense(4, prefix="net_"), [DATA]), TuneError,
        "network: parameter 'net_weight' has no value; initialize or load the net first."),
    "another input": (lambda: compare_speed(model(), [{"dta": IMAGES}]), ConvertError,
        "batches: the network has no input 'dta'; the nearest are data."),
    "another shape": (lambda: compare_speed(dense(), [mx.nd.ones((2, 5))]), ConvertError,
        "batches: block 'net' fails on 'data' of shape (2, 5), float32: ..."),
    "a lock": (lambda: compare_speed(locked(), [DATA]), TuneError,
        "network: block 'net' cannot be copied (cannot pickle '_thread.lock' object); give a net that can be."),
    "two graphs, frozen": (lambda: compare_speed(two_graphs(), [IMAGES], ["O1"]), TuneError,
        "network: it does not run under 'O1', the first policy: block 'two' (Sequential) has no graph of its own; "
        "freeze the blocks in it: ..."),
    "no rows": (lambda: SpeedComparison.from_dict({**speeds().to_dict(), "rows": []}), TuneError,
        "the speed comparison is damaged: rows is empty; expected a row for each policy."),
    "another record": (lambda: SpeedComparison.from_dict({"record": "report"}), TuneError,
        "this is no speed comparison of mxmp: expected 'record': 'speed comparison', found 'report'."),
}  # fmt: skip


PARTS = {"search": SEARCH, "speed": SPEED}
TABLE = {f"{part}: {name}": row for part, rows in PARTS.items() for name, row in rows.items()}


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
