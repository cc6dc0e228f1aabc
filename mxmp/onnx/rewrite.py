"""Rewrites symbols so that MXNet's exporter to ONNX translates them to what MXNet computes.

``mx.onnx.export_model`` of MXNet 1.9.1 translates a symbol operator by operator, and some of them to something
else (python/mxnet/onnx/mx2onnx/_op_translations at tag 1.9.1); here these are replaced by operators that it
translates well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes as dtypes_
from ..errors import ConvertError, InferenceError
from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import make_attrs
from ..passes import Facts, Pass
from ..rules.core import value_of
from ..symbol import from_graph, infer_facts, to_graph
from ..symbol.arguments import require_symbol

# The exporter gives onnx the bits of a float16 constant, and onnx 1.8 and later take them for its value:
# x + 1 becomes x + 15360. Those of the last line are float32 whatever they read, and so is GELU's.
_WITH_CONSTANTS = frozenset(
    "_mul_scalar _minus_scalar _rminus_scalar _plus_scalar _div_scalar _rdiv_scalar _power_scalar _maximum_scalar "
    "_minimum_scalar _greater_scalar _lesser_scalar _equal_scalar clip Pad softmax log2 _linalg_gemm2 "
    "_contrib_div_sqrt_dim _contrib_arange_like "
    "LayerNorm SequenceMask _contrib_interleaved_matmul_selfatt_qk".split()
)
# Made of constants of the dtype that they name; and ONNX's Range has no float16.
_MADE_OF_CONSTANTS = frozenset(("one_hot", "_arange"))
# What MXNet takes for attributes that are left out, and the exporter does not.
_DEFAULTS = {"FullyConnected": {"flatten": "True"}, "LRN": {"knorm": "2"}, "Deconvolution": {"no_bias": "True"}}
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")  # which the exporter's reader of JSON refuses
_TRUE = ("True", "1")
# What other loss heads compute in inference (src/operator/regression_output.cc and svm_output-inl.h at tag 1.9.1).
_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
}


def exportable(sym: Any) -> Any:
    """Return a symbol for inference that MXNet's exporter to ONNX translates to what MXNet computes.

    - Operators in float16 that the exporter gives constants (``x + 1``, ``clip``, ``LayerNorm``, GELU)
      run in float32 between two casts: it writes wrong constants, or constants of the wrong dtype. So do
      ``one_hot`` and ``arange`` to float16.
    - ``FullyConnected`` says ``flatten=True`` and ``LRN`` says ``knorm=2``, which are MXNet's defaults, but
      not the exporter's.
    - Windows of average pooling that reach beyond the data (``pooling_convention='full'``) count what is
      there alone, as in MXNet; with padding they differ still.
    - ``BatchNorm`` with ``fix_gamma``, which the exporter does not look at, gets a gamma of ones.
    - ``SoftmaxOutput`` and the other loss heads become what they are in inference, a softmax for example,
      and their labels go: the exporter leaves labels out, and then looks for them.

    Args:
        sym: A symbol, converted or not; it is not changed. Its variables are float32 unless they
            declare or imply another dtype.

    Raises:
        ConvertError: If it has an ``amp_cast``, as every symbol converted to bfloat16: the exporter
            drops them without a word. Or if a name has a control character, which it cannot read.
    """
    graph = to_graph(require_symbol(sym))
    for node in graph.nodes:
        if _CONTROL.search(node.name):
            raise ConvertError(f"node {node.name!r}: MXNet's exporter to ONNX reads no control characters; rename it.")
        if node.op == "amp_cast":
            raise ConvertError(
                f"node {node}: MXNet's exporter to ONNX drops every amp_cast; convert to float16, where mxmp inserts "
                f"Cast."
            )
    return from_graph(WriteOut(_infer(sym, graph))(graph).graph, sym)


def _infer(sym: Any, graph: Graph) -> Facts:
    """Return the dtypes of a symbol whose variables are float32 where nothing says otherwise."""
    variables = {i: n for i, n in enumerate(graph.nodes) if n.is_variable}
    try:
        found = infer_facts(sym, graph, {}, {}, frozenset())
        unknown = [node.name for i, node in variables.items() if found.dtype(Entry(i)) is None]
    except InferenceError:  # Embedding, for example, must be told
        unknown = [node.name for node in variables.values() if not node.declares_dtype]
    return infer_facts(sym, graph, {}, dict.fromkeys(unknown, dtypes_.FLOAT32), frozenset())


@dataclass(frozen=True)
class WriteOut(Pass):
    """Replaces what MXNet's exporter translates to something else, by what it translates well."""

    name: ClassVar[str] = "write-out"
    facts: Facts

    def run(self, graph: Graph) -> Graph:
        """Return the graph with all of it written out; its outputs keep their names."""
        builder = GraphBuilder(graph)
        for position, old in enumerate(graph.nodes):
            node = old.rewired(tuple(map(builder.mapped, old.inputs)))
            if node.op in _DEFAULTS:
                node = node.with_attrs({**_DEFAULTS[node.op], **dict(node.attrs)})
            elif node.op == "BatchNorm" and node.get("fix_gamma") in (None, *_TRUE):
                ones = builder.insert("ones_like", f"{node.name}_ones", node.inputs[1])
                node = node._replace(inputs=(node.inputs[0], ones, *node.inputs[2:]))
            elif node.op == "Pooling" and _overhangs(node):
                node = node.with_attrs({"count_include_pad": "False"})
            elif node.op == "SoftmaxOutput":
                node = _softmax(node, builder)
            elif node.op in _HEADS:
                node = Node(_HEADS[node.op], node.name, (), node.inputs[:1])
            is_gelu = node.op == "LeakyReLU" and node.get("act_type") == "gelu"
            if (is_gelu or node.op in _WITH_CONSTANTS) and self.facts.dtype(old.inputs[0]) == dtypes_.FLOAT16:
                node = self._in_float32(old, node, builder)
            elif node.op in _MADE_OF_CONSTANTS and node.get("dtype") == dtypes_.FLOAT16:
                node = _cast_to_float16(node.with_attrs({**dict(node.attrs), "dtype": dtypes_.FLOAT32}), builder)
            builder.copy(position, node)
        heads = []
        for head in graph.heads:
            node, entry = graph.nodes[head.node], builder.mapped(head)
            # The exporter drops outputs that are inputs too.
            heads.append(builder.insert("_copy", f"{node.name}_copy", entry) if node.is_variable else entry)
        return builder.finish(heads)

    def _in_float32(self, old: Node, node: Node, builder: GraphBuilder) -> Node:
        """Return the cast that takes back to float16 what a node computes in float32."""
        inputs = [
            builder.insert("Cast", f"{node.name}_{port}", entry, dtype=dtypes_.FLOAT32)
            if self.facts.dtype(old.inputs[port]) == dtypes_.FLOAT16
            else entry
            for port, entry in enumerate(node.inputs)
        ]
        return _cast_to_float16(node._replace(inputs=tuple(inputs)), builder)


def _cast_to_float16(node: Node, builder: GraphBuilder) -> Node:
    """Return a cast to float16 of a node that computes in float32, which takes over its name.

    The exporter tells 1 - x from x - 1 by how the name begins.
    """
    inner = node._replace(name=builder.unique(f"{node.name}_{dtypes_.FLOAT32}"))
    return Node("Cast", node.name, make_attrs({"dtype": dtypes_.FLOAT16}), (Entry(builder.add(inner)),))


def _overhangs(node: Node) -> bool:
    """Return whether windows of means may reach beyond the data, where onnxruntime counts what is not there.

    It does so only where padding counts, which without padding makes no difference to MXNet.
    """
    pads = value_of(dict(node.attrs), "pad") or (0,)
    full = node.get("pooling_convention") == "full" and node.get("pool_type") == "avg"
    return full and not any(pads if isinstance(pads, tuple) else (pads,))


def _softmax(node: Node, builder: GraphBuilder) -> Node:
    """Return what SoftmaxOutput computes in inference (src/operator/softmax_output-inl.h at tag 1.9.1)."""
    data = node.inputs[0]
    for attribute, axis in (("multi_output", "1"), ("preserve_shape", "-1")):
        if node.get(attribute) in _TRUE:
            return Node("softmax", node.name, make_attrs({"axis": axis}), (data,))
    flat = builder.insert("Flatten", f"{node.name}_flat", data)
    rows = builder.insert("softmax", f"{node.name}_rows", flat)
    return Node("reshape_like", node.name, (), (rows, data))
