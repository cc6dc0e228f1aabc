"""Signatures of calls of a converted net, and the inputs of its cached graph."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..mxnet_private import blocks
from .precision import current_region

Shape = Tuple[int, ...]


class CallSignature(NamedTuple):
    """The properties of a call that decide which graph it runs."""

    training: bool
    nesting: str  # of its inputs
    region: Optional[str]  # the innermost around it, None outside of regions
    types: Tuple[Any, ...]
    shapes: Optional[Tuple[Any, ...]]  # None where no verdict depends on them


def signature_of(net: gluon.Block, args: Tuple[Any, ...], shaped: bool) -> CallSignature:
    """Return the signature of a call of a net now, with these inputs; ``shaped`` if their shapes matter."""
    flat, nesting = blocks.flatten(args, "input")
    types, shapes = (tuple(getattr(a, name, None) for a in flat) for name in ("dtype", "shape"))
    # Layers of gluon.rnn note here whether they were called without states, and then return none.
    nesting = nesting, getattr(net, "skip_states", None)
    return CallSignature(autograd.is_training(), str(nesting), current_region(), types, shapes if shaped else None)


def split_inputs(args: Tuple[Any, ...]) -> List[Any]:
    """Return the arrays or symbols among possibly nested arguments, None left out."""
    flat, _ = blocks.flatten(args, "input")
    return [item for item in flat if item is not None]


def on_cpu() -> bool:
    """Return whether the current context is a CPU."""
    return bool(mx.context.current_context().device_type != "gpu")


def known_inputs(inputs: Sequence[Any], args: Tuple[Any, ...]) -> Tuple[Dict[str, Shape], Dict[str, str]]:
    """Return shapes and dtypes, by name, of those inputs that are arrays."""
    arrays = [(s.name, a) for s, a in zip(inputs, split_inputs(args)) if isinstance(a, mx.nd.NDArray)]
    return {name: a.shape for name, a in arrays}, {name: dtypes.canonical(a.dtype) for name, a in arrays}


def known_shapes(inputs: Dict[str, Shape], params: Dict[str, Any]) -> Dict[str, Shape]:
    """Return the shapes of inputs and parameters; none where those of the inputs are not known."""
    if not inputs:
        return {}
    known = {name: p.shape for name, p in params.items() if p.shape and all(size > 0 for size in p.shape)}
    return {**known, **inputs}


def as_input(arg: Any) -> Any:
    """Return an input, or nested inputs, for a cached graph: low precision as float32, shared CPU memory as CPU.

    A cached graph wants all on one context, also what a DataLoader's workers give (cpu_shared).
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
