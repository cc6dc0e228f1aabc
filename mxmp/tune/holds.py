"""What a tuned policy holds for: the machine, the device, the shapes of the inputs, and the network itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..devices.check import read_gpus
from ..devices.speed import Machine, read_machine
from ..dtypes import FLOAT32
from ..graph import Graph
from ..passes import EraseCasts
from ..symbol import to_graph

Shapes = Dict[str, Tuple[int, ...]]
"""Shapes of inputs by name."""

Named = Dict[str, str]
"""Dtypes of inputs, or options, by name."""

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
        dtypes: Dtypes of the inputs by name; None if it is not known, as in files of the first format.
        options: How the network is run, by name, as far as that is not MXNet's default: what ``hybridize`` was given,
            or what a Module was made and bound with. None as above.
    """

    machine: Machine
    device: str
    shapes: Shapes
    network: str
    dtypes: Optional[Named] = None
    options: Optional[Named] = None

    def __str__(self) -> str:
        """Return it in one line."""
        others = {name: f" {dtype}" for name, dtype in (self.dtypes or {}).items() if dtype != FLOAT32}
        shapes = ", ".join(f"{name}{others.get(name, '')} {shape}" for name, shape in self.shapes.items())
        options = [f"{name}={value}" for name, value in (self.options or {}).items()]
        return "; ".join([str(self.machine), f"on {self.device}", shapes, *options, f"network {self.network}"])

    def differences(
        self,
        shapes: Optional[Shapes] = None,
        network: Optional[str] = None,
        dtypes: Optional[Named] = None,
        options: Optional[Named] = None,
    ) -> List[str]:
        """Return a phrase for each thing in which this process differs; what is given counts, the machine always."""
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
        found += _other("shape of ", shapes, self.shapes)
        found += _other("dtype of ", dtypes, self.dtypes)
        found += _other("", options, self.options)
        if network not in (None, self.network):
            found.append(f"network: found another one ({network}, expected {self.network}): other operators or names")
        return found


def holds_here(on_cpu: bool, shapes: Shapes, symbols: Iterable[Any], dtypes: Named, options: Named) -> HoldsFor:
    """Return what times hold for that are measured now."""
    device = describe_device(on_cpu)
    return HoldsFor(read_machine(), device, dict(shapes), digest(symbols), dict(dtypes), dict(options))


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


def _other(what: str, found: Optional[Mapping[str, Any]], expected: Optional[Mapping[str, Any]]) -> List[str]:
    """Return a phrase for each name with another value, none if one of the two is not known."""
    if found is None or expected is None:
        return []
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    return [f"{what}{name}: found {_text(found.get(name))}, expected {_text(expected.get(name))}" for name in names]


def _text(value: Any) -> str:
    """Return a value of a machine as a message has it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], str):
        return ", ".join(value)
    return str(value)
