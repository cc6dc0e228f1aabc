"""``onnx.mapping``, which MXNet 1.9.1's exporter reads and onnx 1.16 removed."""

from __future__ import annotations

from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict


def names(onnx: ModuleType) -> Dict[str, Any]:
    """Return ``mapping`` where this onnx lacks it; its source is what took its place, ``onnx.helper``."""
    if hasattr(onnx, "mapping"):
        return {}
    import numpy as np

    helper = onnx.helper
    dtypes = {code: helper.tensor_dtype_to_np_dtype(code) for code in helper.get_all_tensor_dtypes()}
    codes = {np.dtype(dtype): code for code, dtype in reversed(list(dtypes.items()))}
    return {"mapping": SimpleNamespace(TENSOR_TYPE_TO_NP_TYPE=dtypes, NP_TYPE_TO_TENSOR_TYPE=codes)}
