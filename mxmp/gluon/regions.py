"""``precision`` around code, ``set_policy`` for blocks, and traces whose operators are marked with both."""

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

    Within ``hybrid_forward`` it marks the operators that are created inside, which conversion reads;
    it overrules every other setting of the policy. Around the call of a converted net it holds for
    that call: the net has a graph for each kind of region. Regions nest, and the innermost decides.
    Each thread has its own. One object may be entered again and again, also within itself. It changes
    nothing where nothing is converted. A net that is not converted, but hybridized, keeps for its
    converted blocks the region that it was first called in.

    In a float32 region a converted net whose operators are then all float32, parameters included
    (no 'O2'), is run under ``autograd.record`` as it was written, operator by operator: MXNet has no
    second derivatives through casts and cached graphs. So a gradient penalty trains::

        with autograd.record():
            with mxmp.gluon.precision("float32"):
                score = critic(x)
                (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
                loss = criterion(score) + slope.square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    MXNet 1.9.1 has second derivatives for few operators: ``batch_dot``, ``elemwise_add``, adding a scalar,
    ``transpose`` and functions of one array (``tanh``, ``sigmoid``, ``exp``, ``log``, ``sqrt``, ``square``, ``abs``,
    ``sin``, ...). A cached graph has none, and so a hybridized or converted net outside of such a region; nor has
    Convolution. Those of FullyConnected are right in the last layer alone, likewise of Dropout and clip
    (FullyConnectedGradGradCompute in src/operator/nn/fully_connected-inl.h fills a part with 0); those of relu can end
    the process.

    Leave regions in the reverse order, with no ``yield`` or ``await`` inside: the code that runs meanwhile would be in
    the region too. A function that is decorated must run when it is called: no generator, no coroutine.

    Args:
        dtype: 'float32'; 'low' for the policy's compute dtype, or that dtype by name (which is an
            error under a policy with another one); or 'policy', where the policy decides again as
            outside of any region.

    Raises:
        DtypeError: If it is no dtype.
        PolicyError: If it is another dtype than these, or the decorated function is a generator or coroutine.

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
                f"precision({self._region!r}): {name!r} is a generator or coroutine function, which runs late; "
                "open the region within it, with no yield or await inside."
            )
        return super().__call__(func)


class _Scope(mx.AttrScope):
    """A scope of MXNet, which marks the symbols that are made in it; None takes a mark of the scopes around away."""

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

    MXNet copies them into each scope within (AttrScope in python/mxnet/attribute.py), and from there into the arguments
    of the function that makes a symbol, which asks for the keys.
    """

    def copy(self) -> _ScopeAttrs:
        """Return the attributes for a scope within this one, or for a symbol."""
        return _ScopeAttrs(self)

    def __iter__(self) -> Iterator[str]:  # only a dict with its own iterator is asked for its keys when it is copied
        return iter(self.keys())

    def keys(self) -> Any:
        """Return the names of the attributes that the caller may see."""
        if sys._getframe(1).f_code.co_name != CUSTOM:
            return super().keys()
        return {key: "" for key in super().keys() if key not in (PRECISION_ATTR, BLOCKS_ATTR)}.keys()


def _current_mark(key: str) -> Optional[str]:
    """Return an attribute that operators get which this thread makes now, None if they do not get it."""
    scope = getattr(mx.AttrScope._current, "value", None)
    return None if scope is None else scope._attr.get(key)


def current_region() -> Optional[str]:
    """Return the precision of the innermost region, None outside of regions."""
    return _current_mark(PRECISION_ATTR)


@contextlib.contextmanager
def scopes_kept() -> Iterator[None]:
    """Be in the present scopes of MXNet, and so in the present region, after this context, whatever interrupts it."""
    innermost = mx.AttrScope._current, mx.name.NameManager._current, _BlockScope._current  # each thread's
    scopes = [(local, dict(vars(local))) for local in innermost]

    def put_back() -> None:
        for local, values in scopes:
            vars(local).clear()
            vars(local).update(values)

    with undone(put_back):
        yield


@contextlib.contextmanager
def outside_regions() -> Iterator[None]:
    """Be in no region that the user may be in within this context."""
    with scopes_kept(), precision(AS_POLICY):
        yield


_NOTE = "_mxmp_block_policy"
"""Attribute of a block: the precision that `set_policy` gave it, and the compute dtype with it, None for any."""

_ENTRANCES = ("forward", "unroll")  # through which a block is entered, whoever calls it

BlockRegions = Mapping[gluon.Block, Tuple[str, ...]]
"""The marks of the operators in blocks; the outermost first, as ``BLOCKS_ATTR`` has them."""


def set_policy(block: gluon.Block, policy: Union[None, str, Policy]) -> gluon.Block:
    """Give a block a precision of its own within the net that it is part of, as Keras gives one to a layer.

    It is an override of the policy for all within the block, as ``blocks=`` gives one by name: the innermost block
    decides, a pattern of ``names=`` overrules it, and so does a ``precision`` region within ``hybrid_forward``. It
    holds from the next ``convert`` of the block or of a net around it on; call ``convert`` again if the net is
    converted already. The last layer in float32: ``set_policy(net.output, "float32")``. It holds for the block's call
    and, of a recurrent cell, for ``unroll``; operators of its other methods have the precision of their caller.
    Exported files do not hold it.

    Args:
        block: Any Gluon block.
        policy: 'float32'; 'mixed_float16' or 'mixed_bfloat16', for the precision that the net's own policy decides
            by operator, which must be of that dtype (within a block that is float32); 'low' for low precision
            whatever the operators need; or None to take it away.

    Returns:
        The same block.

    Raises:
        ConvertError: If it is no block.
        PolicyError: If the policy has fields that cannot hold for one block alone.
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
    """Return a policy's compute dtype, the one thing that a block can have for itself."""
    plain = Policy(compute_dtype=policy.compute_dtype)
    for field in (each for each in dataclasses.fields(Policy) if each.compare):
        value = getattr(policy, field.name)
        # 'dynamic' stands in the policies that are known by name; a trainer reads it, no block.
        if value != getattr(plain, field.name) and (field.name, value) != ("loss_scale", "dynamic"):
            raise PolicyError(
                f"set_policy: block '{block.name}': {field.name}={value!r} cannot hold for one block alone; give "
                f"'float32', 'mixed_float16', 'mixed_bfloat16' or 'low', and {field.name} to the net's policy."
            )
    return policy.compute_dtype


def require_dtype(net: gluon.Block, policy: Policy) -> None:
    """Raise a PolicyError that names a block in a net if `set_policy` gave it another dtype than the policy has."""
    for block in blocks_in(net):
        _, dtype = vars(block).get(_NOTE, (None, None))
        if dtype not in (None, policy.compute_dtype):
            raise PolicyError(
                f"block '{block.name}': set_policy gave it compute_dtype={dtype!r}, but the net's policy has "
                f"{policy.compute_dtype!r}; convert the net with 'mixed_{dtype}', or call set_policy again."
            )


def find_regions(net: gluon.Block, policy: Policy) -> BlockRegions:
    """Return the marks of the operators in the blocks of a net: what `set_policy` and the policy say of their blocks.

    A block that stands in two places has the marks that both have. Where it is called it gets those of the caller too.
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
    """Return what is said of one block, the strongest last: the longest pattern, and what `set_policy` gave it."""
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
    """Have the operators of a net and of the blocks in it marked where the net is traced within this context.

    A block is entered through ``forward`` or ``unroll``, whoever calls it: a parent may call the blocks
    within one that has a policy of its own.
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
    """Mark the operators that are made within this context; where `set_policy` says so, in no region around it."""
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
    """Put the operators of a SymbolBlock, which exist already, in the current region within this context."""
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
    """Return a symbol with the operators that have no marks marked as those that are made here."""
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
