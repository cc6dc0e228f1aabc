"""The policy 'auto': the fastest one for a device, by what is known of its kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Iterable, List, Tuple, Union

import mxnet as mx

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32
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
    (`mxmp.processors.KINDS`), and 'float32' elsewhere. Where that is float32, the fields behind 'auto,' and ``changes``
    are checked, and left out except for overrides to float32: there is no low precision to set.

    Args:
        policy: A policy or its text: 'auto', and 'auto,block:output=float32'.
        contexts: Where the network runs; unless given, the GPUs of this machine if MXNet sees any, else its processor.
        **changes: Fields of the policy that overrule it.

    Returns:
        The policy. Its ``chosen`` says why 'auto' chose it.

    Raises:
        PolicyError: If the policy does not parse.

    Warns:
        SlowPrecisionWarning: If 'auto' is float32 because AMX is off and could be on.
    """
    if not is_auto(policy):
        return Policy.parse(policy, **changes)
    dtype, reason, advice = fastest_dtype(contexts)
    name = _POLICIES[dtype]
    chosen = f"The policy 'auto' takes {name} here: {reason}."
    if advice:
        warn(f"{chosen} {advice}")
        chosen = f"{chosen} {advice}"
    parsed = Policy.parse(_POLICIES[BFLOAT16] if dtype == FLOAT32 else name)
    rest = str(policy).partition(",")[2]
    parsed = Policy.parse(f"{parsed},{rest}" if rest else parsed, **changes)
    if dtype == FLOAT32:
        fields = ("ops", "names", "blocks")
        wide: Any = {field: [pair for pair in getattr(parsed, field) if pair[1] == FLOAT32] for field in fields}
        parsed = Policy().replace(**wide)
    return replace(parsed, chosen=chosen)


def fastest_policy(contexts: Iterable[mx.Context] = ()) -> Policy:
    """Return the policy that 'auto' is on some contexts, by default on this machine; its ``chosen`` says why.

    Example:
        >>> fastest_policy([mx.cpu()]).compute_dtype in ("float32", "bfloat16")
        True
    """
    return parse_policy(AUTO, contexts)


def fastest_dtype(contexts: Iterable[mx.Context] = ()) -> Tuple[str, str, str]:
    """Return the dtype that is fastest on some contexts, why, and how another could be; the last is empty if none.

    ``contexts`` are as for `parse_policy`.
    """
    kinds = {"gpu" if context.device_type == "gpu" else "cpu" for context in contexts}
    if kinds == {"gpu"} or (not kinds and count_gpus()):
        gpus = read_gpus()
        if gpus and all(map(has_tensor_cores, gpus)):
            return FLOAT16, f"{_listed(gpus)} has tensor cores", ""
        return FLOAT32, f"{_listed(gpus)} has no tensor cores that this MXNet is known to use", ""
    if len(kinds) > 1:
        return FLOAT32, "no low precision is fast on both a GPU and a processor", ""
    if not has_onednn():
        return FLOAT32, "MXNet's bfloat16 kernels are oneDNN's, which is off", "Unset MXNET_MKLDNN_ENABLED."
    processor = read_processor()
    kind, note = processor.kind, processor.amx.note
    slower = f"; {kind.slower}" if kind.slower else ""
    reason = f"this processor ({processor.name}) is of the kind '{kind.name}', bfloat16's speed: {kind.figure}{slower}"
    return (BFLOAT16, reason, "") if kind.gains else (FLOAT32, reason, note)


def _listed(gpus: List[Any]) -> str:
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus)) or "the GPU, which nvidia-smi does not list,"

