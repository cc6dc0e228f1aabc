"""The policy 'auto': the fastest one for a device, by measurements of its kind."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Iterable, Tuple, Union

import mxnet as mx

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32
from ..errors import PolicyError
from ..policy import AUTO, Policy, PolicyChanges, is_auto
from .amx import has_onednn
from .check import count_gpus, has_tensor_cores, read_gpus, warn
from .processor import read_processor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_POLICIES = {FLOAT16: "O1", BFLOAT16: "mixed_bfloat16", FLOAT32: "float32"}


def parse_policy(
    policy: Union[str, Policy], contexts: Iterable[mx.Context] = (), **changes: Unpack[PolicyChanges]
) -> Policy:
    """Return a policy as `Policy.parse` does; of 'auto' the one that is fastest on some contexts.

    'auto' is 'O1' on GPUs with tensor cores, 'mixed_bfloat16' on a processor whose kind gains by it
    (`mxmp.processors.KINDS`), and 'float32' elsewhere. Other fields may follow, or be given as ``changes``. Where
    'auto' is float32, they are checked, and only overrides to float32 are kept: 'auto,output=bfloat16' has float32
    outputs there.

    Args:
        policy: A policy or its text: 'auto', and 'auto,block:output=float32'.
        contexts: Where the network runs; unless given, on the GPUs of this machine if these have tensor cores, else on
            its processor.
        **changes: Fields of the policy that overrule it.

    Returns:
        The policy. Its ``chosen`` says why 'auto' chose it.

    Raises:
        PolicyError: If the policy does not parse, or if a compute dtype is given together with 'auto'.

    Warns:
        SlowPrecisionWarning: If 'auto' is float32 because AMX is off and could be on.
    """
    if not is_auto(policy):
        return Policy.parse(policy, **changes)
    dtype, chosen, advice = fastest_dtype(contexts)
    rest = str(policy).partition(",")[2]
    if "compute_dtype" in changes or re.search(r"(^|,)\s*compute(_dtype)?\s*=", rest):
        raise PolicyError("'auto' chooses the compute dtype; leave that field out, or give a policy by its name.")
    name = _POLICIES[BFLOAT16 if dtype == FLOAT32 else dtype]
    mixed = Policy.parse(f"{name},{rest}" if rest else name, **changes)
    if dtype == FLOAT32:
        fields = ("ops", "names", "blocks")
        to_float32: Any = {field: [pair for pair in getattr(mixed, field) if pair[1] == FLOAT32] for field in fields}
        mixed = Policy().replace(**to_float32)
    if advice:
        chosen = f"{chosen} {advice}"
        warn(chosen)
    return replace(mixed, chosen=chosen)


def fastest_policy(contexts: Iterable[mx.Context] = ()) -> Policy:
    """Return the policy that 'auto' is on some contexts, by default on this machine; its ``chosen`` says why.

    Example:
        >>> fastest_policy([mx.cpu()]).compute_dtype in ("float32", "bfloat16")
        True
    """
    return parse_policy(AUTO, contexts)


def fastest_dtype(contexts: Iterable[mx.Context]) -> Tuple[str, str, str]:
    """Return the dtype that 'auto' computes in, sentences on the reason, and advice if a faster one is possible.

    ``contexts`` are as for `parse_policy`.
    """
    kinds = {"gpu" if context.device_type == "gpu" else "cpu" for context in contexts}
    if kinds == {"gpu"} or (not kinds and count_gpus()):
        gpus = read_gpus()
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        if gpus and all(map(has_tensor_cores, gpus)):
            return FLOAT16, _says(FLOAT16, f"{names} has tensor cores"), ""
        if kinds:
            lacks = f"{names} is not known to have tensor cores that this MXNet uses"
            return FLOAT32, _says(FLOAT32, lacks if gpus else "nvidia-smi lists no GPU"), ""
    if len(kinds) > 1:
        return FLOAT32, _says(FLOAT32, "the network is on a GPU and on a processor"), ""
    if not has_onednn():
        why = "MXNet has bfloat16 by oneDNN, which is off"
        return FLOAT32, _says(FLOAT32, why), "Unset MXNET_MKLDNN_ENABLED."
    processor = read_processor()
    kind = processor.kind
    dtype = BFLOAT16 if kind.gains else FLOAT32
    if processor.amx.advice:
        why = f"this processor ({processor.name}) is slow in bfloat16 without AMX"
        return dtype, _says(dtype, why), processor.amx.note
    why = _says(dtype, f"this processor ({processor.name}) is of the kind '{kind.name}'")
    slower = f" But {kind.slower}." if kind.slower else ""
    return dtype, f"{why} bfloat16's speed there: {kind.figure}.{slower}", ""


def _says(dtype: str, reason: str) -> str:
    return f"The policy 'auto' takes {_POLICIES[dtype]} here, because {reason}."
