"""The environment variables of MXNet 1.9.1 that decide how fast and how exact low precision is."""

from __future__ import annotations

from typing import Callable, Collection, List, Mapping, NamedTuple, Optional, Tuple

from ..dtypes import BFLOAT16, FLOAT16

GPU, CPU = "GPU", "CPU"


class Setting(NamedTuple):
    """An environment variable of this process, and what to do about it."""

    name: str
    found: str  # its value, or what holds as it has none
    ok: Optional[bool]  # False if it keeps a policy out of the hardware of `devices`, None if a change is worth while
    advice: str
    devices: str  # the kind that it is for, `GPU` or `CPU`


def read_settings(environ: Mapping[str, str], dtype: str, devices: Collection[str] = (GPU, CPU)) -> List[Setting]:
    """Return the environment variables that change how a canonical dtype runs on the devices that there are.

    Example:
        >>> read_settings({"MXNET_FC_TRUE_FP16": "1"}, "float16")[3].advice
        'Unset it: matrix products would add up in float16, in place of float32.'
    """
    settings = []
    for variable in _VARIABLES:
        value = environ.get(variable.name)
        found = f"not set, which is {variable.default}" if value is None else repr(value)
        hurts = dtype in variable.dtypes and variable.devices in devices and variable.hurts(value)
        ok, advice = (variable.ok, variable.advice) if hurts else (True, "")
        settings.append(Setting(variable.name, found, ok, advice, variable.devices))
    return settings


def _is_off(value: Optional[str]) -> bool:
    return value is not None and value.strip().lower() in ("0", "false")


def _is_on(value: Optional[str]) -> bool:
    return bool(value) and not _is_off(value)  # MXNet takes an empty value for none


def _hides_all(value: Optional[str]) -> bool:
    """Return whether CUDA sees no card: it reads the list up to the first number that is none."""
    return value is not None and value.partition(",")[0].strip() in ("", "-1")


def _is_limit(value: Optional[str]) -> bool:
    return bool(value) and str(value).strip().upper() != "ALL"


class _Variable(NamedTuple):
    """A variable: the dtypes that it changes, which of its values hurt, how much, and what to do then."""

    name: str
    default: str
    devices: str
    dtypes: Tuple[str, ...]
    hurts: Callable[[Optional[str]], bool]
    ok: Optional[bool]
    advice: str


_LOW = (FLOAT16, BFLOAT16)

# The calls of dmlc::GetEnv in MXNet's src/ at tag 1.9.1: operator/nn/softmax-inl.h, operator/nn/layer_norm.cu,
# operator/tensor/broadcast_reduce_op.h (norm alone), operator/nn/cudnn/cudnn_convolution-inl.h, common/cuda_utils.h,
# operator/linalg_impl.h and operator/nn/mkldnn/mkldnn_base-inl.h; NVIDIA, "CUDA C++ Programming Guide", CUDA
# environment variables; oneDNN's documentation, "CPU Dispatcher Control".
_VARIABLES = [
    _Variable(
        "MXNET_SAFE_ACCUMULATION", "0", GPU, (FLOAT16,), lambda value: not _is_on(value), None,
        "Set it to 1: softmax, LayerNorm and norm in float16, as under O3, then sum in float32; nothing else heeds it.",
    ),
    _Variable(
        "MXNET_CUDNN_AUTOTUNE_DEFAULT", "1", GPU, _LOW, _is_off, None,
        "Unset it, so that cuDNN times its algorithms; 0 is for inputs whose shapes keep changing.",
    ),
    _Variable(
        "MXNET_CUDA_ALLOW_TENSOR_CORE", "1", GPU, (FLOAT16,), _is_off, False,
        "Unset it: it keeps float16 off the tensor cores.",
    ),
    _Variable(
        "MXNET_FC_TRUE_FP16", "0", GPU, (FLOAT16,), _is_on, None,
        "Unset it: matrix products would add up in float16, in place of float32.",
    ),
    _Variable("CUDA_VISIBLE_DEVICES", "all", GPU, _LOW, _hides_all, False, "Unset it: it hides every GPU from MXNet."),
    _Variable(
        "MXNET_MKLDNN_ENABLED", "1", CPU, (BFLOAT16,), _is_off, False,
        "Unset it: on a CPU MXNet has bfloat16 through oneDNN alone.",
    ),
    _Variable(
        "DNNL_MAX_CPU_ISA", "ALL", CPU, (BFLOAT16,), _is_limit, None,
        "Unset it, unless oneDNN is to leave newer instructions unused.",
    ),
]  # fmt: skip
