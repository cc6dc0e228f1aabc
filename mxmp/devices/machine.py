"""What the speed of a network depends on besides the network: the processor, what of it is in use, MXNet's build."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Tuple

import mxnet as mx

from . import amx
from .processor import read_processor

_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "MXNET_MKLDNN_ENABLED",
    "MXNET_SUBGRAPH_BACKEND",
    amx.VARIABLE,
)


@dataclass(frozen=True)
class Machine:
    """What times that were measured hold for.

    Attributes:
        processor: Its name.
        instructions: Which of the instruction sets that matter it has: a name may stand for several processors.
        cores: How many of them this process may use.
        amx: Whether MXNet uses AMX.
        variables: Those environment variables that matter and are set, as 'NAME=value': threads, their places,
            what of oneDNN is used.
        mxnet: MXNet's version and the size of its library.
    """

    processor: str
    instructions: Tuple[str, ...]
    cores: int
    amx: bool
    variables: Tuple[str, ...]
    mxnet: str

    def __str__(self) -> str:
        """Return it in one line."""
        instructions = f" ({', '.join(self.instructions)})" if self.instructions else ""
        processor = f"{self.processor}{instructions}, {self.cores} cores, AMX {'on' if self.amx else 'off'}"
        return f"{', '.join([processor, *self.variables])}; MXNet {self.mxnet}"


def read_machine() -> Machine:
    """Return what this process runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    variables = tuple(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ)
    processor = read_processor()
    instructions = tuple(flag for flag in _INSTRUCTIONS if flag in processor.flags)
    mxnet = f"{mx.__version__}, {os.stat(library()).st_size} bytes"
    return Machine(processor.name, instructions, cores, amx.amx_status().on, variables, mxnet)


def library() -> str:
    """Return the path of MXNet's library."""
    return str(mx.libinfo.find_lib_path()[0])
