"""The cached operators that run a converted graph: what is computed once of parameters, what a backend partitions."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from ..graph import Graph
from ..mxnet_private import blocks
from ..symbol import Converted, from_graph
from ..train.loss_heads import HEAD_SCALE
from ..write_counts import can_count
from .graphs import ConvertedGraph, infers, on_cpu, split_inputs
from .inference_graph import InferenceGraph, Params
from .prepared import FoldRangeError, PreparedParams
from .traced_net import ONLY_INFER

_STATIC = "static_shape"

_KEEP_WEIGHTS = frozenset({"RNN"})
"""Operators that keep what they have made of their weights, if their states are kept (``static_shape``)."""


class OpKey(NamedTuple):
    """Which of a graph's cached operators runs a call."""

    graph: int  # its id
    on_cpu: bool
    infers: bool
    adds: bool  # whether gradients are added to earlier ones, where that matters

    @property
    def of_other_mode(self) -> OpKey:
        """That of training if this is of inference, and the other way round."""
        return self._replace(infers=not self.infers)


class OpPlan(NamedTuple):
    """What a cached operator is to be built of."""

    symbol: Any
    args: Sequence[Tuple[bool, gluon.Parameter]]  # (False, parameter) for those that it may read
    prepared: Optional[PreparedParams] = None  # what it reads in place of parameters; None for these alone
    keeps_weights: bool = False  # as of `BuiltOp`


@dataclass(frozen=True)
class BuiltOp:
    """A cached operator, with what it reads beside the inputs."""

    op: Any
    args: List[Tuple[bool, Any]]  # (True, index of an input) or (False, parameter)
    prepared: Optional[PreparedParams]
    keeps_weights: bool  # whether its operators keep what they have made of them, and must be built anew for others

    def is_current(self) -> bool:
        """Return whether it can run now as it is."""
        return self.prepared is None or self.prepared.is_current()

    def is_stale(self) -> bool:
        """Return whether it keeps what it has made of values that parameters no longer have."""
        return self.keeps_weights and self.prepared is not None and self.prepared.had_values() and not self.is_current()

    def renew(self) -> bool:
        """Compute anew what it reads, since parameters have changed; return whether it can run with that."""
        if self.prepared is None or self.is_stale():
            return False
        try:
            self.prepared.refresh()
        except FoldRangeError:  # raised again where it is built anew
            return False
        return True


def op_key(graph: ConvertedGraph) -> OpKey:
    """Return which of a graph's cached operators runs it now."""
    return OpKey(id(graph), on_cpu(), infers(), _adds(graph))


def _adds(graph: ConvertedGraph) -> bool:
    """Return whether a call now adds gradients to earlier ones where `GuardAmpCasts` has to know: on a CPU."""
    return not infers() and on_cpu() and any(param.grad_req == "add" for param in graph.traced.params.values())


def plan_op(net: gluon.HybridBlock, graph: ConvertedGraph, dtype: str) -> OpPlan:
    """Return what to build a net's cached operator of, for the context, mode, backend and policy's dtype of now.

    What it reads in place of parameters is computed; a FoldRangeError says that there are folds to do without.
    """
    fused, params = bool(blocks.backend(net)), blocks.collected_params(net)
    if not infers() and graph.scaled_heads is not None:
        symbol = _symbol_on(graph.scaled_heads, graph, params, fused)
        return OpPlan(symbol, _as_args([*params.values(), HEAD_SCALE]))
    if not infers() or not can_count():
        return OpPlan(_symbol_on(graph.converted, graph, params, fused), _as_args(params.values()))
    found = InferenceGraph.of(graph.converted, params, on_cpu(), fused)
    prepared = _prepared_params(found, params, dtype)
    keeps = _keeps_weights(net, found.graph)
    if keeps:
        prepared.watch(sorted(found.constant & found.read - found.folded))
    if not prepared.inputs:
        return OpPlan(found.symbol, _as_args(params.values()))
    if not prepared.is_current():
        prepared.refresh()  # at once, so that MXNet's threads compute while the graph is loaded
    gone = found.folded | (set(graph.traced.params) - found.read)
    kept = [param for name, param in params.items() if name not in gone]
    return OpPlan(found.symbol, _as_args(kept + prepared.params), prepared, keeps)


def _prepared_params(found: InferenceGraph, params: Params, dtype: str) -> PreparedParams:
    """Return what a graph reads in place of a net's parameters, to be computed."""
    prepared, split = PreparedParams(params, found.converted.folds, dtype), found.split
    if split.prepare is not None:
        prepared.cast_by(from_graph(split.prepare, found.converted.symbol), split.names)
    prepared.give(sorted(found.folded & found.read))
    return prepared


def _symbol_on(converted: Converted, graph: ConvertedGraph, params: Params, fused: bool) -> Any:
    """Return the symbol of a conversion of a net's graph for the context of now."""
    if not on_cpu():
        return converted.on_gpu(not infers())
    return converted.on_cpu(not infers(), fused, frozenset() if _adds(graph) else frozenset(params))


def _as_args(params: Iterable[gluon.Parameter]) -> List[Tuple[bool, gluon.Parameter]]:
    """Return parameters as a net holds what its cached operator reads."""
    return [(False, param) for param in params]


def _keeps_weights(net: gluon.HybridBlock, graph: Graph) -> bool:
    """Return whether operators of a net's graph, partitioned by its backend, keep what they have made of weights."""
    if not dict(blocks.flags(net)).get(_STATIC):
        return False
    return bool(blocks.backend(net)) or any(node.op in _KEEP_WEIGHTS for node in graph.operators())


@contextlib.contextmanager
def backend_chosen(net: gluon.HybridBlock, graph: Graph, for_inference: bool, unfolded: bool) -> Iterator[None]:
    """Have MXNet partition a net's graph within this context by the backend that is right for a call now.

    That is the one that the net was hybridized with, but none for training if it can only infer. A net for inference
    with static shapes is partitioned on a CPU as ``bind`` does it, if no other backend is given. Where writes cannot
    be counted, what is partitioned makes its operators anew at each call, since these keep weights that are stale.
    Where BatchNorms are ``unfolded``, since folded values are out of range, no backend may fold them either.

    Control flow runs without static shapes. With them MXNet's engine takes ``foreach`` between two operators for done
    before its body has run: the first call gives what the memory held, or fails where it is recorded (CreateEngineOp in
    src/imperative/imperative_utils.h at tag 1.9.1 runs an operator of kSubgraphExec as any other).
    """
    given, flags = blocks.backend(net), blocks.flags(net)
    chosen = None if given in ONLY_INFER and (unfolded or not infers()) else given
    static = dict(flags).get(_STATIC) and not any(node.subgraphs for node in graph.nodes)
    if for_inference and not (given or unfolded) and on_cpu() and can_count() and static:
        chosen = _backend_of_bind()
    blocks.backend.set(net, chosen)
    if not static or (chosen and not can_count()):
        blocks.flags.set(net, [(name, value) for name, value in flags if name != _STATIC])
    try:
        yield
    finally:
        blocks.backend.set(net, given)
        blocks.flags.set(net, flags)


def _backend_of_bind() -> Optional[str]:
    """Return the backend by which MXNet partitions what is bound on a CPU, None for none."""
    name = os.environ.get("MXNET_SUBGRAPH_BACKEND", "MKLDNN")
    return name if name != "NONE" and mx.runtime.Features().is_enabled("MKLDNN") else None


@contextlib.contextmanager
def context_of(args: Tuple[Any, ...]) -> Iterator[None]:
    """Make the context of the inputs the current one, as a call does."""
    first = next((arg for arg in split_inputs(args) if isinstance(arg, mx.nd.NDArray)), None)
    with contextlib.nullcontext() if first is None else first.ctx:
        yield
