"""Every message of mxmp.tune: bad arguments, networks, batches, metrics and files of plans."""

import dataclasses
import json
import math

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import CheckpointError, ConvertError, DtypeError, PolicyError, TuneError
from mxmp.policy import Policy
from mxmp.tune import Tolerance, TuneResult, load, search, tune
from mxmp.tune.benchmark import benchmark
from mxmp.tune.plan import digest
from mxmp.tune.workload import read_workload
from tests import messages
from tests.cli.checkpoints import network
from tests.tune.networks import WithMask, chain, convnet, dense, energy, function, make_module, model, two_graphs
from tests.tune.results import result

DATA, IMAGES = mx.nd.ones((2, 4)), mx.nd.ones((2, 3, 8, 8))
NOWHERE, HOLDS = Policy.parse("O1,name:nowhere=float32"), result().holds_for


def searched(net=None, evaluate=lambda net: net(DATA).shape[0], tolerance=0.1, policy="O2", **options):
    return search(dense() if net is None else net, evaluate, tolerance, policy, **options)


def tuned(**options):
    return tune(convnet(), [IMAGES], **options)


def too_large(higher):
    net = chain("big_", lambda: [nn.Dense(1, in_units=4)], mx.init.Constant(1e5))
    return search(net, lambda net: float(net(DATA)[0].asscalar()), 1.0, "float16", higher_is_better=higher)


def gives(*values):
    waiting = iter(values)
    return Tolerance(dense(), lambda net: [net(DATA), next(waiting)][1], 0.1)


def folded_or_not(folded):
    batches, options = [{"data": IMAGES}], {"objective": "inference"}
    within = Tolerance(model(), lambda candidate: 1.0, 0.1, batches=batches, for_inference=folded)
    tune(model(), batches, within=within, for_inference=not folded, **options)


def written(tmp_path, content):
    """Return the name of a file with these bytes or this plan."""
    file = tmp_path / "plan.json"
    file.write_bytes(content if isinstance(content, bytes) else content.to_json().encode())
    return str(file)


def loaded(tmp_path, net_or_model=None, batches=None, **options):
    return load(written(tmp_path, result(network=digest([network()]))), net_or_model, batches, **options)


def total(net):
    return float(net(DATA).sum().asscalar())


def plan_of(**fields):
    return TuneResult.from_dict({**json.loads(result().to_json()), **fields})


def read(network_of, batches, **options):
    return read_workload(network_of, batches, False, **options)


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
        "batches is for a symbol with parameters or a Module; a net's are what evaluate calls it with."),
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
        "the Module is not bound, or has no parameters; call bind, set_params."),
    "no batches": (lambda: searched(make_module(network())), ConvertError,
        "batches is a NoneType; expected a DataLoader, a list of batches or a DataIter."),
    "no input": (lambda: searched(make_module(network()), lambda module: 0.0, batches=[{}]), ConvertError,
        "batches: a batch lacks the input 'data'; give it, also if it is a label."),
    "a number": (lambda: searched(3), ConvertError,
        "net_or_model is a int; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is "
        "bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "a pair": (lambda: searched((1, 2)), ConvertError,
        "net_or_model is a tuple of 2; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that "
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
TUNE = {
    "float32": (lambda: tuned(policy="float32"), PolicyError,
        "policy: 'param=float32,compute=float32,output=float32' is float32 already; give one with a low "
        "precision to tune."),
    "no policy": (lambda: tuned(policy="01"), PolicyError, "unknown policy '01'; the nearest are O1, O0."),
    "float16": (lambda: tuned(policy="O1"), TuneError,
        "policy: it computes in float16, which is emulated on a CPU, and the time of that says nothing of a "
        "GPU's. Give batches on a GPU, or tune a policy of bfloat16."),
    "names": (lambda: tuned(names={"typo*": "float32"}), PolicyError,
        "names: 'typo*' matches no node; expected one of net_batchnorm0_fwd, net_conv0_fwd, net_dense0_fwd, "
        "net_relu0_fwd."),
    "ops": (lambda: tuned(ops={"Typo": "float32"}), PolicyError,
        "ops: the network has no operator 'Typo'; expected one of Activation, BatchNorm, Convolution, "
        "FullyConnected."),
    "objective": (lambda: tuned(objective="speed"), TuneError,
        "objective is 'speed'; expected 'training' or 'inference'."),
    "0 seconds": (lambda: tuned(seconds=0), TuneError, "seconds is 0; expected a positive number."),
    "seconds of text": (lambda: tuned(seconds="60"), TuneError, "seconds is '60'; expected a positive number."),
    "nan seconds": (lambda: tuned(seconds=math.nan), TuneError, "seconds is nan; expected a positive number."),
    "folded training": (lambda: tuned(for_inference=True), TuneError,
        "for_inference=True needs objective='inference'; found objective='training'."),
    "within": (lambda: tuned(within=0.02), TuneError,
        "within is a float; expected a mxmp.tune.Tolerance of the same network."),
    "store": (lambda: tuned(store=3), TuneError, "store is a int; expected the name of a file."),
    "no folder": (lambda: tuned(store="nowhere/plan.json"), CheckpointError,
        "nowhere/plan.json: there is no folder ...; make it first."),
    "another network": (
        lambda: tune(dense(), [DATA], within=Tolerance(dense("other_"), total, 0.1)), TuneError,
        "within: it measures another network (..., expected ...): other operators or names. Make the Tolerance of the "
        "network that is tuned."),
    "folded tolerance": (
        lambda: folded_or_not(True), TuneError,
        "within: it measures the network with for_inference=True, but it is tuned with for_inference=False; "
        "give both the same."),
    "unfolded tolerance": (
        lambda: folded_or_not(False), TuneError,
        "within: it measures the network with for_inference=False, but it is tuned with for_inference=True; "
        "give both the same."),
    "nothing": (lambda: read(convnet(), []), ConvertError, "batches is empty; give one batch at least."),
    "a batch alone": (lambda: read(convnet(), IMAGES), ConvertError,
        "batches is a NDArray; expected a DataLoader, a list of batches or a DataIter."),
    "no network": (lambda: read(3, [IMAGES]), ConvertError,
        "net_or_model is a int; expected a Gluon net, a Module or BucketingModule of MXNet or mxmp that is "
        "bound, a mxmp.symbol.ConvertedModel, or a tuple (symbol, arg_params, aux_params)."),
    "another input": (lambda: read(model(), [{"dta": IMAGES}]), ConvertError,
        "batches: the network has no input 'dta'; the nearest are data."),
    "forward of a model": (
        lambda: read(model(), [IMAGES], forward=print), TuneError,
        "forward is a builtin_function_or_method for a tuple; it is a function of a Gluon net and a batch."),
    "no forward": (lambda: read(convnet(), [IMAGES], forward=3), TuneError,
        "forward is a int for a HybridSequential; it is a function of a Gluon net and a batch."),
    "no call": (lambda: read(convnet(), [IMAGES], forward=lambda net, batch: None), ConvertError,
        "block 'net': parameter 'net_dense0_weight' has no values; load or train the net first, or run one "
        "batch if its shapes are not known yet."),
    "two arrays or one": (
        lambda: read(WithMask(prefix="mask_"), [(IMAGES, mx.nd.zeros(2))]), TuneError,
        "batches: the net takes 1 to 2 arrays, and a batch has 2; say with forward= which it gets: "
        "forward=lambda net, batch: net(batch[0])."),
    "two graphs, frozen": (
        lambda: read(two_graphs(), [IMAGES], for_inference=True), TuneError,
        "for_inference: block 'two' has 2 graphs; tune the blocks in it."),
    "a frozen Module": (
        lambda: read(make_module(), [{"data": IMAGES}], for_inference=True), TuneError,
        "for_inference: a Module is not frozen; give its symbol with its parameters, (symbol, arg_params, "
        "aux_params), or leave for_inference out."),
    "names that change": (lambda: read(function(lambda F, x: F.relu(x)), [IMAGES]), ConvertError,
        "block '': operators in it get other names each time it is traced, 'relu...' (relu) for example, so that "
        "no policy can name them. Make it with a prefix: HybridLambda(prefix='net_')."),
    "a benchmark's pattern": (lambda: benchmark(model(), {"data": IMAGES}, {"mine": NOWHERE}, "inference", False, 1e-3, False), PolicyError,
        "names: 'nowhere' matches no node; expected one of act, bn, conv, fc, flat, softmax."),
}  # fmt: skip
PLAN = {
    "policy": (lambda: plan_of(policy="mixed_bfloat17"), TuneError,
        "the tuned plan is damaged: policy is 'mixed_bfloat17'; expected the text of a Policy (unknown policy "
        "'mixed_bfloat17'; the nearest are mixed_bfloat16, mixed_float16, bfloat16.)."),
    "objective": (
        lambda: plan_of(objective="speed"), TuneError,
        "the tuned plan is damaged: objective is 'speed'; expected 'training' or 'inference'."),
    "candidates": (lambda: plan_of(candidates=[{"name": "x"}]), TuneError,
        "the tuned plan is damaged: candidates[0].seconds is missing; expected a value."),
    "holds_for": (lambda: plan_of(holds_for={}), TuneError,
        "the tuned plan is damaged: holds_for.machine is missing; expected a value."),
    "version": (lambda: plan_of(version=3), TuneError, "the tuned plan has version 3; this mxmp reads version 1."),
    "record": (lambda: plan_of(record="ledger"), TuneError,
        "this is no tuned plan of mxmp: expected 'record': 'tuned plan', found 'ledger'."),
    "empty": (lambda tmp_path: load(written(tmp_path, b"")), CheckpointError,
        ".../plan.json: this is no tuned plan of mxmp: it is no JSON (Expecting value: line 1 column 1 (char "
        "0))."),
    "no text": (lambda tmp_path: load(written(tmp_path, b"\xff\xfe\x00")), CheckpointError, ".../plan.json: it is no text in UTF-8."),
    "other JSON": (lambda tmp_path: load(written(tmp_path, b'{"seconds": {}}')), CheckpointError,
        ".../plan.json: this is no tuned plan of mxmp: expected 'record': 'tuned plan', found None."),
    "missing": (lambda tmp_path: load(str(tmp_path / "no.json")), CheckpointError,
        ".../no.json cannot be read: No such file or directory"),
    "path": (lambda: load(0), TuneError, "path is a int; expected the name of a file."),
    "a device": (
        lambda tmp_path: load(written(tmp_path, result(holds_for=dataclasses.replace(HOLDS, device="Tesla V100")))), TuneError,
        ".../plan.json: the plan does not hold here. device: found GPU, expected Tesla V100. Tune again here."),
    "a shape": (
        lambda tmp_path: loaded(tmp_path, shapes={"data": (4, 3, 8, 8)}), TuneError,
        ".../plan.json: the plan does not hold here. shape of data: found (4, 3, 8, 8), expected (2, 3, 8, 8). "
        "Tune again here."),
    "a dtype": (
        lambda tmp_path: loaded(tmp_path, dtypes={"data": "uint8"}), TuneError,
        ".../plan.json: the plan does not hold here. dtype of data: found uint8, expected float32. Tune again "
        "here."),
    "a network": (
        lambda tmp_path: loaded(tmp_path, mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)), TuneError,
        ".../plan.json: the plan does not hold here. network: found another one (..., expected ...). Tune again here."),
    "a batch": (
        lambda tmp_path: loaded(tmp_path, model(), [{"data": mx.nd.ones((4, 3, 8, 8))}]), TuneError,
        ".../plan.json: the plan does not hold here. shape of data: found (4, 3, 8, 8), expected (2, 3, 8, 8). "
        "Tune again here."),
    "a batch's dtype": (
        lambda tmp_path: loaded(tmp_path, model(), [{"data": IMAGES.astype("int32")}]), TuneError,
        ".../plan.json: the plan does not hold here. dtype of data: found int32, expected float32. Tune again here."),
    "no shape": (
        lambda tmp_path: loaded(tmp_path, shapes={"data": 2}), TuneError,
        "shapes is {'data': 2}; expected shapes by the names of inputs, {'data': (8, 3)}."),
    "no shapes": (lambda tmp_path: loaded(tmp_path, shapes=(4, 5)), TuneError,
        "shapes is (4, 5); expected shapes by the names of inputs, a dict."),
    "no dtypes": (
        lambda tmp_path: loaded(tmp_path, dtypes="int32"), TuneError,
        "dtypes is 'int32'; expected dtypes by the names of inputs, a dict."),
    "an unknown dtype": (lambda tmp_path: loaded(tmp_path, dtypes={"data": "int31"}), DtypeError,
        "unknown dtype 'int31'; expected float16, bfloat16 or float32."),
    "batches and shapes": (
        lambda tmp_path: loaded(tmp_path, model(), [{"data": IMAGES}], shapes={}), TuneError,
        "shapes: the batches tell the shapes of the inputs already; give one of the two."),
    "batches and dtypes": (
        lambda tmp_path: loaded(tmp_path, model(), [{"data": IMAGES}], dtypes={}), TuneError,
        "dtypes: the batches tell the dtypes of the inputs already; give one of the two."),
    "a net alone": (lambda tmp_path: loaded(tmp_path, gluon.nn.Dense(3)), TuneError,
        "batches: give one, with which the net is called once: its graph is not known before."),
}  # fmt: skip


PARTS = {"search": SEARCH, "tune": TUNE, "plan": PLAN}
TABLE = {f"{part}: {name}": row for part, rows in PARTS.items() for name, row in rows.items()}


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
