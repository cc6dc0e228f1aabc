"""Counts what a training step asks of a GPU: the multiply-adds and the bytes of every kernel, from a converted graph.

What is counted as one kernel is one call of MXNet into CUDA, cuDNN or cuBLAS. Each tensor that it reads or writes
counts once, as if caches held it for the rest of the kernel and for no other.
"""

from __future__ import annotations

import math
from typing import Callable, Collection, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from mxmp import Policy, dtypes
from mxmp.graph import Entry, Graph, Key, Node
from mxmp.rules import ALLOW, RULES
from mxmp.rules.core import value_of
from mxmp.symbol.rewrite import Converted

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
FLOAT32, TF32, FLOAT16 = "float32", "tf32", "float16"

AGGREGATED, TOGETHER = 4, 60
"""Weights that one launch of SGD updates: MXNET_OPTIMIZER_AGGREGATION_SIZE where nothing sets it; under mxmp."""

_MASTER = dtypes.ITEM_BYTES[dtypes.FLOAT32]

Shapes = Sequence[Tuple[int, ...]]


class Kernel(NamedTuple):
    """One kernel, or several alike.

    Attributes:
        name: The node's name.
        phase: FORWARD, BACKWARD or UPDATE.
        macs: Multiply-adds of its matrix products; those of other arithmetic are not counted.
        moved: Bytes that it reads and writes.
        peak: The peak of a card that bounds its products: FLOAT16 on tensor cores; TF32 for float32 numbers, where
            the card has it; FLOAT32 without tensor cores.
        launches: How many kernels are launched.
    """

    name: str
    phase: str
    macs: int
    moved: int
    peak: str = FLOAT32
    launches: int = 1


def step(converted: Converted, inputs: Collection[str], policy: Policy) -> List[Kernel]:
    """Return the kernels of one training step with SGD and momentum.

    Args:
        converted: A graph with the shapes and dtypes of all that it has.
        inputs: Names of its variables that are not trained: data, labels.
        policy: What it was converted under; a loss scale has the gradients checked for inf and NaN.

    Raises:
        ValueError: If a shape is unknown, or how to count an operator; the message names the node.
    """
    counted = _Step(converted, inputs)
    return [*counted.kernels(), counted.update(policy)]


def _convolution(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    return math.prod(out) * math.prod(shapes[1][1:])


def _deconvolution(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _matrices(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    transposed = value_of(dict(node.attrs), "transpose_a")
    return math.prod(out) * shapes[0][-2 if transposed else -1]


def _self_attention_scores(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    heads = value_of(dict(node.attrs), "heads")
    return math.prod(out) * (shapes[0][2] // (3 * heads))


def _self_attention_mix(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    return math.prod(out) * shapes[1][-1]


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _rnn_weights(node: Node, shapes: Shapes) -> Tuple[int, int]:
    """Return how many weights, biases left out, an RNN has, and how many of them are recurrent."""
    attrs = dict(node.attrs)
    hidden, layers = value_of(attrs, "state_size"), value_of(attrs, "num_layers")
    directions = 2 if value_of(attrs, "bidirectional") else 1
    recurrent = layers * directions * _GATES[attrs["mode"]] * hidden * hidden
    width = shapes[0][2] + (layers - 1) * directions * hidden  # of the inputs of all layers
    return recurrent + directions * _GATES[attrs["mode"]] * hidden * width, recurrent


def _rnn(node: Node, shapes: Shapes, out: Tuple[int, ...]) -> int:
    return math.prod(shapes[0][:2]) * _rnn_weights(node, shapes)[0]


MULTIPLY_ADDS: Dict[str, Callable[[Node, Shapes, Tuple[int, ...]], int]] = {
    "Convolution": _convolution,
    "FullyConnected": _convolution,  # each output is a product with one row of the weight, here as there
    "Deconvolution": _deconvolution,
    **dict.fromkeys(["dot", "batch_dot", "_linalg_gemm2"], _matrices),
    "_contrib_interleaved_matmul_selfatt_qk": _self_attention_scores,
    "_contrib_interleaved_matmul_selfatt_valatt": _self_attention_mix,
    "RNN": _rnn,
}
"""The multiply-adds of each operator that makes matrix products, by what it reads and its first output."""

KNOWN = ", ".join(MULTIPLY_ADDS)

_VIEWS = {"Reshape", "reshape", "Flatten", "expand_dims", "squeeze", "BlockGrad", "identity", "_copy", "MakeLoss"}
"""MXNet shares memory between what they read and write: no kernel, in either direction."""

_SHARED_GRADIENT = {"elemwise_add", "_plus", "_Plus"}
"""The gradient of the output is that of the inputs: no kernel backward."""

_SELECTING = {"Embedding", "take", "gather_nd", "pick", "slice", "slice_axis", "slice_like"}
"""They read only what they return; the gradient is as large as what they select from."""

_LINEAR = {"Cast", "amp_cast", "transpose", "SwapAxis", "Concat", "SliceChannel", "sum", "mean", "broadcast_add",
           "broadcast_like", "broadcast_to", "repeat", "tile", "_contrib_div_sqrt_dim", "_mul_scalar"}  # fmt: skip
"""Their gradients need none of the values that they read."""

_WITHOUT_GRADIENT = {"BlockGrad", "_contrib_MultiBoxPrior", "_contrib_MultiBoxTarget", "_contrib_MultiBoxDetection",
                     "_zeros", "zeros_like", "ones_like", "argmax", "shape_array"}  # fmt: skip


class _Step:
    """The forward and backward pass over one graph."""

    def __init__(self, converted: Converted, inputs: Collection[str]) -> None:
        self.graph: Graph = converted.graph
        self.facts = converted.facts
        self.trained = self._trained(inputs)

    def kernels(self) -> Iterator[Kernel]:
        """Yield all kernels, forward and backward of a node side by side."""
        for position, node in enumerate(self.graph.nodes):
            if not node.is_variable and node.op not in _VIEWS:
                yield from self._products(position, node) if node.op in MULTIPLY_ADDS else self._others(position, node)
        for key, readers in self.graph.consumers().items():
            gradients = sum((reader, 0) in self.trained for reader, _ in readers)
            if key in self.trained and gradients > 1:
                moved = (gradients + 1) * self._bytes([Entry(*key)])
                yield Kernel(self.graph.entry_name(Entry(*key)), BACKWARD, 0, moved)

    def update(self, policy: Policy) -> Kernel:
        """Return the update of all weights, and the check of their gradients.

        A weight is read and written. One that is stored in float16 is written, its float32 master read and written.
        """
        weights = [Entry(i) for i, node in enumerate(self.graph.nodes) if node.is_variable and (i, 0) in self.trained]
        checked = policy.loss_scale is not None
        moved = 0
        for weight in weights:
            item = self._item(weight)
            master = 0 if item == _MASTER else _MASTER
            stored = 2 * master + item if master else 2 * item
            gradient = (2 if checked else 1) * item
            moved += math.prod(self._shape(weight)) * (stored + gradient + 2 * _MASTER)  # the momentum is float32
        launches = math.ceil(len(weights) / (TOGETHER if policy.is_mixed else AGGREGATED)) + checked
        return Kernel("update", UPDATE, 0, moved, launches=launches)

    def _products(self, position: int, node: Node) -> Iterator[Kernel]:
        """Yield the products of a node: the gradients of data and weight are one each, as large as the forward one."""
        outputs = self._outputs(position)
        shapes = [self._shape(entry) for entry in node.inputs]
        macs = MULTIPLY_ADDS[node.op](node, shapes, self._shape(outputs[0]))
        moved = self._bytes([*node.inputs, *outputs])
        if node.op == "RNN":  # cuDNN's standard algorithm reads the recurrent weights at each of the steps
            moved += (shapes[0][0] - 1) * _rnn_weights(node, shapes)[1] * self._item(node.inputs[0])
        peak = FLOAT16 if self.facts.dtype(node.inputs[0]) in dtypes.LOW_PRECISION else TF32
        if peak == FLOAT16 and node.op == "RNN":  # MXNet asks for no tensor cores: cudnn_tensor_core_ in rnn-inl.h
            peak = FLOAT32
        yield Kernel(node.name, FORWARD, macs, moved, peak)
        if (position, 0) in self.trained:
            times = 2 if node.inputs[0].key in self.trained else 1
            yield Kernel(node.name, BACKWARD, times * macs, times * moved, peak, times)
        bias = node.inputs[2:]
        if bias and node.op != "RNN" and bias[0].key in self.trained:
            yield Kernel(node.name, BACKWARD, 0, self._bytes([bias[0], *outputs]))

    def _others(self, position: int, node: Node) -> Iterator[Kernel]:
        rule = RULES.find(node.op, dict(node.attrs))
        if node.subgraphs or (rule is not None and rule.category == ALLOW):
            raise ValueError(f"node {node}: what it computes is not counted; MULTIPLY_ADDS knows {KNOWN}.")
        outputs = self._outputs(position)
        written, read = self._bytes(outputs), self._bytes(node.inputs)
        selecting = node.op in _SELECTING
        yield Kernel(node.name, FORWARD, 0, written + (written if selecting else read))
        if (position, 0) in self.trained and node.op not in _SHARED_GRADIENT:
            gradients = self._bytes([entry for entry in node.inputs if entry.key in self.trained])
            values = 0 if selecting or node.op in _LINEAR else read
            yield Kernel(node.name, BACKWARD, 0, written + values + gradients)

    def _trained(self, inputs: Collection[str]) -> Set[Key]:
        """Return the tensors that have a gradient: behind a weight, and before an output."""
        behind: Set[Key] = set()
        for position, node in enumerate(self.graph.nodes):
            if node.is_variable:
                has_gradient = node.name not in inputs
            else:
                has_gradient = node.op not in _WITHOUT_GRADIENT and any(entry.key in behind for entry in node.inputs)
            if has_gradient:
                behind.update(entry.key for entry in self._outputs(position) if self._floating(entry))
        before = {head.key for head in self.graph.heads}
        for position in reversed(range(len(self.graph.nodes))):
            node = self.graph.nodes[position]
            if node.op not in _WITHOUT_GRADIENT and any(entry.key in before for entry in self._outputs(position)):
                before.update(entry.key for entry in node.inputs)
        return behind & before

    def _floating(self, entry: Entry) -> bool:
        return (self.facts.dtype(entry) or "").startswith(("float", "bfloat"))

    def _outputs(self, position: int) -> List[Entry]:
        """Return the outputs of a node; hidden ones that nothing is known of are left out."""
        entries = [Entry(position, index) for index in range(self.graph.nodes[position].num_outputs)]
        return [entry for entry in entries if not entry.index or self.facts.shape(entry) is not None]

    def _bytes(self, entries: Sequence[Entry]) -> int:
        """Return the bytes of some tensors, each counted once."""
        return sum(math.prod(self._shape(entry)) * self._item(entry) for entry in {e.key: e for e in entries}.values())

    def _item(self, entry: Entry) -> int:
        return dtypes.ITEM_BYTES[self.facts.dtype(entry) or dtypes.FLOAT32]

    def _shape(self, entry: Entry) -> Tuple[int, ...]:
        shape = self.facts.shape(entry)
        if shape is None:
            raise ValueError(f"node {self.graph.nodes[entry.node]}: its shape is unknown; give those of all inputs.")
        return shape
