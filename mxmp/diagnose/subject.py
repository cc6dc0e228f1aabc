"""Read a network of any kind with its batches: its float32 graphs, and the calls that batches make of them.

A `Subject` is a Gluon net, converted or not (`NetSubject`), or a symbol with parameters, a checkpoint, a bound Module
(`SymbolSubject`). All that belongs to the user is left as it was found.

    network, batches -> Subject.runs(policy) -> for each batch a list of `mxmp.diagnose.rerun.Replay`: calls of graphs
                                                with values, decisions of the policy, and gradients of outputs

A symbol has one graph. A net has one for each HybridBlock outside of all others, and perhaps for each kind of call. It
runs in float32 for each batch, so that its calls are seen.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import replace
from numbers import Real
from typing import (
    Any,
    ContextManager,
    Dict,
    FrozenSet,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import all_finite, first_non_finite, to_float32, tree_leaves
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..errors import ConvertError, LossScaleError, MxmpError, a_type_of, listed, mxnet_reason
from ..gluon.api import convert, remove_conversions
from ..gluon.blocks import block_names, blocks_in, conversions_of, frozen_model, roots
from ..gluon.conversion import Conversion
from ..gluon.regions import find_regions
from ..gluon.trace import Trace, trace
from ..graph import Graph
from ..module import Module
from ..mxnet_private import is_initialized, made_with
from ..passes import is_converted
from ..passes.base import marked_blocks
from ..policy import Policy, pattern_of
from ..report import DROPPED, FOLDED, Decisions, Row
from ..report.report import policy_name
from ..symbol import Converted, ConvertedModel, convert_graph, convert_model, on_cpu, to_graph
from ..symbol.arguments import require_symbol
from ..symbol.params import require_matches
from ..train.step import NetCall
from .batches import (
    OUTPUTS,
    Batch,
    LossFunction,
    arguments_of,
    fill_inputs,
    inputs_of,
    losses_of,
)
from .rerun import (
    Call,
    FirstCalls,
    Gradients,
    KeptCall,
    LossGradients,
    Recorder,
    Replay,
    Rerun,
    as_outputs,
    run_backward,
)

FIRST_CALLS = 2
"""How many batches of a symbol, or calls of a net, errors are measured on where they only say what to try first."""

FEW = 8
"""How many batches of a loader are read unless a user says so, where each takes seconds."""

Loss = Union[None, bool, str, LossFunction]

_NETWORKS = (
    "a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple "
    "(symbol, arg_params, aux_params)"
)
_DEFAULT = "O1"
_POLICIES = 8  # The most policies whose decisions are kept.


class Subject(ABC):
    """A float32 network that can be looked at under any policy.

    Attributes:
        policy: The policy that it is converted by; None if it is not converted.
        bad_weight: The first weight whose gradient of the last batch is not finite, in float32; None if none is, or if
            the network does not train.
    """

    policy: Optional[Policy] = None
    bad_weight: Optional[str] = None

    @abstractmethod
    def runs(
        self,
        policy: Policy,
        batches: Iterable[Batch],
        labels: Optional[int] = None,
        train: bool = False,
        weights: bool = False,
    ) -> Generator[List[Replay], None, None]:
        """Yield the calls of graphs that each batch makes, with values as float32 has them.

        Use it with ``contextlib.closing``: a net is put back when it ends.

        Args:
            policy: The policy whose decisions the calls have.
            batches: The batches, each read when its turn comes.
            labels: How many of a batch's last arrays are labels; None for as many as the loss of a net reads.
            train: Whether a net runs in training mode meanwhile.
            weights: Whether a net with a loss runs backward in any case, so that `bad_weight` is known.
        """

    @abstractmethod
    def watched(self) -> ContextManager[None]:
        """Note, within this context, the calls of the network, where the batches are not known before."""

    @abstractmethod
    def under(self, policy: Policy) -> ContextManager[Any]:
        """Give the network under a policy, for a function of the user."""

    @abstractmethod
    def calls(self, policy: Policy) -> List[Call]:
        """Return the calls that were noted, or that the batches taken make, with values as float32 has them."""

    @abstractmethod
    def decisions(self, policy: Policy) -> List[Decisions]:
        """Return the decisions of a conversion to a policy, for each graph of the network that is known."""

    def graphs(self, policy: Policy) -> Tuple[Graph, ...]:
        """Return the converted graphs under a policy. If two policies have equal graphs, all measurements are equal."""
        return tuple(each.after for each in self.decisions(policy))

    def rows(self, policy: Policy) -> Tuple[Row, ...]:
        """Return the decision about each operator under a policy, operators that are folded left out."""
        rows = (row for each in self.decisions(policy) for row in each.report.rows)
        return tuple(row for row in rows if row.precision not in (FOLDED, DROPPED))

    def policy_or(self, given: Union[None, str, Policy]) -> Policy:
        """Return the policy to look at it under: that given, its own, or 'O1', in this order.

        Raises:
            PolicyError: If the policy given does not parse.
            ConvertError: If it computes in bfloat16, which MXNet does not run on this processor; or if a block of a net
                is frozen in low precision.
        """
        policy = Policy.parse(given) if given is not None else self.policy or Policy.parse(_DEFAULT)
        if dtypes.BFLOAT16 in (policy.compute_dtype, policy.param_dtype) and not runs_bfloat16():
            raise ConvertError(
                f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). "
                f"Take one with AVX-512, or a policy of float16, which is emulated."
            )
        return policy


def read_subject(network: Any, loss: Loss = None, ctx: Any = None) -> Subject:
    """Return a network that a user gives; ``loss`` and ``ctx`` are checked for whether they go with it.

    Raises:
        ConvertError: If it is none, or has no values; or if ``loss`` or ``ctx`` is not for it.
    """
    if isinstance(network, gluon.Block):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Gluon net runs where its inputs are")
        if loss is not None and loss != OUTPUTS and not callable(loss):
            kind = type(loss).__name__
            raise ConvertError(f"loss is a {kind}; expected a function of the net's outputs and the labels.")
        if isinstance(loss, type):
            raise ConvertError(f"loss is the class {loss.__name__}; give an instance, such as {loss.__name__}().")
        return NetSubject(network, loss)
    is_module = isinstance(network, (mx.mod.Module, mx.mod.BucketingModule))
    parts = tuple(network) if isinstance(network, (ConvertedModel, tuple, list)) else ()
    if not is_module and (len(parts) != 3 or not isinstance(parts[0], mx.sym.Symbol)):
        kind = f"{type(network).__name__} of {len(parts)}" if parts else type(network).__name__
        raise ConvertError(f"network is a {kind}; expected {_NETWORKS}.")
    if loss is not None and loss is not True:
        _refuse("loss", loss, "is for a Gluon net; a symbol or Module has its loss heads")
    if is_module:
        _refuse("ctx", ctx, "is for a symbol with parameters; a Module runs where it is bound")
        return SymbolSubject.of_module(network)
    for name, part in zip(("arg_params", "aux_params"), parts[1:]):
        if not isinstance(part, Mapping):
            raise ConvertError(f"network: {name} is {a_type_of(part)}; expected a dict by name, {{}} for none.")
    subject = SymbolSubject(require_symbol(parts[0]), parts[1], parts[2], ctx)
    if isinstance(network, ConvertedModel):
        subject.policy = _as_converted(network.decisions.policy, [network.decisions])
    return subject


def _as_converted(policy: Policy, converted: Iterable[Decisions]) -> Policy:
    """Return the policy of a converted network, with the names of the operators that ranges keep in float32."""
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


def require_scale(scale: Any) -> float:
    """Return a loss scale; LossScaleError unless it is positive and finite."""
    is_number = isinstance(scale, Real) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < float("inf"):
        raise LossScaleError(f"loss_scale is {scale!r}; expected a positive and finite number.")
    return float(scale)


# ---------------------------------------------------------------------- symbols, models, Modules


class SymbolSubject(Subject):
    """A symbol with its parameters, of a Module perhaps.

    Args:
        symbol: The symbol, converted or not.
        args: Its arguments, NDArrays by name.
        aux: Its auxiliary states, NDArrays by name.
        ctx: Where it runs; the CPU unless given.
        for_inference: Whether BatchNorm is folded.

    Attributes:
        module: The Module that it is of; of a BucketingModule that of the bucket which ran last.
        buckets: The BucketingModule that the module is of.
        model: The network as it is without casts, parameters in float32.
        taken: The values of inputs by name, for each batch that `take` was given.
    """

    module: Any = None
    buckets: Optional[mx.mod.BucketingModule] = None

    def __init__(
        self, symbol: Any, args: Mapping[str, Any], aux: Mapping[str, Any], ctx: Any = None, for_inference: bool = False
    ) -> None:
        self.given, self._for_inference = (symbol, args, aux), for_inference
        self.model = convert_model(symbol, args, aux, "O0")  # It has no casts, even if it was converted.
        self.context = ctx or mx.cpu()
        self.taken: List[Mapping[str, Any]] = []
        self._last: Optional[Tuple[Policy, ConvertedModel]] = None
        self._reruns: Dict[Any, Rerun] = {}
        self._decided: Dict[Policy, Decisions] = {}
        self._of_buckets: Dict[Any, SymbolSubject] = {}

    @classmethod
    def of_module(cls, module: Any, bucket: Any = None) -> SymbolSubject:
        """Return a bound Module as a subject, or that of a BucketingModule which has a key or, without one, ran last.

        Raises:
            ConvertError: If it is not bound, or has no parameters.
        """
        if not (module.binded and module.params_initialized):
            kind = type(module).__name__
            raise ConvertError(f"the {kind} is not bound, or has no parameters; call bind and set_params.")
        buckets = module if isinstance(module, mx.mod.BucketingModule) else None
        if buckets is not None:
            module = buckets._curr_module if bucket is None else buckets._buckets[bucket]
            if bucket is not None and module is not buckets._curr_module:
                module._sync_params_from_devices()  # They hold the values of another bucket's step.
        source = buckets if bucket is None and buckets is not None else module
        args, aux = source.get_params()
        subject = cls(module.symbol, args, aux, module._context[0])
        subject.module, subject.buckets = module, buckets
        subject.policy = module.policy if isinstance(module, Module) else None
        return subject

    def take(self, batches: Iterable[Batch]) -> SymbolSubject:
        """Return the subject with batches: this, or that of the bucket which the first batch is of.

        Raises:
            ConvertError: If a batch does not fit, or is of a bucket that is not bound.
        """
        batches = list(batches)
        subject = self._of_bucket(batches[0].bucket)
        names = subject.inputs()
        subject.taken = [batch.by_name(names) for batch in batches]
        return subject

    def _of_bucket(self, key: Any) -> SymbolSubject:
        if self.buckets is None or key is None:
            return self
        bound = self.buckets._buckets
        if key not in bound:
            raise ConvertError(
                f"batches are of bucket {key!r}, which is not bound; run one of them by the module first, or give "
                f"batches of {', '.join(map(repr, bound))}."
            )
        if bound[key] is self.module:
            return self
        if key not in self._of_buckets:
            self._of_buckets[key] = SymbolSubject.of_module(self.buckets, key)
        return self._of_buckets[key]

    def runs(
        self,
        policy: Policy,
        batches: Iterable[Batch],
        labels: Optional[int] = None,
        train: bool = False,
        weights: bool = False,
    ) -> Generator[List[Replay], None, None]:
        """Yield a call for each batch; the gradients of loss heads are ones."""
        for number, batch in enumerate(batches):
            for call in self.take([batch]).calls(policy):
                yield [Replay(replace(call, number=number), Gradients(), _reruns=self._reruns)]

    def inputs(self) -> Dict[str, str]:
        """Return the dtypes of the inputs by name, in the order in which arrays without names are taken."""
        module = self.module
        order = [] if module is None else [*module.data_names, *(module.label_names or ())]
        return inputs_of(self.model.symbol, {*self.model.arg_params, *self.model.aux_params}, order)

    def watched(self) -> ContextManager[None]:
        """Note nothing: the batches are given."""
        return contextlib.nullcontext()

    def filled(self) -> List[Tuple[Dict[str, Any], FrozenSet[str]]]:
        """Return the values of all variables for each batch, and the names of labels that lack and are zeros."""
        return [fill_inputs(self.model, batch) for batch in self.taken]

    def calls(self, policy: Policy) -> List[Call]:
        """Return a call for each batch, on the values of the first context of a Module."""
        (decisions,) = self.decisions(policy)
        folded = self.converted(Policy()).arg_params if self._for_inference else {}
        params = {*self.model.arg_params, *self.model.aux_params}
        inputs = [name for name in self.model.symbol.list_inputs() if name not in params]
        trained, module = frozenset(self.model.arg_params), self.module
        heads = module._loss_heads if isinstance(module, Module) else frozenset()
        training = module is None or module.for_training
        fixed = inputs, trained, self.context, training, heads
        return [
            Call(decisions, {**values, **folded}, *fixed, number, lacking=lacking)
            for number, (values, lacking) in enumerate(self.filled())
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
            values, held = self.filled()[0][0], {*self.model.arg_params, *self.model.aux_params}
            inputs = {name: array for name, array in values.items() if name not in held}
            shapes = {name: array.shape for name, array in inputs.items()}
            types = {name: dtypes.canonical(array.dtype) for name, array in inputs.items()}
            types = {name: dtype for name, dtype in types.items() if dtype != dtypes.FLOAT32}
            model = convert_model(*self.given, policy, shapes, types, for_inference=self._for_inference)
            self._last = policy, model
        return self._last[1]

    def decisions(self, policy: Policy) -> List[Decisions]:
        """Return the decisions of a conversion to a policy, for inputs of the first batch's shapes."""
        # A search asks for the same few policies again and again, whose models are not kept: these are large.
        if policy not in self._decided:
            _make_room(self._decided)
            self._decided[policy] = self.converted(policy).decisions
        return [self._decided[policy]]

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
        types.update((name, dtypes.canonical(array.dtype)) for name, array in self.taken[0].items())
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


def _make_room(kept: Dict[Policy, Any]) -> None:
    """Delete the entry of the oldest policy if there are as many as are kept."""
    if len(kept) == _POLICIES:
        del kept[next(iter(kept))]


# ---------------------------------------------------------------------- Gluon nets


class NetSubject(Subject):
    """A Gluon net: converted for as long as it runs, and put back after it.

    Args:
        net: The net, whose parameters have values.
        loss: The loss of its outputs and labels, 'outputs' if these are losses; None for none.

    Attributes:
        net: The net.
    """

    def __init__(self, net: gluon.Block, loss: Loss = None) -> None:
        self.net, self.inside = net, loss == OUTPUTS
        self.loss: Any = (lambda outputs: outputs) if self.inside else loss
        self._roots = roots(net)
        self._graphs: Dict[int, Tuple[Trace, NetCall]] = {}  # Each has its first call; the key is the id of the trace.
        self._decided: Dict[Policy, Dict[int, Converted]] = {}  # The oldest policy comes first.
        self._noted: List[KeptCall] = []
        self._reruns: Dict[Any, Rerun] = {}
        self._recorder: Optional[Recorder] = None
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

    def runs(
        self,
        policy: Policy,
        batches: Iterable[Batch],
        labels: Optional[int] = None,
        train: bool = False,
        weights: bool = False,
    ) -> Generator[List[Replay], None, None]:
        """Yield the calls of each batch; the gradients of their outputs are those of the loss, None without one."""
        with kept(self.net):
            takes, labels = arguments_of(self.net), 0 if self.inside else labels
            conversions = install_float32(self.net, policy)
            for number, batch in enumerate(batches):
                inputs, given = batch.for_net(takes, self.loss, labels).on_context_of(self.net)
                recorder = Recorder(None)
                for conversion in conversions:
                    conversion.observer = recorder
                with autograd.record(train_mode=train):
                    outputs = call_net(self.net, inputs)
                    losses = None if self.loss is None else losses_of(self.loss, outputs, given)
                calls = recorder.calls
                if not calls:
                    raise ConvertError(f"block '{self.net.name}' ran no HybridBlock on this batch, so it has no graph.")
                last = None if losses is None else LossGradients(self.loss, given, as_outputs(outputs))
                is_last = [each.call.outputs is outputs for each in calls]
                if losses is not None and (weights or is_last != [True]):
                    run_backward(losses, train=train)
                    self.bad_weight = self._bad_weight() if weights else None
                yield [
                    self._replay(each, policy, number, last if is_end else None, losses is not None)
                    for each, is_end in zip(calls, is_last)
                ]
                if number == 0:
                    made = [*self._decided[policy].values()]
                    marked = {mark for each in made for mark in marked_blocks(each.decisions.before)}
                    require_matches(policy, made, block_names(self.net), marked)

    def policy_or(self, given: Union[None, str, Policy]) -> Policy:
        """Return the policy to look at it under; a block that is frozen in low precision has lost its float32 weights.

        Raises:
            PolicyError: As for any network.
            ConvertError: Likewise, or if a block is frozen in low precision.
        """
        for block in blocks_in(self.net):
            model = frozen_model(block)
            if model is not None and model.decisions.policy.is_mixed:
                raise ConvertError(
                    f"network: block '{block.name}' is frozen, so it has no float32 weights to compare with; give the "
                    f"net that it was made of, and the policy '{policy_name(model.decisions.policy)}'."
                )
        return super().policy_or(given)

    def _bad_weight(self) -> Optional[str]:
        params = [param for param in self.net.collect_params().values() if param.grad_req != "null"]
        grads = [(str(param.name), grad) for param in params for grad in param.list_grad()]
        are_finite = not grads or all_finite(grad for _, grad in grads).asnumpy().item()
        return None if are_finite else first_non_finite(grads)

    def _replay(
        self, kept_call: KeptCall, policy: Policy, number: int, last: Optional[Gradients], has_losses: bool
    ) -> Replay:
        """Return a call with the gradients of its outputs: ``last`` if these are the net's, else those of backward."""
        gradients = last
        if has_losses and last is None:
            gradients = Gradients([zero.grad.as_nd_ndarray().copy() for zero in kept_call.zeros])
        call = self._call(kept_call.call, policy, number)
        return Replay(call, gradients, _reruns=self._reruns)

    def _call(self, noted: NetCall, policy: Policy, number: int) -> Call:
        traced: Trace = noted.graph.trace
        decisions = self._converted(policy, noted).decisions
        inputs = {symbol.name: array for symbol, array in zip(traced.inputs, noted.inputs)}
        params = {name: param._reduce() for name, param in traced.params.items()}
        read = decisions.facts.variable_dtypes(decisions.before)
        # An imported net may store a parameter in low precision and read it in float32.
        wide = {n: to_float32(each) if read.get(n) == dtypes.FLOAT32 else each for n, each in params.items()}
        trained = frozenset(name for name, param in traced.params.items() if param.grad_req != "null")
        fixed = {**wide, **inputs}, list(inputs), trained, noted.context
        return Call(decisions, *fixed, noted.training, number=number, is_net=True)

    def _converted(self, policy: Policy, noted: NetCall) -> Converted:
        """Return the conversion of the graph of a call to a policy."""
        traced: Trace = noted.graph.trace
        self._graphs.setdefault(id(traced), (traced, noted))
        if policy not in self._decided:
            _make_room(self._decided)
        made = self._decided.setdefault(policy, {})
        if id(traced) not in made:
            params = frozenset(traced.params) - traced.data
            shapes, types = traced.shapes(noted.inputs), traced.types
            try:
                made[id(traced)] = convert_graph(traced.symbol, policy, shapes, types, params, inputs=traced.data)
            except ConvertError as e:
                raise type(e)(f"block '{noted.name}': {e}") from e
        return made[id(traced)]

    def decisions(self, policy: Policy) -> List[Decisions]:
        """Return the decisions of a conversion to a policy, for each graph of the net that has run."""
        return [self._converted(policy, call).decisions for _, call in self._graphs.values()]

    def calls(self, policy: Policy) -> List[Call]:
        """Return the calls that were noted, with values as float32 has them."""
        with kept(self.net):
            return [self._call(each.call, policy, number) for number, each in enumerate(self._noted)]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the first calls of each block that has a graph; ConvertError if there was none."""
        self._recorder = FirstCalls(FIRST_CALLS)
        try:
            yield
        finally:
            recorder, self._recorder = self._recorder, None
        self._noted = recorder.calls
        if not self._noted:
            raise ConvertError(
                f"evaluate did not call block '{self.net.name}' ({type(self.net).__name__}), so nothing is known of "
                f"what it runs; call the net that evaluate is given."
            )
        for each in self._noted:
            self._converted(Policy(), each.call)

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give the net itself, converted."""
        with kept(self.net):
            if policy.is_mixed:
                convert(self.net, policy)
            else:
                for conversion in install_float32(self.net, policy):
                    conversion.observer = self._recorder
            yield self.net
            for root, traced in self._traced():
                require_same_names(root, traced)

    def _traced(self) -> Iterator[Tuple[gluon.HybridBlock, Trace]]:
        """Yield the traces of the calls that are noted, with their blocks; none of a SymbolBlock."""
        by_id = {id(root): root for root in self._roots if not isinstance(root, gluon.SymbolBlock)}
        calls = [each.call for each in self._recorder.calls] if self._recorder is not None else []
        return ((by_id[call.net], call.graph.trace) for call in calls if call.net in by_id)


def install_float32(net: gluon.Block, policy: Policy) -> List[Conversion]:
    """Have the graphs of a net run in float32, marked as a policy says of its blocks; return their conversions.

    A region or a name that asks for low precision does not get it. `kept` undoes it.
    """
    regions = find_regions(net, policy)
    conversions = [Conversion(root, Policy(), regions) for root in roots(net)]
    for conversion in conversions:
        if conversion.own_graph is not None:
            conversion.convert_symbol()
        conversion.install()
    return conversions


def require_same_names(net: gluon.HybridBlock, traced: Trace) -> None:
    """Raise a ConvertError unless all operators of a net have the same names when it is traced a second time."""
    again = trace(net, traced.arguments, None, find_regions(net, Policy()))
    names = {node.name for node in traced.graph.operators()}
    for node in again.graph.operators():
        if node.name not in names:
            raise ConvertError(
                f"block '{net.name}': operators in it get other names each time it is traced, {node} for example, so "
                f"that no policy can name them. Make it with a prefix: prefix='net_'."
            )


def call_net(net: gluon.Block, inputs: Sequence[Any]) -> Any:
    """Return the outputs of a net for a batch; ConvertError if the batch does not fit it."""
    try:
        return net(*inputs)
    except (mx.MXNetError, AssertionError, TypeError, ValueError, ConvertError) as e:
        arrays = [each for each in tree_leaves(inputs) if each is not None]
        names = ["data"] if len(arrays) == 1 else [f"data{number}" for number in range(len(arrays))]
        types = [dtypes.canonical(array.dtype) for array in arrays]
        notes = [f" of shape {each.shape}, {dtype}" for each, dtype in zip(arrays, types)]
        given = listed(names, notes, most=len(names))
        reason = str(e) if isinstance(e, MxmpError) else mxnet_reason(e)
        several = " Arrays of a tuple or list are one batch; several batches are a list of tuples." if names[1:] else ""
        raise ConvertError(f"batches: block '{net.name}' fails on {given}: {reason.rstrip('.')}.{several}") from e


# ---------------------------------------------------------------------- nets that are put back


@contextlib.contextmanager
def kept(net: gluon.Block) -> Iterator[None]:
    """Give the net as it was written within this context, and as it was found after it, also after an exception.

    That includes its policy and graphs, whether it is hybridized, and the arrays of its parameters, statistics and
    gradients. The values of these arrays are copied for that. A gradient that backward writes within this context does
    not count for a trainer's step.
    """
    state = _State(net)
    try:
        remove_conversions(net)
        # A backward pass takes arrays without a gradient out of all graphs, those that the user has recorded too.
        for param in net.collect_params().values():
            if param.grad_req == "null" and param._data is not None:
                param._data = [array.detach() for array in param._data]
        yield
    finally:
        state.put_back()


class _State:
    """The state of a net: classes and attributes of its blocks and parameters, containers in them, values of arrays."""

    def __init__(self, net: gluon.Block) -> None:
        # An interrupt between the last line of a block of record() and its end leaves the thread recording.
        self._flags = autograd.is_recording(), autograd.is_training()
        inside = blocks_in(net)
        params = list({id(param): param for param in net.collect_params().values()}.values())
        # Attributes are kept one level deep: blocks, conversions and parameters refer to one another.
        kept_objects = (*inside, *conversions_of(inside), *params)
        self._objects = [(each, type(each), dict(vars(each))) for each in kept_objects]
        values = [value for each in kept_objects for value in vars(each).values()]
        self._containers = [(value, value.copy()) for value in values if type(value) in (list, dict)]
        with autograd.pause():
            arrays = [each for param in params for value in vars(param).values() for each in _arrays_in(value)]
            self._arrays = [(array, array.copy(), array._fresh_grad) for array in arrays]

    def put_back(self) -> None:
        """Make all of it as it was. Nothing is emptied first: an interrupt at any line leaves objects that work."""
        recording, training = self._flags
        autograd.set_recording(recording)
        autograd.set_training(training)
        for value, kind, attributes in self._objects:
            vars(value).update(attributes)
            if type(value) is not kind:  # It has all attributes by now, and those of its former class until then.
                value.__class__ = kind
            _keep_keys(vars(value), attributes)
        for container, copy in self._containers:
            if isinstance(container, dict):
                container.update(copy)
                _keep_keys(container, copy)
            else:
                container[:] = copy
        with autograd.pause():
            for array, copy, _ in self._arrays:
                copy.copyto(array)
        for array, _, was_fresh in self._arrays:
            if array._fresh_grad != was_fresh:
                array._fresh_grad = was_fresh


def _keep_keys(values: Dict[Any, Any], wanted: Dict[Any, Any]) -> None:
    """Delete the keys that are not in another dict."""
    for key in [key for key in values if key not in wanted]:
        del values[key]


def _arrays_in(value: Any) -> Iterable[mx.nd.NDArray]:
    """Yield the arrays in an attribute of a parameter: values, gradients and float32 masters."""
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (each for each in items if isinstance(each, mx.nd.NDArray))
