"""The verdict on one node: its label, the reason, and which inputs and outputs have its precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

from ..rules import Rule

FLOAT32 = "float32"
LOW = "low"
FREE = "free"
KEEP = "keep"
"""The labels. A node that is kept is left unchanged, and so are its inputs."""


@dataclass(frozen=True)
class Verdict:
    """The precision that one node is to run in (``label``), and why (one phrase, for the report).

    Attributes:
        taints: Whether, in float32, its values are unsafe for what follows in low precision.
        widens: Attribute with which this node reads low precision data and gives float32, so that
            its first input needs no cast; empty if it has none.
        stand_in: Operator to put in this one's place if it runs in low precision; empty if itself does.
        clamped: Pairs (attribute, text): the scalars that it is to compute with in place of some beyond the low
            precision dtype's range.
        bodies: Of a control flow node, the verdicts on the nodes of each of its bodies.
        positions: Numbers of the outputs that hold positions, which come in float32 as outputs of the network too.
        low_ports: Of a control flow node, the inputs that its bodies want in low precision.
        low_outputs: Likewise, the outputs that they give in low precision.
    """

    label: str
    reason: str
    rule: Optional[Rule] = None
    taints: bool = True
    widens: str = ""
    stand_in: str = ""
    clamped: Tuple[Tuple[str, str], ...] = ()
    bodies: Tuple[Tuple["Verdict", ...], ...] = ()
    positions: FrozenSet[int] = frozenset()
    low_ports: FrozenSet[int] = frozenset()
    low_outputs: FrozenSet[int] = frozenset()

    def input_in_precision(self, port: int) -> bool:
        """Return whether an input is wanted in the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and self.rule.is_data(port)

    def accepts_any(self, port: int) -> bool:
        """Return whether an input may have either precision."""
        return self.rule is not None and (port in self.rule.any or (port == 0 and self.widens != ""))

    def output_in_precision(self, index: int) -> bool:
        """Return whether an output comes in the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and index not in self.rule.keep_outputs

    def reads_low(self, port: int, low: bool) -> bool:
        """Return whether an input is wanted in low precision, given whether the node runs in it."""
        return port in self.low_ports or (low and self.input_in_precision(port))
