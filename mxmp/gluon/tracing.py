"""Trace a block before its first call, and name the block where tracing failed."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..errors import ConvertError, MxmpError
from ..mxnet_private import blocks


def trace_early(net: gluon.HybridBlock) -> Optional[Any]:
    """Return the net's symbol for inputs that its signature suggests, or None.

    A guess: it serves to report errors before the first batch, and nothing is built on it. A net
    that cannot be traced like this is traced when it is called.
    """
    if isinstance(net, gluon.SymbolBlock):
        return blocks.cached_graph(net)[1]
    count = _input_count(net)
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    try:
        params = {name: param.var() for name, param in blocks.registered_params(net).items()}
        with net.name_scope():
            out = type(net).hybrid_forward(net, mx.sym, *(mx.sym.var(name) for name in names), **params)
        outputs, _ = blocks.flatten(out, "output")
        return mx.sym.Group(outputs)
    except Exception:
        return None


def _input_count(net: gluon.HybridBlock) -> int:
    own = blocks.registered_params(net)
    parameters = list(inspect.signature(type(net).hybrid_forward).parameters.values())[2:]
    inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty and p.name not in own]
    return max(1, len(inputs))


def trace_error(net: gluon.HybridBlock, error: Exception) -> ConvertError:
    """Return the error for a net whose ``hybrid_forward`` failed on symbols; it names the block."""
    block, function = _failing_block(error)
    block = block or net
    where = f"block '{block.name}' ({type(block).__name__})"
    if function is not None:
        return ConvertError(
            f"{where}: its forward hook {function!r} fails: {type(error).__name__}: {str(error).rstrip('.')}. Hooks on "
            f"the blocks within a converted net run once, when it is traced, and on symbols. Detach it, or register it "
            f"on '{net.name}' itself, where it gets arrays."
        )
    if isinstance(error, MxmpError):
        return ConvertError(f"{where}: {error}")
    text = f"{where} cannot be traced: {type(error).__name__}: {str(error).rstrip('.')}."
    if isinstance(error, TypeError) and "positional argument" in text:
        return ConvertError(text)
    return ConvertError(
        f"{text} Its hybrid_forward must work on symbols: no shapes, no values, no indexing. Rewrite it, or convert "
        f"the blocks around it."
    )


def _failing_block(error: Exception) -> Tuple[Optional[gluon.Block], Optional[str]]:
    """Return the innermost block whose method was running when an error was raised.

    With it, the name of the hook of that block which raised it, None if it was no hook.
    """
    found: Optional[gluon.Block] = None
    hook: Optional[str] = None
    lines = traceback.extract_tb(error.__traceback__)
    for (frame, _), line in zip(traceback.walk_tb(error.__traceback__), lines):
        block, name = frame.f_locals.get("self"), frame.f_code.co_name
        if name in ("hybrid_forward", "forward") and isinstance(block, gluon.Block):
            found, hook = block, None
        elif frame.f_code is gluon.Block.__call__.__code__ and (line.line or "").startswith("hook("):
            found, hook = block, _name_of(frame.f_locals["hook"])
    return found, hook


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def split_inputs(args: Tuple[Any, ...]) -> List[Any]:
    """Return the arrays or symbols among possibly nested arguments, None left out."""
    flat, _ = blocks.flatten(args, "input")
    return [item for item in flat if item is not None]
