"""Channels of zeros in the weights of a network that only infers, where fast kernels want other numbers of channels.

A convolution gets more output channels, whose weights and biases are zero. The operators behind it carry them to layers
that read them with weights of zero. No value changes, except through the order of sums. `find_fit` decides where, by
`kernels.CHANNELS`; a `Taken` says how a parameter is made of the old one.

The *form* of a tensor says which of its channels are old ones and which are zeros. Tensors that are added up have the
form of one `_Group`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import AbstractSet, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...processors import Kind
from ...rules.conditions import flag_of, sizes_of, value_of
from ..base import insert_next_to, sweep
from ..facts import CAST_OPS, Facts, Shape
from ..fold import name_heads
from .kernels import CHANNELS, NEVER, Channels

_CARRY = frozenset({"Activation", "LeakyReLU", "clip", "relu", "_copy", "BlockGrad", "Dropout", "Pooling", *CAST_OPS})
"""Operators that give each channel by itself, and finite values for zeros."""

_SUMS = frozenset({"elemwise_add", "_grad_add"})


class Taken(NamedTuple):
    """A new parameter whose slices along an axis are slices of an old one, by ``indices``; -1 means zeros."""

    name: str
    axis: int
    indices: Tuple[int, ...]


class Fit(NamedTuple):
    """A network with more channels.

    Attributes:
        graph: Its graph.
        params: How its parameters are made of the old ones, one after the other.
        layers: Names of the layers that give more channels.
    """

    graph: Graph
    params: Tuple[Taken, ...] = ()
    layers: Tuple[str, ...] = ()


class _Group:
    """Tensors that must have one form, because operators carry it from one to the other or add them up.

    Attributes:
        channels: The number of their old channels.
        makers: The positions of the convolutions that give them.
        multiple: Of this should their number of channels be a multiple.
        is_fixed: Whether it cannot change.
    """

    def __init__(self, channels: int, maker: int) -> None:
        self.channels, self.makers, self.multiple, self.is_fixed = channels, [maker], 1, False
        self._parent: Optional[_Group] = None

    def root(self) -> _Group:
        """Return the group into which this one was joined, or itself."""
        group = self
        while group._parent is not None:
            group = group._parent
        if group is not self:
            self._parent = group  # so that a chain of sums stays short
        return group

    def join(self, other: _Group) -> None:
        """Make another group a part of this one."""
        mine, others = self.root(), other.root()
        if mine is not others:
            mine.makers += others.makers
            mine.is_fixed |= others.is_fixed
            mine.multiple = max(mine.multiple, others.multiple)
            others._parent = mine

    def added(self) -> int:
        """Return the number of channels of zeros."""
        group = self.root()
        return 0 if group.is_fixed else -group.channels % group.multiple


class _Part(NamedTuple):
    """Neighbouring channels of a tensor: so many old ones, and behind them the zeros that their group has.

    ``inner`` is the number of elements of a channel in a flattened tensor. Channels without a group get no zeros.
    """

    channels: int
    group: Optional[_Group] = None
    inner: int = 1


_Form = Tuple[_Part, ...]
"""Which channels of a tensor are old ones, and which are zeros. A concatenation has several parts."""


def _groups(form: _Form) -> List[_Group]:
    return [part.group.root() for part in form if part.group is not None]


def _channels(form: _Form) -> int:
    """Return the number of old channels; each element of a flattened tensor counts."""
    return sum(part.channels * part.inner for part in form)


def _indices(form: _Form) -> List[int]:
    """Return the number of each channel among the old ones, -1 for zeros."""
    indices: List[int] = []
    start = 0
    for part in form:
        end = start + part.channels * part.inner
        added = part.group.added() if part.group is not None else 0
        indices += [*range(start, end), *[-1] * (added * part.inner)]
        start = end
    return indices


def _single(form: Optional[_Form]) -> Optional[_Group]:
    """Return the group that has all channels of a tensor, None if there is none."""
    return form[0].group if form is not None and len(form) == 1 and form[0].inner == 1 else None


@dataclass
class _Plan:
    """Finds the forms of all tensors of a graph, in one sweep."""

    graph: Graph
    facts: Facts
    want: Channels
    forms: Dict[Key, _Form] = field(default_factory=dict)
    # Layers that read weights: position, form of the data, and from how many channels on these are to be a multiple.
    reads: List[Tuple[int, _Form, int]] = field(default_factory=list)
    depthwise: List[Tuple[int, _Form]] = field(default_factory=list)
    cuts: Dict[int, _Group] = field(default_factory=dict)  # outputs that are cut, by position

    def __post_init__(self) -> None:
        self.readers = self.graph.consumers()
        self.heads = {head.node for head in self.graph.heads}
        for position, node in enumerate(self.graph.nodes):
            if not node.is_variable:
                self._visit(position, node)
        for head in self.graph.heads:
            self._head(head)

    def _visit(self, position: int, node: Node) -> None:
        forms, shape = [self.forms.get(entry.key) for entry in node.inputs], self.facts.shape(Entry(position))
        first, second = map(_single, (*forms, None, None)[:2])
        if node.op == "Convolution" and _is_plain(node) and self._params(node) is not None and shape is not None:
            self._convolution(position, node, forms[0], shape)
        elif node.op == "FullyConnected" and self._params(node) is not None and forms[0] is not None:
            flat = self._flattened(node.inputs[0], forms[0], flag_of(dict(node.attrs), "flatten", True))
            if flat is not None:
                self.reads.append((position, flat, NEVER))
            else:
                _fix(forms)
        elif node.op in _CARRY and forms and forms[0] is not None and _keeps_zeros_finite(node):
            self.forms[position, 0] = forms[0]
        elif node.op in _SUMS and first is not None and second is not None:
            first.join(second)
            self.forms[position, 0] = (_Part(first.channels, first),)
        elif node.op == "Concat" and value_of(dict(node.attrs), "dim") in (None, 1) and any(forms):
            sizes = [self.facts.shape(entry) for entry in node.inputs]
            if all(size is not None and len(size) == 4 for size in sizes):
                parts = (form or (_Part(size[1]),) for form, size in zip(forms, sizes) if size is not None)
                self.forms[position, 0] = tuple(part for form in parts for part in form)
            else:
                _fix(forms)
        elif node.op == "Flatten" and forms[0] is not None:
            flat = self._flattened(node.inputs[0], forms[0], True)
            if flat is not None:
                self.forms[position, 0] = flat
        else:
            _fix(forms)

    def _convolution(self, position: int, node: Node, form: Optional[_Form], shape: Shape) -> None:
        groups, filters = int(node.get("num_group") or 1), int(node.get("num_filter") or 0)
        if groups > 1 and (groups != filters or form is None or _channels(form) != filters):
            _fix([form])
            return
        if groups > 1:
            assert form is not None
            self.depthwise.append((position, form))
            self.forms[position, 0] = form
            for group in _groups(form):
                group.multiple = max(group.multiple, self.want.depthwise if group.channels % self.want.depthwise else 1)
            return
        is_pointwise = set(sizes_of(dict(node.attrs), "kernel")) == {1}
        if form is not None:
            self.reads.append((position, form, self.want.pointwise if is_pointwise else self.want.windows))
        is_low = self.facts.dtype(Entry(position)) == dtypes.BFLOAT16
        if is_low and math.prod(shape[2:]) > 1:
            made = _Group(filters, position)
            if filters % self.want.out_channels and (self.want.out_channels_pointwise or not is_pointwise):
                made.multiple = self.want.out_channels
            self.forms[position, 0] = (_Part(filters, made),)

    def _head(self, head: Entry) -> None:
        """Note that an output is cut where that is free, behind a pooling of whole images. Else fix its channels.

        A flattened output is cut in front of Flatten, because its channels are together there for images of any size.
        """
        form, position = self.forms.get(head.key), head.node
        if form is None:
            return
        while self.graph.nodes[position].op in CAST_OPS and position not in self.heads - {head.node}:
            position = self.graph.nodes[position].inputs[0].node
            if len(self.readers.get((position, 0), ())) != 1:
                break
        node = self.graph.nodes[position]
        is_flat = node.op == "Flatten" and (position == head.node or position not in self.heads)
        entry = node.inputs[0] if is_flat else head
        is_alone = not is_flat or len(self.readers.get((position, 0), ())) == (position != head.node)
        group, shape = _single(self.forms.get(entry.key)), self.facts.shape(entry)
        if is_alone and group is not None and shape is not None and math.prod(shape[2:]) == 1:
            self.cuts[position if is_flat else head.node] = group
        else:
            _fix([form])

    def _flattened(self, entry: Entry, form: _Form, flattens: bool) -> Optional[_Form]:
        """Return the form of a tensor as a dense layer or Flatten reads it; None if it is not known."""
        shape = self.facts.shape(entry)
        if shape is None or not flattens and len(shape) != 2:
            return None
        return tuple(part._replace(inner=math.prod(shape[2:])) for part in form) if len(shape) > 2 else form

    def _params(self, node: Node) -> Optional[List[str]]:
        return params_of(self.graph, self.readers, self.heads, node)

    def _widen(self, form: _Form) -> bool:
        """Raise the channels of a layer's data to a multiple; return whether that changed a group."""
        if not len(_indices(form)) % self.want.in_channels:
            return False
        groups = [(group, group.multiple) for group in _groups(form) if group.multiple < self.want.in_channels]
        for group, _ in groups:
            group.multiple = self.want.in_channels
        if len(_indices(form)) % self.want.in_channels:  # a part that cannot change: nothing would be gained
            for group, multiple in groups:
                group.multiple = multiple
            return False
        return True

    def fit(self) -> Fit:
        """Return the network with the channels that the forms want."""
        while any([self._widen(form) for _, form, start in self.reads if _channels(form) >= start]):
            pass  # what one layer wants may be a part of what another reads
        attrs: Dict[int, Dict[str, Optional[str]]] = {}
        params: List[Taken] = []
        layers: List[str] = []
        groups = {id(group): group for form in self.forms.values() for group in _groups(form)}
        for group in groups.values():
            indices = _indices((_Part(group.channels, group),))
            for maker in group.makers if group.added() else ():
                node = self.graph.nodes[maker]
                params += [Taken(name, 0, tuple(indices)) for name in self._params(node) or ()]
                attrs[maker] = {"num_filter": str(len(indices))}
                layers.append(node.name)
        for position, form in self.depthwise:
            indices = _indices(form)
            if -1 in indices:
                params += [Taken(name, 0, tuple(indices)) for name in self._params(self.graph.nodes[position]) or ()]
                attrs[position] = dict.fromkeys(("num_filter", "num_group"), str(len(indices)))
        for position, form, _ in self.reads:
            indices = _indices(form)
            if -1 in indices:
                weight = (self._params(self.graph.nodes[position]) or [""])[0]
                params.append(Taken(weight, 1, tuple(indices)))
        if not params:
            return Fit(self.graph)
        return Fit(self._edited(attrs, {param.name for param in params}), tuple(params), tuple(layers))

    def _edited(self, attrs: Dict[int, Dict[str, Optional[str]]], changed: Set[str]) -> Graph:
        cuts = {
            position: {"axis": "1", "begin": "0", "end": str(group.channels)}
            for position, group in self.cuts.items()
            if group.added()
        }
        named = {position: cut for position, cut in cuts.items() if self.graph.nodes[position].op != "Flatten"}

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            if node.is_variable and node.name in changed:
                return node.with_attrs({"__shape__": None})
            if position in named:
                node = node._replace(name=builder.unique(f"{node.name}_padded"))
            elif position in cuts:
                cut = insert_next_to(builder, node, "slice_axis", "cut", *node.inputs, **cuts[position])
                return node.rewired((cut,))
            return node.with_attrs(attrs[position]) if position in attrs else node

        return sweep(self.graph, visit, heads=lambda builder: name_heads(self.graph, builder, "slice_axis", named))


def find_fit(graph: Graph, facts: Facts, kind: Kind) -> Fit:
    """Return a converted network that only infers, with the channels that are fast on a kind of processor.

    A graph with bodies of control flow, or of unknown shapes, stays as it is.
    """
    want = CHANNELS.get(kind)
    if want is None or any(node.subgraphs for node in graph.nodes):
        return Fit(graph)
    return _Plan(graph, facts, want).fit()


def params_of(
    graph: Graph, readers: Mapping[Key, Sequence[Tuple[int, int]]], heads: AbstractSet[int], node: Node
) -> Optional[List[str]]:
    """Return the names of a layer's weight and bias; None if something else reads one of them, or it is no variable."""
    names = []
    for entry in node.inputs[1:]:
        source = graph.nodes[entry.node]
        while source.op in CAST_OPS and len(readers[entry.key]) == 1 and entry.node not in heads:
            entry = source.inputs[0]
            source = graph.nodes[entry.node]
        if not source.is_variable or len(readers[entry.key]) != 1 or entry.node in heads:
            return None
        names.append(source.name)
    return names


def _fix(forms: Sequence[Optional[_Form]]) -> None:
    for form in forms:
        for group in _groups(form or ()):
            group.is_fixed = True


def _is_plain(node: Node) -> bool:
    return node.get("layout") in (None, "None", "NCHW") and len(sizes_of(dict(node.attrs), "kernel")) == 2


def _keeps_zeros_finite(node: Node) -> bool:
    """Return whether an operator of `_CARRY` gives something finite for zeros, and has no parameter for channels."""
    if node.op == "LeakyReLU":  # prelu has a parameter for each channel
        return node.get("act_type") not in ("prelu", "rrelu")
    if node.op != "Pooling":
        return True
    return node.get("pool_type") in (None, "max", "avg", "sum") and node.get("layout") in (None, "None", "NCHW")
