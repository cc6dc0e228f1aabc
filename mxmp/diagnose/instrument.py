"""The one instrument of diagnosis: a copy of a network's graph with taps and reductions, which runs on a batch.

A *tap* is a zero that is added to an output of a node, or to one input of one node. It changes no value. Its gradient
is that of the place: for an output the sum over all readers, for an input the part of this reader. A *reduction* gives
a few numbers of an output where it is computed, so that no activation comes to the host.

Graphs are those that a conversion decides on (`mxmp.report.Decisions`), in float32 or with casts. The rewrites that run
them on a processor (emulated float16, padding, guards) come last, behind taps and reductions, so that none is seen.

    graph with casts --with_taps--> + ScaleLoss --> runs on this device --> CachedOp --> Reading
                                    (loss heads)     (emulated on a CPU)
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError, InferenceError, mxnet_reason
from ..graph import VARIABLE, Entry, Graph, GraphBuilder, Key, Node, in_written_order, written_positions
from ..graph.core import make_attrs
from ..passes import ScaleLoss
from ..passes.casts import cast_op
from ..passes.facts import Facts, declared_dtype
from ..passes.scale_loss import is_loss_head
from ..report import Decisions
from ..report.explanation import ValueRange
from ..report.make import positions
from ..rules import RULES
from ..symbol import Converted
from ..symbol.inference import from_graph, infer_facts, infer_variables

Arrays = Mapping[str, Any]
"""NDArrays of all variables of a graph by name."""

Port = Tuple[int, int]
"""Position of a node, and the number of one of its inputs."""

_SCALE = "loss_scale_of_heads"  # the variable by which gradients of loss heads are scaled
_DROPOUTS = ("Dropout", "RNN")

# Operators without a derivative, by operators that give the same and have one.
_DIFFERENTIABLE = {"LogisticRegressionOutput": "sigmoid", "BlockGrad": "_copy"}


class Reading(NamedTuple):
    """One run of an instrument.

    Attributes:
        outputs: The network's outputs, recorded if the run was.
        reductions: The reductions that were asked for.
        written: The arrays whose gradients backward writes: the zeros of taps and trained variables, by name.
        taps: The instrument's taps.
    """

    outputs: List[Any]
    reductions: List[Any]
    written: Mapping[str, Any]
    taps: Taps

    def at_outputs(self) -> Dict[Key, Any]:
        """Return the gradients at tapped outputs, once backward has run."""
        return {key: self.written[name].grad for key, name in self.taps.outputs.items()}

    def at_ports(self) -> Dict[Port, Any]:
        """Return the gradients that nodes give of tapped inputs, once backward has run."""
        return {port: self.written[name].grad for port, name in self.taps.ports.items()}


class Taps(NamedTuple):
    """The names of the variables of taps, by the places of the taps."""

    outputs: Dict[Key, str]
    ports: Dict[Port, str]


class Instrument:
    """A graph with taps and reductions that runs on values of the dtypes that it was built for.

    Args:
        graph: The graph, with casts or in float32.
        decisions: The decisions on the network that it is made of.
        values: Arrays of its variables, of which shapes and dtypes are taken.
        context: Where it runs: float16 is emulated on a CPU.
        outputs: The outputs of nodes that are tapped.
        ports: The inputs of nodes that are tapped.
        reduced: The outputs of nodes that reductions get in addition to those of the network.
        reduce: Gives the symbols of reductions for those of the network's outputs and of ``reduced``.
        kept: The numbers of the network's outputs that a run gives; all unless given.
        loss_heads: The names of Custom operators that are loss heads, if the gradients of loss heads are to be scaled.
        differentiable: Whether loss heads and BlockGrad are replaced by operators that give the same and have a
            derivative.

    Raises:
        ConvertError: If MXNet cannot run the graph.
    """

    def __init__(
        self,
        graph: Graph,
        decisions: Decisions,
        values: Arrays,
        context: Any,
        *,
        outputs: Collection[Key] = (),
        ports: Collection[Port] = (),
        reduced: Sequence[Key] = (),
        reduce: Optional[Callable[[List[Any], List[Any]], List[Any]]] = None,
        kept: Optional[Sequence[int]] = None,
        loss_heads: Optional[FrozenSet[str]] = None,
        differentiable: bool = False,
    ) -> None:
        self._graph, self._context = graph, context
        self._dtypes = variable_dtypes(graph)
        given = in_dtypes(self._dtypes, values)
        facts = facts_of(graph, given)
        shaped = [key for key in outputs if facts.shape(Entry(*key))]
        tapped, self.taps, places = with_taps(graph, facts, shaped, ports, differentiable)
        tapped = in_written_order(replace(tapped, heads=(*tapped.heads, *(places[key] for key in reduced))))
        # Where each tap is. MXNet infers shapes of the graph without taps: it does not infer all of them through these.
        self._tapped = {name: Entry(*key) for key, name in self.taps.outputs.items()}
        self._tapped.update((name, graph.nodes[i].inputs[port]) for (i, port), name in self.taps.ports.items())
        self._facts = {_shapes_of(given): facts}
        given.update({name: mx.nd.zeros(shape) for name, shape in self._shapes(given).items()})
        # Loss heads begin backward by themselves, so that the scale has to be put behind them.
        names = loss_heads or frozenset()
        if loss_heads is not None and any(is_loss_head(node) or node.name in names for node in tapped.nodes):
            names &= {node.name for node in tapped.nodes}
            tapped = in_written_order(ScaleLoss(facts_of(tapped, given), _SCALE, names)(tapped).graph)
            given[_SCALE] = mx.nd.ones(1)
        symbol = from_graph(tapped)
        converted = Converted(symbol, tapped, facts_of(tapped, given), frozenset(), replace(decisions, after=tapped))
        symbol = converted.on_gpu(True) if context.device_type == "gpu" else converted.on_cpu(True, watched=True)
        heads, count = [symbol[number] for number in range(len(tapped.heads))], len(graph.heads)
        outputs_of = [heads[number] for number in (range(count) if kept is None else kept)]
        reductions = [] if reduce is None else reduce(heads[:count], heads[count:])
        # MXNet goes back through all of a graph: the gradient of a norm that is 0 would be NaN.
        reductions = [mx.sym.BlockGrad(each) for each in reductions]
        symbol, self._count = mx.sym.Group([*outputs_of, *reductions]), len(outputs_of)
        self._names, self._states = symbol.list_inputs(), frozenset(symbol.list_auxiliary_states())
        try:
            self._run = mx.nd.CachedOp(symbol)  # An executor would fuse operators with oneDNN, and hide their outputs.
        except mx.MXNetError as e:  # An operator has no gradient; MXNet asks for one even where none is needed.
            raise ConvertError(f"MXNet cannot run the network in one piece: {mxnet_reason(e)}") from e

    def __call__(
        self, values: Arrays, scale: float = 1.0, training: bool = True, trained: Collection[str] = ()
    ) -> Reading:
        """Run once on the values of a batch; nothing that is given is changed.

        Args:
            values: The values of all variables by name, on any context.
            scale: The factor of the gradients of loss heads.
            training: Whether it runs in training mode.
            trained: The names of variables whose gradients backward writes too.
        """
        with self._context, _flags_kept(), autograd.pause():
            given = {name: array.as_nd_ndarray().as_in_context(self._context) for name, array in values.items()}
            given = in_dtypes(self._dtypes, {name: array.detach() for name, array in given.items()})
            given.update({name: given[name].copy() for name in self._states if name in given})  # BatchNorm writes them.
            zeros = zeros_of(self._shapes(given), self._context)
            written = {name: given[name] for name in self._names if name in trained and name in given}
            for array in written.values():
                array.attach_grad()
            scales = {_SCALE: mx.nd.full((1,), scale)}
            with autograd.record(training) if zeros or written else autograd.pause(training):
                inputs = {**scales, **given, **zeros}
                results = self._run(*[inputs[name] for name in self._names])
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        return Reading(results[: self._count], results[self._count :], {**zeros, **written}, self.taps)

    def _shapes(self, values: Arrays) -> Dict[str, Tuple[int, ...]]:
        """Return the shapes of the zeros that taps add, for values of these shapes."""
        key = _shapes_of(values)
        if key not in self._facts:
            self._facts = {key: facts_of(self._graph, values)}
        return {name: self._facts[key].shapes[entry.key] for name, entry in self._tapped.items()}


@contextlib.contextmanager
def _flags_kept() -> Iterator[None]:
    """Give autograd its flags back, also after an interrupt between the last line of a block and its end."""
    recording, training = autograd.is_recording(), autograd.is_training()
    try:
        yield
    finally:
        autograd.set_recording(recording)
        autograd.set_training(training)


def _shapes_of(values: Arrays) -> FrozenSet[Tuple[str, Tuple[int, ...]]]:
    return frozenset((name, array.shape) for name, array in values.items())


def facts_of(graph: Graph, values: Arrays) -> Facts:
    """Return the facts that MXNet infers of a graph for variables of the shapes and dtypes of these values."""
    symbol = from_graph(graph)
    read = {name: values[name] for name in symbol.list_inputs() if name in values}
    shapes = {name: array.shape for name, array in read.items()}
    types = {name: dtypes.canonical(array.dtype) for name, array in read.items()}
    return infer_facts(symbol, graph, shapes, types, frozenset())


def variable_dtypes(graph: Graph) -> Dict[str, str]:
    """Return the dtypes of a graph's variables, by name, that they declare or that its own casts imply."""
    declared = {node.name: declared_dtype(node) for node in graph.nodes if node.is_variable}
    found = {name: dtype for name, dtype in declared.items() if dtype is not None}
    if len(found) < len(declared) and any(node.get("dtype") in dtypes.LOW_PRECISION for node in graph.nodes):
        try:
            found = {**infer_variables(from_graph(graph), {}), **found}
        except InferenceError:
            pass  # An operator must be told, as Embedding.
    return found


def in_dtypes(wanted: Mapping[str, str], values: Arrays) -> Dict[str, Any]:
    """Return values in the dtypes that variables have, float32 for low precision where none is known."""
    given = dict(values)
    for name, array in values.items():
        dtype = dtypes.canonical(array.dtype)
        target = wanted.get(name, dtypes.FLOAT32 if dtype in dtypes.LOW_PRECISION else dtype)
        if target in dtypes.PRECISIONS and dtype in dtypes.PRECISIONS and target != dtype:
            with autograd.pause():
                given[name] = mx.nd.amp_cast(array.as_nd_ndarray(), dtype=target)
    return given


def zeros_of(shapes: Mapping[str, Tuple[int, ...]], ctx: Any) -> Dict[str, Any]:
    """Return zeros of some shapes, by name, each with a gradient of its own; they share memory."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    memory = mx.nd.zeros(max(sizes.values(), default=1), ctx=ctx)
    zeros = {name: memory[: sizes[name]].reshape(shape) for name, shape in shapes.items()}
    for array in zeros.values():
        array.attach_grad()
    return zeros


# ---------------------------------------------------------------------- graphs


def with_taps(
    graph: Graph,
    facts: Facts,
    outputs: Collection[Key] = (),
    ports: Collection[Port] = (),
    differentiable: bool = False,
) -> Tuple[Graph, Taps, Dict[Key, Entry]]:
    """Return a graph with taps, their names, and where the outputs of nodes are before anything is added to them.

    In low precision a tap is a float32 zero that is cast; its gradient is the one that low precision has, in float32.
    Operators that leave the gradients of their inputs unwritten get a BlockGrad.
    """
    builder, taps = GraphBuilder(graph), Taps({}, {})
    read = {*graph.consumers(), *(head.key for head in graph.heads)}
    places: Dict[Key, Entry] = {}

    def tap(entry: Entry, dtype: Optional[str], name: str) -> Entry:
        low = dtype in dtypes.LOW_PRECISION
        zero = Entry(builder.add(Node(VARIABLE, name, _declaring(dtypes.FLOAT32 if low else None))))
        if low and dtype is not None:
            zero = builder.insert(cast_op(dtypes.FLOAT32, dtype), f"{name}_cast", zero, dtype=dtype)
        return builder.insert("elemwise_add", f"{name}_sum", entry, zero)

    # One sweep: each node is copied, reads tapped inputs, and its readers get its tapped outputs.
    for position, node in enumerate(graph.nodes):
        inputs = list(builder.inputs(node))
        for port in (port for port in range(len(inputs)) if (position, port) in ports):
            name = taps.ports[position, port] = builder.unique(f"{node.name}_tap_of_input{port}")
            inputs[port] = tap(inputs[port], facts.dtype(node.inputs[port]), name)
        if is_unwritten(node):
            inputs = [builder.insert("BlockGrad", f"{node.name}_blocked", entry) for entry in inputs]
        stand_in = _with_derivative(builder, node, inputs) if differentiable else None
        new = builder.copy(position, node.rewired(tuple(inputs))) if stand_in is None else stand_in.node
        for index in range(node.num_outputs):
            key = position, index
            places[key] = Entry(new, index)
            builder.redirect(Entry(*key), places[key])
            if key in outputs and key in read:
                name = taps.outputs[key] = builder.unique(f"{node.name}_tap{index}")
                builder.redirect(Entry(*key), tap(places[key], facts.dtypes.get(key), name))
    return builder.finish(map(builder.mapped, graph.heads)), taps, places


def _declaring(dtype: Optional[str]) -> Any:
    return make_attrs({} if dtype is None else {"__dtype__": dtypes.to_flag(dtype)})


def _with_derivative(builder: GraphBuilder, node: Node, inputs: List[Entry]) -> Optional[Entry]:
    """Return the output of a loss head or BlockGrad, given by operators with a derivative; None for any other node."""
    if not (is_loss_head(node) or node.op in _DIFFERENTIABLE):
        return None

    def insert(op: str, *read: Entry, **attrs: str) -> Entry:
        return builder.insert(op, f"{node.name}_{op}", *read, **attrs)

    if node.op != "SoftmaxOutput":
        return insert(_DIFFERENTIABLE.get(node.op, "_copy"), inputs[0])
    for attribute, axis in (("multi_output", "1"), ("preserve_shape", "-1")):
        if node.get(attribute, "") in ("True", "1", "true"):
            return insert("softmax", inputs[0], axis=axis)
    rows = insert("Flatten", inputs[0])
    return insert("reshape_like", insert("softmax", rows, axis="-1"), inputs[0])


class SideBySide(NamedTuple):
    """One graph that runs a network in float32 and in low precision, as a whole and node by node, on the same values.

    Attributes:
        graph: The graph, whose heads are in float32.
        compared: Three numbers of heads by output of a node of the network. The first head holds it in float32. The
            second has the node's output in low precision for float32's inputs; for a node in float32 it is the first
            again. The third has the output in the converted network.
        ports: The inputs of the nodes that run in low precision on float32's inputs, by those in the network.
    """

    graph: Graph
    compared: Dict[Key, Tuple[int, int, int]]
    ports: Dict[Port, Port]


def side_by_side(decisions: Decisions, after: Facts) -> SideBySide:
    """Return the graph that compares a network with its conversion; ``after`` are the facts on the converted graph.

    It holds the network in float32 and the converted one. Each node in low precision has a copy too. It reads float32's
    values, cast as the conversion casts them.
    """
    copies = _Copies(decisions, after)
    converted, where = copies.converted, copies.where
    # The converted network, on the same variables.
    carried: Dict[Key, Entry] = {}
    for position, node in enumerate(converted.nodes):
        of_variables = all(converted.nodes[entry.node].is_variable for entry in node.inputs)
        if node.is_variable or (of_variables and position not in copies.source):
            carried[position, 0] = copies.exact(Entry(position))  # Casts of parameters and inputs are shared.
            continue
        new = copies.add(position, [carried[each.key]._replace(version=each.version) for each in node.inputs])
        carried.update({(position, i): Entry(new, i) for i in range(node.num_outputs)})
    # Each node in low precision by itself reads float32's values, through the casts of the conversion.
    low = {position: where[position] for position in in_low_precision(decisions)}
    own = {old: copies.add(new, map(copies.exact, converted.nodes[new].inputs)) for old, new in low.items()}
    # Heads by output: float32's, the converted network's and, of a node in low precision, its own.
    heads: List[Entry] = []
    compared: Dict[Key, Tuple[int, int, int]] = {}
    for position, index in float32_outputs(decisions):
        key, first = (where[position], index), len(heads)
        entries = [carried[key], *([Entry(own[position], index)] if position in own else [])]
        heads.append(copies.builder.mapped(Entry(position, index)))
        heads += [copies.cast(entry, after.dtypes.get(key), dtypes.FLOAT32) for entry in entries]
        compared[position, index] = first, first + 2 if position in own else first, first + 1
    graph = copies.builder.finish(heads)
    places = written_positions(graph)
    ports = {(i, port): (places[own[i]], port) for i in own for port in range(len(decisions.before.nodes[i].inputs))}
    return SideBySide(in_written_order(graph), compared, ports)


class _Copies:
    """A graph that begins with the network in float32, and gets copies of nodes of the converted one.

    Attributes:
        builder: The builder of the graph. It maps the entries of the network in float32.
        converted: The converted graph.
        where: The positions of the network's nodes in the converted graph.
        source: The positions in the network, by those in the converted graph.
    """

    def __init__(self, decisions: Decisions, after: Facts) -> None:
        before, self.converted = without_dropout(decisions.before), without_dropout(decisions.after)
        self.where = positions(before, self.converted)
        self.source = {new: old for old, new in self.where.items()}
        self._before, self._after = decisions.facts, after
        self.builder = GraphBuilder(before)
        self._casts: Dict[Tuple[Key, str], Entry] = {}
        self._inserted: Dict[int, int] = {}
        # Variables declare their dtypes, which MXNet does not infer through a cast.
        for position, node in enumerate(before.nodes):
            dtype = decisions.facts.dtypes.get((position, 0)) if node.is_variable else None
            new = node.with_attrs(dict(_declaring(dtype))) if dtype else node.rewired(self.builder.inputs(node))
            self.builder.copy(position, new)

    def add(self, position: int, inputs: Iterable[Entry]) -> int:
        """Add a copy of a node of the converted graph, and return its position."""
        node = self.converted.nodes[position]
        name = self.builder.unique(f"{node.name}_low")
        return self.builder.add(node._replace(name=name, inputs=tuple(inputs), control_deps=()))

    def cast(self, entry: Entry, dtype: Optional[str], wanted: Optional[str]) -> Entry:
        """Return an entry in another dtype, if both are precisions."""
        if wanted == dtype or wanted is None or {wanted, dtype} - set(dtypes.PRECISIONS):
            return entry
        if (entry.key, wanted) not in self._casts:
            op = cast_op(wanted, dtype if wanted == dtypes.FLOAT32 and dtype else wanted)
            cast = self.builder.insert(op, f"node{entry.node}_{wanted}", entry, dtype=wanted)
            self._casts[entry.key, wanted] = cast
        return self._casts[entry.key, wanted]

    def exact(self, entry: Entry) -> Entry:
        """Return float32's value of an entry of the converted graph, as this has it; inserted casts are copied."""
        if entry.node not in self.source:
            if entry.node not in self._inserted:
                inputs = self.converted.nodes[entry.node].inputs
                self._inserted[entry.node] = self.add(entry.node, map(self.exact, inputs))
            return entry._replace(node=self._inserted[entry.node])
        old = Entry(self.source[entry.node], entry.index)
        return self.cast(self.builder.mapped(old), self._before.dtype(old), self._after.dtype(entry))


def without_dropout(graph: Graph) -> Graph:
    """Return a graph that drops nothing, in bodies neither: with dropout two networks could not be compared."""

    def changed(node: Node) -> Node:
        if node.op in _DROPOUTS and node.get("p"):
            node = node.with_attrs({"p": "0"})
        return node.rewired(node.inputs, tuple(map(without_dropout, node.subgraphs))) if node.subgraphs else node

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def in_low_precision(decisions: Decisions) -> List[int]:
    """Return the positions of the nodes that have low precision in them, those with such a body included."""
    plan, nodes = decisions.plan, decisions.before.nodes
    low: Set[int] = {*plan.low, *(position for position, _ in plan.bodies)}
    return [position for position, node in enumerate(nodes) if position in low and not node.is_variable]


def float32_outputs(decisions: Decisions) -> List[Key]:
    """Return the outputs of operators that hold float32 in the network; hidden ones are not known, and left out."""
    nodes, facts = decisions.before.nodes, decisions.facts
    keys = ((i, index) for i, node in enumerate(nodes) if not node.is_variable for index in range(node.num_outputs))
    return [key for key in keys if facts.dtypes.get(key) == dtypes.FLOAT32]


def read_outputs(graph: Graph, facts: Facts, heads: bool) -> List[Key]:
    """Return the outputs in floating point that an operator reads, or with ``heads`` a loss outside of the network.

    Left out are those of loss heads and of operators that never write a gradient.
    """
    read = {*graph.consumers(), *(head.key for head in graph.heads if heads)}
    return [
        (position, index)
        for position, node in enumerate(graph.nodes)
        if not (node.is_variable or is_loss_head(node) or is_unwritten(node))
        for index in range(node.num_outputs)
        if (position, index) in read and facts.dtypes.get((position, index)) in dtypes.PRECISIONS
    ]


def is_unwritten(node: Node) -> bool:
    """Return whether an operator leaves the gradients of its inputs unwritten, so that they are not defined."""
    rule = RULES.find(node.op, dict(node.attrs))
    return rule is not None and rule.unwritten_gradient


def in_float32(graph: Graph) -> Graph:
    """Return a graph that computes in float32 where a network computes in low precision of its own accord.

    Nothing overflows in it that float32 holds, and it runs on a CPU, where MXNet has no products in float16.
    """
    nodes = []
    for node in graph.nodes:
        changes: Dict[str, Optional[str]] = {}
        if node.get("dtype") in dtypes.LOW_PRECISION:
            changes["dtype"] = dtypes.FLOAT32
        if node.is_variable and declared_dtype(node) in dtypes.LOW_PRECISION:
            changes["__dtype__"] = dtypes.to_flag(dtypes.FLOAT32)
        nodes.append(node.with_attrs(changes)._replace(subgraphs=tuple(map(in_float32, node.subgraphs))))
    return replace(graph, nodes=tuple(nodes))


# ---------------------------------------------------------------------- ranges of values

_LARGEST = dtypes.limits(dtypes.FLOAT32).max  # in the place of no finite value at all


def summarize(F: Any, x: Any) -> Any:
    """Return four numbers about an array or symbol, in float32: how many are inf or NaN, how many NaN, the finite ends.

    Counts of 0 are exact for arrays of any size.
    """
    x = F.BlockGrad(F.cast(x, dtype="float32"))
    product, zeros = x * 0, F.zeros_like(x)
    is_finite = product == 0
    smallest = F.min(F.where(is_finite, x, zeros + _LARGEST))
    largest = F.max(F.where(is_finite, x, zeros - _LARGEST))
    return F.stack(F.sum(product != 0), F.sum(x != x), smallest, largest)


def summaries_of(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return the summary of each array, a dense one that is in no graph; nothing is recorded."""
    operator = mx.nd.CachedOp(summarize(mx.sym, mx.sym.var("x")))
    with autograd.pause():
        return [operator(array) for array in arrays]


def read_ranges(names: Sequence[str], sizes: Sequence[int], summaries: Sequence[mx.nd.NDArray]) -> List[ValueRange]:
    """Return the ranges that summaries of arrays of known sizes hold, by one host read; all are on one context."""
    if not summaries:
        return []
    rows = mx.nd.concat(*[each.as_nd_ndarray() for each in summaries], dim=0).asnumpy().reshape(-1, 4).tolist()
    ranges = []
    for name, size, (bad, nans, low, high) in zip(names, sizes, rows):
        low, high = (low, high) if low <= high else (0.0, 0.0)
        ranges.append(ValueRange(name, max(size, round(bad)), round(nans), round(bad - nans), low, high))
    return ranges


def ranges_of(arrays: Dict[str, Any]) -> List[ValueRange]:
    """Return the ranges of arrays by name, all on one context."""
    values = [dense(array) for array in arrays.values()]
    return read_ranges(list(arrays), [array.size for array in values], summaries_of(values))


def dense(array: Any) -> mx.nd.NDArray:
    """Return an array as an NDArray that holds all elements: a sparse one has no size, and few operators take it."""
    plain = array.as_nd_ndarray()
    return plain if plain.stype == "default" else plain.tostype("default")
