"""A network of any front, read in one way: its float32 graphs and the batches that they are called with.

A `Subject` is a Gluon net, converted or not (`NetSubject`), or a symbol with parameters, a checkpoint, a bound Module
(`SymbolSubject`). What belongs to the user is left as it was found. For every policy it gives

- ``calls(policy)``: for each call of a graph what a conversion decides (`mxmp.report.Decisions`: the float32 graph with
  its facts, and the converted one) and the values of all variables by name;
- ``under(policy)``: the network itself, converted, for as long as a user's function runs it.

A net has a graph for each HybridBlock outside of all others, and perhaps for each kind of call.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import leaves, nested, to_float32
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..errors import ConvertError, LossScaleError, mxnet_reason
from ..gluon.api import convert
from ..gluon.blocks import blocks_in, conversions_of, roots
from ..gluon.cache import as_input
from ..gluon.conversion import Conversion
from ..gluon.trace import Trace, flat_arguments
from ..graph import Graph
from ..module import Module
from ..mxnet_private import is_initialized, made_with
from ..passes import is_converted
from ..policy import Policy, pattern_of
from ..report import DROPPED, FOLDED, Decisions, Row
from ..symbol import ConvertedModel, convert_graph, convert_model, on_cpu, to_graph
from ..symbol.arguments import require_symbol
from .batches import Batch, fill_inputs, inputs_of
from .kept import kept

CALLS = 2
"""How many calls of each block are noted where errors only say what to try first."""

NOTED_IN_FLOAT32 = Policy.parse("O1", names={"*": dtypes.FLOAT32})
"""A policy under which a net runs in float32, and its calls are noted: a net that is not converted has none."""

LossFunction = Callable[..., Any]

_NETWORKS = (
    "a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple "
    "(symbol, arg_params, aux_params)"
)
_DEFAULT = "O1"
_POLICIES = 8  # whose decisions are kept


@dataclass(frozen=True)
class Call:
    """One call of one graph of a network.

    Attributes:
        name: The name of the block or symbol, for errors.
        decisions: What a conversion decides, with the graph before and after it; one object for the calls of a graph.
        values: NDArrays of all variables by name, on one context.
        inputs: The names of those that are data or labels.
        trained: The names of those whose gradients a step uses.
        context: Where it runs.
        training: Whether it runs in training mode.
        loss_heads: The names of Custom operators that are loss heads.
        number: Which call of a net it is, or which batch of a symbol.
        out_format: How a net's outputs are nested, None of a symbol.
    """

    name: str
    decisions: Decisions
    values: Mapping[str, Any]
    inputs: Sequence[str]
    trained: FrozenSet[str]
    context: Any
    training: bool = True
    loss_heads: FrozenSet[str] = frozenset()
    number: int = 0
    out_format: Any = None


class Subject(ABC):
    """A float32 network that can be looked at under any policy.

    Attributes:
        policy: The policy that it is converted by; None if it is not converted.
    """

    policy: Optional[Policy] = None

    def __init__(self) -> None:
        self._decisions: Dict[Policy, List[Decisions]] = {}  # the oldest first

    @abstractmethod
    def watched(self) -> ContextManager[None]:
        """Note, within this context, the calls of the network, where the batches are not known before."""

    @abstractmethod
    def under(self, policy: Policy) -> ContextManager[Any]:
        """Give the network under a policy, for a function of the user."""

    @abstractmethod
    def symbols(self) -> List[Any]:
        """Return the network's symbols in float32, as far as they are known."""

    @abstractmethod
    def calls(self, policy: Policy) -> List[Call]:
        """Return the calls that were noted, each on the values that float32 gives it."""

    @abstractmethod
    def _decide(self, policy: Policy) -> List[Decisions]:
        """Return what a conversion to a policy decides, for each graph of the network."""

    def decisions(self, policy: Policy) -> List[Decisions]:
        """Return what a conversion to a policy decides, for each graph of the network."""
        # A search asks for the same few policies again and again.
        if policy not in self._decisions:
            if len(self._decisions) == _POLICIES:
                del self._decisions[next(iter(self._decisions))]
            self._decisions[policy] = self._decide(policy)
        return self._decisions[policy]

    def graphs(self, policy: Policy) -> Tuple[Graph, ...]:
        """Return the converted graphs under a policy: where they are equal, so is everything that is measured."""
        return tuple(each.after for each in self.decisions(policy))

    def rows(self, policy: Policy) -> Tuple[Row, ...]:
        """Return what is decided about each operator under a policy; those that are folded are not there."""
        rows = (row for each in self.decisions(policy) for row in each.report.rows)
        return tuple(row for row in rows if row.precision not in (FOLDED, DROPPED))

    def policy_or(self, given: Union[None, str, Policy]) -> Policy:
        """Return the policy to look at it under: that given, its own, or 'O1', in this order.

        Raises:
            PolicyError: If the policy given does not parse.
            ConvertError: If it computes in bfloat16, which MXNet does not run on this processor.
        """
        policy = Policy.parse(given) if given is not None else self.policy or Policy.parse(_DEFAULT)
        if dtypes.BFLOAT16 in (policy.compute_dtype, policy.param_dtype) and not runs_bfloat16():
            raise ConvertError(
                f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). "
                f"Take one with AVX-512, or a policy of float16, which is emulated."
            )
        return policy


def read_subject(network: Any, loss: Any = None, ctx: Any = None) -> Subject:
    """Return a network that a user gives; ``loss`` and ``ctx`` are checked for whether they go with it.

    Raises:
        ConvertError: If it is none, or has no values; or if ``loss`` or ``ctx`` is not for it.
    """
    if isinstance(network, gluon.Block):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Gluon net runs where its inputs are")
        if loss is not None and not callable(loss):
            raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of the net's output and a label.")
        return NetSubject(network)
    no_loss = partial(_refuse, "loss", loss, "is for a Gluon net; a symbol or Module has its loss heads")
    if isinstance(network, (mx.mod.Module, mx.mod.BucketingModule)):
        no_loss()
        _refuse("ctx", ctx, "is for a symbol with parameters; a Module runs where it is bound")
        return SymbolSubject.of_module(network)
    parts = tuple(network) if isinstance(network, (ConvertedModel, tuple, list)) else ()
    if len(parts) != 3 or not isinstance(parts[0], mx.sym.Symbol):
        kind = f"{type(network).__name__} of {len(parts)}" if parts else type(network).__name__
        raise ConvertError(f"net_or_model is a {kind}; expected {_NETWORKS}.")
    for name, part in zip(("arg_params", "aux_params"), parts[1:]):
        if not isinstance(part, Mapping):
            raise ConvertError(
                f"net_or_model: {name} is a {type(part).__name__}; expected a dict by name, {{}} for none."
            )
    no_loss()
    subject = SymbolSubject(require_symbol(parts[0]), parts[1], parts[2], ctx)
    if isinstance(network, ConvertedModel):
        subject.policy = _as_converted(network.decisions.policy, [network.decisions])
    return subject


def _as_converted(policy: Policy, converted: Iterable[Decisions]) -> Policy:
    """Return the policy of a converted network, with what measured ranges keep in float32 named in it."""
    names = dict(policy.names)
    for each in converted:
        beyond = each.facts.nodes_out_of_range(each.before)
        for position, node in enumerate(each.before.nodes if beyond else ()):
            if not node.is_variable and beyond.intersection((position, *(entry.node for entry in node.inputs))):
                names.setdefault(pattern_of(node.name), dtypes.FLOAT32)
    return policy.replace(names=names)


def _refuse(name: str, value: Any, why: str) -> None:
    if value is not None:
        raise ConvertError(f"{name} {why}. Leave {name} out.")


# ---------------------------------------------------------------------- symbols, models, Modules


class SymbolSubject(Subject):
    """A symbol with its parameters, of a Module perhaps; `take` gives it its batches.

    Args:
        symbol: The symbol, converted or not.
        args: Its arguments, NDArrays by name.
        aux: Its auxiliary states, likewise.
        ctx: Where it runs; the CPU unless given.
        for_inference: Whether BatchNorm is folded.

    Attributes:
        module: The Module that it is of; of a BucketingModule that of the bucket which ran last.
        buckets: The BucketingModule that the module is of.
        model: The network as it is without casts, parameters in float32.
        batches: The values of inputs by name, for each batch that was taken.
    """

    module: Any = None
    buckets: Optional[mx.mod.BucketingModule] = None

    def __init__(
        self, symbol: Any, args: Mapping[str, Any], aux: Mapping[str, Any], ctx: Any = None, for_inference: bool = False
    ) -> None:
        super().__init__()
        self.given, self._for_inference = (symbol, args, aux), for_inference
        self.model = convert_model(symbol, args, aux, "O0")  # without casts, should it be converted
        self.context = ctx or mx.cpu()
        self.batches: List[Mapping[str, Any]] = []
        self._last: Optional[Tuple[Policy, ConvertedModel]] = None

    @classmethod
    def of_module(cls, module: Any, bucket: Any = None) -> SymbolSubject:
        """Return a bound Module as a subject, or that of a BucketingModule which has a key or, without one, ran last.

        A BucketingModule stays at its present bucket.

        Raises:
            ConvertError: If it is not bound.
        """
        if not (module.binded and module.params_initialized):
            kind = type(module).__name__
            raise ConvertError(f"the {kind} is not bound, or has no parameters; call bind, set_params.")
        buckets = module if isinstance(module, mx.mod.BucketingModule) else None
        if buckets is not None:
            module = buckets._curr_module if bucket is None else buckets._buckets[bucket]
            if bucket is not None and module is not buckets._curr_module:
                module._sync_params_from_devices()  # which hold the values of another bucket's step
        source = buckets if bucket is None and buckets is not None else module
        args, aux = source.get_params()
        subject = cls(module.symbol, args, aux, module._context[0])
        subject.module, subject.buckets = module, buckets
        subject.policy = module.policy if isinstance(module, Module) else None
        return subject

    def take(self, batches: Iterable[Batch]) -> SymbolSubject:
        """Return the subject with batches: this, or that of the bucket which they are of.

        Raises:
            ConvertError: If a batch does not fit, or they are of several buckets, or of one that is not bound.
        """
        batches = list(batches)
        subject = self._of_bucket([batch.bucket for batch in batches])
        names = subject.inputs()
        subject.batches = [batch.by_name(names) for batch in batches]
        return subject

    def _of_bucket(self, keys: Sequence[Any]) -> SymbolSubject:
        keys = list(dict.fromkeys(key for key in keys if key is not None))
        if self.buckets is None or not keys:
            return self
        bound = self.buckets._buckets
        if len(keys) > 1:
            named = ", ".join(map(repr, keys))
            raise ConvertError(f"batches are of the buckets {named}; give those of one bucket at a time.")
        if keys[0] not in bound:
            raise ConvertError(
                f"batches are of bucket {keys[0]!r}, which is not bound; run one of them by the module first, or give "
                f"batches of {', '.join(map(repr, bound))}."
            )
        return self if bound[keys[0]] is self.module else SymbolSubject.of_module(self.buckets, keys[0])

    def inputs(self) -> Dict[str, str]:
        """Return the dtypes of the inputs by name, in the order in which arrays without names are taken."""
        module = self.module
        order = [] if module is None else [*module.data_names, *(module.label_names or ())]
        return inputs_of(self.model.symbol, {*self.model.arg_params, *self.model.aux_params}, order)

    def filled(self, labels: bool = False) -> List[Dict[str, Any]]:
        """Return the values of all variables for each batch; zeros for labels that lack, unless they are needed."""
        return [fill_inputs(self.model, batch, labels) for batch in self.batches]

    def symbols(self) -> List[Any]:
        """Return the one symbol."""
        return [self.model.symbol]

    def watched(self) -> ContextManager[None]:
        """Note nothing: the batches are given."""
        return contextlib.nullcontext()

    def calls(self, policy: Policy) -> List[Call]:
        """Return a call for each batch, on the values of the first context of a Module."""
        (decisions,) = self.decisions(policy)
        folded = self.converted(Policy()).arg_params if self._for_inference else {}
        params = {*self.model.arg_params, *self.model.aux_params}
        inputs = [name for name in self.model.symbol.list_inputs() if name not in params]
        fixed = str(self.model.symbol.name), decisions
        trained, module = frozenset(self.model.arg_params), self.module
        heads = module._loss_heads if isinstance(module, Module) else frozenset()
        training = module is None or module.for_training
        return [
            Call(*fixed, {**values, **folded}, inputs, trained, self.context, training, heads, number)
            for number, values in enumerate(self.filled())
        ]

    def policy_or(self, given: Union[None, str, Policy]) -> Policy:
        """Return the policy to look at it under; a symbol that is converted does not say by which one.

        Raises:
            PolicyError: As for any network.
            ConvertError: Likewise, or if the symbol is converted and no policy is given.
        """
        if given is None and self.policy is None and is_converted(to_graph(self.given[0])):
            raise ConvertError(
                "policy: the network is converted already, and its symbol does not say by which policy; give one to "
                "look at it under, such as 'O2': casts of the symbol are left out for that."
            )
        return super().policy_or(given)

    def converted(self, policy: Policy) -> ConvertedModel:
        """Return the model under a policy, for inputs of the first batch's shapes; the last one is kept."""
        if self._last is None or self._last[0] != policy:
            values, held = self.filled()[0], {*self.model.arg_params, *self.model.aux_params}
            inputs = {name: array for name, array in values.items() if name not in held}
            shapes = {name: array.shape for name, array in inputs.items()}
            types = {name: dtypes.canonical(array.dtype) for name, array in inputs.items()}
            types = {name: dtype for name, dtype in types.items() if dtype != dtypes.FLOAT32}
            model = convert_model(*self.given, policy, shapes, types, for_inference=self._for_inference)
            self._last = policy, model
        return self._last[1]

    def _decide(self, policy: Policy) -> List[Decisions]:
        return [self.converted(policy).decisions]

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give a Module made and bound as the owner's is, or the model, converted, with parameters of its own.

        Float16 is emulated on a CPU.
        """
        if self.module is not None:
            yield self._module_under(policy)
            return
        model = self.converted(policy)
        types = {name: dtype for name, dtype in self.inputs().items() if dtype != dtypes.FLOAT32}
        types.update((name, dtypes.canonical(array.dtype)) for name, array in self.batches[0].items())
        runs = model.symbol if self.context.device_type == "gpu" else on_cpu(model.symbol, types)
        args, aux = (
            {name: array.copyto(self.context) for name, array in params.items()}
            for params in (model.arg_params, model.aux_params)
        )
        yield replace(model, symbol=runs, arg_params=args, aux_params=aux)

    def _module_under(self, policy: Policy) -> Module:
        module = self.module
        names = module.data_names, module.label_names
        made = Module(module.symbol, *names, module.logger, policy=policy, **made_with(module))
        made.bind(
            module.data_shapes,
            module.label_shapes,
            for_training=module.for_training,
            inputs_need_grad=module.inputs_need_grad,
            grad_req=module._grad_req,
        )
        made.set_params(*self.given[1:])
        return made


# ---------------------------------------------------------------------- Gluon nets


class BlockCall(NamedTuple):
    """A call of a block that has a graph.

    Attributes:
        block: The block.
        inputs: Copies of what it was called with.
        recorded: Whether autograd recorded it.
        flags: The block's own flags at that time: an RNN's `__call__` notes whether states were given.
    """

    block: gluon.HybridBlock
    inputs: Tuple[Any, ...]
    recorded: bool
    flags: Mapping[str, bool]


class NetSubject(Subject):
    """A Gluon net: converted for as long as it runs under a policy, and put back after it.

    Args:
        net: The net, whose parameters have values.
        count: How many calls of each block are noted.
        training: Whether graphs are traced in training mode.

    Attributes:
        net: The net.
        noted: The calls that were noted.
    """

    def __init__(self, net: gluon.Block, count: int = CALLS, training: bool = False) -> None:
        super().__init__()
        self.net, self.count, self.training = net, count, training
        self.noted: List[BlockCall] = []
        self._traces: List[Trace] = []
        self._roots = roots(net)
        for param in net.collect_params().values():
            if not is_initialized(param):
                raise ConvertError(
                    f"block '{net.name}': parameter '{param.name}' has no values; load or train the net first, or run "
                    f"one batch if its shapes are not known yet."
                )
        policies = []
        for conversion in conversions_of(blocks_in(net)):
            decisions = [conversion.converted.decisions] if conversion.converted else ()
            policies.append(_as_converted(conversion.policy, decisions))
        self.policy = next((each for each in policies if each.is_mixed), (*policies, None)[0])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the first calls of each block that has a graph; ConvertError if there was none."""

        def note(block: gluon.HybridBlock, inputs: Tuple[Any, ...]) -> None:
            if sum(call.block is block for call in self.noted) < self.count:
                recorded = autograd.is_recording()
                with autograd.pause():
                    copies = nested(inputs, lambda each: each.copy() if hasattr(each, "copy") else each)
                flags = {n: flag for n, flag in vars(block).items() if isinstance(flag, bool) and n[:1] != "_"}
                self.noted.append(BlockCall(block, copies, recorded, flags))  # copies: a reader may fill arrays again

        handles = [root.register_forward_pre_hook(note) for root in self._roots]
        try:
            yield
        finally:
            for handle in handles:
                handle.detach()
        if not self.noted:
            raise ConvertError(
                f"evaluate did not call block '{self.net.name}' ({type(self.net).__name__}), so nothing is known of "
                f"what it runs; call the net that evaluate is given."
            )

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give the net itself, converted."""
        with kept(self.net):
            # As it was written it is in float32, whatever `set_policy` says of blocks in it, but for graphs with casts.
            if policy.is_mixed or any(isinstance(root, gluon.SymbolBlock) for root in self._roots):
                convert(self.net, policy)
            yield self.net

    def traces(self) -> List[Trace]:
        """Return the float32 graph of each call that was noted; the same one for calls whose graphs are alike.

        Raises:
            ConvertError: If operators get other names each time that the net is traced.
        """
        if len(self._traces) < len(self.noted):
            with kept(self.net), autograd.pause(train_mode=self.training):
                tracers = {id(root): Conversion(root, Policy()) for root in self._roots}

                def trace(call: BlockCall, tracer: Conversion) -> Trace:
                    vars(call.block).update(call.flags)
                    return tracer.trace_for(tuple(map(as_input, call.inputs)))

                # Calls of one block whose graphs are alike share a trace.
                self._traces = [trace(call, tracers[id(call.block)]) for call in self.noted]
                for traced, call in {id(t): (t, call) for t, call in zip(self._traces, self.noted)}.values():
                    require_same_names(self.net, traced, trace(call, Conversion(call.block, Policy())))
        return self._traces

    def symbols(self) -> List[Any]:
        """Return the symbols of the calls that were noted, one for each."""
        return [traced.symbol for traced in self.traces()]

    def _distinct(self) -> List[Tuple[Trace, BlockCall]]:
        """Return the graphs of the net, each with its first call."""
        first: Dict[int, Tuple[Trace, BlockCall]] = {}
        for traced, call in zip(self.traces(), self.noted):
            first.setdefault(id(traced), (traced, call))
        return list(first.values())

    def _decide(self, policy: Policy) -> List[Decisions]:
        decisions = []
        for traced, call in self._distinct():
            shapes = traced.shapes(flat_arguments(tuple(map(as_input, call.inputs))).arrays)
            data = traced.data
            params = frozenset(traced.params) - data
            try:
                converted = convert_graph(traced.symbol, policy, shapes, traced.types, params, inputs=data)
            except ConvertError as e:
                raise type(e)(f"block '{call.block.name}': {e}") from e
            decisions.append(converted.decisions)
        return decisions

    def calls(self, policy: Policy) -> List[Call]:
        """Return the calls that were noted, with values as float32 has them."""
        decided = {id(traced): each for (traced, _), each in zip(self._distinct(), self.decisions(policy))}
        with kept(self.net):
            params = {param.name: param._reduce() for param in self.net.collect_params().values()}
        calls = []
        for number, (traced, call) in enumerate(zip(self.traces(), self.noted)):
            decisions = decided[id(traced)]
            arrays = flat_arguments(tuple(map(as_input, call.inputs))).arrays
            inputs = {symbol.name: array for symbol, array in zip(traced.inputs, arrays)}
            read = decisions.facts.variable_dtypes(decisions.before)
            # An imported net may store in low precision what it reads in float32.
            wide = {n: to_float32(each) if read.get(n) == dtypes.FLOAT32 else each for n, each in params.items()}
            trained = frozenset(name for name, param in traced.params.items() if param.grad_req != "null")
            fixed = str(call.block.name), decisions, {**wide, **inputs}, list(inputs), trained, arrays[0].ctx
            calls.append(Call(*fixed, number=number, out_format=traced.formats[1]))
        return calls


def require_same_names(net: gluon.Block, traced: Trace, again: Trace) -> None:
    """Raise a ConvertError unless all operators of a net have the same names when it is traced a second time."""
    names = {node.name for node in traced.graph.operators()}
    for node in again.graph.operators():
        if node.name not in names:
            raise ConvertError(
                f"block '{net.name}': operators in it get other names each time it is traced, {node} for example, so "
                f"that no policy can name them. Make it with a prefix: {type(net).__name__}(prefix='net_')."
            )


# ---------------------------------------------------------------------- losses


def require_scale(scale: Any) -> float:
    """Return a loss scale; LossScaleError unless it is positive and finite."""
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < float("inf"):
        raise LossScaleError(f"loss_scale is {scale!r}; expected a positive and finite number.")
    return float(scale)


def losses_of(loss: LossFunction, output: Any, label: Any) -> Sequence[Any]:
    """Return the losses of a batch, NDArrays; ConvertError if the loss fails or gives something else."""
    try:
        value = loss(output, label)
    except (mx.MXNetError, ValueError) as e:  # ValueError is that of a reshape
        labelled = "no label" if label is None else f"a label of shape {_shape(label)}"
        shapes = f"an output of shape {_shape(output)} and {labelled}"
        raise ConvertError(f"batches: the loss fails on {shapes}: {mxnet_reason(e)}") from e
    losses = list(leaves(value))
    if not losses or not all(isinstance(each, mx.nd.NDArray) for each in losses):
        kind = ", ".join(type(each).__name__ for each in losses) or "nothing"
        raise ConvertError(f"loss gave {kind}; expected the loss of the batch, an NDArray of any shape.")
    return losses


def _shape(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_shape, value))})"
    return str(getattr(value, "shape", value))


def run_backward(losses: Sequence[Any], grads: Optional[Sequence[Any]] = None, train: bool = True) -> None:
    """Run backward from the losses of a batch, or outputs and their gradients; ConvertError where MXNet cannot."""
    try:
        autograd.backward(list(losses), grads, train_mode=train)
    except mx.MXNetError as e:
        raise ConvertError(f"gradients: MXNet cannot run the network backward: {mxnet_reason(e)}") from e
