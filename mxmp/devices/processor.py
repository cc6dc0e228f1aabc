"""The name and instruction sets of this machine's processor. Nothing here imports MXNet."""

from __future__ import annotations

from typing import Dict, FrozenSet, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Union

CPUINFO = "/proc/cpuinfo"

# The instructions with which oneDNN multiplies bfloat16 (its documentation, "Numeric data
# types", lists them). With AVX-512 alone it computes in float32, without it not at all.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")


class Processor(NamedTuple):
    """A processor's name and instruction sets."""

    name: str
    flags: FrozenSet[str]  # its instruction sets as Linux spells them; empty if unknown


def read_processor(cpuinfo: Union[str, PathLike[str]] = CPUINFO) -> Processor:
    """Return the first processor that a file like /proc/cpuinfo lists.

    Without one (systems other than Linux) or flags in it (some virtual machines), name and flags are unknown.

    Example:
        >>> read_processor("no such file").name
        'unknown processor'
    """
    fields: Dict[str, str] = {}
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break  # the kernel would write a page on each of the others
                key, _, value = line.partition(":")
                fields[key.strip()] = value.strip()
    except OSError:
        pass
    return Processor(fields.get("model name", "unknown processor"), frozenset(fields.get("flags", "").split()))
