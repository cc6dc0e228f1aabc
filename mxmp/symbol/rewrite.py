"""Runs one symbol through the passes: the conversion that all fronts share."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

from .. import dtypes, rounding
from ..devices.processor import read_processor
from ..errors import InferenceError
from ..graph import Graph, Node, in_written_order, renamed, with_unique_names
from ..passes import Emulate, EraseCasts, Facts, InsertCasts, Pass, Sequential, make_plan
from ..passes.base import is_inserted, marked_blocks, rule_of, without_blocks
from ..passes.control_flow import bodies_of
from ..passes.cpu.channels import GroupDepthwise, pad_channels
from ..passes.cpu.guards import (
    GuardAmpCasts,
    GuardBranches,
    GuardGradientSums,
    GuardLayouts,
    GuardPRelu,
    GuardTransposed,
    is_prelu,
    is_transposed,
)
from ..passes.cpu.layouts import Layouts, SeparateLayouts
from ..passes.cpu.slow_kernels import WidenSlowKernels
from ..passes.cpu.written_out import WriteOut
from ..passes.sizes import depends_on_shapes, shape_outcome
from ..policy import Policy
from ..report import Decisions, Removed, Report
from ..rules import CLEAR
from .arguments import make_model
from .inference import (
    Dtypes,
    Shapes,
    from_graph,
    infer_facts,
    infer_network,
    infer_variables,
    to_graph,
)


@dataclass(frozen=True)
class Converted:
    """A converted graph, with its symbol, facts and decisions.

    Attributes:
        symbol: The converted symbol, for plain MXNet.
        graph: Its graph.
        facts: MXNet's inference of its dtypes and shapes.
        low_params: Names of the parameters that it wants in low precision.
        decisions: The decisions and casts, on the graph as it was before.
    """

    symbol: Any
    graph: Graph
    facts: Facts
    low_params: FrozenSet[str]
    decisions: Decisions

    @property
    def report(self) -> Report:
        """The report on the conversion."""
        return self.decisions.report

    @functools.cached_property
    def read_dtypes(self) -> Mapping[str, str]:
        """The dtypes of the variables of the network as it was given, by name, where they are known."""
        removed = self.decisions.removed
        if removed.before is None:
            return self.decisions.facts.variable_dtypes(self.decisions.before)
        return removed.facts.variable_dtypes(removed.before)

    def with_graph(self, graph: Graph, shapes: Optional[Shapes] = None) -> Converted:
        """Return the same with another graph; its variables have the dtypes and shapes that they had, or ``shapes``."""
        symbol, facts_before = from_graph(graph, self.symbol), self.facts
        graph = to_graph(symbol)  # in the order that MXNet writes
        known_shapes = {**facts_before.variable_shapes(self.graph), **(shapes or {})}
        facts = infer_facts(symbol, graph, known_shapes, facts_before.variable_dtypes(self.graph), facts_before.params)
        return replace(self, symbol=symbol, graph=graph, facts=facts)

    @functools.cached_property
    def cast_params(self) -> FrozenSet[str]:
        """Names of the variables whose values reach a cast to low precision."""
        return read_low(self.graph)

    def on_cpu(
        self,
        trains: bool = False,
        fused: bool = False,
        written: FrozenSet[str] = frozenset(),
        watched: bool = False,
    ) -> Any:
        """Return the symbol that runs on CPU: float16 emulated, bfloat16 guarded. Never saved.

        Args:
            trains: Whether it trains. Then its gradients are guarded too, and copies keep layouts of oneDNN apart if
                its backward pass would be slow.
            fused: Whether MXNet partitions it, so that convolutions are fused with the operators behind them.
            written: The variables whose gradients, if they have any, are not added to earlier ones.
            watched: Whether a diagnosis reads its values. Then its operators stay the network's: none is written out
                or padded, and weights need not earn their casts.
        """
        graph = emulated(self.graph, self.facts, trains, fused, written, watched)
        return self.symbol if graph is self.graph else from_graph(graph, self.symbol)

    def on_gpu(self, trains: bool = False) -> Any:
        """Return the symbol that runs on GPU, guarded against MXNet's faults on any device. Never saved."""
        guarded = Sequential((GuardPRelu(), GuardBranches()) if trains else ())(self.graph)
        return from_graph(guarded.graph, self.symbol) if guarded.modified else self.symbol

    @property
    def guards_training(self) -> bool:
        """Whether the graph that trains has guards that the one for inference lacks, on some device."""
        return any(node.op == "_cond" or is_prelu(node) or is_transposed(node) for node in self.graph.operators())


def convert_graph(
    symbol: Any,
    policy: Policy,
    shapes: Optional[Shapes] = None,
    types: Optional[Dtypes] = None,
    params: FrozenSet[str] = frozenset(),
    stored: FrozenSet[str] = frozenset(),
    out_of_range: FrozenSet[str] = frozenset(),
    final: bool = False,
    graph: Optional[Graph] = None,
    inputs: Optional[FrozenSet[str]] = None,
    removed: Optional[Removed] = None,
    storable: Optional[FrozenSet[str]] = None,
) -> Converted:
    """Convert a symbol: erase earlier casts and insert new ones.

    Args:
        symbol: A float32 network, or one that mxmp converted before.
        policy: The policy.
        shapes: Shapes of the inputs; without them casts are counted in place of bytes.
        types: Dtypes of the inputs; float32 unless given here or declared by the variable.
        params: Names of the variables that are parameters.
        stored: Names of those that are stored in low precision already.
        out_of_range: Names of variables and outputs with values beyond the low precision dtype's range:
            the operators that give or read them stay in float32.
        final: Whether this is the only conversion of a network, which decides on the storage of its parameters. Gluon
            and Module may convert again for other shapes.
        graph: The symbol's graph, if it has been read: ``to_graph(symbol)``.
        inputs: Names of its inputs, labels included; unless given all variables but ``params``.
        removed: Nodes that inference does not need and that were removed before, for the report.
        storable: Names of the parameters that may be stored in low precision; all unless given.

    Raises:
        InferenceError: If the network does not type-check by itself; it names the node.
        PolicyError: If an override cannot be met.
    """
    shapes = shapes or {}
    source, graph = _without_casts(symbol, graph)
    if inputs is None:
        inputs = frozenset(node.name for node in graph.nodes if node.is_variable) - params
    facts = infer_network(source, graph, shapes, types or {}, params)
    facts = replace(facts, inputs=inputs, out_of_range=out_of_range)
    plan = make_plan(graph, policy, facts, stored=stored, final=final, storable=storable)
    after = in_written_order(InsertCasts(policy, facts, plan=plan).run(graph))
    if marked_blocks(after):
        after = without_blocks(after)
    low_params = frozenset(graph.nodes[position].name for position in plan.low_params)
    decisions = Decisions(policy, graph, facts, plan, after, removed or Removed())
    new_symbol, new_facts = from_graph(after, symbol), facts
    if after is not graph:
        new_types = {**facts.variable_dtypes(graph), **dict.fromkeys(low_params, policy.compute_dtype)}
        new_facts = infer_facts(new_symbol, after, facts.variable_shapes(graph), new_types, params)
    return Converted(new_symbol, after, new_facts, low_params, decisions)


def _without_casts(symbol: Any, graph: Optional[Graph]) -> Tuple[Any, Graph]:
    """Return a symbol and its graph without the casts of an earlier conversion."""
    erased = EraseCasts()(to_graph(symbol) if graph is None else graph)
    if not erased.modified:
        return symbol, erased.graph
    source = from_graph(erased.graph, symbol)
    return source, to_graph(source)


def own_low_dtypes(symbol: Any) -> Dict[str, str]:
    """Return the low precision dtypes that a network's own casts and declarations give to its variables, by name.

    Those of mxmp are left out: the dtypes are those of the network before mxmp converted it.
    """
    text = symbol.tojson(remove_amp_cast=False)  # few have any; to search the text is faster than to read the graph
    if not any(f'"{low}"' in text or f'"__dtype__": "{dtypes.to_flag(low)}"' in text for low in dtypes.LOW_PRECISION):
        return {}
    try:
        types = infer_variables(_without_casts(symbol, None)[0], {})
    except InferenceError:
        return {}  # which says nothing, or is found and reported where the network is converted
    return {name: dtype for name, dtype in types.items() if dtype in dtypes.LOW_PRECISION}


def on_cpu(sym: Any, dtypes: Optional[Mapping[str, Any]] = None) -> Any:
    """Return a symbol that emulates a float16 symbol on a CPU, which has no float16 products.

    It has the same inputs, parameters in float16 included, outputs and names: float32 arithmetic
    with every result rounded to float16. It is for running, not for saving. For training take
    ``mxmp.module.Module``, which does this by itself.

    Args:
        sym: A converted symbol; it is not changed.
        dtypes: Dtypes of inputs that are not float32 and do not declare theirs.

    Raises:
        ConvertError: If ``sym`` is no symbol; InferenceError if it does not type-check.
    """
    types, graph = make_model(sym, dtypes=dtypes).dtypes, to_graph(sym)
    facts = infer_network(sym, graph, {}, types, frozenset())
    after = emulated(graph, facts)
    return sym if after is graph else from_graph(after, sym)


def emulated(
    graph: Graph,
    facts: Facts,
    trains: bool = False,
    fused: bool = False,
    written: FrozenSet[str] = frozenset(),
    watched: bool = False,
) -> Graph:
    """Return the graph that gives the same on a CPU as another graph on a GPU; the same graph if nothing differs.

    For the other arguments see `Converted.on_cpu`.
    """
    has_low = facts.has(dtypes.BFLOAT16)
    unique, old_names = with_unique_names(graph) if has_low else (graph, {})  # passes tell entries apart by names
    layouts = Layouts.of(unique, facts, read_processor().kind) if has_low else Layouts()
    running = Emulate(facts, native=facts.has(dtypes.FLOAT16) and rounding.available())(unique).graph
    if trains:
        running = GuardTransposed(facts.by_name(unique, dtypes.FLOAT32)).run(running)
    passes: List[Pass] = []
    if has_low and not watched:
        running, layouts = pad_channels(running, layouts, fused)
        running = GroupDepthwise(layouts)(running).graph if trains else running
    if has_low:
        passes.append(WidenSlowKernels(layouts, fused, trains and not watched))
    if has_low and trains:
        passes += [*([] if watched else [WriteOut(layouts)]), SeparateLayouts(layouts)]
    names = layouts.shapes.keys()
    if trains:
        passes += [GuardPRelu(), GuardBranches(names)]
    passes += [GuardGradientSums(names), GuardLayouts(), GuardAmpCasts(written)]
    running = Sequential(tuple(passes))(running).graph
    if running is unique:
        return graph
    return renamed(running, lambda name: old_names.get(name, name)) if old_names else running


def read_low(graph: Graph) -> FrozenSet[str]:
    """Return the variables whose values reach a cast to low precision, at once or through clear operators.

    One sweep from the outputs up, so that a deep network costs no more per node than a shallow one.
    """
    reaching: Set[int] = set()  # positions of nodes whose values do
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        casts_low = is_inserted(node) and node.get("dtype") in dtypes.LOW_PRECISION
        if casts_low or (position in reaching and _is_clear(node)):
            reaching.update(entry.node for entry in node.inputs)
        for body in bodies_of(node):
            inside = read_low(body.graph)
            read = zip(body.variables(), body.ports)
            reaching.update(
                node.inputs[port].node for variable, port in read if body.graph.nodes[variable].name in inside
            )
    return frozenset(graph.nodes[position].name for position in reaching if graph.nodes[position].is_variable)


def _is_clear(node: Node) -> bool:
    rule = rule_of(node)
    return rule is not None and rule.category == CLEAR


class ShapeOutcomes:
    """Tells which decisions on a network given shapes of its inputs lead to, by one shape inference.

    Two calls of a converted net need two conversions only where this differs. The arguments are those of
    `convert_graph`; ``dtype`` is the low precision dtype in question, ``data`` the names of inputs and constants.
    """

    def __init__(
        self,
        symbol: Any,
        dtype: str,
        types: Dtypes,
        params: FrozenSet[str],
        data: FrozenSet[str],
        graph: Optional[Graph] = None,
    ) -> None:
        self._data = data
        self._source, self._graph = _without_casts(symbol, graph)
        self._dtype = dtype
        self._types: Optional[Dtypes] = None
        self.depends = depends_on_shapes(self._graph, dtype, data=data)
        if self.depends and any(node.subgraphs for node in self._graph.nodes):
            # Shapes in bodies of control flow need the dtypes of all that these read.
            facts = infer_network(self._source, self._graph, {}, types, params)
            self._types = facts.variable_dtypes(self._graph)

    def __call__(self, shapes: Shapes) -> Tuple[Any, ...]:
        """Return the outcomes of all conditions for given shapes of variables; nothing where there are none."""
        if not self.depends:
            return ()
        facts = infer_facts(self._source, self._graph, shapes, self._types, frozenset())
        return shape_outcome(self._graph, self._dtype, replace(facts, inputs=self._data))
