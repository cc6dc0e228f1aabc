"""The record of a comparison with float32: a row for each node and the outputs' errors.

`mxmp.diagnose.compare` makes it. It is plain values, so that a page is made of it without MXNet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, Iterator, List, Optional, Sequence, Tuple, Type

from ..display import (
    BAR,
    NUMBER,
    PRECISION,
    Column,
    Facts,
    Line,
    Lines,
    Notes,
    Record,
    Section,
    Table,
    figure,
    wrappable,
)
from ..errors import ConvertError, MxmpError
from .report import policy_name


@dataclass(frozen=True)
class NodeComparison:
    """How far one node is off in low precision.

    An error is the 2-norm of the difference from float32 over that of float32's values, of the worst output (of
    gradients: input) and batch. It is inf where low precision is not finite and float32 is. None was not measured.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: The dtype that it computes in; 'as it was' for a node that is not touched.
        own: The error of its output if its inputs are float32's values, rounded to its precision; 0 in float32.
        carried: The error of its output in the converted network, where the nodes before it have made theirs.
        contribution: The error of the network's outputs if this node alone is rounded, to first order; 0 in float32.
            None if the outputs have no finite derivative by it.
        gradient_own: The error of the gradients of its inputs in low precision, if its inputs are float32's values
            and its gradient is float32's times the loss scale. The gradient of a bias may be 0 apart from
            rounding, as before BatchNorm: one that is less than 2**-11 (bfloat16: 2**-8) of the 2-norm of its terms,
            the gradient of the output, is measured against that norm instead.
        gradient_carried: The error of the same gradients in the converted network.
    """

    name: str
    op: str
    precision: str
    own: float
    carried: float
    contribution: Optional[float] = None
    gradient_own: Optional[float] = None
    gradient_carried: Optional[float] = None

    @property
    def is_finite(self) -> bool:
        """Whether all that is finite in float32 is finite here."""
        return not any(getattr(self, name) == math.inf for name in NUMBERS)

    def worst(self, other: NodeComparison) -> NodeComparison:
        """Return the larger number of each, that which is not None where one is."""
        changes: Dict[str, Any] = {}
        for name in NUMBERS:
            values = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            changes[name] = max(values, default=None)
        return replace(self, **changes)


NUMBERS = ("own", "carried", "contribution", "gradient_own", "gradient_carried")
"""The fields of a row that are measured."""

WORST = 20
"""How many operators are shown unless asked for more."""


@dataclass(frozen=True)
class OutputComparison:
    """The error of one output of the network, by its name.

    Attributes:
        name: The output's name.
        error: Its error, as that of a `NodeComparison`, over the elements that are finite in float32.
        is_finite: Whether all of it is finite in float32, on all batches. Where it is not, nothing is compared.
    """

    name: str
    error: float
    is_finite: bool = True

    def __str__(self) -> str:
        off = figure(self.error)
        if self.is_finite:
            return f"The output '{self.name}' is off by {off}."
        rest = f" Elsewhere it is off by {off}." if self.error else ""
        return (
            f"The output '{self.name}' holds inf or NaN in float32 itself, where nothing can be compared: `explain` "
            f"says where that comes from.{rest}"
        )


_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("precision", PRECISION, "What it computes in"),
    Column("own", NUMBER, "Relative error of this node alone, its inputs those of float32"),
    Column("carried", NUMBER, "Relative error with all that was rounded before it"),
    Column("contribution", BAR, "What it contributes to the error of the outputs"),
    Column("gradient, own", NUMBER, "Relative error of its gradient, of this node alone"),
    Column("gradient, carried", NUMBER, "Relative error of its gradient, with all that came before"),
)


@dataclass(frozen=True)
class Comparison(Record):
    """A network in low precision beside float32, node by node; ``print`` shows the worst 20 operators.

    Attributes:
        policy: The policy, as text.
        rows: One per operator with an output in float32, the worst first: those that contribute most to the error of
            the outputs.
        outputs: The errors of the network's outputs.
        loss_scale: The loss scale that gradients were compared at; None if they were not.
        lowered_from: The loss scale that `compare` chose first, at which not all gradients are finite; None if it
            stayed there, or the loss scale was given.
    """

    _kind: ClassVar[str] = "comparison"
    _title: ClassVar[str] = "Low precision beside float32"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    policy: str
    rows: Tuple[NodeComparison, ...]
    outputs: Tuple[OutputComparison, ...]
    loss_scale: Optional[float] = None
    lowered_from: Optional[float] = None

    def __post_init__(self) -> None:
        """Raise a ValueError if the loss scale that was lowered is missing."""
        if self.lowered_from is not None and self.loss_scale is None:
            raise ValueError("loss_scale is None; expected a number beside lowered_from.")

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were compared."""
        return any(row.gradient_carried is not None for row in self.rows)

    @property
    def _lead(self) -> str:
        return policy_name(self.policy)

    def _sections(self) -> List[Section]:
        return self.sections()

    def sections(self, order: Sequence[str] = ()) -> List[Section]:
        """Return the parts of its page.

        Args:
            order: Names of the network's operators as they run, where that is known: charts follow it.
        """
        rows = [(row.name, row.op, row.precision, *(getattr(row, name) for name in NUMBERS)) for row in self.rows]
        table = Table("Errors by layer", _COLUMNS, rows, "operators", WORST)
        lead = (
            "Errors relative to float32, the worst of all batches: 'own' is what a node adds, 'carried' what has "
            "added up in it."
        )
        facts = Facts([("policy", wrappable(policy_name(self.policy)))])
        return [Section("Errors by layer", (facts, *self._charts(order), table, Notes(self.summary)), lead)]

    def _charts(self, order: Sequence[str]) -> Iterator[Lines]:
        place = {name: number for number, name in enumerate(order)}
        rows = sorted(self.rows, key=lambda row: place.get(row.name, len(place)))
        where = "from the network's inputs to its outputs" if order else "in the order of the table"
        for caption, own, carried in (("Errors of values", "own", "carried"), ("Errors of gradients", *NUMBERS[3:])):
            lines = [
                Line("carried", [getattr(row, carried) for row in rows]),
                Line("own", [getattr(row, own) for row in rows], dots=True),
            ]
            chart = Lines(f"{caption}, {where}", range(1, len(rows) + 1), lines, "node", "log10")
            yield from () if chart.is_empty else (chart,)

    @property
    def summary(self) -> List[str]:
        """The remarkable results, a sentence each."""
        sentences = [str(each) for each in self.outputs]
        most = max((row for row in self.rows if row.own), key=lambda row: row.contribution or 0, default=None)
        if most is None and all(each.is_finite for each in self.outputs):
            sentences.append("No node makes an error of its own.")
        elif most is not None and most.contribution and most.is_finite:
            sentences.append(
                f"'{most.name}' ({most.op}) contributes most: alone, it would move the outputs by "
                f"{figure(most.contribution)}."
            )
        if self.lowered_from is not None:
            sentences.append(
                f"Gradients are compared at a loss scale of {self.loss_scale:g}: at {self.lowered_from:g}, where "
                f"compare begins, not all are finite."
            )
        at = "" if self.loss_scale is None else f" at a loss scale of {self.loss_scale:g}"
        for direction, own, carried in (("forward", "own", "carried"), (f"backward{at}", *NUMBERS[3:])):
            origins = [row for row in self.rows if getattr(row, own) == math.inf]
            reached = sum(getattr(row, carried) == math.inf and row not in origins for row in self.rows)
            if origins or reached:
                names = ", ".join(f"'{row.name}' ({row.op})" for row in origins[:3])
                names += f" and {len(origins) - 3} more" if origins[3:] else ""
                behind = f"; {reached} node{' gets' if reached == 1 else 's get'} it from others" if reached else ""
                sentences.append(f"Not finite {direction}, where float32 is, by itself: {names or 'no node'}{behind}.")
        return sentences

    def text(self, worst: Optional[int] = WORST) -> str:
        """Return it as a terminal shows it, with the ``worst`` operators; None for all.

        Raises:
            ConvertError: If ``worst`` is no whole number from 1 on.
        """
        from ..display import terminal

        if worst is not None and (not isinstance(worst, int) or isinstance(worst, bool) or worst < 1):
            raise ConvertError(f"worst={worst!r}: expected a whole number from 1 on, or None for all.")
        parts = terminal.parts(self, most=len(self.rows) if worst is None else worst)
        return "".join(map(terminal.text, parts))
