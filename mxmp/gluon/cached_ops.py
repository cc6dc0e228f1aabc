"""The cached operators that run a converted graph: what is computed once of parameters, what a backend partitions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..mxnet_private import blocks
from ..mxnet_private.parameters import storage_type
from ..passes.split_params import split_params
from ..symbol import from_graph, to_graph
from .graphs import ConvertedGraph, on_cpu, split_inputs
from .prepared import PreparedParams

_FOR_INFERENCE = ("MKLDNN", "MKLDNN_QUANTIZE", "TensorRT")
"""Backends whose operators have no gradients. Those of MKLDNN give zeros and say nothing."""

_KEEP_WEIGHTS = frozenset({"RNN"})
"""Operators that keep what they have made of their weights, if their states are kept (``static_shape``)."""

OpKey = Tuple[int, bool, bool]


class OpPlan(NamedTuple):
    """What a cached operator is to be built of."""

    symbol: Any
    prepared: Optional[PreparedParams]  # what it reads in place of parameters; None where nothing is computed of them
    args: List[Tuple[bool, gluon.Parameter]]  # (False, parameter) for those that it reads, [] for all of the net


@dataclass(frozen=True)
class BuiltOp:
    """A cached operator, with what it reads beside the inputs."""

    op: Any
    args: List[Tuple[bool, Any]]  # (True, index of an input) or (False, parameter)
    prepared: Optional[PreparedParams]
    keeps_weights: bool  # whether its operators keep what they have made of them, and must be built anew for others

    def is_usable(self) -> bool:
        """Compute what it reads anew where parameters have changed; return whether it can run with that."""
        return self.prepared is None or not self.prepared.refresh() or not self.keeps_weights


def infers() -> bool:
    """Return whether a call now is for inference alone: neither recorded nor in training mode."""
    return not (autograd.is_recording() or autograd.is_training())


def op_key(graph: ConvertedGraph) -> OpKey:
    """Return which of a graph's cached operators runs it now."""
    return id(graph), on_cpu(), infers()


def plan_op(graph: ConvertedGraph, params: Dict[str, gluon.Parameter]) -> OpPlan:
    """Return what to build a cached operator of, for the current context and mode."""
    converted = graph.converted
    symbol = converted.on_cpu() if on_cpu() else converted.symbol
    if not infers():
        return OpPlan(symbol, None, [])
    usable = {name for name in set(symbol.list_arguments()) & set(params) if storage_type(params[name]) == "default"}
    split = split_params(to_graph(symbol), usable)
    if split.prepare is None:
        return OpPlan(symbol, None, [])
    prepared = PreparedParams(from_graph(split.prepare, symbol), params, split.names)
    main = from_graph(split.main, symbol)
    read = set(main.list_inputs())
    absorbed = set(symbol.list_inputs()) - read
    rest = [param for name, param in params.items() if name not in absorbed]
    return OpPlan(main, prepared, [(False, param) for param in (*rest, *prepared.params)])


def keeps_weights(net: gluon.HybridBlock, plan: OpPlan) -> bool:
    """Return whether a net's cached operator of a plan keeps what its operators have made of their weights."""
    if not dict(blocks.flags(net)).get("static_shape"):
        return False
    return bool(blocks.backend(net)) or any(node.op in _KEEP_WEIGHTS for node in to_graph(plan.symbol).operators())


@contextlib.contextmanager
def backend_for_mode(net: gluon.HybridBlock) -> Iterator[None]:
    """Let a net's backend partition the graph within this context, but that of training if it can only infer."""
    backend = blocks.backend(net)
    if backend in _FOR_INFERENCE and not infers():
        blocks.backend.set(net, None)
    try:
        yield
    finally:
        blocks.backend.set(net, backend)


@contextlib.contextmanager
def context_of(args: Tuple[Any, ...]) -> Iterator[None]:
    """Make the context of the inputs the current one, as a call does."""
    first = next((arg for arg in split_inputs(args) if isinstance(arg, mx.nd.NDArray)), None)
    with contextlib.nullcontext() if first is None else first.ctx:
        yield
