"""Networks that only infer: without dropout, and with BatchNorm folded into the layer before it.

For inference BatchNorm is an affine map of each channel, with constants: gamma (x - mean) / sqrt(var + eps) + beta. A
convolution, transposed convolution or dense layer before it whose output nothing else reads computes that by itself,
with other weights and another bias. `find_folds` decides where, without values; a `Fold` says how the new parameters
are computed from the old ones; `FoldBatchNorm` edits the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..graph.core import VARIABLE, make_attrs
from ..rules.conditions import flag_of, sizes_of, value_of
from .base import Pass, device_attrs, replacement, sweep
from .facts import Facts


@dataclass(frozen=True)
class DropDropout(Pass):
    """Removes ``Dropout`` nodes, in bodies of control flow too. Nodes with ``mode='always'`` stay.

    An output of the network keeps its name: an identity gets it. The identity is BlockGrad, because MXNet's subgraph
        backend would take out any other.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph without dropout."""
        dropped: Dict[int, Dict[str, str]] = {position: {} for position in _positions(graph)}

        def visit(_: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
            return node.inputs[0] if position in dropped else node

        return sweep(graph, visit, self.run, lambda builder: name_heads(graph, builder, "BlockGrad", dropped))


def find_dropouts(graph: Graph) -> Tuple[Node, ...]:
    """Return the nodes that `DropDropout` removes, those in bodies too."""
    bodies = (body for node in graph.nodes for body in node.subgraphs)
    return (*(graph.nodes[i] for i in _positions(graph)), *(node for body in bodies for node in find_dropouts(body)))


def _positions(graph: Graph) -> List[int]:
    """Return the positions of dropouts that can be removed: nothing reads their mask or depends on their order."""
    candidates = [i for i, node in enumerate(graph.nodes) if node.op == "Dropout" and node.get("mode") != "always"]
    read, ordered = uses(graph) if candidates else (set(), set())
    return [i for i in candidates if (i, 1) not in read and i not in ordered and not graph.nodes[i].control_deps]


def uses(graph: Graph) -> Tuple[Set[Key], Set[int]]:
    """Return the entries that nodes read or that are outputs, and the nodes that others must run after."""
    read = {entry.key for node in graph.nodes for entry in node.inputs} | {head.key for head in graph.heads}
    return read, {dep for node in graph.nodes for dep in node.control_deps}


def name_heads(
    graph: Graph, builder: GraphBuilder, op: str, attrs: Mapping[int, Mapping[str, str]]
) -> List[Entry]:
    """Return the new outputs of a graph. Outputs of some nodes go through an operator that has the node's name.

    ``attrs`` has its attributes by position of these nodes.
    """
    named: Dict[int, Entry] = {}
    for head in graph.heads:
        if head.node in attrs and head.node not in named:
            node = replacement(graph.nodes[head.node], op, builder.mapped(head), **attrs[head.node])
            named[head.node] = Entry(builder.add(node))
    return [named[head.node] if head.node in named else builder.mapped(head) for head in graph.heads]


_NORMS = {"BatchNorm": "", "BatchNorm_v1": "", "_contrib_SyncBatchNorm": "", "_contrib_BatchNormWithReLU": "relu"}
"""Operators that are folded, with the activation that is left of them."""


class Layer(NamedTuple):
    """An operator that BatchNorm is folded into: the input that is its weight, and MXNet's default of ``no_bias``."""

    weight: int = 1
    no_bias: bool = False


LAYERS = {
    "Convolution": Layer(),
    "Convolution_v1": Layer(),
    "Deconvolution": Layer(no_bias=True),
    "FullyConnected": Layer(),
    "_contrib_DeformableConvolution": Layer(weight=2),
    "_contrib_ModulatedDeformableConvolution": Layer(weight=3),
}


class Statistics(NamedTuple):
    """The names of the parameters of a BatchNorm.

    Attributes:
        gamma: Its factor, None if it is fixed to 1.
        beta: Its shift.
        mean: Its running mean.
        var: Its running variance.
        eps: The number that is added to the variance.
    """

    gamma: Optional[str]
    beta: str
    mean: str
    var: str
    eps: float


def statistics_of(graph: Graph, norm: Node, params: FrozenSet[str]) -> Optional[Statistics]:
    """Return the parameters of a BatchNorm; None unless all are among ``params``."""
    variables, attrs = [graph.nodes[entry.node] for entry in norm.inputs[1:]], dict(norm.attrs)
    if len(variables) != 4 or not all(node.is_variable and node.name in params for node in variables):
        return None
    gamma, beta, mean, var = (variable.name for variable in variables)
    eps = value_of(attrs, "eps")
    is_fixed = flag_of(attrs, "fix_gamma", True)
    return Statistics(None if is_fixed else gamma, beta, mean, var, 1e-3 if eps is None else float(eps))


class Sources(NamedTuple):
    """The names of parameters, and the numbers, from which new weights and biases are computed.

    Attributes:
        weight: The weight before.
        bias: The bias before, None if there was none.
        norm: The parameters of the BatchNorm.
        channels: Number of output channels: the size of all of these but the weight.
        axis: Axis of the weight with the output channels, of one group if it is not 0.
        groups: Number of groups of a transposed convolution. The weight's first axis has the input channels, group by
            group. Each group has output channels of its own.
    """

    weight: str
    bias: Optional[str]
    norm: Statistics
    channels: int
    axis: int = 0
    groups: int = 1

    @property
    def params(self) -> List[str]:
        """The names of the parameters among the sources."""
        names = (self.weight, self.bias, *self.norm[:4])
        return [name for name in names if name is not None]


class Fold(NamedTuple):
    """One BatchNorm that is folded into the layer before it.

    Attributes:
        layer: Position of the layer.
        norm: Position of the BatchNorm.
        weight: Name of the layer's new weight. It is the old weight's name if nothing else reads that.
        bias: Name of the layer's new bias, chosen in the same way.
        sources: The parameters from which both are computed.
    """

    layer: int
    norm: int
    weight: str
    bias: str
    sources: Sources


def find_folds(
    graph: Graph, params: FrozenSet[str], facts: Optional[Facts] = None, left: FrozenSet[int] = frozenset()
) -> Tuple[Fold, ...]:
    """Return the folds of all BatchNorms that can be folded.

    Args:
        graph: A network, without dropout between layers.
        params: Names of its parameters and auxiliary states, whose values are known. Names that the network does not
            have are not given to new parameters.
        facts: Shapes, if known. Without them a dense layer with ``flatten=False`` is folded only if BatchNorm has axis
            -1.
        left: Positions of BatchNorms that are to be left.
    """
    return _Finder(graph, params, facts or Facts({}), left).folds()


def activation_of(norm: Node) -> str:
    """Return the activation that an operator has behind its BatchNorm, '' if it has none."""
    return _NORMS[norm.op]


class _Finder:
    """Finds the folds of one graph, and names for the new parameters."""

    def __init__(self, graph: Graph, params: FrozenSet[str], facts: Facts, left: FrozenSet[int]) -> None:
        self.graph = graph
        self.params = params
        self.facts = facts
        self.left = left
        self.consumers = graph.consumers()
        self.heads = {head.key for head in graph.heads}
        self.read, self.ordered = uses(graph)
        self.taken = {node.name for node in graph.nodes} | params
        self.sources: Dict[int, Sources] = {}  # of the layers that are folded
        self.named: Dict[Sources, Tuple[str, str]] = {}

    def folds(self) -> Tuple[Fold, ...]:
        """Return all folds, in the graph's order."""
        norms: List[Tuple[int, int]] = []
        for position, node in enumerate(self.graph.nodes):
            sources = self._sources_of(position, node) if node.op in _NORMS and position not in self.left else None
            if sources is not None:
                self.sources[node.inputs[0].node] = sources
                norms.append((node.inputs[0].node, position))
        return tuple(Fold(layer, norm, *self._names(layer), self.sources[layer]) for layer, norm in norms)

    def _sources_of(self, position: int, norm: Node) -> Optional[Sources]:
        """Return the sources of new parameters for the layer before a BatchNorm, None if it cannot be folded."""
        data = norm.inputs[0]
        layer = self.graph.nodes[data.node]
        if layer.op not in LAYERS or not self._is_alone(data, position) or not self._is_along_channels(norm, data):
            return None
        port, no_bias = LAYERS[layer.op]
        has_bias = not flag_of(dict(layer.attrs), "no_bias", no_bias)
        variables = [self.graph.nodes[entry.node] for entry in layer.inputs[port : port + 1 + has_bias]]
        statistics = statistics_of(self.graph, norm, self.params)
        is_known = len(variables) == 1 + has_bias and all(n.is_variable and n.name in self.params for n in variables)
        if statistics is None or not is_known:
            return None
        weight, *bias = (variable.name for variable in variables)
        return Sources(weight, bias[0] if bias else None, statistics, *_channels(layer))

    def _is_alone(self, data: Entry, norm: int) -> bool:
        """Return whether only a BatchNorm reads a layer's output, and only its own first output is used."""
        return (
            self.consumers[data.key] == [(norm, 0)]
            and data.key not in self.heads
            and not self.ordered & {data.node, norm}
            and not self.graph.nodes[norm].control_deps
            and not any((norm, index) in self.read for index in range(1, self.graph.nodes[norm].num_outputs))
        )

    def _is_along_channels(self, norm: Node, data: Entry) -> bool:
        """Return whether the axis that a BatchNorm normalizes is that of the layer's output channels."""
        layer, axis = self.graph.nodes[data.node], value_of(dict(norm.attrs), "axis")
        axis = 1 if axis is None else axis
        if layer.op == "FullyConnected":
            shape = self.facts.shape(data)
            rank = 2 if flag_of(dict(layer.attrs), "flatten", True) else len(shape) if shape else 0
            return axis == -1 or (rank > 0 and axis == rank - 1)
        rank = 2 + len(sizes_of(dict(layer.attrs), "kernel"))
        channels = rank - 1 if _is_channels_last(layer) else 1
        return axis in (channels, channels - rank)

    def _names(self, layer: int) -> Tuple[str, str]:
        """Return the names of a layer's new weight and bias, which layers with equal ones share."""
        sources = self.sources[layer]
        if sources not in self.named:
            node = self.graph.nodes[layer]
            port = LAYERS[node.op].weight
            weight = self._name(node, port, sources.weight, f"{node.name}_weight")
            stem = weight[: -len("weight")] if weight.endswith("weight") else f"{node.name}_"
            self.named[sources] = weight, self._name(node, port + 1, sources.bias, f"{stem}bias")
        return self.named[sources]

    def _name(self, layer: Node, port: int, old: Optional[str], new: str) -> str:
        """Return the name of an old parameter if all its readers get the new one, else a new name."""
        if old is not None and self._is_replaced(layer.inputs[port].key, port):
            return old
        stem, _, suffix = new.rpartition("_")
        number = 0
        while new in self.taken:
            new = f"{stem}_folded{number or ''}_{suffix}"
            number += 1
        self.taken.add(new)
        return new

    def _is_replaced(self, key: Key, port: int) -> bool:
        readers = self.consumers[key]
        wanted = {self.sources.get(node) for node, _ in readers}
        return key not in self.heads and len(wanted) == 1 and None not in wanted and {p for _, p in readers} == {port}


def _is_channels_last(layer: Node) -> bool:
    return (layer.get("layout") or "").endswith("C")


def _channels(layer: Node) -> Tuple[int, int, int]:
    """Return the number of a layer's output channels, their axis in its weight, and the groups of that axis."""
    attrs = dict(layer.attrs)
    if layer.op == "FullyConnected":
        return int(value_of(attrs, "num_hidden")), 0, 1
    filters = int(value_of(attrs, "num_filter"))
    if layer.op != "Deconvolution":
        return filters, 0, 1
    return filters, -1 if _is_channels_last(layer) else 1, int(value_of(attrs, "num_group") or 1)


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Removes the BatchNorms of ``folds``, which `find_folds` found in the same graph; the layers get new parameters.

    Layers and outputs of the network keep their names. If an output was a BatchNorm's, an identity gets the name. It is
    BlockGrad, because MXNet's subgraph backend does not count outputs as readers, and so sees one.
    """

    folds: Tuple[Fold, ...] = ()

    def run(self, graph: Graph) -> Graph:
        """Return the graph without the folded BatchNorms; variables without readers stay in it."""
        layers = {fold.layer: fold for fold in self.folds}
        norms = {fold.norm: activation_of(graph.nodes[fold.norm]) for fold in self.folds}
        old = {node.name: i for i, node in enumerate(graph.nodes) if node.is_variable}
        params: Dict[str, Entry] = {}

        def visit(builder: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
            if position in norms:
                data, activation = node.inputs[0], norms[position]
                return replacement(node, "Activation", data, act_type=activation) if activation else data
            if position not in layers:
                return node
            fold, port = layers[position], LAYERS[node.op].weight
            weight = graph.nodes[graph.nodes[position].inputs[port].node]
            for name, attrs in ((fold.weight, weight.attrs), (fold.bias, _bias_attrs(weight))):
                if name in old:
                    params[name] = builder.mapped(Entry(old[name]))
                elif name not in params:
                    params[name] = Entry(builder.add(Node(VARIABLE, name, attrs)))
            inputs = (*node.inputs[:port], params[fold.weight], params[fold.bias])
            return node.with_attrs({"no_bias": "False"}).rewired(inputs)

        removed: Dict[int, Dict[str, str]] = {position: {} for position, left in norms.items() if not left}
        return sweep(graph, visit, heads=lambda builder: name_heads(graph, builder, "BlockGrad", removed))


def _bias_attrs(weight: Node) -> Tuple[Tuple[str, str], ...]:
    dtype = {key: value for key, value in weight.attrs if key == "__dtype__"}
    return make_attrs({**dtype, **device_attrs(weight)})
