"""The name and instruction sets of this machine's processor. Nothing here imports MXNet."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")

# The instructions with which oneDNN multiplies bfloat16 (its documentation, "Numeric data
# types", lists them). With AVX-512 alone it computes in float32, without it not at all.
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")


class Processor(NamedTuple):
    """A processor's name and instruction sets."""

    name: str
    flags: frozenset[str]  # its instruction sets as Linux spells them; empty if unknown

    @property
    def native_bfloat16(self) -> bool | None:
        """Whether it multiplies bfloat16 in hardware; None if its flags are unknown."""
        return any(flag in self.flags for flag in BFLOAT16_FLAGS) if self.flags else None


def read_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """Return the first processor that a file like /proc/cpuinfo lists.

    Without one (systems other than Linux) or flags in it (some virtual machines), name and flags are unknown.

    Example:
        >>> read_processor(Path("no such file")).native_bfloat16 is None
        True
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return Processor(fields.get("model name", "unknown processor"), frozenset(fields.get("flags", "").split()))
