"""Writes ONNX files: MXNet's exporter does the work, onnx's checker has the last word."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Iterator, Mapping, Optional

import mxnet as mx
import numpy as np

from .. import compat
from .. import dtypes as dtypes_
from ..compat.old_onnx import IR_VERSION, OPSET
from ..errors import ConvertError, DependencyError, mxnet_reason
from ..files import saving
from ..symbol import to_graph
from ..symbol.arguments import check_params, make_model
from .rewrite import exportable

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
    given = make_model(sym, shapes, dtypes)
    sizes, types = given.shapes, given.dtypes
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
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as e:
            raise ConvertError(f"onnx's checker refuses the model that came of the network: {e}") from e
        onnx.save(model, written)
    return file


def _translate(sym: Any, symbol: Any, params: Mapping[str, Any], sizes: Any, types: Any, file: str) -> None:
    """Let MXNet's exporter write a symbol.

    Errors of all sorts (AttributeError, KeyError, AssertionError, ...) say what it cannot translate, but not those of
    the file and of memory. Without the views of `compat` onnx 1.19 lacks a part that it reads.
    """
    try:
        mx.onnx.export_model(symbol, params, sizes, types, file)
    except (OSError, MemoryError):
        raise
    except ImportError as e:  # it says to install onnx, whatever is missing; its context says what
        advice = "import mxmp before mxnet" if compat.needed() else "pip install 'onnx>=1.13,<1.14'"
        raise DependencyError(f"onnx is not what MXNet's exporter reads ({e.__context__ or e}); {advice}.") from e
    except Exception as e:
        raise ConvertError(f"MXNet's exporter to ONNX cannot translate the network: {_reason(e, sym)}") from e


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


def _reason(error: Exception, sym: Any) -> str:
    """Return what the exporter could not do; where it names an operator alone, with its first node."""
    text = mxnet_reason(error) if str(error).strip() else type(error).__name__
    match = _UNKNOWN_OPERATOR.search(text)
    nodes = [node for node in to_graph(sym).operators() if match and node.op == match.group(1)]
    return f"{type(error).__name__} {text}" if not nodes else f"node {nodes[0]}: it has no translation of this operator"
