"""Export to ONNX: prepares a symbol so that MXNet's exporter translates it correctly, and calls the exporter.

``mx.onnx.export_model`` of MXNet 1.9.1 translates a symbol operator by operator. It translates some operators wrongly
(python/mxnet/onnx/mx2onnx/_op_translations at tag 1.9.1). This module replaces them by operators that are translated
correctly. onnx's checker checks the result.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np

from . import compat
from . import dtypes as dtypes_
from .compat.old_onnx import IR_VERSION, OPSET
from .errors import ConvertError, DependencyError, mxnet_reason
from .files import saving
from .graph import Entry, Graph, GraphBuilder, Node, make_attrs, verify
from .names import hooks as _hooks
from .passes import Facts
from .rules.core import flag_of, value_of
from .symbol import from_graph, to_graph
from .symbol.arguments import check_params, make_model, require_symbol
from .symbol.inference import infer_network

globals().update(_hooks(__name__))

# The exporter gives onnx the bits of a float16 constant, and onnx 1.8 and later take the bits for the value: x + 1
# becomes x + 15360. The constants of the last line and of GELU are float32 also if the input is float16.
_WITH_CONSTANTS = frozenset(
    "_mul_scalar _minus_scalar _rminus_scalar _plus_scalar _div_scalar _rdiv_scalar _power_scalar _maximum_scalar "
    "_minimum_scalar _greater_scalar _lesser_scalar _equal_scalar clip Pad softmax log2 _linalg_gemm2 "
    "_contrib_div_sqrt_dim _contrib_arange_like "
    "LayerNorm SequenceMask _contrib_interleaved_matmul_selfatt_qk".split()
)
# Operators that are made of constants of their attribute dtype. And ONNX's Range has no float16.
_MADE_OF_CONSTANTS = frozenset(("one_hot", "_arange"))
# MXNet's defaults of attributes for which the exporter has another default.
_DEFAULTS = {"FullyConnected": {"flatten": "True"}, "LRN": {"knorm": "2"}, "Deconvolution": {"no_bias": "True"}}
# The inference form of other loss heads (src/operator/regression_output.cc and svm_output-inl.h at tag 1.9.1).
_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
}
# The ends of MXNet's names of outputs, which the exporter replaces (MXNetGraph.get_outputs in mx2onnx/_export_onnx.py).
_OUTPUT = re.compile(r"_(state|statecell|)_?output(\d?)$")
_STATES = {"state": "1", "statecell": "2"}
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")  # The exporter cannot read these characters.
_UNKNOWN_OPERATOR = re.compile(r"No conversion function registered for op type (\w+)")


def export_model(
    sym: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    file: str,
    shapes: Any,
    dtypes: Optional[Mapping[str, Any]] = None,
) -> str:
    """Write a symbol with its parameters as an ONNX file that onnx's checker accepts.

    For example ``export_model(*mxmp.symbol.convert_model(...), "net.onnx", shapes)``.

    MXNet's exporter translates the symbol of ``exportable``. The exporter gives a model the newest operator version
    that onnx knows. That is wrong: onnx 1.13 and later then refuse its means and splits, and onnxruntime loads no
    version that is newer than itself. mxmp writes opset 15 and IR version 8 with every version of onnx. Outputs have
    the order of ``sym.list_outputs()`` and the exporter's names: ``fc`` for ``fc_output``.

    The exporter does not get the values of parameters, because it would make every number a Python object, several
    times (convert_weights_and_inputs in _op_translations_opset12.py). It writes parameters as inputs. Then mxmp stores
    their bytes.

    Args:
        sym: A symbol, converted by mxmp or not; it is not changed.
        arg_params: Its parameters, NDArrays by name.
        aux_params: Its auxiliary states, NDArrays by name.
        file: The path of the file, which is written whole or not at all.
        shapes: Shapes of the inputs, as for ``convert_symbol``; labels may be left out.
        dtypes: Dtypes of the inputs, as for ``convert_symbol``; float32 unless given.

    Returns:
        The file.

    Raises:
        DependencyError: If onnx is not installed, or has a version that MXNet's exporter cannot use.
        ConvertError: If the parameters do not fit, or an input has no shape. If the exporter cannot translate an
            operator, or onnx's checker refuses the model. If the model is larger than an ONNX file can be.
        CheckpointError: If the file cannot be written.
    """
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as e:
        raise DependencyError(f"onnx cannot be imported ({e}); pip install './mxmp[onnx]'.") from e
    source = make_model(sym, shapes, dtypes)
    check_params(sym, arg_params, aux_params, source.shapes)
    symbol, params = exportable(sym, shapes, dtypes), {**arg_params, **aux_params}
    variables = _variables(symbol)
    weights = {name: params[name] for name in variables if name in params}
    sizes = {**source.shapes, **{name: array.shape for name, array in weights.items()}}
    types = {**source.dtypes, **{name: array.dtype for name, array in weights.items()}}
    for name in variables:
        if name not in sizes:
            raise ConvertError(f"shapes: the input '{name}' has no shape; give shapes={{'{name}': (1, ...)}}.")
    in_shapes = [sizes[name] for name in variables]
    in_types = [np.dtype(types.get(name, dtypes_.FLOAT32)) for name in variables]
    with saving(f"{file}: the model", file) as (written,), _checked_as(onnx, OPSET):
        with _blaming_exporter(sym):
            mx.onnx.export_model(symbol, {}, in_shapes, in_types, written)
        model = onnx.load(written)
        model.opset_import[0].version, model.ir_version = OPSET, IR_VERSION
        _require_size(model, weights, onnx.checker.MAXIMUM_PROTOBUF)
        _tidy(model.graph, weights, onnx.numpy_helper)
        _order_outputs(model.graph, symbol)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as e:
            raise ConvertError(f"onnx's checker refuses the model that came of the network: {e}") from e
        onnx.save(model, written)
    return file


def exportable(sym: Any, shapes: Any = None, dtypes: Optional[Mapping[str, Any]] = None) -> Any:
    """Return a symbol for inference that MXNet's exporter to ONNX translates correctly.

    - An operator whose output has another dtype than its first input (``Embedding``, ``where``) gets a cast to that
      dtype behind it. The exporter confuses the two dtypes, and gives later constants the wrong one.
    - The slopes of PReLU get the rank of the data if ``shapes`` tell it, because onnxruntime needs that.
    - Operators in float16 that the exporter gives constants (``x + 1``, ``clip``, ``LayerNorm``, GELU) run in float32
      between two casts. The exporter writes wrong constants, or constants of the wrong dtype. ``one_hot`` and
      ``arange`` to float16 run in float32 too.
    - ``FullyConnected`` gets ``flatten=True`` and ``LRN`` gets ``knorm=2``: MXNet's defaults, but not the exporter's.
    - Windows of average pooling that reach beyond the data (``pooling_convention='full'``) count only the data, as in
      MXNet. With padding the results still differ.
    - ``BatchNorm`` with ``fix_gamma`` gets a gamma of ones, because the exporter ignores the attribute.
    - ``SoftmaxOutput`` and the other loss heads become their inference form, such as a softmax. Their labels are
      removed, because the exporter leaves labels out and then does not find them.

    Args:
        sym: A symbol, converted or not; it is not changed. Its variables are float32 unless they declare or imply
            another dtype.
        shapes: Shapes of the inputs, as for `export_model`.
        dtypes: Dtypes of the inputs, as for `export_model`.

    Raises:
        ConvertError: If the symbol has an ``amp_cast``, as every symbol converted to bfloat16, because the exporter
            drops these casts without an error. If a name has a control character, which the exporter cannot read.
    """
    graph = to_graph(require_symbol(sym))
    source = make_model(sym, shapes, dtypes)
    for node in graph.nodes:
        if _CONTROL.search(node.name):
            raise ConvertError(f"node {node.name!r}: MXNet's exporter to ONNX reads no control characters; rename it.")
        if node.op == "amp_cast":
            raise ConvertError(
                f"node {node}: MXNet's exporter to ONNX drops every amp_cast; convert to float16, where mxmp inserts "
                f"Cast."
            )
    return from_graph(_written_out(graph, infer_network(sym, graph, source.shapes, source.dtypes, frozenset())), sym)


def _written_out(graph: Graph, facts: Facts) -> Graph:
    """Return a graph that the exporter translates correctly; its outputs keep their names."""
    builder = GraphBuilder(graph)
    read = {entry.node for node in graph.nodes if node.op != "Cast" for entry in node.inputs}
    for position, old in enumerate(graph.nodes):
        node = _replaced(old.rewired(builder.inputs(old)), builder)
        if node.op == "LeakyReLU" and node.get("act_type") == "prelu":
            node = _with_wide_slopes(node, [facts.shape(entry) for entry in old.inputs], builder)
        is_gelu = node.op == "LeakyReLU" and node.get("act_type") == "gelu"
        if (is_gelu or node.op in _WITH_CONSTANTS) and facts.dtype(old.inputs[0]) == dtypes_.FLOAT16:
            inputs = [
                builder.insert("Cast", f"{node.name}_{port}", entry, dtype=dtypes_.FLOAT32)
                if facts.dtype(old.inputs[port]) == dtypes_.FLOAT16
                else entry
                for port, entry in enumerate(node.inputs)
            ]
            node = _cast(node._replace(inputs=tuple(inputs)), dtypes_.FLOAT16, builder)
        elif node.op in _MADE_OF_CONSTANTS and node.get("dtype") == dtypes_.FLOAT16:
            node = _cast(node.with_attrs({"dtype": dtypes_.FLOAT32}), dtypes_.FLOAT16, builder)
        elif old.op != "Cast" and old.inputs and position in read and old.num_outputs == 1:
            dtype = facts.dtype(Entry(position))
            if dtype is not None and dtype != facts.dtype(old.inputs[0]):
                node = _cast(node, dtype, builder)
        builder.copy(position, node)
    heads: List[Entry] = []
    for head in graph.heads:
        node, entry = graph.nodes[head.node], builder.mapped(head)
        # The exporter drops outputs that are also inputs, and outputs of two digits. It writes no output twice.
        if node.is_variable or entry in heads:
            entry = builder.insert("_copy", f"{node.name}_copy", entry)
        elif head.index > 9:
            entry = builder.insert("_copy", f"{node.name}_output{head.index}", entry)
        heads.append(entry)
    after = builder.finish(heads)
    verify(after)
    return after


def _replaced(node: Node, builder: GraphBuilder) -> Node:
    """Return a node that the exporter translates to the inference form of the given node."""
    if node.op in _DEFAULTS:
        return node.with_attrs({**_DEFAULTS[node.op], **dict(node.attrs)})
    if node.op == "BatchNorm" and flag_of(dict(node.attrs), "fix_gamma", True):
        ones = builder.insert("ones_like", f"{node.name}_ones", node.inputs[1])
        return node._replace(inputs=(node.inputs[0], ones, *node.inputs[2:]))
    if node.op == "Pooling" and node.get("pooling_convention") == "full" and node.get("pool_type") == "avg":
        # If a window reaches beyond the data, onnxruntime counts the missing elements if it counts padding. Without
        # padding the attribute makes no difference to MXNet.
        pads = value_of(dict(node.attrs), "pad") or 0
        return node if np.any(pads) else node.with_attrs({"count_include_pad": "False"})
    if node.op == "SoftmaxOutput":
        return _softmax(node, builder)
    return Node(_HEADS[node.op], node.name, (), node.inputs[:1]) if node.op in _HEADS else node


def _softmax(node: Node, builder: GraphBuilder) -> Node:
    """Return the inference form of SoftmaxOutput (src/operator/softmax_output-inl.h at tag 1.9.1)."""
    data = node.inputs[0]
    for attribute, axis in (("multi_output", "1"), ("preserve_shape", "-1")):
        if flag_of(dict(node.attrs), attribute, False):
            return Node("softmax", node.name, make_attrs({"axis": axis}), (data,))
    flat = builder.insert("Flatten", f"{node.name}_flat", data)
    rows = builder.insert("softmax", f"{node.name}_rows", flat)
    return Node("reshape_like", node.name, (), (rows, data))


def _cast(node: Node, dtype: str, builder: GraphBuilder) -> Node:
    """Return a cast of a node; the cast takes over the node's name.

    The node's new name begins with the old one, because the exporter knows 1 - x and x - 1 apart by that.
    """
    inner = node._replace(name=builder.unique(f"{node.name}_{dtypes_.FLOAT32}"))
    return Node("Cast", node.name, make_attrs({"dtype": dtype}), (Entry(builder.add(inner)),))


def _with_wide_slopes(node: Node, shapes: Sequence[Any], builder: GraphBuilder) -> Node:
    """Return a PReLU with slopes of the shape (C, 1, ..., 1), which ONNX broadcasts; one of unknown shape as it is."""
    data, slopes = shapes
    if data is None or slopes is None or len(slopes) > 1 or len(data) < 3:
        return node
    shape = str((-1, *[1] * (len(data) - 2)))
    wide = builder.insert("Reshape", f"{node.name}_slopes", node.inputs[1], shape=shape)
    return node._replace(inputs=(node.inputs[0], wide))


@contextlib.contextmanager
def _blaming_exporter(sym: Any) -> Iterator[None]:
    """Turn the exporter's errors (AttributeError, KeyError, ...) into a ConvertError that names the node.

    Errors of the file and of memory are not changed. Without the views of `compat`, onnx 1.19 lacks a part that the
    exporter reads.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except ImportError as e:  # Its text always says to install onnx. Its context names the missing part.
        advice = "import mxmp before mxnet" if compat.needed() else "pip install 'onnx>=1.13,<1.14'"
        raise DependencyError(f"onnx is not what MXNet's exporter reads ({e.__context__ or e}); {advice}.") from e
    except Exception as e:
        text = mxnet_reason(e) if str(e).strip() else type(e).__name__
        match = _UNKNOWN_OPERATOR.search(text)
        nodes = [node for node in to_graph(sym).operators() if match and node.op == match.group(1)]
        reason = f"node {nodes[0]}: it has no translation of this operator" if nodes else f"{type(e).__name__} {text}"
        raise ConvertError(f"MXNet's exporter to ONNX cannot translate the network: {reason}") from e


@contextlib.contextmanager
def _checked_as(onnx: Any, opset: int) -> Iterator[None]:
    """Let onnx's checker, which the exporter calls, check graphs by the rules of an opset."""
    context = onnx.checker.DEFAULT_CONTEXT
    before = context.opset_imports
    context.opset_imports = {**before, "": opset}
    try:
        yield
    finally:
        context.opset_imports = before


def _order_outputs(graph: Any, symbol: Any) -> None:
    """Put a graph's outputs in the order of ``list_outputs``. The exporter writes them in the order of the nodes."""
    names = [_OUTPUT.sub(lambda end: _STATES.get(end[1], end[2]), name) for name in symbol.list_outputs()]
    missing = set(names) - {output.name for output in graph.output}
    if missing:
        raise ConvertError(f"MXNet's exporter to ONNX leaves out the output '{min(missing)}'; rename its node.")
    outputs = sorted(graph.output, key=lambda output: names.index(output.name))
    del graph.output[:]
    graph.output.extend(outputs)


def _variables(symbol: Any) -> List[str]:
    """Return the names of a symbol's variables. The exporter takes all of them for inputs.

    A variable with the name of the last node and '_label' is refused, because the exporter would leave it out
    (MXNetGraph.create_onnx_graph_proto in mx2onnx/_export_onnx.py).
    """
    internals, variables = symbol.get_internals(), symbol.list_inputs()
    last = internals[len(internals) - 1].name
    if f"{last}_label" in variables:
        raise ConvertError(
            f"the variable '{last}_label': MXNet's exporter to ONNX takes it for the label of '{last}'; rename it."
        )
    return list(variables)


def _require_size(model: Any, weights: Mapping[str, Any], limit: int) -> None:
    """Check that a model with its weights is not larger than protobuf allows."""
    size = model.ByteSize() + sum(array.size * np.dtype(array.dtype).itemsize for array in weights.values())
    if size > limit:
        raise ConvertError(
            f"the model has {size:,} bytes, and a file of ONNX at most {limit:,}; convert the weights to float16."
        )


def _tidy(graph: Any, weights: Mapping[str, Any], helper: Any) -> None:
    """Turn parameters and constants into initializers of raw bytes; leave out those without a reader.

    The exporter lists constants as inputs, as ONNX required before IR version 4. onnxruntime then folds none of them,
    and onnxruntime 1.26 crashes on such a model in float16.
    """
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    constants = {tensor.name: helper.to_array(tensor) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants and value.name not in weights]
    del graph.initializer[:], graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(helper.from_array(value, name) for name, value in constants.items() if name in used)
    for name, value in weights.items():
        if name in used:
            graph.initializer.append(helper.from_array(value.asnumpy(), name))
