"""A Gluon block's graph before its first call, and errors that name the block."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..errors import ConvertError, MxmpError


def roots(net: gluon.Block) -> List[gluon.HybridBlock]:
    """Return the outermost blocks of a net that have a graph: HybridBlocks with ``hybrid_forward``.

    Raises:
        ConvertError: If there is none; it names the block.
    """
    if not isinstance(net, gluon.Block):
        raise ConvertError(f"expected a Gluon block, found {type(net).__name__}.")
    found: List[gluon.HybridBlock] = []
    _collect(net, found)
    if not found:
        raise ConvertError(
            f"block '{net.name}' ({type(net).__name__}) holds no HybridBlock, so there is no graph to convert."
        )
    return found


def _collect(block: gluon.Block, found: List[gluon.HybridBlock]) -> None:
    if isinstance(block, gluon.HybridBlock) and not _runs_eagerly(block):
        if not any(block is other for other in found):
            found.append(block)
        return
    for child in block._children.values():
        _collect(child, found)


def _runs_eagerly(block: gluon.HybridBlock) -> bool:
    """Return whether a HybridBlock overrides ``forward`` and has no graph of its own."""
    own_graph = (
        isinstance(block, gluon.SymbolBlock) or type(block).hybrid_forward is not gluon.HybridBlock.hybrid_forward
    )
    return not own_graph


def descendants(block: gluon.Block) -> List[gluon.Block]:
    """Return every block below a block, each once."""
    found: Dict[int, gluon.Block] = {}
    below = list(block._children.values())
    while below:
        child = below.pop(0)
        if id(child) not in found:
            found[id(child)] = child
            below += child._children.values()
    return list(found.values())


def prefixes(net: gluon.Block) -> List[str]:
    """Return the prefixes of a net's blocks, itself included."""
    return sorted({block.prefix for block in (net, *descendants(net)) if block.prefix})


def trace_early(net: gluon.HybridBlock) -> Optional[Any]:
    """Return the net's symbol for inputs that its signature suggests, or None.

    A guess: it serves to report errors before the first batch, and nothing is built on it. A net
    that cannot be traced like this is traced when it is called.
    """
    if isinstance(net, gluon.SymbolBlock):
        return net._cached_graph[1]
    count = _input_count(net)
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    try:
        params = {name: param.var() for name, param in net._reg_params.items()}
        with net.name_scope():
            out = type(net).hybrid_forward(net, mx.sym, *(mx.sym.var(name) for name in names), **params)
        outputs, _ = gluon.block._flatten(out, "output")
        return mx.sym.Group(outputs)
    except Exception:
        return None


def _input_count(net: gluon.HybridBlock) -> int:
    parameters = list(inspect.signature(type(net).hybrid_forward).parameters.values())[2:]
    inputs = [
        p
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty and p.name not in net._reg_params
    ]
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
    flat, _ = gluon.block._flatten(args, "input")
    return [item for item in flat if item is not None]
