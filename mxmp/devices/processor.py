"""The name and instruction sets of this machine's processor. Nothing here imports MXNet."""

from __future__ import annotations

import functools
from os import PathLike
from typing import Dict, FrozenSet, NamedTuple, Optional, Union

# The instructions with which oneDNN multiplies bfloat16 (its documentation, "Numeric data
# types", lists them). With AVX-512 alone it computes in float32, without it not at all.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")


class Processor(NamedTuple):
    """A processor's name and instruction sets."""

    name: str
    flags: FrozenSet[str]  # its instruction sets as Linux spells them; empty if unknown

    @property
    def runs_bfloat16(self) -> Optional[bool]:
        """Whether MXNet runs bfloat16 on it, None if its flags are unknown.

        The oneDNN of MXNet 1.9.1 has no kernels of bfloat16 below AVX-512: "could not create a primitive descriptor
        iterator".
        """
        return "avx512bw" in self.flags if self.flags else None


@functools.lru_cache(maxsize=None)  # each call of a net in bfloat16 asks
def read_processor(cpuinfo: Union[str, PathLike[str]] = "/proc/cpuinfo") -> Processor:
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
