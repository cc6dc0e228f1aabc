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
from typing import AbstractSet, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...graph.core import make_attrs
from ...processors import Kind
from ...rules.conditions import flag_of, sizes_of, value_of
from ..base import device_attrs, insert_next_to, sweep
from ..facts import CAST_OPS, Facts, Shape
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


class _Form:
    """Which channels of a tensor are old ones, and which are zeros. In this base class all are old."""

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def groups(self) -> Iterator[_Group]:
        """Yield the groups that the form is made of."""
        yield from ()

    def count(self) -> int:
        """Return the number of channels, added ones included."""
        return self.channels

    def indices(self) -> List[int]:
        """Return the number of each channel among the old ones, -1 for zeros."""
        return list(range(self.channels))


class _Group(_Form):
    """Tensors that must have one form, because operators carry it from one to the other or add them up.

    Attributes:
        makers: The positions of the convolutions that give them.
        multiple: Of this should their number of channels be a multiple.
        is_fixed: Whether it cannot change.
    """

    def __init__(self, channels: int, maker: int) -> None:
        super().__init__(channels)
        self.makers, self.multiple, self.is_fixed = [maker], 1, False
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

    def groups(self) -> Iterator[_Group]:
        yield self.root()

    def count(self) -> int:
        group = self.root()
        return self.channels + (0 if group.is_fixed else -self.channels % group.multiple)

    def indices(self) -> List[int]:
        return [*range(self.channels), *[-1] * (self.count() - self.channels)]


class _Concat(_Form):
    """The form of a concatenation."""

    def __init__(self, parts: Sequence[_Form]) -> None:
        super().__init__(sum(part.channels for part in parts))
        # Flat, because networks like DenseNet concatenate concatenations, hundreds of times.
        self.parts: List[_Form] = []
        for part in parts:
            self.parts += part.parts if isinstance(part, _Concat) else [part]

    def groups(self) -> Iterator[_Group]:
        for part in self.parts:
            yield from part.groups()

    def count(self) -> int:
        return sum(part.count() for part in self.parts)

    def indices(self) -> List[int]:
        indices, start = [], 0
        for part in self.parts:
            indices += [index if index < 0 else index + start for index in part.indices()]
            start += part.channels
        return indices


class _Flat(_Form):
    """The form of a flattened tensor, each channel of which has ``inner`` elements."""

    def __init__(self, form: _Form, inner: int) -> None:
        super().__init__(form.channels * inner)
        self.form, self.inner = form, inner

    def groups(self) -> Iterator[_Group]:
        return self.form.groups()

    def count(self) -> int:
        return self.form.count() * self.inner

    def indices(self) -> List[int]:
        inner = range(self.inner)
        return [-1 if index < 0 else index * self.inner + k for index in self.form.indices() for k in inner]


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
    cuts: Dict[int, _Form] = field(default_factory=dict)  # outputs that are cut, by position

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
        elif node.op in _SUMS and isinstance(forms[0], _Group) and isinstance(forms[1], _Group):
            forms[0].join(forms[1])
            self.forms[position, 0] = forms[0]
        elif node.op == "Concat" and value_of(dict(node.attrs), "dim") in (None, 1) and any(forms):
            sizes = [self.facts.shape(entry) for entry in node.inputs]
            if all(size is not None and len(size) == 4 for size in sizes):
                self.forms[position, 0] = _Concat(
                    [form or _Form(size[1]) for form, size in zip(forms, sizes) if size is not None]
                )
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
        if groups > 1 and (groups != filters or form is None or form.channels != filters):
            _fix([form])
            return
        if groups > 1:
            assert form is not None
            self.depthwise.append((position, form))
            self.forms[position, 0] = form
            for group in form.groups():
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
            self.forms[position, 0] = made

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
        if node.op == "Flatten" and (position == head.node or position not in self.heads):
            entry, alone = node.inputs[0], len(self.readers.get((position, 0), ())) == (position != head.node)
        else:
            entry, alone = head, True
        whole, shape = self.forms.get(entry.key), self.facts.shape(entry)
        if alone and isinstance(whole, _Group) and shape is not None and math.prod(shape[2:]) == 1:
            self.cuts[position if entry is not head else head.node] = whole
        else:
            _fix([form])

    def _flattened(self, entry: Entry, form: _Form, flattens: bool) -> Optional[_Form]:
        """Return the form of a tensor as a dense layer or Flatten reads it; None if it is not known."""
        shape = self.facts.shape(entry)
        if shape is None or not flattens and len(shape) != 2:
            return None
        return _Flat(form, math.prod(shape[2:])) if len(shape) > 2 else form

    def _params(self, node: Node) -> Optional[List[str]]:
        return params_of(self.graph, self.readers, self.heads, node)

    def _widen(self, form: _Form) -> bool:
        """Raise the channels of a layer's data to a multiple; return whether that changed a group."""
        if not form.count() % self.want.in_channels:
            return False
        groups = [(group, group.multiple) for group in form.groups() if group.multiple < self.want.in_channels]
        for group, _ in groups:
            group.multiple = self.want.in_channels
        if form.count() % self.want.in_channels:  # a part that cannot change: nothing would be gained
            for group, multiple in groups:
                group.multiple = multiple
            return False
        return any(not group.is_fixed for group, _ in groups)

    def fit(self) -> Fit:
        """Return the network with the channels that the forms want."""
        while any([self._widen(form) for _, form, start in self.reads if form.channels >= start]):
            pass  # what one layer wants may be a part of what another reads
        attrs: Dict[int, Dict[str, Optional[str]]] = {}
        params: List[Taken] = []
        layers: List[str] = []
        groups = {id(group): group for form in self.forms.values() for group in form.groups()}
        for group in groups.values():
            indices = group.indices()
            for maker in group.makers if len(indices) > group.channels else ():
                node = self.graph.nodes[maker]
                params += [Taken(name, 0, tuple(indices)) for name in self._params(node) or ()]
                attrs[maker] = {"num_filter": str(len(indices))}
                layers.append(node.name)
        for position, form in self.depthwise:
            indices = form.indices()
            if len(indices) > form.channels:
                params += [Taken(name, 0, tuple(indices)) for name in self._params(self.graph.nodes[position]) or ()]
                attrs[position] = dict.fromkeys(("num_filter", "num_group"), str(len(indices)))
        for position, form, _ in self.reads:
            indices = form.indices()
            if len(indices) > form.channels:
                weight = (self._params(self.graph.nodes[position]) or [""])[0]
                params.append(Taken(weight, 1, tuple(indices)))
        if not params:
            return Fit(self.graph)
        return Fit(self._edited(attrs, {param.name for param in params}), tuple(params), tuple(layers))

    def _edited(self, attrs: Dict[int, Dict[str, Optional[str]]], changed: Set[str]) -> Graph:
        cuts = {position: form for position, form in self.cuts.items() if form.count() > form.channels}

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            if node.is_variable and node.name in changed:
                return node.with_attrs({"__shape__": None})
            if position in cuts and node.op == "Flatten":
                cut = {"axis": "1", "begin": "0", "end": str(cuts[position].channels)}
                return node.rewired((insert_next_to(builder, node, "slice_axis", "cut", *node.inputs, **cut),))
            if position in cuts:
                node = node._replace(name=builder.unique(f"{node.name}_padded"))
            return node.with_attrs(attrs[position]) if position in attrs else node

        def heads(builder: GraphBuilder) -> List[Entry]:
            made: Dict[int, Entry] = {}
            for position, form in cuts.items():
                old = self.graph.nodes[position]
                if old.op == "Flatten":
                    continue
                cut = {"axis": "1", "begin": "0", "end": str(form.channels), **device_attrs(old)}
                node = Node("slice_axis", old.name, make_attrs(cut), (builder.mapped(Entry(position)),))
                made[position] = Entry(builder.add(node))
            return [made[head.node] if head.node in made else builder.mapped(head) for head in self.graph.heads]

        return sweep(self.graph, visit, heads=heads)


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
        for group in form.groups() if form is not None else ():
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
