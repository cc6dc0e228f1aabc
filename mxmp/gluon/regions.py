"""Regions of precision: ``precision`` around code, ``set_policy`` for blocks, and traces of blocks in their own."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import warnings
from contextvars import ContextVar
from fnmatch import fnmatchcase
from types import FrameType
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, DtypeError, PolicyError
from ..graph import Graph
from ..mxnet_private import attr_scope, blocks, leave_attr_scope, put_scopes_back, scope_attrs, thread_scopes
from ..passes.attributes import CUSTOM, PRECISION_ATTR
from ..passes.decide import LOW
from ..policy import BLOCKS_ATTR, Policy
from ..symbol import from_graph, to_graph
from .blocks import blocks_in, paths_in, undone

POLICY = "policy"  # where the net's policy decides, as outside of all regions

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Own = TypeVar("_Own")
_LAZY = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_FORWARD = frozenset({"forward", "hybrid_forward"})
_KNOWN = (dtypes.FLOAT32, LOW, POLICY, *dtypes.LOW_PRECISION)


class precision(contextlib.ContextDecorator):
    """A region whose operators run in float32, or in low precision: for ``with``, or as a decorator.

    Within ``hybrid_forward`` it marks the operators that are created inside, which conversion reads;
    it overrules every other setting of the policy. Around the call of a converted net it holds for
    that call: the net has a graph for each kind of region. Regions nest, and the innermost decides.
    One object may be entered again and again, also within itself. It changes nothing where
    nothing is converted. A net that is not converted, but hybridized, keeps for its converted blocks the
    region that it was first called in.

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

    A function that is decorated must run when it is called: no generator, no coroutine.

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
            name = dtype if dtype in (LOW, POLICY) else dtypes.canonical(dtype)
        except DtypeError as e:
            text = f"precision({dtype!r}): unknown dtype {dtype!r}; expected one of {', '.join(_KNOWN)}."
            raise DtypeError(text) from e
        if name not in _KNOWN:
            raise PolicyError(f"precision({dtype!r}): expected one of {', '.join(_KNOWN)}.")
        self._region = name

    def __enter__(self) -> precision:
        # A scope for each entry, so that this object has no state.
        scope = _Scope(_CURRENT.get(), None if self._region == POLICY else self._region, self)
        scope.__enter__()
        attrs = _ScopeAttrs(scope_attrs(scope))  # its own copy of the attributes of the outer scopes
        attrs.pop(PRECISION_ATTR, None)
        if scope.region is not None:
            attrs[PRECISION_ATTR] = scope.region
        scope_attrs.set(scope, attrs)
        _CURRENT.set(scope)
        return self

    def __exit__(self, kind: Any, error: Any, stack: Any) -> None:
        inner, scope = None, _CURRENT.get()
        while scope is not None and scope.entry is not self:  # a generator may end within a region of its caller's
            inner, scope = scope, scope.outer
        if scope is None:
            raise PolicyError(
                f"precision({self._region!r}): it is left in another thread, task or generator than it was entered in; "
                "open and close a region in the same function, with no yield or await inside."
            )
        if inner is None:
            _CURRENT.set(scope.outer)
        else:
            inner.outer = scope.outer
        if scope.outer is not None:
            scope.outer.is_used |= scope.is_used
        is_innermost: bool = attr_scope() is scope
        if is_innermost:
            leave_attr_scope(kind, error, stack)
        else:  # a coroutine that ran meanwhile is in a region, whose scope goes back to this one
            scope_attrs(scope).pop(PRECISION_ATTR, None)
        if not scope.is_used and kind is None and scope.region is not None and not _in_forward(sys._getframe(1)):
            warnings.warn(
                f"precision({self._region!r}): no converted net was called within this region, and no symbol made, so "
                "that it changed nothing; convert the net first: mxmp.gluon.convert(net, policy).",
                stacklevel=2,
            )

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
    """One entry of a region. As MXNet's own scope it marks the symbols that are made in it.

    MXNet has one scope for each thread; the region of calls is in a context variable, which coroutines have of their
    own too.
    """

    def __init__(self, outer: Optional[_Scope], region: Optional[str], entry: Optional[precision]) -> None:
        super().__init__()
        self.outer, self.region, self.entry, self.is_used = outer, region, entry, False

    def get(self, attr: Any) -> Any:
        """Return the attributes of a symbol that is made."""
        self.is_used = True
        return super().get(attr)


class _ScopeAttrs(Dict[str, str]):
    """The attributes that a scope sets; the function that makes a ``Custom`` operator does not see the region's.

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


_CURRENT: ContextVar[Optional[_Scope]] = ContextVar("mxmp_precision", default=None)


def current_region() -> Optional[str]:
    """Return the precision of the innermost region, None outside of regions; who asks uses it."""
    scope = _CURRENT.get()
    if scope is None:
        return None
    scope.is_used = True
    return scope.region


@contextlib.contextmanager
def scopes_kept() -> Iterator[None]:
    """Be in the present region and scopes of MXNet again after this context, whatever interrupts it."""
    region, scopes = _CURRENT.get(), thread_scopes()

    def put_back() -> None:
        _CURRENT.set(region)
        put_scopes_back(scopes)

    with undone(put_back):
        yield


@contextlib.contextmanager
def outside_regions() -> Iterator[None]:
    """Be in no region that the user may be in within this context."""
    with scopes_kept(), precision(POLICY):
        yield


def _in_forward(frame: Optional[FrameType]) -> bool:
    """Return whether code is within the ``forward`` of a block, which may not be converted yet."""
    while frame is not None:
        if frame.f_code.co_name in _FORWARD:
            return True
        frame = frame.f_back
    return False


_ATTRIBUTE = "_mxmp_policy"
_ENTRANCES = ("forward", "unroll")  # through which a block is entered, whoever calls it


class BlockRegion(NamedTuple):
    """The region that a block runs in, its own or that of the nearest block around it."""

    region: str  # as for `precision`
    dtype: Optional[str]  # the compute dtype that it was given with, None for any
    owner: int  # the id of the block that it was given to
    name: str  # of that block


class BlockRegions(NamedTuple):
    """How the blocks of a net run, by the blocks' ids; those for which nothing is said are left out.

    Attributes:
        given: The regions that `set_policy` gave.
        named: The patterns of the net's policy that name a block, or one around it, by its path; joined by commas.
    """

    given: Dict[int, BlockRegion]
    named: Dict[int, str]


def set_policy(block: gluon.Block, policy: Union[None, str, Policy]) -> gluon.Block:
    """Give a block a precision of its own within the net that it is part of, as Keras gives one to a layer.

    It holds for all within the block, except blocks with one of their own, from the next ``convert`` of the
    block or of a net around it on; call ``convert`` again if the net is converted already. A
    ``precision`` region within ``hybrid_forward`` overrules it. The last layer in float32:
    ``set_policy(net.output, "float32")``. It holds for the block's call and, of a recurrent cell,
    for ``unroll``; operators of its other methods have the precision of their caller.

    Args:
        block: Any Gluon block.
        policy: 'float32'; 'mixed_float16' or 'mixed_bfloat16', for the precision that the net's own policy decides,
            which must be of that dtype (within a block that is float32); 'low' for low precision
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
        vars(block).pop(_ATTRIBUTE, None)
    elif policy == LOW:
        vars(block)[_ATTRIBUTE] = LOW, None
    else:
        dtype = _dtype(block, Policy.parse(policy))
        vars(block)[_ATTRIBUTE] = (dtype, None) if dtype == dtypes.FLOAT32 else (POLICY, dtype)
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


def find_regions(net: gluon.Block, policy: Policy) -> BlockRegions:
    """Return the regions of a net's blocks, and which of them a policy names by their paths."""

    def own_region(block: gluon.Block, inherited: Optional[BlockRegion]) -> Optional[BlockRegion]:
        given = vars(block).get(_ATTRIBUTE)
        return inherited if given is None else BlockRegion(given[0], given[1], id(block), block.name)

    return BlockRegions(_handed_down(net, own_region), find_named(net, policy))


def find_named(net: gluon.Block, policy: Policy) -> Dict[int, str]:
    """Return which blocks of a net a policy names by the paths to them, as `BlockRegions`."""
    names: Dict[int, FrozenSet[str]] = {}
    for path, block in paths_in(net).items() if policy.blocks else ():
        matching = frozenset(pattern for pattern, _ in policy.blocks if fnmatchcase(path, pattern))
        names[id(block)] = names.get(id(block), frozenset()) | matching

    def own_names(block: gluon.Block, inherited: Optional[FrozenSet[str]]) -> Optional[FrozenSet[str]]:
        return (inherited or frozenset()) | names.get(id(block), frozenset()) or None

    return {number: ",".join(sorted(own)) for number, own in _handed_down(net, own_names).items()}


def _handed_down(net: gluon.Block, own_of: Callable[[gluon.Block, Optional[_Own]], Optional[_Own]]) -> Dict[int, _Own]:
    """Return the values that blocks have of their own or from those around them, by the blocks' ids.

    A block that gets different ones from different blocks has none: what calls it decides.
    """
    found: Dict[int, Set[Optional[_Own]]] = {}
    waiting: List[Tuple[gluon.Block, Optional[_Own]]] = [(net, None)]
    while waiting:
        block, inherited = waiting.pop()
        own = own_of(block, inherited)
        if own not in found.setdefault(id(block), set()):
            found[id(block)].add(own)
            waiting += [(child, own) for child in reversed(blocks.children(block))]
    agreed = {number: next(iter(values)) for number, values in found.items() if len(values) == 1}
    return {number: own for number, own in agreed.items() if own is not None}


def check_regions(regions: BlockRegions, policy: Policy) -> None:
    """Raise a PolicyError that names the first block whose region asks for another low precision dtype."""
    for own in regions.given.values():
        if own.dtype not in (None, policy.compute_dtype):
            raise PolicyError(
                f"block '{own.name}': set_policy gave it compute_dtype={own.dtype!r}, but the net's policy has "
                f"{policy.compute_dtype!r}; convert the net with 'mixed_{own.dtype}', or call set_policy again."
            )


@contextlib.contextmanager
def entered(net: gluon.HybridBlock, regions: BlockRegions) -> Iterator[None]:
    """Trace a net and the blocks in it in their own regions within this context.

    A block is entered through ``forward`` or ``unroll``, whoever calls it: a parent may call the blocks
    within one that has a region. What that block itself calls is in its region already.
    """
    inside: List[int] = []
    kept: List[Tuple[gluon.Block, str, Any]] = []
    known = {*regions.given, *regions.named}
    parts = [block for block in blocks_in(net)[1:] if id(block) in known or isinstance(block, gluon.SymbolBlock)]

    def put_back() -> None:
        for block, name, given in kept:
            vars(block).pop(name, None)
            if given is not None:
                vars(block)[name] = given

    with undone(put_back), _entered(regions.given.get(id(net)), inside), _named(regions.named.get(id(net))):
        for block in parts:
            for name in _ENTRANCES:
                if hasattr(block, name):
                    kept.append((block, name, vars(block).get(name)))
                    vars(block)[name] = _within_region(block, name, regions, inside)
        yield


def _within_region(block: gluon.Block, name: str, regions: BlockRegions, inside: List[int]) -> Callable[..., Any]:
    method, own, patterns = getattr(block, name), regions.given.get(id(block)), regions.named.get(id(block))

    def run(*args: Any, **kwargs: Any) -> Any:
        with _entered(own, inside), _named(patterns), _source_in_region(block):
            return method(*args, **kwargs)

    return run


@contextlib.contextmanager
def _entered(own: Optional[BlockRegion], inside: List[int]) -> Iterator[None]:
    """Enter a region unless its block is being traced already; its id is in ``inside`` then."""
    if own is None or own.owner in inside:
        yield
        return
    inside.append(own.owner)
    try:
        with precision(own.region):
            yield
    finally:
        inside.pop()


@contextlib.contextmanager
def _named(patterns: Optional[str]) -> Iterator[None]:
    """Mark the symbols that are made within this context with the patterns that name their block, if any do."""
    if patterns is None:
        yield
        return
    with _Scope(_CURRENT.get(), None, None) as scope:
        scope_attrs(scope)[BLOCKS_ATTR] = patterns
        yield


def _current_attrs() -> Dict[str, str]:
    """Return the marks of operators that are made here."""
    scope, region = attr_scope(), current_region()
    patterns = None if scope is None else scope_attrs(scope).get(BLOCKS_ATTR)
    return {key: mark for key, mark in ((PRECISION_ATTR, region), (BLOCKS_ATTR, patterns)) if mark is not None}


@contextlib.contextmanager
def _source_in_region(block: gluon.Block) -> Iterator[None]:
    """Put the operators of a SymbolBlock, which exist already, in the current region within this context."""
    if not isinstance(block, gluon.SymbolBlock) or not _current_attrs():
        yield
        return
    inputs, symbol = source = blocks.cached_graph(block)
    blocks.cached_graph.set(block, (inputs, in_current_region(symbol)))
    try:
        yield
    finally:
        blocks.cached_graph.set(block, source)


def in_current_region(symbol: Any) -> mx.sym.Symbol:
    """Return a symbol with the operators that are in no region put in the current one."""
    attrs = _current_attrs()
    return from_graph(_within(to_graph(symbol), attrs), symbol) if attrs else symbol


def _within(graph: Graph, attrs: Dict[str, str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        if not node.is_variable and node.op != CUSTOM:
            node = node.with_attrs({key: value for key, value in attrs.items() if node.get(key) is None})
        bodies = tuple(_within(body, attrs) for body in node.subgraphs)
        nodes.append(node._replace(subgraphs=bodies))
    return dataclasses.replace(graph, nodes=tuple(nodes))


def with_blocks(inside: BlockRegions, among: Sequence[gluon.Block]) -> Tuple[List[Any], List[Any]]:
    """Return the regions of a net's blocks with the blocks themselves, since copies have other ids."""
    known = {id(block): block for block in among}
    given = [(known[i], region, known.get(region.owner)) for i, region in inside.given.items() if i in known]
    return given, [(known[i], patterns) for i, patterns in inside.named.items() if i in known]


def by_id(packed: Tuple[List[Any], List[Any]]) -> BlockRegions:
    """Return the regions that `with_blocks` packed, by the ids of the copied blocks."""
    given = {id(block): own if owner is None else own._replace(owner=id(owner)) for block, own, owner in packed[0]}
    return BlockRegions(given, {id(block): patterns for block, patterns in packed[1]})
