"""Export to ONNX, by MXNet's exporter.

``mx.onnx.export_model`` of MXNet 1.9.1 translates a symbol operator by operator, and misreads some
of them (python/mxnet/onnx/mx2onnx/_op_translations at tag 1.9.1), which ``exportable`` writes out.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Iterator, Mapping, Optional

import mxnet as mx
import numpy as np

from . import compat
from . import dtypes as dtypes_
from .compat.old_onnx import IR_VERSION, OPSET
from .errors import ConvertError, DependencyError, InferenceError, mxnet_reason
from .files import saving
from .graph import Entry, Graph, GraphBuilder, Node
from .graph.core import make_attrs
from .passes import Facts, Pass
from .rules.core import value_of
from .symbol import from_graph, infer_facts, to_graph
from .symbol.arguments import check_params, known_dtypes, known_shapes, require_symbol

# The exporter gives onnx the bits of a float16 constant, and onnx 1.8 and later take them for its
# value: x + 1 becomes x + 15360.
_WITH_CONSTANTS = frozenset(
    "_mul_scalar _minus_scalar _rminus_scalar _plus_scalar _div_scalar _rdiv_scalar _power_scalar _maximum_scalar "
    "_minimum_scalar _greater_scalar _lesser_scalar _equal_scalar clip Pad softmax log2 _linalg_gemm2 "
    "_contrib_div_sqrt_dim _contrib_arange_like".split()
)
# Their constants are float32 whatever they read, and so is GELU's.
_WITH_FLOAT32_CONSTANTS = frozenset("LayerNorm SequenceMask _contrib_interleaved_matmul_selfatt_qk".split())
# Made of constants of the dtype that they name; and ONNX's Range has no float16.
_MADE_OF_CONSTANTS = frozenset(("one_hot", "_arange"))
# What MXNet takes for attributes that are left out, and the exporter does not.
_DEFAULTS = {"FullyConnected": {"flatten": "True"}, "LRN": {"knorm": "2"}, "Deconvolution": {"no_bias": "True"}}
_UNKNOWN_OPERATOR = re.compile(r"No conversion function registered for op type (\w+)")
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")  # which the exporter's reader of JSON refuses
_TRUE = ("True", "1")
# What other loss heads compute in inference (src/operator/regression_output.cc and svm_output-inl.h at tag 1.9.1).
_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
}


def export_model(
    sym: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    file: str,
    shapes: Any,
    dtypes: Optional[Mapping[str, Any]] = None,
) -> str:
    """Write a symbol with its parameters as an ONNX model, which onnx's checker has passed.

    For example ``export_model(*mxmp.symbol.convert_model(...), "net.onnx", shapes)``.

    MXNet's exporter does the work, on what ``exportable`` returns. The exporter says of a model that its
    operators are of the newest version that onnx knows, which is not so: onnx 1.13 and later refuse its
    means and splits for it, and onnxruntime loads nothing newer than itself. Here they are called those of
    opset 15, in a file of IR version 8, whatever onnx is installed; and parameters are no inputs.

    Args:
        sym: A symbol, converted by mxmp or not; it is not changed.
        arg_params: Its parameters, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        file: Where to write; it is written whole or not at all.
        shapes: Shapes of the inputs, as for ``convert_symbol``; labels may be left out.
        dtypes: Dtypes of the inputs, likewise; float32 unless given.

    Returns:
        The file.

    Raises:
        DependencyError: If onnx is not installed, or one that MXNet's exporter cannot work with.
        ConvertError: If the parameters do not fit, an input has no shape, the exporter cannot
            translate an operator, or onnx's checker refuses the model.
        CheckpointError: If the file cannot be written.
    """
    onnx = _import_onnx()
    sizes, types = known_shapes(require_symbol(sym), shapes), known_dtypes(sym, dtypes)
    check_params(sym, arg_params, aux_params, sizes)
    symbol, params = exportable(sym), {**arg_params, **aux_params}
    inputs = [name for name in symbol.list_inputs() if name not in params]
    for name in inputs:
        if name not in sizes:
            raise ConvertError(f"shapes: the input '{name}' has no shape; give shapes={{'{name}': (1, ...)}}.")
    with saving(f"{file}: the model", file) as (written,), _checked_as(onnx, OPSET):
        in_types = [np.dtype(types.get(name, dtypes_.FLOAT32)) for name in inputs]
        _translate(sym, symbol, params, [sizes[name] for name in inputs], in_types, written)
        model = onnx.load(written)
        model.opset_import[0].version, model.ir_version = OPSET, IR_VERSION
        _tidy(model.graph, onnx.numpy_helper)
        _check(onnx, model)
        onnx.save(model, written)
    return file


def _translate(sym: Any, symbol: Any, params: Mapping[str, Any], sizes: Any, types: Any, file: str) -> None:
    """Let MXNet's exporter write a symbol.

    Raises:
        DependencyError: If it does not find what it reads of onnx; without the views of `compat`, 1.19 lacks a part.
        ConvertError: If it fails; its errors of all sorts (AttributeError, KeyError, AssertionError, ...)
            say what it cannot translate, but not those of the file and of memory.
    """
    try:
        mx.onnx.export_model(symbol, params, sizes, types, file)
    except (OSError, MemoryError):
        raise
    except ImportError as e:  # it says to install onnx, whatever is missing; its context says what
        mend = "import mxmp before mxnet" if compat.needed() else "pip install 'onnx>=1.13,<1.14'"
        raise DependencyError(f"onnx is not what MXNet's exporter reads ({e.__context__ or e}); {mend}.") from e
    except Exception as e:
        raise ConvertError(f"MXNet's exporter to ONNX cannot translate the network: {_reason(e, sym)}") from e


def _check(onnx: Any, model: Any) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as e:
        raise ConvertError(f"onnx's checker refuses the model that came of the network: {e}") from e


def _tidy(graph: Any, helper: Any) -> None:
    """Leave parameters out of the inputs, those that nothing reads out altogether, and store them as raw bytes.

    The exporter lists every parameter as an input, as ONNX wanted it before IR version 4; onnxruntime
    folds no constants then, and 1.26 crashes on such a model in float16.
    """
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    names = {tensor.name for tensor in graph.initializer}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    inputs = [value for value in graph.input if value.name not in names]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(helper.from_array(helper.to_array(tensor), tensor.name) for tensor in kept)
    graph.input.extend(inputs)


def _import_onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as e:
        raise DependencyError(f"onnx cannot be imported ({e}); pip install 'mxmp[onnx]'.") from e
    return onnx


@contextlib.contextmanager
def _checked_as(onnx: Any, opset: int) -> Iterator[None]:
    """Have onnx's checker, which the exporter calls, take graphs for those of an opset."""
    context = onnx.checker.DEFAULT_CONTEXT
    before = context.opset_imports
    context.opset_imports = {**before, "": opset}
    try:
        yield
    finally:
        context.opset_imports = before


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
    """Replaces what MXNet's exporter translates to something else, by what it translates well.

    Attributes:
        facts: What MXNet infers about the graph.
    """

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
                ones = _add(builder, "ones_like", f"{node.name}_ones", {}, node.inputs[1])
                node = replace(node, inputs=(node.inputs[0], ones, *node.inputs[2:]))
            elif node.op == "Pooling" and _overhangs(node):
                node = node.with_attrs({"count_include_pad": "False"})
            elif node.op == "SoftmaxOutput":
                node = _softmax(node, builder)
            elif node.op in _HEADS:
                node = Node(_HEADS[node.op], node.name, (), node.inputs[:1])
            if _has_constants(node) and self.facts.dtype(old.inputs[0]) == dtypes_.FLOAT16:
                node = self._in_float32(old, node, builder)
            elif node.op in _MADE_OF_CONSTANTS and node.get("dtype") == dtypes_.FLOAT16:
                node = _cast_to_float16(node.with_attrs({**dict(node.attrs), "dtype": dtypes_.FLOAT32}), builder)
            builder.copy(position, node)
        return builder.finish(self._head(graph, head, builder) for head in graph.heads)

    @staticmethod
    def _head(graph: Graph, head: Entry, builder: GraphBuilder) -> Entry:
        """Return an output; the exporter drops those that are inputs too."""
        node = graph.nodes[head.node]
        return (
            _add(builder, "_copy", f"{node.name}_copy", {}, builder.mapped(head))
            if node.is_variable
            else (builder.mapped(head))
        )

    def _in_float32(self, old: Node, node: Node, builder: GraphBuilder) -> Node:
        """Return the cast that takes back to float16 what a node computes in float32."""
        inputs = [
            _add(builder, "Cast", f"{node.name}_{port}", {"dtype": dtypes_.FLOAT32}, entry)
            if self.facts.dtype(old.inputs[port]) == dtypes_.FLOAT16
            else entry
            for port, entry in enumerate(node.inputs)
        ]
        return _cast_to_float16(replace(node, inputs=tuple(inputs)), builder)


def _cast_to_float16(node: Node, builder: GraphBuilder) -> Node:
    """Return a cast to float16 of a node that computes in float32, which takes over its name.

    The exporter tells 1 - x from x - 1 by how the name begins.
    """
    inner = replace(node, name=builder.unique(f"{node.name}_{dtypes_.FLOAT32}"))
    return Node("Cast", node.name, make_attrs({"dtype": dtypes_.FLOAT16}), (Entry(builder.add(inner)),))


def _overhangs(node: Node) -> bool:
    """Return whether windows of means may reach beyond the data, where onnxruntime counts what is not there.

    It does so only where padding counts, which without padding makes no difference to MXNet.
    """
    pads = value_of(dict(node.attrs), "pad") or (0,)
    full = node.get("pooling_convention") == "full" and node.get("pool_type") == "avg"
    return full and not any(pads if isinstance(pads, tuple) else (pads,))


def _has_constants(node: Node) -> bool:
    is_gelu = node.op == "LeakyReLU" and node.get("act_type") == "gelu"
    return is_gelu or node.op in _WITH_CONSTANTS or node.op in _WITH_FLOAT32_CONSTANTS


def _softmax(node: Node, builder: GraphBuilder) -> Node:
    """Return what SoftmaxOutput computes in inference (src/operator/softmax_output-inl.h at tag 1.9.1)."""
    data = node.inputs[0]
    if node.get("multi_output") in _TRUE:
        return Node("softmax", node.name, make_attrs({"axis": "1"}), (data,))
    if node.get("preserve_shape") in _TRUE:
        return Node("softmax", node.name, make_attrs({"axis": "-1"}), (data,))
    flat = _add(builder, "Flatten", f"{node.name}_flat", {}, data)
    rows = _add(builder, "softmax", f"{node.name}_rows", {}, flat)
    return Node("reshape_like", node.name, (), (rows, data))


def _reason(error: Exception, sym: Any) -> str:
    """Return what the exporter could not do; where it names an operator alone, with its first node."""
    text = mxnet_reason(error) if str(error).strip() else type(error).__name__
    match = _UNKNOWN_OPERATOR.search(text)
    nodes = [node for node in to_graph(sym).operators() if match and node.op == match.group(1)]
    return f"{type(error).__name__} {text}" if not nodes else f"node {nodes[0]}: it has no translation of this operator"


def _add(builder: GraphBuilder, op: str, name: str, attrs: Any, *inputs: Entry) -> Entry:
    return Entry(builder.add(Node(op, builder.unique(name), make_attrs(attrs), inputs)))
