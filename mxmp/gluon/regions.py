"""Precision by region and by block: ``precision`` around code, ``set_policy`` for blocks, and their marks."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.block import _BlockScope

from .. import dtypes
from ..errors import ConvertError, DtypeError, PolicyError
from ..graph import Graph
from ..passes.base import CUSTOM, PRECISION_ATTR
from ..policy import AS_POLICY, BLOCKS_ATTR, LOW, Policy, by_length
from ..symbol import from_graph, to_graph
from .blocks import blocks_in, children, paths_in, undone

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LAZY = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_PRECISIONS = (dtypes.FLOAT32, LOW, AS_POLICY, *dtypes.LOW_PRECISION)


class precision(contextlib.ContextDecorator):
    """A region whose operators run in float32, or in low precision: for ``with``, or as a decorator.

    Within ``hybrid_forward`` a region marks the operators that are created inside; conversion reads the marks. A region
    overrules every other setting of the policy. Around the call of a converted net a region holds for that call: the
    net has a graph for each kind of region. Regions nest, and the innermost decides. Each thread has its own regions.
    The same object may be entered again, also within itself. A region changes nothing in a net that is not converted. A
    hybridized net that is not converted runs its converted blocks in the region of its first call.

    MXNet has no second derivatives through casts and cached graphs. So under ``autograd.record`` a float32 region runs
    a converted net operator by operator, as it was written. All its operators must be float32 there, and its parameters
    too (no 'O2'). Then a gradient penalty trains::

        with autograd.record():
            with mxmp.gluon.precision("float32"):
                score = critic(x)
                (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
                loss = criterion(score) + slope.square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    MXNet 1.9.1 has second derivatives for few operators: ``batch_dot``, ``elemwise_add``, adding a scalar,
    ``transpose`` and functions of one array (``tanh``, ``sigmoid``, ``exp``, ``log``, ``sqrt``, ``square``, ``abs``,
    ``sin``, ...). A cached graph has none, so a hybridized or converted net has none outside of such a region.
    Convolution has none. Those of FullyConnected, Dropout and clip are right only in the last layer:
    FullyConnectedGradGradCompute (src/operator/nn/fully_connected-inl.h) fills a part with 0. Those of relu can end the
    process.

    Leave regions in the reverse order, with no ``yield`` or ``await`` inside: the code that runs meanwhile would be in
    the region too. A function that is decorated must run when it is called: no generator, no coroutine.

    Args:
        dtype: 'float32'; 'low' for the policy's compute dtype; that dtype by name, which is an error under a policy
            with another one; or 'policy', where the policy decides as outside of any region.

    Raises:
        DtypeError: If ``dtype`` is no dtype.
        PolicyError: If ``dtype`` is another dtype, or the decorated function is a generator or coroutine.

    Example::

        def hybrid_forward(self, F, x):
            x = self.body(x)
            with mxmp.gluon.precision("float32"):
                return F.broadcast_div(x, F.sum(x, axis=1, keepdims=True))
    """

    def __init__(self, dtype: str) -> None:
        try:
            name = dtype if dtype in (LOW, AS_POLICY) else dtypes.canonical(dtype)
        except DtypeError as e:
            text = f"precision({dtype!r}): unknown dtype {dtype!r}; expected one of {', '.join(_PRECISIONS)}."
            raise DtypeError(text) from e
        if name not in _PRECISIONS:
            raise PolicyError(f"precision({dtype!r}): expected one of {', '.join(_PRECISIONS)}.")
        self._region = name

    def __enter__(self) -> precision:
        # A scope for each entry, so that this object has no state.
        _Scope({PRECISION_ATTR: None if self._region == AS_POLICY else self._region}).__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, stack: Any) -> None:
        mx.AttrScope._current.value.__exit__(kind, error, stack)

    def __call__(self, func: _Function) -> _Function:
        """Return a function that runs in this region."""
        if any(is_lazy(func) for is_lazy in _LAZY):
            name = getattr(func, "__name__", func)
            raise PolicyError(
                f"precision({self._region!r}): {name!r} is a generator or coroutine function, which runs after the "
                "call; open the region within it, with no yield or await inside."
            )
        return super().__call__(func)


class _Scope(mx.AttrScope):
    """A scope of MXNet that marks the symbols made in it; a mark of None removes the mark of the scopes around it."""

    _attr: Any  # MXNet's

    def __init__(self, changes: Mapping[str, Optional[str]]) -> None:
        super().__init__()
        self.changes = changes

    def __enter__(self) -> _Scope:
        super().__enter__()
        attrs = {**self._attr, **self.changes}
        self._attr = _ScopeAttrs({key: mark for key, mark in attrs.items() if mark is not None})
        return self


class _ScopeAttrs(Dict[str, str]):
    """The attributes that a scope sets; the function that makes a ``Custom`` operator does not see the marks.

    MXNet copies the attributes into each scope within (AttrScope in python/mxnet/attribute.py). From there it copies
    them into the arguments of a function that makes a symbol. That function asks for the keys.
    """

    def copy(self) -> _ScopeAttrs:
        """Return the attributes for a scope within this one, or for a symbol."""
        return _ScopeAttrs(self)

    def __iter__(self) -> Iterator[str]:  # so that a copy asks for the keys
        return iter(self.keys())

    def keys(self) -> Any:
        """Return the names of the attributes that the caller may see."""
        if sys._getframe(1).f_code.co_name != CUSTOM:
            return super().keys()
        return {key: "" for key in super().keys() if key not in (PRECISION_ATTR, BLOCKS_ATTR)}.keys()


def _current_mark(key: str) -> Optional[str]:
    """Return the value of an attribute on operators that this thread makes now; None if they do not get it."""
    scope = getattr(mx.AttrScope._current, "value", None)
    return None if scope is None else scope._attr.get(key)


def current_region() -> Optional[str]:
    """Return the precision of the innermost region, None outside of regions."""
    return _current_mark(PRECISION_ATTR)


@contextlib.contextmanager
def scopes_kept() -> Iterator[None]:
    """Restore this thread's scopes of MXNet, and with them its region, at the end of this context."""
    innermost = mx.AttrScope._current, mx.name.NameManager._current, _BlockScope._current  # of each thread
    scopes = [(local, dict(vars(local))) for local in innermost]

    def put_back() -> None:
        for local, values in scopes:
            vars(local).clear()
            vars(local).update(values)

    with undone(put_back):
        yield


@contextlib.contextmanager
def outside_regions() -> Iterator[None]:
    """Leave the user's regions for this context."""
    with scopes_kept(), precision(AS_POLICY):
        yield


_NOTE = "_mxmp_block_policy"
"""The attribute of a block with its precision from `set_policy`, and its compute dtype, None for any."""

_ENTRANCES = ("forward", "unroll")  # the methods that run a block

BlockRegions = Mapping[gluon.Block, Tuple[str, ...]]
"""The marks of the operators in blocks; the outermost first, as ``BLOCKS_ATTR`` has them."""


def set_policy(block: gluon.Block, policy: Union[None, str, Policy]) -> gluon.Block:
    """Give a block a precision of its own within the net that it is part of, as Keras gives one to a layer.

    It is an override of the policy for the block and all blocks in it, as ``blocks=`` gives one by name. The innermost
    block decides. A pattern of ``names=`` overrules it, and a ``precision`` region within ``hybrid_forward`` does too.
    It holds from the next ``convert`` on, of the block or of a net around it: call ``convert`` again if the net is
    converted already.

    To have the last layer in float32: ``set_policy(net.output, "float32")``. The precision holds for calls of the
    block, and for ``unroll`` of a recurrent cell. Operators of its other methods have their caller's precision.
    Exported files do not keep it.

    Args:
        block: Any Gluon block.
        policy: 'float32', or 'low' for low precision in all operators. 'mixed_float16' or 'mixed_bfloat16' let the
            net's own policy decide by operator, within a block that is float32. The net's policy must have that dtype.
            None takes the precision away.

    Returns:
        The same block.

    Raises:
        ConvertError: If ``block`` is no block.
        PolicyError: If the policy has fields that cannot hold for one block only.
    """
    if not isinstance(block, gluon.Block):
        raise ConvertError(f"set_policy: expected a Gluon block, found {type(block).__name__}.")
    if policy is None:
        vars(block).pop(_NOTE, None)
    elif policy == LOW:
        vars(block)[_NOTE] = LOW, None
    else:
        dtype = _dtype(block, Policy.parse(policy))
        vars(block)[_NOTE] = (dtype, None) if dtype == dtypes.FLOAT32 else (AS_POLICY, dtype)
    return block


def _dtype(block: gluon.Block, policy: Policy) -> str:
    """Return the compute dtype of a block's policy; raise a PolicyError if the policy has other settings."""
    plain = Policy(compute_dtype=policy.compute_dtype)
    for field in (each for each in dataclasses.fields(Policy) if each.compare):
        value = getattr(policy, field.name)
        # The named policies have 'dynamic', which only a trainer reads.
        if value != getattr(plain, field.name) and (field.name, value) != ("loss_scale", "dynamic"):
            raise PolicyError(
                f"set_policy: block '{block.name}': {field.name}={value!r} cannot be set for one block; give "
                f"'float32', 'mixed_float16', 'mixed_bfloat16' or 'low', and {field.name} to the net's policy."
            )
    return policy.compute_dtype


def require_dtype(net: gluon.Block, policy: Policy) -> None:
    """Raise a PolicyError if `set_policy` gave a block in a net another dtype than the net's policy has."""
    for block in blocks_in(net):
        _, dtype = vars(block).get(_NOTE, (None, None))
        if dtype not in (None, policy.compute_dtype):
            raise PolicyError(
                f"block '{block.name}': set_policy gave it compute_dtype={dtype!r}, but the net's policy has "
                f"{policy.compute_dtype!r}; convert the net with 'mixed_{dtype}', or call set_policy again."
            )


def find_regions(net: gluon.Block, policy: Policy) -> BlockRegions:
    """Return the marks of the operators in the blocks of a net, from `set_policy` and from the policy's ``blocks``.

    A block in two places has the marks that both places have. When it is called, it gets its caller's marks too.
    """
    paths: Dict[gluon.Block, List[str]] = {net: []}
    for path, block in paths_in(net).items():
        paths.setdefault(block, []).append(path)
    marks_by_block: Dict[gluon.Block, Tuple[str, ...]] = {}
    waiting: List[Tuple[gluon.Block, Tuple[str, ...]]] = [(net, ())]
    while waiting:
        block, outer_marks = waiting.pop()
        marks = _joined(outer_marks, _own_marks(block, paths[block], policy))
        marks_before = marks_by_block.get(block, marks)
        common_marks = tuple(mark for mark in marks_before if mark in marks)
        if block not in marks_by_block or common_marks != marks_before:
            marks_by_block[block] = common_marks
            waiting += [(child, common_marks) for child in children(block)]
    return {block: marks for block, marks in marks_by_block.items() if marks}


def _own_marks(block: gluon.Block, paths: Sequence[str], policy: Policy) -> List[str]:
    """Return the marks of one block, the strongest last: the longest pattern, then that of `set_policy`."""
    names = [*paths, block.prefix, block.prefix.rstrip("_")]
    matching = [pair for pair in policy.blocks if any(name and fnmatchcase(name, pair[0]) for name in names)]
    marks = [key for key, _ in sorted(matching, key=by_length)]
    if _NOTE in vars(block):
        name = re.sub("[,=]", "?", paths[0] if paths else block.name)
        marks.append(f"{name}={vars(block)[_NOTE][0]}")
    return marks


def _joined(outer_marks: Sequence[str], marks: Sequence[str]) -> Tuple[str, ...]:
    return (*outer_marks, *(mark for mark in marks if mark not in outer_marks))


@contextlib.contextmanager
def entered(net: gluon.HybridBlock, regions: BlockRegions) -> Iterator[None]:
    """Mark the operators of a net and of the blocks in it while the net is traced within this context.

    Each block marks in its ``forward`` and ``unroll``: a parent may call the inner blocks of a block that has marks.
    """
    kept: List[Tuple[gluon.Block, str, Any]] = []
    parts = [block for block in blocks_in(net)[1:] if block in regions or isinstance(block, gluon.SymbolBlock)]

    def put_back() -> None:
        for block, name, method in kept:
            vars(block).pop(name, None)
            if method is not None:
                vars(block)[name] = method

    with undone(put_back), _marked(regions.get(net, ())):
        for block in parts:
            for name in _ENTRANCES:
                if hasattr(block, name):
                    kept.append((block, name, vars(block).get(name)))
                    vars(block)[name] = _marking(block, name, regions.get(block, ()))
        yield


def _marking(block: gluon.Block, name: str, marks: Sequence[str]) -> Callable[..., Any]:
    method = getattr(block, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _marked(marks), _source_in_region(block):
            return method(*args, **kwargs)

    return run


@contextlib.contextmanager
def _marked(marks: Sequence[str]) -> Iterator[None]:
    """Mark the operators made within this context; marks of `set_policy` end the region around them."""
    text = _current_mark(BLOCKS_ATTR)
    outer_marks = text.split(",") if text else []
    all_marks = _joined(outer_marks, marks)
    changes: Dict[str, Optional[str]] = {BLOCKS_ATTR: ",".join(all_marks) or None}
    if any("=" in mark for mark in all_marks[len(outer_marks) :]):
        changes[PRECISION_ATTR] = None
    with _Scope(changes):
        yield


@contextlib.contextmanager
def _source_in_region(block: gluon.Block) -> Iterator[None]:
    """Within this context have the operators of a SymbolBlock, which exist already, marked for the current region."""
    if not isinstance(block, gluon.SymbolBlock):
        yield
        return
    inputs, symbol = source = block._cached_graph
    block._cached_graph = (inputs, in_current_region(symbol))
    try:
        yield
    finally:
        block._cached_graph = source


def in_current_region(symbol: Any) -> mx.sym.Symbol:
    """Return a symbol whose operators without marks get the marks of the current region and blocks."""
    marks = {key: mark for key in (PRECISION_ATTR, BLOCKS_ATTR) for mark in [_current_mark(key)] if mark is not None}
    return from_graph(_within(to_graph(symbol), marks), symbol) if marks else symbol


def _within(graph: Graph, attrs: Dict[str, str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        if not node.is_variable and node.op != CUSTOM:
            node = node.with_attrs({key: value for key, value in attrs.items() if node.get(key) is None})
        bodies = tuple(_within(body, attrs) for body in node.subgraphs)
        nodes.append(node._replace(subgraphs=bodies))
    return dataclasses.replace(graph, nodes=tuple(nodes))
