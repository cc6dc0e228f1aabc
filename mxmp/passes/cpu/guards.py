"""Workarounds for defects of MXNet 1.9.1, in graphs that are run and never saved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import (
    AbstractSet,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...graph.core import make_attrs
from ...rules.conditions import sizes_of, value_of
from ..base import Copy, MakeCopy, Pass, device_attrs, insert_next_to, replacement, sweep, with_copies
from ..control_flow import bodies_of
from ..emulate import deconvolution_in_float64, has_float64_deconvolution
from ..facts import OutputRef, Shape, declared_dtype

_SHARE_ATTR = "__mxmp_share__"

_MOST_SUMMED = 7  # one less than MXNET_EXEC_INPLACE_GRAD_SUM_CAP

# Operators that give their outputs or gradients a layout of their own.
_CHOOSE_LAYOUTS = ("Convolution", "Deconvolution", "Pooling")

# Operators whose gradient is reshaped in place (_backward_reshape, _backward_copy) ...
_BACKWARD = frozenset({"Reshape", "expand_dims", "reshape_like", "_np_reshape", "_npx_reshape"})

# ... those that reshape in place themselves, and those that do so with more than four axes.
_FORWARD = frozenset({"reshape_like", "_np_reshape", "_npx_reshape"})
_FORWARD_VOLUMES = frozenset({"Reshape", "expand_dims", "Flatten"})

# Operators whose output and gradient always have the default layout.
_DEFAULT_LAYOUT = frozenset({"amp_cast", "Cast", "FullyConnected", "SwapAxis", "transpose"})


@dataclass(frozen=True)
class GuardAmpCasts(Pass):
    """Puts an identity in front of every amp_cast whose gradient may be added to another.

    Such a cast reads a variable, whose ``grad_req`` is the user's choice. Or it reads a tensor with other readers,
    whose gradients MXNet may add up in place. On CPU the backward pass of amp_cast ignores the request to add to a
    gradient (kAddTo). AMPCastExCPU (src/operator/tensor/amp_cast.cc) computes into a temporary that it never commits.
    An example: with ``grad_req='add'`` the gradient of a weight that is cast to bfloat16 stays zero. An identity in
    front takes the request and adds as it should. To be removed when MXNet's amp_cast commits its output.

    An identity copies: a training step of VGG-11, whose weights are many for its work, takes 14 % longer with them.
    So variables that are known to be ``written``, whose gradient is not added to an earlier one, have none. Bodies of
    control flow add the gradients of their iterations. Weights of grouped convolutions keep theirs: once they have run
    in float32 they have a layout that amp_cast cannot read (see `mxmp.arrays.amp_cast`), and a copy can.
    """

    written: FrozenSet[str] = frozenset()

    def run(self, graph: Graph) -> Graph:
        """Return the graph with identities."""
        readers = graph.consumers()
        casts = [position for position, node in enumerate(graph.nodes) if node.op == "amp_cast"]
        copies = {(cast, 0): (cast, "guard") for cast in casts if self._needs_guard(graph, readers, cast)}
        return with_copies(graph, copies, _copier("_copy"), body=GuardAmpCasts().run)

    def _needs_guard(self, graph: Graph, readers: Mapping[Key, Sequence[Key]], position: int) -> bool:
        (read,) = graph.nodes[position].inputs
        source = graph.nodes[read.node]
        if len(readers[read.key]) > 1:
            return True
        weights = [graph.nodes[reader] for reader, port in readers.get((position, 0), ()) if port == 1]
        grouped = any(node.get("num_group", "1") != "1" for node in weights)
        return source.is_variable and (grouped or source.name not in self.written)


def _copier(op: str, **attrs: str) -> MakeCopy:
    """Return a function that makes copies with an operator that changes no values, on the device of a node."""
    return lambda builder, node, word, entry: insert_next_to(builder, node, op, word, entry, **attrs)


@dataclass(frozen=True)
class GuardGradientSums(Pass):
    """Lets at most seven operators read a bfloat16 tensor; if there are more, each seven read an identity of it.

    A tensor's gradient is the sum of those of its readers. MXNet adds up to seven with one add_n, which sums in
    float32 and rounds once. From eight on it chains additions of two (AggregateGradient in
    src/executor/graph_executor.cc). Their bfloat16 kernel truncates at every step. An example: the weights of an LSTM
    that is unrolled over 35 steps get gradients that are 4 % too small. With identities gradients are summed by sevens,
    and those sums by sevens, each rounded once. To be removed when MXNet's ``_grad_add`` rounds.

    ``entries`` are the bfloat16 entries of the graph and of its bodies, as ``Facts.by_name`` gives them.
    """

    entries: AbstractSet[OutputRef] = frozenset()

    def run(self, graph: Graph) -> Graph:
        """Return the graph with identities."""
        heads = Counter(head.key for head in graph.heads)
        copies: Dict[Key, Copy] = {}
        for (position, index), readers in graph.consumers().items() if self.entries else ():
            node = graph.nodes[position]
            low = (node.name, index) in self.entries or declared_dtype(node) == dtypes.BFLOAT16
            if low and len(readers) > 1 and len(readers) + heads[position, index] > _MOST_SUMMED:
                copies.update((port, (position, f"{i // _MOST_SUMMED}")) for i, port in enumerate(readers))
        after = with_copies(graph, copies, _share, body=self.run)
        return self.run(after) if copies else after  # seven times as many readers as that need copies of copies


def _share(builder: GraphBuilder, node: Node, _: str, entry: Entry) -> Entry:
    name = builder.unique(f"{node.name}_share")
    attrs = make_attrs({_SHARE_ATTR: name, **device_attrs(node)})  # all equal, MXNet would make them one (CSE)
    return Entry(builder.add(Node("_copy", name, attrs, (entry,))))


@dataclass(frozen=True)
class GuardLayouts(Pass):
    """Puts a copy between an operator that reshapes in place and one that may choose a layout of its own.

    Beside an array's shape MXNet keeps the layout that oneDNN has given to its memory. An operator that reshapes in
    place keeps that layout (SetupDefaultBlobsOut in src/common/exec_utils.h, MKLDNNReshapeForward in
    src/operator/nn/mkldnn/mkldnn_reshape.cc). The array then has the new shape, and a layout for the old one. amp_cast
    cannot read it ("could not create a primitive descriptor for a reorder primitive"). Operators that convert bfloat16
    within themselves cannot either (FallBackCompute in src/operator/nn/mkldnn/mkldnn_base.cc). Other operators read it
    wrongly, in float32 too. It happens to the gradient of Reshape in front of a convolution, as in PixelShuffle, and to
    Reshape itself behind a convolution of volumes. To be removed when MXNet drops the layout.

    The copy is SwapAxis of an axis with itself, which copies into the default layout, forward and
    backward, and never in place. Graphs without convolutions and pooling stay as they are.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph with copies."""
        operators = graph.operators()
        kernels = [sizes_of(dict(node.attrs), "kernel") for node in operators if node.op in _CHOOSE_LAYOUTS]
        volumes = any(len(kernel) == 3 for kernel in kernels)
        forward = _FORWARD | _FORWARD_VOLUMES if volumes else _FORWARD
        reshapes = any(node.op in forward or node.op in _BACKWARD for node in operators)
        return _guarded(graph, forward) if kernels and reshapes else graph


def _guarded(graph: Graph, forward: FrozenSet[str]) -> Graph:
    readers = graph.consumers()
    copies: Dict[Key, Copy] = {}
    for position, node in enumerate(graph.nodes):
        if node.op in forward and not _has_default_layout(graph.nodes[node.inputs[0].node]):
            copies[position, 0] = position, "input_guard"
        ahead = readers.get((position, 0), ())
        if node.op in _BACKWARD and not all(_has_default_layout(graph.nodes[reader]) for reader, _ in ahead):
            copies.update((port, (position, "output_guard")) for port in ahead)
    make = _copier("SwapAxis", dim1="0", dim2="0")
    return with_copies(graph, copies, make, body=lambda body: _guarded(body, forward))


def _has_default_layout(node: Node) -> bool:
    return node.is_variable or node.op in _DEFAULT_LAYOUT


@dataclass(frozen=True)
class GuardPRelu(Pass):
    """Writes PReLU as operators whose gradients MXNet computes right in place, on any device.

    A memory plan gives the output of an operator the memory of its input where FInplaceOption allows it. The gradient
    of PReLU (_backward_LeakyReLU in src/operator/leaky_relu.cc) writes the gradient of the data over that of the
    output. Then it computes the gradient of alpha from it. The result is alpha times too small.

    PReLU becomes relu(x) + alpha * min(x, 0), which has the same values. PReLU of -1, which has no gradient of its
    data, broadcasts alpha where the data is not positive. Positive values are in no product, so that no gradient leaves
    float16's range that does not with PReLU. To be removed when MXNet's FInplaceOption of it is.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph without PReLU."""
        if not any(map(is_prelu, graph.operators())):
            return graph

        def visit(builder: GraphBuilder, _: int, node: Node) -> Node:
            return _prelu(builder, node) if is_prelu(node) else node

        return sweep(graph, visit, body=self.run)


def is_prelu(node: Node) -> bool:
    """Return whether a node is a leaky ReLU whose slope is an input."""
    return node.op == "LeakyReLU" and node.get("act_type") == "prelu"


def _prelu(builder: GraphBuilder, node: Node) -> Node:
    add, (data, alpha) = partial(insert_next_to, builder, node), node.inputs
    positive = add("_greater_scalar", "positive", data, scalar="0")
    other = add("_minus_scalar", "other", positive, scalar="1")  # -1 where the data is not positive, else 0
    slope = builder.insert(node.op, f"{node.name}_slope", other, alpha, **dict(node.attrs))  # -alpha there
    product = add("elemwise_mul", "product", add("_minimum_scalar", "negative", data, scalar="0"), slope)
    upper = add("relu", "upper", data)
    return replacement(node, "elemwise_sub", upper, product)


@dataclass(frozen=True)
class GuardTransposed(Pass):
    """Lets MXNet add up gradients of a transposed convolution's weight, which ends the process otherwise.

    On a CPU _backward_Deconvolution describes the memory of the weight's gradient before it has any, unless each group
    has one filter (IOLogicalSwapMKLDNNMem in src/operator/nn/mkldnn/mkldnn_deconvolution-inl.h). The process ends if
    that gradient is no array of the user's. Examples are a net that is called twice in a recording, as in a CycleGAN,
    and a weight that two operators read. As the depth of a kernel filters are axes of one filter. So the operator here
    reads a constant weight. Zero is added to its output: another transposed convolution minus itself. That zero carries
    the gradient of the weight. Its data are constant, since the gradient of these fails in turn. One that is dilated or
    has three axes stays as it is, and one with a single channel in a group is computed in float64. To be removed when
    MXNet's gradient has memory first.

    ``entries`` are the float32 entries of the graph, as ``Facts.by_name`` gives them; bodies stay as they are.
    """

    entries: Mapping[OutputRef, Optional[Shape]] = field(default_factory=dict)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with weights whose gradients may be added up."""
        if not any(map(is_transposed, graph.operators())):
            return graph

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            one_each = node.get("num_filter") == (node.get("num_group") or "1")
            may_stay = one_each or (node.name, 0) not in self.entries or not has_float64_deconvolution(node)
            if not is_transposed(node) or may_stay:
                return node
            source = graph.nodes[position].inputs[1]
            shape = self.entries.get((graph.nodes[source.node].name, source.index))
            # oneDNN has no gradient for the weight of volumes with one channel: "could not execute a primitive".
            has_channels = shape is not None and shape[0] > int(node.get("num_group") or 1)
            if has_channels:
                return _transposed(builder, node)
            wide = deconvolution_in_float64(builder, node)
            wide = wide._replace(name=builder.unique(f"{node.name}_float64"), control_deps=())
            return replacement(node, "Cast", Entry(builder.add(wide)), dtype=dtypes.FLOAT32)

        return sweep(graph, visit)


def is_transposed(node: Node) -> bool:
    """Return whether a node is a transposed convolution."""
    return node.op == "Deconvolution"


def _axes(node: Node, key: str) -> Tuple[int, ...]:
    return sizes_of(dict(node.attrs), key)


def _transposed(builder: GraphBuilder, node: Node) -> Node:
    add, (data, weight, *bias) = partial(insert_next_to, builder, node), node.inputs
    weight = add("SwapAxis", "default_layout", weight, dim1="0", dim2="0")  # which inference may have changed
    attrs = {**dict(node.attrs), "no_bias": "True"}
    product = builder.insert(node.op, f"{node.name}_by_data", data, add("BlockGrad", "constant", weight), **attrs)
    groups = int(node.get("num_group") or 1)
    filters = int(node.get("num_filter") or 0)
    depth = filters // groups
    first = {"kernel": depth, "stride": 1, "pad": 0, "adj": 0, "target_shape": depth}
    sizes = {key: _axes(node, key) for key in first}
    deep = {key: str((first[key], *value)) for key, value in sizes.items() if value}
    images = add("expand_dims", "images", add("BlockGrad", "constant_data", data), axis="2")
    kernel = add("expand_dims", "kernel", weight, axis="1")
    deep.update(num_filter=str(groups), num_group=str(groups), no_bias="True")
    volumes = builder.insert(node.op, f"{node.name}_weight", images, kernel, **deep, **dict(device_attrs(node)))
    like = add("Reshape", "filters", volumes, shape="(0, -3, -2)")
    nothing = add("elemwise_sub", "nothing", like, add("BlockGrad", "constant_like", like))
    if not bias:
        return replacement(node, "elemwise_add", product, nothing)
    shape = (1, filters, *(1 for _ in sizes["kernel"]))
    column = add("Reshape", "bias", *bias, shape=str(shape))
    total = add("elemwise_add", "product", product, nothing)
    return replacement(node, "broadcast_add", total, column)


@dataclass(frozen=True)
class GuardBranches(Pass):
    """Lets ``cond`` give zero gradients to the inputs that the branch which ran has not read.

    MXNet leaves these gradients unwritten (CondGradComputeExCPU in src/operator/control_flow.cc). Each branch has
    inputs of its own, also for a tensor that both read. So a tensor in front of a ``cond`` gets the gradient of one
    branch plus the old contents of the memory. Here where(condition, x, BlockGrad(x)) between them takes only the
    gradient of one branch. An input that only the condition reads gets none. The condition is computed once more for
    that. To be removed when MXNet writes zeros.
    """

    entries: AbstractSet[OutputRef] = frozenset()  # those in bfloat16, for which where has no gradient

    def run(self, graph: Graph) -> Graph:
        """Return the graph with guarded inputs."""
        if all(node.op != "_cond" for node in graph.operators()):
            return graph

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            if node.op != "_cond":
                return node
            sources = [(graph.nodes[entry.node], entry.index) for entry in graph.nodes[position].inputs]
            low = [(s.name, i) in self.entries or declared_dtype(s) == dtypes.BFLOAT16 for s, i in sources]
            return node.rewired(_one_branch_each(builder, node, low))

        return sweep(graph, visit, body=self.run)


def _one_branch_each(builder: GraphBuilder, node: Node, low: Sequence[bool]) -> Tuple[Entry, ...]:
    add, (condition, *branches) = partial(insert_next_to, builder, node), bodies_of(node)
    here = _inlined(builder, condition.graph, [node.inputs[port] for port in condition.ports], node.name)
    guarded = []
    for port, entry in enumerate(node.inputs):
        read = [port in branch.ports for branch in branches]
        if any(read) and not all(read):
            in_float32 = add("amp_cast", "guard", entry, dtype=dtypes.FLOAT32) if low[port] else entry
            fixed = add("BlockGrad", "guard", in_float32)
            entry = add("_npi_where", "guard", here, *(in_float32 if each else fixed for each in read))
            entry = add("amp_cast", "guard", entry, dtype=dtypes.BFLOAT16) if low[port] else entry
        guarded.append(entry if any(read) else add("BlockGrad", "guard", entry))
    return tuple(guarded)


def _inlined(builder: GraphBuilder, graph: Graph, values: Iterable[Entry], name: str) -> Entry:
    """Add the nodes of a body whose variables have these values, and return its first output."""
    inner, values = GraphBuilder(graph), iter(values)
    inner.nodes = builder.nodes
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            inner.redirect(Entry(position), next(values))
        else:
            renamed = node._replace(name=builder.unique(f"{name}_{node.name}"))
            inner.copy(position, renamed.rewired(inner.inputs(node)))
    return inner.mapped(graph.heads[0])


_SUM = "elemwise_add"

FUSED = frozenset({"BatchNorm", "Activation", "LeakyReLU", "clip", _SUM})
"""Operators that the backend puts into the convolution before them."""


@dataclass(frozen=True)
class GuardFusedSums(Pass):
    """Lets sums read a copy of a convolution's output if MXNet may fuse the convolution with another reader.

    An example is x + f(relu(x)) with a convolution x, with BatchNorm behind it or not. MXNet 1.9.1 binds inference on a
    CPU with the backend MKLDNN. The backend first tries to fuse x with the sum. It finds that this makes a circle, and
    begins again without the sum. Then it fuses x with relu, forgets that the sum reads x too, and lets it read the
    relu's output. The code is in SgMKLDNNConvSelector (src/operator/subgraph/mkldnn/mkldnn_conv_property.h) and
    PreSelectSubgraphNodes (src/operator/subgraph/build_subgraph.cc). ResNet-18 v2 for small images is off by a tenth,
    in float32. The backend does not count outputs of the network as readers either. So an operator that is fused with
    one reads a copy too. The copy is BlockGrad, since the backend takes out identities. To be removed when the backend
    sees all readers.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph with copies."""
        return with_copies(graph, dict(_unseen_reads(graph)), _copier("BlockGrad"))


def _unseen_reads(graph: Graph) -> Iterator[Tuple[Key, Copy]]:
    """Yield the inputs that must read copies of outputs of convolutions, or of BatchNorms behind them."""
    heads = {head.key for head in graph.heads}
    for key, readers in graph.consumers().items():
        if not _is_convolved(graph, Entry(*key)):
            continue
        fused = {port: graph.nodes[port[0]].op for port in readers if graph.nodes[port[0]].op in FUSED}
        if key in heads or len(fused) > 1:
            yield from ((port, (key[0], "copy")) for port, op in fused.items() if key in heads or op == _SUM)


@dataclass(frozen=True)
class OrderFusedSums(Pass):
    """Lets a sum read the output of a convolution first, so that fusing the two keeps the order of arguments.

    An example is f(y) + convolution(x), as in a residual unit with Squeeze-and-Excitation. The backend MKLDNN puts the
    sum into the convolution, whose arguments then come first. ``hybridize(backend="MKLDNN")`` gives shapes by position
    to each property of the backend, in the order of arguments before the first one (MXOptimizeForBackend in
    src/c_api/c_api_symbolic.cc at tag 1.9.1). The first call then fails with "Shape inconsistent".
    ``Symbol.optimize_for`` without arrays gives no shapes, and runs. A sum is the same in either order. To be removed
    when MXNet orders them anew.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph with the inputs of such sums in the other order."""

        def visit(_: GraphBuilder, position: int, node: Node) -> Node:
            convolved = [_is_convolved(graph, entry) for entry in graph.nodes[position].inputs]
            return node._replace(inputs=node.inputs[::-1]) if node.op == _SUM and convolved == [False, True] else node

        return sweep(graph, visit)


def _is_convolved(graph: Graph, entry: Entry) -> bool:
    """Return whether a tensor is the output of a convolution, or of a BatchNorm behind one."""
    node = graph.nodes[entry.node]
    source = graph.nodes[node.inputs[0].node] if node.op == "BatchNorm" else node
    return source.op == "Convolution"


@dataclass(frozen=True)
class GuardSlices(Pass):
    """Takes channels by ``slice_axis`` in the place of ``slice``.

    An example is slice(clip(convolution), begin=(None, 12), end=(None, 24)). The slice of oneDNN takes a part of an
    array in its layout of blocks of 8 or 16 channels, and cannot cut a block. It fails with "could not construct a
    sub-memory" (MKLDNNSliceFwd in src/operator/nn/mkldnn/mkldnn_slice.cc at tag 1.9.1). Layers that the backend MKLDNN
    fuses have such layouts where the same operators by themselves do not. ``slice_axis`` reads the default layout. To
    be removed when MXNet's slice does so too.
    """

    shapes: Mapping[OutputRef, Shape] = field(default_factory=dict)

    def run(self, graph: Graph) -> Graph:
        """Return the graph without slices of channels."""

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            if node.op != "slice":
                return node
            source = graph.nodes[position].inputs[0]
            shape = self.shapes.get((graph.nodes[source.node].name, source.index))
            is_other = shape is not None and len(shape) != 4
            return node if is_other else _slice_channels(builder, shape[1] if shape else None, node)

        return sweep(graph, visit, self.run)


def _slice_channels(builder: GraphBuilder, size: Optional[int], node: Node) -> Node:
    """Return a ``slice`` of channels written as ``slice_axis``; ``size`` is the number of channels, None if unknown.

    Where the size is not known, the places are taken to be there.
    """
    begin, end = (value_of(dict(node.attrs), key) for key in ("begin", "end"))
    steps = value_of(dict(node.attrs), "step") or ()
    if not (isinstance(begin, tuple) and isinstance(end, tuple)) or len(begin) != len(end) or len(begin) < 2:
        return node
    if (begin[1] is None and end[1] is None) or any(step not in (None, 1) for step in steps):
        return node
    first, last = begin[1] or 0, end[1]
    if size is not None:
        first, last, _ = slice(begin[1], end[1]).indices(size)
        if first >= last:
            return node
    channels = {"axis": "1", "begin": str(first), "end": str(last)}
    attrs = {key: value for key, value in node.attrs if key not in ("begin", "end", "step")}
    begin, end = ((*each[:1], None, *each[2:]) for each in (begin, end))
    if not any(each is not None for each in (*begin, *end)):
        return node._replace(op="slice_axis", attrs=make_attrs({**attrs, **channels}))
    entry = insert_next_to(builder, node, "slice_axis", "channels", node.inputs[0], **channels)
    return node._replace(inputs=(entry,)).with_attrs({"begin": str(begin), "end": str(end)})
