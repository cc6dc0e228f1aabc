"""Export to ONNX: MXNet's exporter does the work, on symbols that it translates rightly.

``mx.onnx.export_model`` of MXNet 1.9.1 translates a symbol operator by operator, and some of them to something
else (python/mxnet/onnx/mx2onnx/_op_translations at tag 1.9.1); here these are replaced by operators that it
translates well. onnx's checker has the last word.
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
# What other loss heads compute in inference (src/operator/regression_output.cc and svm_output-inl.h at tag 1.9.1).
_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
}
# The exporter's names of outputs, by the ends of MXNet's (MXNetGraph.get_outputs in mx2onnx/_export_onnx.py).
_OUTPUT = re.compile(r"_(state|statecell|)_?output(\d?)$")
_STATES = {"state": "1", "statecell": "2"}
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")  # which the exporter's reader of JSON refuses
_UNKNOWN_OPERATOR = re.compile(r"No conversion function registered for op type (\w+)")


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

    MXNet's exporter does the work, on the symbol of ``exportable``. The exporter says of a model that its
    operators are of the newest version that onnx knows, which is not so: onnx 1.13 and later refuse its
    means and splits for it, and onnxruntime loads nothing newer than itself. Here they are called those of
    opset 15, in a file of IR version 8, whatever onnx is installed. Outputs have the order of
    ``sym.list_outputs()``, and the exporter's names: ``fc`` for ``fc_output``.

    The exporter does not get the values of parameters: it would make every number a Python object
    (convert_weights_and_inputs in _op_translations_opset12.py), several times. It writes parameters as
    inputs, and mxmp then stores their bytes.

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
            translate an operator, onnx's checker refuses the model, or the model is larger than a file of ONNX may be.
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
    """Return a symbol for inference that MXNet's exporter to ONNX translates rightly.

    - An operator whose output has another dtype than its first input (``Embedding``, ``where``) gets a cast to that
      dtype behind it: the exporter takes the two dtypes for one, and gives later constants the wrong one.
    - The slopes of PReLU get the rank of the data, where ``shapes`` tell it: onnxruntime wants them so.

    - Operators in float16 that the exporter gives constants (``x + 1``, ``clip``, ``LayerNorm``, GELU)
      run in float32 between two casts: it writes wrong constants, or constants of the wrong dtype. So do
      ``one_hot`` and ``arange`` to float16.
    - ``FullyConnected`` says ``flatten=True`` and ``LRN`` says ``knorm=2``, which are MXNet's defaults, but
      not the exporter's.
    - Windows of average pooling that reach beyond the data (``pooling_convention='full'``) count the
      data only, as in MXNet; with padding they differ still.
    - ``BatchNorm`` with ``fix_gamma``, which the exporter does not look at, gets a gamma of ones.
    - ``SoftmaxOutput`` and the other loss heads become their inference form, a softmax for example,
      and their labels go: the exporter leaves labels out, and then looks for them.

    Args:
        sym: A symbol, converted or not; it is not changed. Its variables are float32 unless they
            declare or imply another dtype.
        shapes: Shapes of the inputs, as for `export_model`.
        dtypes: Dtypes of the inputs, likewise.

    Raises:
        ConvertError: If it has an ``amp_cast``, as every symbol converted to bfloat16: the exporter
            drops them without a word. Or if a name has a control character, which it cannot read.
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
    """Return a graph in which the exporter misreads nothing; its outputs keep their names."""
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
        # The exporter drops outputs that are inputs too, and those of two digits; and it writes no output twice.
        if node.is_variable or entry in heads:
            entry = builder.insert("_copy", f"{node.name}_copy", entry)
        elif head.index > 9:
            entry = builder.insert("_copy", f"{node.name}_output{head.index}", entry)
        heads.append(entry)
    after = builder.finish(heads)
    verify(after)
    return after


def _replaced(node: Node, builder: GraphBuilder) -> Node:
    """Return the node that the exporter translates to what a node computes in inference."""
    if node.op in _DEFAULTS:
        return node.with_attrs({**_DEFAULTS[node.op], **dict(node.attrs)})
    if node.op == "BatchNorm" and flag_of(dict(node.attrs), "fix_gamma", True):
        ones = builder.insert("ones_like", f"{node.name}_ones", node.inputs[1])
        return node._replace(inputs=(node.inputs[0], ones, *node.inputs[2:]))
    if node.op == "Pooling" and node.get("pooling_convention") == "full" and node.get("pool_type") == "avg":
        # onnxruntime counts what is not there where windows reach beyond the data, but only where padding counts; to
        # MXNet that makes no difference without padding.
        pads = value_of(dict(node.attrs), "pad") or 0
        return node if np.any(pads) else node.with_attrs({"count_include_pad": "False"})
    if node.op == "SoftmaxOutput":
        return _softmax(node, builder)
    return Node(_HEADS[node.op], node.name, (), node.inputs[:1]) if node.op in _HEADS else node


def _softmax(node: Node, builder: GraphBuilder) -> Node:
    """Return what SoftmaxOutput computes in inference (src/operator/softmax_output-inl.h at tag 1.9.1)."""
    data = node.inputs[0]
    for attribute, axis in (("multi_output", "1"), ("preserve_shape", "-1")):
        if flag_of(dict(node.attrs), attribute, False):
            return Node("softmax", node.name, make_attrs({"axis": axis}), (data,))
    flat = builder.insert("Flatten", f"{node.name}_flat", data)
    rows = builder.insert("softmax", f"{node.name}_rows", flat)
    return Node("reshape_like", node.name, (), (rows, data))


def _cast(node: Node, dtype: str, builder: GraphBuilder) -> Node:
    """Return a cast of a node, which takes over its name.

    The exporter tells 1 - x from x - 1 by how the name begins.
    """
    inner = node._replace(name=builder.unique(f"{node.name}_{dtypes_.FLOAT32}"))
    return Node("Cast", node.name, make_attrs({"dtype": dtype}), (Entry(builder.add(inner)),))


def _with_wide_slopes(node: Node, shapes: Sequence[Any], builder: GraphBuilder) -> Node:
    """Return a PReLU whose slopes are (C, 1, ..., 1), as ONNX broadcasts them over the channels; unknown ones stay."""
    data, slopes = shapes
    if data is None or slopes is None or len(slopes) > 1 or len(data) < 3:
        return node
    shape = str((-1, *[1] * (len(data) - 2)))
    wide = builder.insert("Reshape", f"{node.name}_slopes", node.inputs[1], shape=shape)
    return node._replace(inputs=(node.inputs[0], wide))


@contextlib.contextmanager
def _blaming_exporter(sym: Any) -> Iterator[None]:
    """Say which node the exporter cannot translate, in the place of errors of all sorts: AttributeError, KeyError, ...

    Those of the file and of memory stay. Without the views of `compat` onnx 1.19 lacks a part that it reads.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except ImportError as e:  # it says to install onnx, whatever is missing; its context says what
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
    """Have onnx's checker, which the exporter calls, take graphs for those of an opset."""
    context = onnx.checker.DEFAULT_CONTEXT
    before = context.opset_imports
    context.opset_imports = {**before, "": opset}
    try:
        yield
    finally:
        context.opset_imports = before


def _order_outputs(graph: Any, symbol: Any) -> None:
    """Put outputs in the order of ``list_outputs``; the exporter has that of the nodes."""
    names = [_OUTPUT.sub(lambda end: _STATES.get(end[1], end[2]), name) for name in symbol.list_outputs()]
    missing = set(names) - {output.name for output in graph.output}
    if missing:
        raise ConvertError(f"MXNet's exporter to ONNX leaves out the output '{min(missing)}'; rename its node.")
    outputs = sorted(graph.output, key=lambda output: names.index(output.name))
    del graph.output[:]
    graph.output.extend(outputs)


def _variables(symbol: Any) -> List[str]:
    """Return the names of a symbol's variables, all of which the exporter takes for inputs.

    It would leave out a variable that is named as the label of the last node (MXNetGraph.create_onnx_graph_proto in
    mx2onnx/_export_onnx.py).
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
    """Make parameters and constants initializers of raw bytes, not inputs; leave out those that nothing reads.

    The exporter lists constants as inputs, as ONNX wanted it before IR version 4; onnxruntime folds none of them
    then, and 1.26 crashes on such a model in float16.
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
