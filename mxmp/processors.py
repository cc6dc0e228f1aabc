"""Processors as values, their kinds that differ in bfloat16, and one table of the gain of bfloat16 on each kind.

`devices.processor.read_processor` reads the one of this machine. All that depends on a processor asks its `kind`.
Nothing here imports MXNet.
"""

from __future__ import annotations

import functools
from os import PathLike
from typing import Dict, FrozenSet, NamedTuple, Optional, Union


class AmxStatus(NamedTuple):
    """Whether MXNet's bfloat16 convolutions and matrix products use AMX.

    Attributes:
        on: Whether they do.
        reason: One sentence on why, or why not.
        advice: The remedy; empty if there is none.
    """

    on: bool
    reason: str
    advice: str = ""

    @property
    def note(self) -> str:
        """A sentence on why AMX is off and how to switch it on; empty if there is no advice."""
        return f"AMX is off: {self.reason} {self.advice}" if self.advice else ""


NO_AMX = AmxStatus(False, "This processor has no AMX.")


class Kind(NamedTuple):
    """A kind of processor: MXNet's speed in bfloat16 there.

    Attributes:
        name: Its name.
        runs: Whether MXNet runs bfloat16 there; None if that is not known.
        gains: Whether networks train and infer faster in bfloat16 than in float32.
        figure: The speed in bfloat16, as it was measured.
        source: Where the figure was measured, or the source that it follows from.
        slower: Networks that are known to be slower in bfloat16 though the kind gains; empty if none are.
    """

    name: str
    runs: Optional[bool]
    gains: bool
    figure: str
    source: str
    slower: str = ""


NO_BFLOAT16 = Kind(
    "no bfloat16",
    runs=False,
    gains=False,
    figure="none, because MXNet needs AVX-512 for it",
    source='oneDNN 2.4.4: "could not create a primitive descriptor iterator" on an AMD EPYC (Zen 3)',
)
EMULATED = Kind(
    "AVX-512 that emulates it",
    runs=True,
    gains=False,
    figure="not measured; products are computed in float32, between conversions",
    source='oneDNN\'s documentation, "Numeric data types"',
)
AMD = Kind(
    "AVX512-BF16 of AMD",
    runs=True,
    gains=True,
    figure="training 1.0 to 2.6 times float32's, inference 1.4 to 2.0",
    source="AMD EPYC (Zen 5), 2 threads",
)
INTEL = Kind(
    "AVX512-BF16 of Intel without AMX",
    runs=True,
    gains=False,
    figure="training 0.77 to 1.16 times float32's (ResNet-20 on 32 pixels 1.82), inference 0.65 to 0.83",
    source="Intel Xeon (family 6, model 207) with AMX off, 2 threads",
)
AMX = Kind(
    "AMX",
    runs=True,
    gains=True,
    figure="training 1.1 to 2.3 times float32's, inference 1.3 to 3.0",
    source="Intel Xeon (family 6, model 207) with AMX on, 2 threads",
    slower="MobileNet 1.0 trains at 0.96",
)
UNKNOWN = Kind(
    "unknown flags",
    runs=None,
    gains=False,
    figure="not known",
    source="systems other than Linux on x86-64 list no flags",
)
KINDS = (NO_BFLOAT16, EMULATED, AMD, INTEL, AMX, UNKNOWN)
"""All kinds: the one table of what bfloat16 gains on a processor."""


class Processor(NamedTuple):
    """A processor.

    Attributes:
        name: Its name.
        flags: Its instruction sets as Linux spells them; empty if unknown.
        vendor: Its maker as Linux spells it: 'GenuineIntel', 'AuthenticAMD'; '' if unknown.
        amx: Whether MXNet uses AMX on it.
    """

    name: str
    flags: FrozenSet[str]
    vendor: str = ""
    amx: AmxStatus = NO_AMX

    @property
    def has_amx(self) -> bool:
        """Whether it has AMX, and its kernel says so."""
        return self.flags >= {"amx_tile", "amx_bf16", "avx512_bf16"}  # oneDNN asks for all of them

    @property
    def kind(self) -> Kind:
        """Its kind. AVX512-BF16 of a maker who is not AMD counts as Intel's, which loses: nothing else was measured."""
        if not self.flags:
            return UNKNOWN
        if "avx512bw" not in self.flags:
            return NO_BFLOAT16
        if self.amx.on:
            return AMX
        if "avx512_bf16" not in self.flags:
            return EMULATED
        return AMD if self.vendor == "AuthenticAMD" else INTEL


@functools.lru_cache(maxsize=None)
def read_cpuinfo(cpuinfo: Union[str, PathLike[str]] = "/proc/cpuinfo") -> Processor:
    """Return the first processor that a file like /proc/cpuinfo lists, without a word on AMX.

    Without a file (systems other than Linux) or flags in it (some virtual machines), name and flags are unknown.

    Example:
        >>> read_cpuinfo("no such file").name
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
    name, flags = fields.get("model name", "unknown processor"), frozenset(fields.get("flags", "").split())
    return Processor(name, flags, fields.get("vendor_id", ""))
