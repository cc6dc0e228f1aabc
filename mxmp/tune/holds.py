"""What a tuned policy holds for: the machine, the device, the shapes of the inputs, and the network itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..devices.check import read_gpus
from ..devices.machine import Machine, read_machine
from ..graph import Graph
from ..passes import EraseCasts
from ..symbol import to_graph

Shapes = Dict[str, Tuple[int, ...]]
"""Shapes of inputs by name."""

CPU = "CPU"

_DIGITS = 16  # of the digest: 64 bits
_WORDS = {"cores": "cores", "amx": "AMX", "variables": "environment", "mxnet": "MXNet"}


@dataclass(frozen=True)
class HoldsFor:
    """What the times of a plan hold for.

    Attributes:
        machine: Processor, cores, AMX, threads and MXNet's build.
        device: 'CPU', or the names of the GPUs.
        shapes: Shapes of the inputs by name.
        network: A digest of the float32 network's operators, their names and attributes.
    """

    machine: Machine
    device: str
    shapes: Shapes
    network: str

    def __str__(self) -> str:
        """Return it in one line."""
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return f"{self.machine}; on {self.device}; {shapes}; network {self.network}"

    def differences(self, shapes: Optional[Shapes] = None, network: Optional[str] = None) -> List[str]:
        """Return a phrase for each thing in which this process differs; shapes and network count if they are given."""
        pairs = [("device", describe_device(self.device == CPU), self.device)]
        here = read_machine()
        for field in fields(Machine):
            pairs.append(
                (_WORDS.get(field.name, field.name), getattr(here, field.name), getattr(self.machine, field.name))
            )
        found = [
            f"{what}: found {_text(value)}, expected {_text(wanted)}"
            for what, value, wanted in pairs
            if value != wanted
        ]
        found += [] if shapes is None else _other_shapes(shapes, self.shapes)
        if network not in (None, self.network):
            found.append(f"network: found another one ({network}, expected {self.network}): other operators or names")
        return found


def holds_here(on_cpu: bool, shapes: Shapes, symbols: Iterable[Any]) -> HoldsFor:
    """Return what times hold for that are measured now."""
    return HoldsFor(read_machine(), describe_device(on_cpu), dict(shapes), digest(symbols))


def describe_device(on_cpu: bool) -> str:
    """Return what a network runs on in words."""
    return CPU if on_cpu else ", ".join(sorted({gpu.name for gpu in read_gpus()})) or "GPU"


def digest(symbols: Iterable[Any]) -> str:
    """Return a digest of networks: of their operators in their order, with names and attributes, without casts.

    What MXNet and mxmp note about a node (``__dtype__``) does not count, nor do the names of parameters and inputs.
    """
    found = hashlib.sha256()
    for symbol in symbols:
        graph: Graph = EraseCasts()(to_graph(symbol)).graph
        for node in graph.operators():
            attrs = [pair for pair in node.attrs if not pair[0].startswith("__")]
            found.update(json.dumps([node.op, node.name, attrs]).encode())
    return found.hexdigest()[:_DIGITS]


def _other_shapes(found: Shapes, expected: Shapes) -> List[str]:
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    return [f"shape of {name}: found {_text(found.get(name))}, expected {_text(expected.get(name))}" for name in names]


def _text(value: Any) -> str:
    """Return a value of a machine as a message has it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], str):
        return ", ".join(value)
    return str(value)
