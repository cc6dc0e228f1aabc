"""What mxmp.tune says of the mistakes that users make most."""

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError, PolicyError, TuneError
from mxmp.gluon import freeze
from mxmp.tune import compare_speed, search
from tests import messages
from tests.cli.checkpoints import network
from tests.tune.networks import chain, convnet, dense, energy, make_module, model, two_graphs

DATA, IMAGES = mx.nd.ones((2, 4)), mx.nd.ones((2, 3, 8, 8))


def searched(net=None, evaluate=lambda net: net(DATA).shape[0], tolerance=0.1, policy="O2", **options):
    return search(dense() if net is None else net, evaluate, tolerance, policy, **options)


def gives(*values):
    """Search with a function that calls the net and gives one value after the other."""
    waiting = iter(values)
    return searched(evaluate=lambda net: [net(DATA), next(waiting)][1])


def too_large():
    net = chain("big_", lambda: [nn.Dense(1, in_units=4)], mx.init.Constant(1e5))
    return search(net, lambda net: float(net(DATA)[0].asscalar()), 1.0, "float16", higher_is_better=False)


def without_data():
    loss = mx.sym.LinearRegressionOutput(mx.sym.var("w") * 2, mx.sym.var("label"))
    return loss, {"w": mx.nd.ones((2, 4))}, {}


TABLE = {
    "search: float32": (lambda: searched(policy="float32"), TuneError,
        "policy 'param=float32,compute=float32,output=float32' is float32, so there is nothing to search; give "
        "one such as 'O2'."),
    "search: a pattern of nothing": (lambda: searched(policy="O2,name:nothing=float32"), PolicyError,
        "names: 'nothing' matches no node; expected one of net_dense0_fwd, net_dense0_relu_fwd, net_dense1_fwd."),
    "search: 3 evaluations": (lambda: searched(max_evaluations=3), TuneError,
        "max_evaluations=3: expected a whole number from 4 on."),
    "search: tolerance 1%": (lambda: searched(tolerance="1%"), TuneError,
        "tolerance='1%': expected a finite number from 0 on, in the unit of the metric."),
    "search: a folded net": (lambda: searched(for_inference=True), TuneError,
        "for_inference: BatchNorm is folded in models, not in a HybridSequential; give its symbol with its "
        "parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."),
    "search: float16 by name": (lambda: search(*energy(), 0.01, "O2,name:*_mul0=float16"), TuneError,
        "with all 3 operators in float32 that can be kept there, the metric is nan; it has to be at least "
        "-0.01, as it is 0 in float32. What is left: float16 is asked for by name of 'energy__mul0' "
        "(elemwise_mul)."),
    "search: outputs too large": (too_large, TuneError,
        "with all 1 operators in float32 that can be kept there, the metric is inf; it has to be at most "
        "400001, as it is 400000 in float32. What is left: the outputs come in float16."),
    "search: net not called": (lambda: searched(evaluate=lambda net: 0.0), ConvertError,
        "evaluate did not call block 'net' (HybridSequential), so nothing is known of what it runs; call the "
        "net that evaluate is given."),
    "search: metric nan": (lambda: gives(float("nan")), TuneError,
        "evaluate gave nan in float32; the network is broken before its precision is changed."),
    "search: metric of MXNet": (lambda: gives(DATA), TuneError,
        "evaluate gave an NDArray; expected a number, such as an accuracy or a loss."),
    "search: metrics that differ": (lambda: gives(0.9, 0.7), TuneError,
        "evaluate gave 0.9 and then 0.7 for the same network in float32, which is more apart than the "
        "tolerance 0.1; take the same data and seeds in each call, or a tolerance beyond that noise."),
    "speed: policies": (lambda: compare_speed(convnet(), [IMAGES], 3), TuneError,
        "policies is 3; expected policies or their names, such as ['float32', 'auto']."),
    "speed: an unknown optimizer": (lambda: compare_speed(convnet(), [IMAGES], optimizer="sgdd"), TuneError,
        "optimizer is 'sgdd'; expected the name of an optimizer of MXNet, such as 'sgd'."),
    "speed: a frozen block": (lambda: compare_speed(freeze(dense(), "float32"), [DATA]), TuneError,
        "network: block '...' is frozen under a policy; give the net that it was made of."),
    "speed: the loss of a model": (lambda: compare_speed(model(), [{"data": IMAGES}], loss=gluon.loss.L2Loss()), TuneError,
        "loss is a L2Loss; a symbol has its loss heads in it: give True for training steps, or None."),
    "speed: no loss head": (lambda: compare_speed(make_module(network().get_internals()["fc_output"]), [{"data": IMAGES}], loss=True), TuneError,
        "network: training steps need a loss head, such as SoftmaxOutput, but no output (fc_output) is of one. Append one, or time inference: leave --training, or loss, out."),
    "speed: a symbol of labels alone": (lambda: compare_speed(without_data(), {"label": DATA}, ["O1"], True), TuneError,
        "network: no input of it is data, so that a batch has nothing to time."),
    "speed: two graphs, frozen": (lambda: compare_speed(two_graphs(), [IMAGES], ["O1"]), TuneError,
        "network: it does not run under 'O1', the first policy: block 'two' (Sequential) has no graph of its own; "
        "freeze the blocks in it: ..."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
