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
from .explanation import float32_overrides
from .report import policy_name


@dataclass(frozen=True)
class NodeComparison:
    """The errors of one node in low precision.

    An error is the 2-norm of the difference from float32, divided by the 2-norm of float32's values. The worst output
    (for gradients, the worst input) and the worst batch count. An error is inf if low precision is not finite and
    float32 is. None means that the error was not measured.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: The dtype that it computes in; 'as it was' for a node that is not changed.
        local_error: The error that this node adds: its inputs are float32's values, rounded to its precision. 0 in
            float32.
        accumulated_error: The error of its output in the converted network, with the errors of all nodes before it.
        output_error: The error of the network's outputs if only this node is rounded, to first order; 0 in float32.
            None if the outputs have no finite derivative with respect to the node.
        gradient_local_error: The error that this node adds to the gradients of its inputs. Its inputs are float32's
            values, and its gradient is float32's times the loss scale. The gradient of a bias before BatchNorm is 0
            apart from rounding. If a gradient is less than 2**-11 (bfloat16: 2**-8) of the 2-norm of its terms, the
            gradient of the output, its error is divided by that norm instead.
        gradient_accumulated_error: The error of the same gradients in the converted network.
    """

    name: str
    op: str
    precision: str
    local_error: float
    accumulated_error: float
    output_error: Optional[float] = None
    gradient_local_error: Optional[float] = None
    gradient_accumulated_error: Optional[float] = None

    @property
    def is_finite(self) -> bool:
        """Whether every value that is finite in float32 is finite in low precision."""
        return not any(getattr(self, name) == math.inf for name in ERRORS)

    def worst(self, other: NodeComparison) -> NodeComparison:
        """Return a row with the larger one of each error of two rows. An error that is None does not count."""
        changes: Dict[str, Any] = {}
        for name in ERRORS:
            values = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            changes[name] = max(values, default=None)
        return replace(self, **changes)


_VALUES = ("local_error", "accumulated_error")
_GRADIENTS = ("gradient_local_error", "gradient_accumulated_error")
ERRORS = (*_VALUES, "output_error", *_GRADIENTS)
"""The fields of a row that are errors."""

WORST = 20
"""How many operators are shown unless asked for more."""


@dataclass(frozen=True)
class OutputComparison:
    """The error of one output of the network.

    Attributes:
        name: The output's name.
        error: Its error, as in a `NodeComparison`, over the elements that are finite in float32.
        is_finite: Whether all its elements are finite in float32, on all batches. Others are not compared.
    """

    name: str
    error: float
    is_finite: bool = True

    def worst(self, other: OutputComparison) -> OutputComparison:
        """Return the output with the larger error of two, which is finite if both are."""
        return replace(self, error=max(self.error, other.error), is_finite=self.is_finite and other.is_finite)

    def __str__(self) -> str:
        off = figure(self.error)
        if self.is_finite:
            return f"The output '{self.name}' is off by {off}."
        rest = f" Elsewhere it is off by {off}." if self.error else ""
        return (
            f"The output '{self.name}' holds inf or NaN in float32 itself, which cannot be compared: `explain` names "
            f"the node that gives them.{rest}"
        )


_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("precision", PRECISION, "The dtype that it computes in"),
    Column("local error", NUMBER, "The error that this operator adds to float32's values"),
    Column("accumulated error", NUMBER, "The error of its output, with the errors of all operators before it"),
    Column("output error", BAR, "The error of the network's outputs if only this operator is rounded"),
    Column("gradient local error", NUMBER, "The error that this operator adds to the gradients of its inputs"),
    Column("gradient accumulated error", NUMBER, "The error of the gradients of its inputs in the converted network"),
)


@dataclass(frozen=True)
class Comparison(Record):
    """A network in low precision, compared with float32 node by node; ``print`` shows the worst 20 operators.

    Attributes:
        policy: The policy, as text.
        rows: One per operator with an output in float32. The largest errors of the outputs come first.
        outputs: The errors of the network's outputs.
        loss_scale: The loss scale at which gradients were compared; None if they were not compared.
        lowered_from: The loss scale that `compare` tried first and lowered, because not all gradients are finite with
            it. None if it was not lowered, or if the loss scale was given.
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
        return any(row.gradient_accumulated_error is not None for row in self.rows)

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
        rows = [(row.name, row.op, row.precision, *(getattr(row, name) for name in ERRORS)) for row in self.rows]
        table = Table("Errors by layer", _COLUMNS, rows, "operators", WORST)
        lead = (
            "Errors relative to float32, the worst of all batches. The local error is added by the operator itself. "
            "The accumulated error includes those of all operators before it."
        )
        facts = Facts([("policy", wrappable(policy_name(self.policy)))])
        return [Section("Errors by layer", (facts, *self._charts(order), table, Notes(self.summary)), lead)]

    def _charts(self, order: Sequence[str]) -> Iterator[Lines]:
        place = {name: number for number, name in enumerate(order)}
        rows = sorted(self.rows, key=lambda row: place.get(row.name, len(place)))
        where = "from the network's inputs to its outputs" if order else "in the order of the table"
        for caption, (local, accumulated) in (("Errors of values", _VALUES), ("Errors of gradients", _GRADIENTS)):
            lines = [
                Line("accumulated", [getattr(row, accumulated) for row in rows]),
                Line("local", [getattr(row, local) for row in rows], dots=True),
            ]
            chart = Lines(f"{caption}, {where}", range(1, len(rows) + 1), lines, "node", "log10")
            yield from () if chart.is_empty else (chart,)

    @property
    def summary(self) -> List[str]:
        """The results to notice, a sentence each."""
        sentences = [str(each) for each in self.outputs]
        most = max((row for row in self.rows if row.local_error), key=lambda row: row.output_error or 0, default=None)
        if most is None and all(each.is_finite for each in self.outputs):
            sentences.append("No node adds an error.")
        elif most is not None and most.output_error and most.is_finite:
            sentences.append(
                f"'{most.name}' ({most.op}) contributes most: if only it is rounded, the outputs are off by "
                f"{figure(most.output_error)}."
            )
        if self.lowered_from is not None:
            sentences.append(
                f"Gradients are compared at a loss scale of {self.loss_scale:g}, because not all are finite at "
                f"{self.lowered_from:g}."
            )
        at = "" if self.loss_scale is None else f" at a loss scale of {self.loss_scale:g}"
        for direction, (local, accumulated) in (("forward", _VALUES), (f"backward{at}", _GRADIENTS)):
            origins = [row for row in self.rows if getattr(row, local) == math.inf]
            reached = sum(getattr(row, accumulated) == math.inf and row not in origins for row in self.rows)
            if origins or reached:
                names = ", ".join(f"'{row.name}' ({row.op})" for row in origins[:3])
                names += f" and {len(origins) - 3} more" if origins[3:] else ""
                behind = f"; {reached} node{' gets' if reached == 1 else 's get'} it from others" if reached else ""
                sentences.append(f"Not finite {direction}, where float32 is, by itself: {names or 'no node'}{behind}.")
        if self.overrides:
            sentences.append(f"Keep in float32 all that is not finite forward: '{self.overrides}'.")
        return sentences

    @property
    def overrides(self) -> str:
        """The overrides of a policy that keep every node in float32 which is not finite by itself; '' if all are."""
        return float32_overrides(row.name for row in self.rows if row.local_error == math.inf)

    def text(self, worst: Optional[int] = WORST) -> str:
        """Return the comparison as a terminal shows it, with so many of the worst operators, or with all for None.

        Raises:
            ConvertError: If ``worst`` is no whole number from 1 on.
        """
        from ..display import terminal

        if worst is not None and (not isinstance(worst, int) or isinstance(worst, bool) or worst < 1):
            raise ConvertError(f"worst={worst!r}: expected a whole number from 1 on, or None for all.")
        parts = terminal.parts(self, most=len(self.rows) if worst is None else worst)
        return "".join(map(terminal.text, parts))
