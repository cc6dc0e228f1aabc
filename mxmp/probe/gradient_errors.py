"""The error of the gradients that each node of a converted network gives: its own, and with what it is given."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError, mxnet_reason
from ..graph import Entry, Graph, Key
from ..passes.scale_loss import is_loss_head
from ..report import Decisions
from ..rules import RULES
from .building import Building, in_low_precision, moved
from .gradient_probes import is_unwritten
from .node_errors import Errors, relative_error
from .running import SCALE, Runner, Values, runnable, values_on, zeros

Loss = Callable[[List[Any]], Sequence[Any]]
"""Returns the losses, NDArrays of any shape, of a network's outputs."""

Port = Tuple[int, int]
"""What a gradient is of: position of the node that reads it, number of the input."""

_PREFIX = "probe_"

_ADDED: Mapping[str, Tuple[int, ...]] = {
    **dict.fromkeys(("FullyConnected", "Convolution", "Deconvolution", "BatchNorm", "LayerNorm", "GroupNorm"), (2,)),
    **dict.fromkeys(("broadcast_add", "broadcast_sub", "_npi_add", "_npi_subtract"), (0, 1)),
}
"""By operator, the inputs that it adds to its output, so that their gradients are sums over the output's."""


class GradientErrors:
    """Measures, on one batch after the other, how far the gradients are off that nodes give to what they read.

    The network runs as in training, but for dropout, which drops nothing. Compared are, for each input of a node (data
    and parameters), the gradients that this node's backward pass gives of it:

    - exact: in float32 throughout.
    - own: this node in low precision, given float32's inputs and float32's gradient of its output times the loss scale,
      each rounded to its precision; divided by the loss scale in float32.
    - carried: in the converted network, from the loss times the loss scale on; divided likewise.

    Where several nodes read one activation, each gradient is rounded before they are added up.

    The gradient of what a node adds, such as a bias, is a sum over the gradient of the node's output. It may be 0 but
    for rounding, as that of a bias before BatchNorm or of the key's in attention. Where it is less than the rounding of
    its terms alone (2**-11 of their 2-norm for float16, 2**-8 for bfloat16), its error is measured against that norm.

    Args:
        decisions: What a conversion decided.
        ctx: Where to run.
    """

    def __init__(self, decisions: Decisions, ctx: Any) -> None:
        self._decisions, self._ctx = decisions, ctx
        self._rounded = dtypes.limits(decisions.policy.compute_dtype).eps / 2
        self._ports = _differentiated(decisions)
        self._low = frozenset(in_low_precision(decisions))
        self._runners: Dict[str, Runner] = {}

    def __call__(self, batch: Values, loss: Optional[Loss] = None, scale: float = 1.0) -> Dict[int, Errors]:
        """Return the errors on a batch by position, of the worst input of each node.

        Args:
            batch: The values of all variables by name.
            loss: Gives the losses; without it the network has loss heads, or its outputs are losses.
            scale: The loss scale, a power of two.

        Raises:
            ConvertError: If the batch lacks a variable, or MXNet cannot run the network backward.
        """
        exact, heads = self._network(batch, loss, 1.0, converted=False)
        outputs = self._of_outputs(exact, heads)
        seeds = {key: gradient for key, gradient in outputs.items() if key[0] in self._low}
        found: Dict[int, Errors] = {}

        def error(port: Port, gradient: Any) -> float:
            right, size = exact[port].asnumpy(), self._size_of_terms(port, outputs)
            return relative_error(right, gradient.asnumpy(), scale, size, self._rounded)

        for port, gradient in self._nodes(batch, seeds, scale).items():
            found[port[0]] = Errors(own=error(port, gradient)).worst(found.get(port[0], Errors()))
        for port, gradient in self._network(batch, loss, scale, converted=True)[0].items():
            found[port[0]] = Errors(carried=error(port, gradient)).worst(found.get(port[0], Errors()))
        return found

    def _size_of_terms(self, port: Port, outputs: Mapping[Key, Any]) -> float:
        """Return the 2-norm of the terms whose sum the gradient of a port is; 0 if it is no such sum."""
        key = port[0], 0
        if key not in outputs or port[1] not in _ADDED.get(self._decisions.before.nodes[port[0]].op, ()):
            return 0.0
        return float(np.linalg.norm(outputs[key].asnumpy().astype(np.float64).reshape(-1)))

    def _network(
        self, batch: Values, loss: Optional[Loss], scale: float, converted: bool
    ) -> Tuple[Dict[Port, Any], Dict[int, Any]]:
        """Return the gradients of what nodes read, and of the outputs, times the loss scale."""
        values = values_on(self._decisions, batch, self._ctx, copied=True)
        values[SCALE] = mx.nd.full(1, scale, ctx=self._ctx)
        name = "converted" if converted else "float32"
        run = self._known(name, lambda: _probed(self._decisions, self._ports, converted), values, scaled=loss is None)
        zero = _zeros(run.symbol, values, self._ctx)
        with autograd.record(train_mode=True):
            outputs = run({**values, **zero})
            losses = outputs if loss is None else [each * scale for each in loss(outputs)]
        seeds = [mx.nd.full(each.shape, scale, ctx=self._ctx) for each in losses] if loss is None else None
        with _blaming_the_network():
            autograd.backward(losses, seeds)
        ports = {port: zero[_name(port)].grad for port in self._ports}
        heads = range(len(self._decisions.before.heads))
        return ports, {number: zero[_of_head(number)].grad for number in heads if _of_head(number) in zero}

    def _of_outputs(self, ports: Mapping[Port, Any], heads: Mapping[int, Any]) -> Dict[Key, Any]:
        """Return the gradients of what nodes give, the sums of those of their readers."""
        graph = self._decisions.before
        found: Dict[Key, Any] = {}
        read = [(graph.nodes[position].inputs[port].key, each) for (position, port), each in ports.items()]
        for key, gradient in (*read, *((graph.heads[number].key, each) for number, each in heads.items())):
            found[key] = found[key] + gradient if key in found else gradient
        return found

    def _nodes(self, batch: Values, seeds: Mapping[Key, Any], scale: float) -> Dict[Port, Any]:
        """Return the gradients of what nodes in low precision read, each given float32's values and gradients."""
        if not seeds:
            return {}
        nodes, heads = self._decisions.before.nodes, sorted(seeds)
        low = {position: nodes[position] for position, _ in heads}
        read = sorted({each.key for node in low.values() for each in node.inputs if not nodes[each.node].is_variable})
        values = values_on(self._decisions, batch, self._ctx, copied=True)
        exact = {(i, 0): values[node.name] for i, node in enumerate(nodes) if node.is_variable and node.name in values}
        with autograd.pause(train_mode=True):
            outputs = self._known("values", lambda: _float32(self._decisions, read), values)(values) if read else []
        exact.update(zip(read, outputs))
        values.update({_value(key): exact[key] for key in read})
        inputs = {port: exact[nodes[port[0]].inputs[port[1]].key].detach() for port in self._ports if port[0] in low}
        for array in inputs.values():
            array.attach_grad()
        values.update({_name(port): array for port, array in inputs.items()})
        run = self._known("nodes", lambda: _alone(self._decisions, heads, frozenset(inputs)), values)
        with autograd.record(train_mode=True):
            outputs = run(values)
        with _blaming_the_network():
            autograd.backward(outputs, [seeds[key] * scale for key in heads])
        return {port: array.grad for port, array in inputs.items()}

    def _known(self, name: str, build: Callable[[], Graph], values: Values, scaled: bool = False) -> Runner:
        """Return what runs a graph, which is built once."""
        if name not in self._runners:
            symbol = runnable(build(), self._decisions, values, self._ctx, trains=True, scaled=scaled)
            self._runners[name] = Runner(symbol)
        return self._runners[name]


def _probed(decisions: Decisions, ports: FrozenSet[Port], converted: bool) -> Graph:
    """Return the network, perhaps as it was converted, with a variable added to what nodes read and to its outputs."""
    building = Building(decisions)
    where = dict(building.variables)
    for position, node in enumerate(decisions.before.nodes):
        if node.is_variable:
            continue
        read = moved(node.inputs, where)
        for port in (each for each in range(len(read)) if (position, each) in ports):
            read[port] = building.insert("elemwise_add", read[port], building.variable(_name((position, port))))
        if is_unwritten(node):
            read = [building.insert("BlockGrad", entry) for entry in read]
        where[position] = building.copy(position, read, converted)
    heads = moved(decisions.before.heads, where)
    for number, head in enumerate(decisions.before.heads):
        if decisions.facts.dtype(head) == dtypes.FLOAT32 and not is_loss_head(decisions.before.nodes[head.node]):
            heads[number] = building.insert("elemwise_add", heads[number], building.variable(_of_head(number)))
    return building.finish(heads)


def _float32(decisions: Decisions, keys: Sequence[Key]) -> Graph:
    """Return the network in float32, whose outputs are those given of its nodes."""
    building = Building(decisions)
    where = dict(building.variables)
    for position, node in enumerate(decisions.before.nodes):
        if not node.is_variable:
            where[position] = building.copy(position, moved(node.inputs, where), converted=False)
    return building.finish([Entry(where[position], index) for position, index in keys])


def _alone(decisions: Decisions, keys: Sequence[Key], ports: FrozenSet[Port]) -> Graph:
    """Return the graph of nodes as they were converted, each of which reads variables alone; its outputs are given."""
    building, where = Building(decisions), {}
    given: Dict[Key, Entry] = {(old, 0): Entry(new) for old, new in building.variables.items()}
    for position in sorted({position for position, _ in keys}):
        read = []
        for port, entry in enumerate(decisions.before.nodes[position].inputs):
            if (position, port) in ports:
                read.append(building.variable(_name((position, port))))
                continue
            if entry.key not in given:
                given[entry.key] = building.variable(_value(entry.key), decisions.facts.dtype(entry))
            read.append(given[entry.key]._replace(version=entry.version))
        where[position] = building.copy(position, read, converted=True)
    return building.finish([Entry(where[position], index) for position, index in keys])


def _differentiated(decisions: Decisions) -> FrozenSet[Port]:
    """Return what gradients are compared of: float32 data and parameters that nodes read, no labels or indices."""
    nodes, facts = decisions.before.nodes, decisions.facts
    found = set()
    for position, node in enumerate(nodes):
        rule = RULES.find(node.op, dict(node.attrs))
        for port, entry in enumerate(node.inputs):
            inside = not nodes[entry.node].is_variable or nodes[entry.node].name in facts.params
            is_data = (rule is not None and rule.is_data(port)) or (bool(node.subgraphs) and inside)
            if is_data and not is_unwritten(node) and facts.dtype(entry) == dtypes.FLOAT32:
                found.add((position, port))
    return frozenset(port for port in found if port[1] == 0 or not is_loss_head(nodes[port[0]]))


def _zeros(symbol: Any, values: Values, ctx: Any) -> Dict[str, Any]:
    """Return zeros, with gradients, for the variables that no value is given for."""
    names = [name for name in symbol.list_inputs() if name not in values]
    known = {name: values[name].shape for name in symbol.list_inputs() if name in values}
    arguments, _, _ = symbol.infer_shape(**known)
    shapes = dict(zip(symbol.list_arguments(), arguments))
    for name in names:
        if not name.startswith(_PREFIX):
            raise ConvertError(f"batches: a batch lacks the input '{name}'; give it, also if it is a label.")
    return zeros({name: shapes[name] for name in names}, ctx)


def _name(port: Port) -> str:
    return f"{_PREFIX}{port[0]}_{port[1]}"


def _value(key: Key) -> str:
    return f"value_{key[0]}_{key[1]}"


def _of_head(number: int) -> str:
    return f"{_PREFIX}of_head_{number}"


@contextlib.contextmanager
def _blaming_the_network() -> Iterator[None]:
    try:
        yield
    except mx.MXNetError as e:
        raise ConvertError(f"gradients: MXNet cannot run the network backward: {mxnet_reason(e)}") from e
