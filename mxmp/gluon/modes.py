"""The graphs of a converted net: one for each kind of call."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..graph import Graph, without_versions
from ..scaling.loss_heads import loss_heads
from ..symbol import Converted
from ..symbol.monitors import NetworkNames
from . import trace
from .precision import current_region


class Key(NamedTuple):
    """A kind of call.

    Attributes:
        training: Whether it is for training or for inference.
        nesting: How its inputs are nested.
        region: The ``precision`` region around it, None outside of regions.
        types: Dtypes of its inputs.
        shapes: Shapes of its inputs where verdicts depend on them, else None.
    """

    training: bool
    nesting: str
    region: Optional[str]
    types: Tuple[Any, ...]
    shapes: Any


@dataclass(frozen=True, eq=False)
class Mode:
    """A net's graph for some kinds of calls.

    Attributes:
        source: The traced graph, to tell whether two kinds of calls have one.
        inputs: The symbols of its inputs.
        converted: What it was converted to.
        formats: How the net's inputs and outputs are nested.
        key: What it is found by among a net's graphs.
    """

    source: Graph
    inputs: Any
    converted: Converted
    formats: Tuple[Any, Any]
    key: Any

    @functools.cached_property
    def loss_heads(self) -> Tuple[str, ...]:
        """The loss heads in it, by name and operator."""
        return loss_heads(self.source)

    @functools.cached_property
    def is_float32(self) -> bool:
        """Whether conversion changed nothing, so that the net may as well run as it was written."""
        same = without_versions(self.converted.graph) == self.source
        return same and self.converted.on_cpu() is self.converted.symbol

    @functools.cached_property
    def names(self) -> NetworkNames:
        """What its tensors are called in the net, for op hooks on a GPU."""
        return NetworkNames(self.converted, self.converted.symbol, on_cpu=False)

    @functools.cached_property
    def names_on_cpu(self) -> NetworkNames:
        """The same on a CPU."""
        return NetworkNames(self.converted, self.converted.on_cpu(), on_cpu=True)


@contextlib.contextmanager
def watched(net: gluon.HybridBlock, mode: Mode) -> Iterator[None]:
    """Let the op hook of a net see the net's own names and float32 values while it runs a graph."""
    callback = net._callback
    if callback is None:
        yield
        return
    names = mode.names_on_cpu if on_cpu() else mode.names
    net._callback = names.wrap(callback)
    try:
        yield
    finally:
        net._callback = callback


def make_key(net: gluon.Block, args: Tuple[Any, ...], shaped: bool) -> Key:
    """Return the kind of a call of a net now, with these inputs; ``shaped`` if their shapes matter."""
    flat, nesting = gluon.block._flatten(args, "input")
    shapes = tuple(getattr(a, "shape", None) for a in flat) if shaped else None
    types = tuple(getattr(a, "dtype", None) for a in flat)
    # Layers of gluon.rnn note here whether they were called without states, and then return none.
    nesting = nesting, getattr(net, "skip_states", None)
    return Key(bool(autograd.is_training()), str(nesting), current_region(), types, shapes)


def on_cpu() -> bool:
    """Return whether the current context is a CPU."""
    return bool(mx.context.current_context().device_type != "gpu")


def known_inputs(inputs: Sequence[Any], args: Tuple[Any, ...]) -> Tuple[Dict[str, Tuple[int, ...]], Dict[str, str]]:
    """Return shapes and dtypes of those inputs that are arrays."""
    arrays = [(s.name, a) for s, a in zip(inputs, trace.split_inputs(args)) if isinstance(a, mx.nd.NDArray)]
    return {name: a.shape for name, a in arrays}, {name: dtypes.canonical(a.dtype) for name, a in arrays}


def known_shapes(inputs: Dict[str, Tuple[int, ...]], params: Dict[str, Any]) -> Dict[str, Tuple[int, ...]]:
    """Return the shapes of inputs and parameters; none where those of the inputs are not known."""
    if not inputs:
        return {}
    known = {name: p.shape for name, p in params.items() if p.shape and all(size > 0 for size in p.shape)}
    return {**known, **inputs}


def as_input(arg: Any) -> Any:
    """Return an input, or nested inputs, as a graph takes them: low precision as float32, on a context of its own.

    A cached graph wants all on one context, while operators take what a DataLoader's workers give
    (cpu_shared) for what it is, an array on the CPU.
    """
    if isinstance(arg, (list, tuple)):
        items = [as_input(item) for item in arg]
        return type(arg)(*items) if hasattr(arg, "_fields") else type(arg)(items)
    if not isinstance(arg, mx.nd.NDArray):
        return arg
    if arg.ctx.device_type in ("cpu_shared", "cpu_pinned"):
        arg = arg.as_in_context(mx.cpu())
    if dtypes.canonical(arg.dtype) in dtypes.LOW_PRECISION:
        # The operator: the gradients of astype and amp_cast are lost under grad_req='add'.
        return (mx.npx.cast if isinstance(arg, mx.np.ndarray) else mx.nd.Cast)(arg, dtype=dtypes.FLOAT32)
    return arg
