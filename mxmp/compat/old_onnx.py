"""The parts of onnx that MXNet 1.9.1's exporter and importer read, as they were in the onnx of that time.

MXNet reads ``onnx.mapping``, which onnx 1.19 removed. The exporter writes operators of version 13 and before, but says
that they have the newest version that onnx knows. The checker of onnx 1.13 and later refuses their means and splits.
onnxruntime loads no model of a version that is newer than its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict

from .old_modules import view

# The version of ONNX's operators in a model. It is the first whose BatchNormalization reads float16 with float32
# statistics. The exporter's operators, of version 13 and before, have the same meaning up to version 17.
OPSET = 15

# The version of the file format that came with `OPSET` (onnx 1.10; onnx.helper.VERSION_TABLE). onnx 1.13 writes it too.
# A runtime refuses a format that is newer than the runtime.
IR_VERSION = 8

_DTYPES = {  # onnx/mapping.py at tag v1.13.1; MXNet has none of the dtypes that ONNX added later
    **{name.upper(): name for name in "uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool float16".split()},
    **{"FLOAT": "float32", "DOUBLE": "float64", "BFLOAT16": "float32", "STRING": "object"},
    **{"COMPLEX64": "complex64", "COMPLEX128": "complex128"},
}


def names(onnx: Any) -> Dict[str, Any]:
    """Return the parts of onnx that are replaced for MXNet, by name."""
    import numpy as np
    from onnx import checker, defs, helper

    def check_graph(graph: Any) -> None:
        context = onnx.checker.C.CheckerContext()
        context.ir_version = IR_VERSION
        context.opset_imports = {"": OPSET}
        checker.check_graph(graph, context)

    def make_model(graph: Any) -> Any:
        opset = helper.make_operatorsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)

    dtypes = {int(getattr(onnx.TensorProto, name)): np.dtype(dtype) for name, dtype in _DTYPES.items()}
    codes = {dtype: code for code, dtype in dtypes.items() if code != onnx.TensorProto.BFLOAT16}
    return {
        "mapping": SimpleNamespace(TENSOR_TYPE_TO_NP_TYPE=dtypes, NP_TYPE_TO_TENSOR_TYPE=codes),
        "checker": view(checker, {"check_graph": check_graph}),
        "defs": view(defs, {"onnx_opset_version": lambda: OPSET}),
        "helper": view(helper, {"make_model": make_model}),
    }
