"""A network with a batch, which runs under any policy: copies of its graphs, so that the network stays as it is.

net ------------------> NetSubject ----\
    Module, model to train > SymbolSubject -> decide(policy): what a conversion decides
model, net to freeze --> SymbolSubject -/  start(policy): converted copies, a Module like it, or a frozen block
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import dtypes
from ..devices.amx import variable_set
from ..diagnose.batches import Batch, inputs_of, read_loader
from ..diagnose.subject import Call, NetSubject, SymbolSubject, read_subject
from ..errors import MxmpError, SlowPrecisionWarning, TuneError, did_you_mean, mxnet_reason
from ..gluon.api import convert
from ..gluon.freeze import freeze
from ..gluon.trace import Trace
from ..module import Module
from ..mxnet_private import blocks, modules, parameters
from ..passes.scale_loss import is_loss_head
from ..policy import Policy, only_matching
from ..report import Decisions
from ..symbol import Checkpoint, to_graph
from ..symbol.arguments import label_names
from .race import NotRunnable

Arrays = Mapping[str, mx.nd.NDArray]
Forward = Callable[[gluon.Block, Any], Any]
"""Calls a net with a batch."""

Run = Callable[[], List[mx.nd.NDArray]]
"""Runs a network once, without waiting, and returns its outputs."""

_USUAL = {"static_alloc": False, "static_shape": False, "inline_limit": 2, "grad_req": "write"}
"""Defaults of ``HybridBlock.hybridize`` (python/mxnet/gluon/block.py) and ``Module.bind``; of others nothing is set."""


@dataclass(frozen=True)
class Workload:
    """A network with a batch.

    Attributes:
        subject: The network, with the batch.
        inputs: The arrays of the inputs by name, without labels; of several graphs with the names of their blocks.
        training: Whether forward and backward are run, or forward alone.
        is_frozen: Whether the network is frozen: BatchNorm folded, weights stored low.
        options: How it is run beyond MXNet's defaults, by name.
    """

    subject: Any  # a NetSubject or a SymbolSubject
    inputs: Arrays
    training: bool
    is_frozen: bool
    options: Mapping[str, str]

    @property
    def on_cpu(self) -> bool:
        """Whether any of it runs on a CPU."""
        return any(array.context.device_type != "gpu" for array in self.inputs.values())

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion of each graph decides for the batch's shapes."""
        low = policy.replace(param_dtype=policy.compute_dtype) if self.is_frozen else policy
        decisions: List[Decisions] = self.subject.decisions(low)
        return decisions

    def start(self, policy: Policy, fused: bool = True) -> Run:
        """Return a function that runs the network, built anew under a policy, once it has run.

        Args:
            policy: The policy.
            fused: Of a network that is frozen, whether oneDNN fuses it.

        Raises:
            NotRunnable: If MXNet cannot run it.
        """
        with _quiet():
            try:
                if self.is_frozen:
                    run = _run_frozen(self.subject, policy, fused)
                elif isinstance(self.subject, NetSubject):
                    run = _run_net(self.subject, policy, self.training)
                else:
                    run = _run_symbol(self.subject, policy, self.training)
                run()  # has oneDNN generate its code
                mx.nd.waitall()
            except (mx.MXNetError, MxmpError) as e:
                raise NotRunnable(str(e) if isinstance(e, MxmpError) else mxnet_reason(e)) from e
        return run


def read_workload(
    network: Any, batches: Any, training: bool, for_inference: bool = False, forward: Optional[Forward] = None
) -> Workload:
    """Return the workload of a network with the first of some batches.

    Args:
        network: An initialized Gluon net, converted or not; a bound Module; or (symbol, arg_params, aux_params).
        batches: Several, as for `mxmp.tune.tune`.
        training: Whether forward and backward are run.
        for_inference: Whether it is frozen.
        forward: Calls a net with a batch.

    Raises:
        TuneError: If ``forward`` or ``for_inference`` is not for such a network.
        ConvertError: If it is no network, or has no values, or the batch does not fit it.
    """
    if forward is not None and not (isinstance(network, gluon.Block) and callable(forward)):
        raise TuneError(
            f"forward is a {type(forward).__name__} for a {type(network).__name__}; it is a function of a Gluon net "
            f"and a batch."
        )
    if isinstance(network, gluon.Block):
        return _read_net(network, batches, training, for_inference, forward)
    subject: Any = read_subject(network)
    module, options, labels = subject.module, {}, label_names(subject.model.symbol)
    if module is not None and for_inference:
        raise TuneError(
            "for_inference: a Module is not frozen; give its symbol with its parameters, (symbol, arg_params, "
            "aux_params), or leave for_inference out."
        )
    subject = subject.take(read_loader(batches, 1, "batches"))
    arrays = subject.batches[0]
    if module is None:
        subject = _on_context_of(arrays, tuple(subject.model), for_inference)
    else:
        labels |= frozenset(module.label_names or ())
        options = _module_options(module, training)
        states = modules.made_with(module)["state_names"] or ()  # inputs that it keeps itself, zeros at first
        sizes = module.symbol.infer_shape_partial(**{name: array.shape for name, array in arrays.items()})[0]
        shapes = dict(zip(module.symbol.list_arguments(), sizes))
        subject.batches[0] = {**arrays, **{name: mx.nd.zeros(shapes[name]) for name in states}}
    inputs = {name: array for name, array in arrays.items() if name not in labels}
    return Workload(subject, inputs, training, for_inference, options)


def _on_context_of(batch: Arrays, model: Tuple[Any, Arrays, Arrays], for_inference: bool) -> SymbolSubject:
    """Return a model that runs where its batch lies."""
    symbol, args, aux = model
    subject = SymbolSubject(symbol, args, aux, next(iter(batch.values())).context, for_inference)
    return subject.take([Batch(tuple(batch.values()), tuple(batch))])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing warn of a slow precision, which the clock tells here, and MXNet write no line for what is bound.

    MXNet reads that variable once, at its first bind (src/executor/graph_executor.cc).
    """
    with warnings.catch_warnings(), variable_set("MXNET_SUBGRAPH_VERBOSE", "0"):
        warnings.simplefilter("ignore", SlowPrecisionWarning)
        yield


# ------------------------------------------------------------------ Gluon nets


def _read_net(
    net: gluon.Block, batches: Any, training: bool, for_inference: bool, forward: Optional[Forward]
) -> Workload:
    def call() -> None:
        with autograd.pause(train_mode=False):
            forward(net, next(iter(batches))) if forward else call_net(net, next(read_loader(batches, 1, "batches")))

    if any(map(parameters.is_deferred, net.collect_params().values())):
        call()  # which initializes them
    subject = NetSubject(net, count=1, training=training)
    with subject.watched():
        call()
    calls = subject.calls(Policy())
    if for_inference:
        return _frozen_net(net, subject, calls)
    inputs: Dict[str, mx.nd.NDArray] = {}
    options: Dict[str, str] = {}
    for called, noted in zip(calls, subject.noted):
        prefix = f"{noted.block.name} " if len(calls) > 1 else ""
        inputs.update((prefix + name, called.values[name]) for name in called.inputs)
        flags = {**dict(blocks.flags(noted.block)), "backend": blocks.backend(noted.block)}
        options.update((prefix + name, str(value)) for name, value in flags.items() if value != _USUAL.get(name))
    return Workload(subject, inputs, training, False, options)


def call_net(net: gluon.Block, batch: Batch) -> Any:
    """Call a net with the arrays of a batch: with as many as it has inputs, which are the first."""
    arrays = batch.for_net(labelled=False).inputs
    least, most = _input_counts(net)
    if most is not None and least < min(len(arrays), most):
        raise TuneError(
            f"batches: the net takes {least} to {most} arrays, and a batch has {len(arrays)}; say with forward= which "
            f"it gets: forward=lambda net, batch: net(batch[0])."
        )
    return net(*arrays[:most])


def _input_counts(net: gluon.Block) -> Tuple[int, Optional[int]]:
    """Return how many inputs a net needs, and how many it takes, None if as many as it is given."""
    if isinstance(net, gluon.SymbolBlock):
        count = len(blocks.cached_graph(net)[0])
        return count, count
    if isinstance(net, (gluon.nn.Sequential, gluon.nn.HybridSequential)):
        return 1, 1
    hybrid = isinstance(net, gluon.HybridBlock) and type(net).forward is gluon.HybridBlock.forward
    function = type(net).hybrid_forward if hybrid else type(net).forward
    own = blocks.registered_params(net) if hybrid else {}
    arguments = list(inspect.signature(function).parameters.values())[2 if hybrid else 1 :]
    if any(argument.kind is argument.VAR_POSITIONAL for argument in arguments):
        return 0, None
    inputs = [a for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD and a.name not in own]
    return sum(argument.default is argument.empty for argument in inputs), len(inputs)


def _run_net(subject: NetSubject, policy: Policy, training: bool) -> Run:
    """Return a function that runs copies of a net's graphs, each by itself."""
    copies = []
    for traced, noted, called in zip(subject.traces(), subject.noted, subject.calls(Policy())):
        arrays = [called.values[name] for name in called.inputs]
        copies.append((_copied(traced, noted.block, called, policy), arrays))

    def run() -> List[mx.nd.NDArray]:
        outputs = []
        for block, arrays in copies:
            with autograd.record() if training else autograd.predict_mode():
                own, _ = blocks.flatten(block(*arrays), "output")
            if training:
                autograd.backward(own)
            outputs += own
        return outputs

    return run


def _copied(traced: Trace, net: gluon.HybridBlock, called: Call, policy: Policy) -> gluon.SymbolBlock:
    """Return a block of its own with a graph and copies of its parameters, hybridized as the net and converted."""
    values, params = {name: called.values[name] for name in traced.params}, gluon.ParameterDict()
    for name, own in traced.params.items():
        is_float32 = dtypes.canonical(values[name].dtype) == dtypes.FLOAT32  # of others the block guesses dtypes
        if is_float32 and isinstance(own, gluon.Constant):  # which stays one, and is never stored in low precision
            params.get_constant(name, values[name])
        elif is_float32:
            kinds = {"grad_req": own.grad_req, "grad_stype": parameters.grad_storage_type(own)}
            params.get(name, shape=own.shape, **kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # MXNet infers dtypes here, and is told none of the inputs
        block = gluon.SymbolBlock(traced.symbol, list(traced.inputs), params)
    for name, value in values.items():
        copy = block.params[name]
        copy.cast(value.dtype)
        copy.shape, copy.grad_req = value.shape, traced.params[name].grad_req
        parameters.load_value(copy, value, [called.context])
    block.hybridize(**dict(blocks.flags(net)))
    blocks.backend.set(block, blocks.backend(net))
    return convert(block, only_matching(policy, [(node.op, node.name) for node in traced.graph.operators()]))


# ------------------------------------------------------------------ frozen networks


def _frozen_net(net: gluon.Block, subject: NetSubject, calls: List[Call]) -> Workload:
    """Return the workload of a net's one graph as a model that is frozen."""
    if len(calls) > 1:
        raise TuneError(f"for_inference: block '{net.name}' has {len(calls)} graphs; tune the blocks in it.")
    symbol, values = subject.symbols()[0], calls[0].values
    args = {name: values[name] for name in symbol.list_arguments() if name not in calls[0].inputs}
    inputs = {name: values[name] for name in calls[0].inputs}
    model = symbol, args, {name: values[name] for name in symbol.list_auxiliary_states()}
    return Workload(_on_context_of(inputs, model, for_inference=True), inputs, False, True, {})


def _run_frozen(subject: SymbolSubject, policy: Policy, fused: bool) -> Run:
    """Return a function that runs a model frozen, with what oneDNN fuses or without."""
    values = subject.filled()[0]
    names = subject.inputs()
    shapes = {name: values[name].shape for name in names}
    types = {name: dtypes.canonical(values[name].dtype) for name in names}
    block = freeze(tuple(subject.model), policy, shapes, types, ctx=subject.context)
    arrays = [values[symbol.name] for symbol in blocks.cached_graph(block)[0]]
    if not fused:
        block.hybridize(**dict(blocks.flags(block)))  # which has MXNet make an operator of the graph as it is
    return lambda: blocks.flatten(block(*arrays), "output")[0]


# ------------------------------------------------------------------ symbols


def _run_symbol(subject: SymbolSubject, policy: Policy, training: bool) -> Run:
    """Return a function that runs a Module: one that is made and bound as the subject's, or the model's."""
    values = subject.filled()[0]
    if subject.module is not None:
        with subject.under(policy) as module:
            data, labels = module.data_names, module.label_names or []
    else:
        symbol, args, aux = subject.model
        labels = [name for name in subject.inputs() if name in label_names(symbol)]
        data = [name for name in subject.inputs() if name not in labels]
        shapes = {name: mx.io.DataDesc(name, values[name].shape, values[name].dtype) for name in (*data, *labels)}
        module = Module(symbol, data, labels, context=subject.context, policy=policy, loss_scale=None)
        of_labels = [shapes[name] for name in labels] or None
        module.bind([shapes[name] for name in data], of_labels, for_training=training)
        module.set_params(args, aux)
    graph = to_graph(module.symbol)
    batch = mx.io.DataBatch(*([values[name] for name in names if name in values] for names in (data, labels)))
    takes_gradients = not all(is_loss_head(graph.nodes[head.node]) for head in graph.heads)
    gradients: List[mx.nd.NDArray] = []

    def run() -> List[mx.nd.NDArray]:
        module.forward(batch, is_train=training)
        outputs = module.get_outputs()
        if training:
            if takes_gradients and not gradients:  # of the true shapes
                gradients.extend(mx.nd.ones(output.shape, output.ctx) for output in outputs)
            module.backward(gradients or None)
        return list(outputs)

    return run


def _module_options(module: Any, training: bool) -> Dict[str, str]:
    """Return what a Module is made and bound with beyond MXNet's defaults, as text."""
    made = modules.made_with(module)
    if len(made["context"]) == 1:  # which the device of a plan says
        del made["context"], made["work_load_list"]
    bound = {"grad_req": modules.grad_req(module), "inputs_need_grad": module.inputs_need_grad} if training else {}
    return {name: str(value) for name, value in {**made, **bound}.items() if value and value != _USUAL.get(name)}


# ------------------------------------------------------------------ a batch of shapes alone


def make_batch(model: Checkpoint, shapes: Mapping[str, Any], types: Mapping[str, str]) -> Dict[str, mx.nd.NDArray]:
    """Return inputs of a checkpoint's network: random numbers from 0 to 1, integers 0 or 1, labels 0.

    Args:
        model: A symbol and its parameters; its inputs are what has no values there.
        shapes: Shapes of all inputs but labels, by name.
        types: Dtypes of those that are neither float32 nor declare theirs.

    Raises:
        TuneError: If an input has no shape, or there is none of a name that is given.
    """
    declared, labels = inputs_of(model.symbol, {**model.arg_params, **model.aux_params}), label_names(model.symbol)
    for name in (*shapes, *types):
        if name not in declared:
            raise TuneError(f"the network has no input {name!r}{did_you_mean(name, declared)}.")
    random, batch = np.random.RandomState(0), {}
    for name, dtype in {**declared, **types}.items():
        if name in shapes:
            values = random.uniform(size=shapes[name]) if "float" in dtype else random.randint(0, 2, shapes[name])
            batch[name] = mx.nd.array(values * (name not in labels)).astype(dtype)
        elif name not in labels:
            raise TuneError(f"input {name!r} has no shape; give --shape {name}:SIZES.")
    return batch
