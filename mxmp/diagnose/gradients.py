"""Measures how small the gradients of activations become, to choose a loss scale."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError
from ..graph import VARIABLE, Entry, GraphBuilder, Node
from ..passes.scale_loss import is_loss_head
from ..rules import RULES
from ..symbol import ConvertedModel, convert_model
from ..symbol.inference import from_graph, infer_facts, to_graph
from .batches import Batches, fill_inputs, read_batches
from .magnitudes import Magnitudes


def measure_gradients(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, Magnitudes]:
    """Run a float32 network forward and backward and count the gradients of its activations by magnitude.

    They are what a loss scale is chosen for: without one, many become 0 in float16. Nothing is trained; dropout
    drops and BatchNorm takes the batch's statistics as in training, and its running ones stay as they are.

    Args:
        sym: The network with its loss heads, or with losses as outputs; bodies of its loops are not looked into.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: Batches of its inputs with labels: dicts of NDArrays by name, or a DataIter, which is reset and
            read to its end.
        ctx: Where to run; the CPU unless given.

    Returns:
        By the name of an output ('conv0_output'): the magnitudes of its gradient over all batches. Outputs that no
        operator reads, those of loss heads, and those whose gradient is 0 everywhere are left out.

    Raises:
        ConvertError: If the parameters do not fit, there is no batch, one lacks an input, or the network has no
            activation in float32.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """
    model = convert_model(sym, arg_params, aux_params, "O0")  # without casts, should it be converted
    found: Dict[str, Magnitudes] = {}
    empty = True
    for batch in read_batches(batches, labels=True):
        empty = False
        for name, gradient in _gradients(model, fill_inputs(model, batch, labels=True), ctx or mx.cpu()).items():
            found.setdefault(name, Magnitudes()).add(gradient.asnumpy())
    if empty:
        raise ConvertError("batches is empty; give one batch at least.")
    return {name: magnitudes for name, magnitudes in found.items() if magnitudes.total or magnitudes.nonfinite}


class _Probed(NamedTuple):
    """A network in which each activation has a zero added to it, whose gradient is that of the activation.

    Attributes:
        symbol: The network.
        probes: By the name of the variable that holds the zeros: the activation's name and shape.
    """

    symbol: Any
    probes: Dict[str, Tuple[str, Tuple[int, ...]]]


def _gradients(model: ConvertedModel, values: Dict[str, Any], ctx: Any) -> Dict[str, Any]:
    """Return the gradients of all activations, by their names."""
    probed = _probe(model, values)
    if not probed.probes:
        raise ConvertError("sym has no float32 output that an operator reads; give the network in float32.")
    zeros = {name: mx.nd.zeros(shape, ctx=ctx) for name, (_, shape) in probed.probes.items()}
    for array in zeros.values():
        array.attach_grad()
    given = {**{name: array.copyto(ctx) for name, array in values.items()}, **zeros}  # BatchNorm writes statistics
    run = mx.nd.CachedOp(probed.symbol)
    with autograd.record():
        outputs = run(*[given[name] for name in probed.symbol.list_inputs()])
    autograd.backward(outputs if isinstance(outputs, list) else [outputs])
    return {probed.probes[name][0]: array.grad for name, array in zeros.items()}


def _probe(model: ConvertedModel, values: Mapping[str, Any]) -> _Probed:
    graph = to_graph(model.symbol)
    shapes = {name: array.shape for name, array in values.items()}
    types = {name: dtypes.canonical(array.dtype) for name, array in values.items()}
    facts = infer_facts(model.symbol, graph, shapes, types, frozenset())
    readers, builder = graph.consumers(), GraphBuilder(graph)
    probes: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
    for position, node in enumerate(graph.nodes):
        inputs = tuple(map(builder.mapped, node.inputs))
        if _is_unwritten(node):
            inputs = tuple(_blocked(builder, node, entry) for entry in inputs)
        new = builder.copy(position, node.rewired(inputs))
        for index in _watched(position, node, readers):
            entry = Entry(position, index)
            shape = facts.shapes.get((position, index))
            if facts.dtype(entry) != dtypes.FLOAT32 or not shape:
                continue
            name = builder.unique(f"{node.name}_probe{index}")
            zero = Entry(builder.add(Node(VARIABLE, name)))
            builder.redirect(entry, builder.insert("elemwise_add", f"{name}_sum", Entry(new, index), zero))
            probes[name] = facts.output_names[position, index], shape
    return _Probed(from_graph(builder.finish(map(builder.mapped, graph.heads)), model.symbol), probes)


def _blocked(builder: GraphBuilder, node: Node, entry: Entry) -> Entry:
    return builder.insert("BlockGrad", f"{node.name}_blocked", entry)


def _is_unwritten(node: Node) -> bool:
    rule = RULES.find(node.op, dict(node.attrs))
    return rule is not None and rule.unwritten_gradient


def _watched(position: int, node: Node, readers: Mapping[Tuple[int, int], Any]) -> List[int]:
    """Return the outputs of a node that an operator reads, none of those that ignore their gradient."""
    if node.is_variable or is_loss_head(node) or _is_unwritten(node):
        return []
    return [index for index in range(node.num_outputs) if (position, index) in readers]
