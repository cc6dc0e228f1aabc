"""What a comparison with float32 gives: a row for each node and the outputs' errors, as a table or JSON."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import html
from ..errors import visible
from ..probe.result import Result

KIND = "compare"
"""What a file says that it holds."""

_INF = "inf"
NUMBERS = ("own", "carried", "contribution", "gradient_own", "gradient_carried")
"""The fields of a row that are measured."""

WORST = 20
"""How many operators are shown unless asked for more."""


@dataclass(frozen=True)
class NodeComparison:
    """How far one node is off in low precision.

    An error is the 2-norm of the difference from float32 over that of float32's values, of the worst output (of
    gradients: input) and batch. It is inf where low precision is not finite and float32 is. None was not measured.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: The dtype that it computes in; 'as it was' for a node that is not touched.
        own: The error of what it gives if it gets float32's values, rounded to its precision; 0 in float32.
        carried: The error of what it gives in the converted network, whose nodes before this one have made theirs.
        contribution: The error of the network's outputs if this node alone is rounded, to first order; 0 in float32.
            None if the outputs have no finite derivative by it.
        gradient_own: The error of the gradients that it gives, in low precision, of what it reads, if it gets
            float32's values and float32's gradient times the loss scale. The gradient of what is added (a bias) may be
            0 but for rounding, as before BatchNorm: one that is less than 2**-11 (bfloat16: 2**-8) of the 2-norm of
            the terms that it is the sum of, the gradient of the output, is measured against that norm instead.
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


@dataclass(frozen=True)
class OutputComparison:
    """The error of one output of the network, by its name.

    Attributes:
        name: The output's name.
        error: Its error, as that of a `NodeComparison`, of what is finite in float32.
        is_finite: Whether all of it is finite in float32, on all batches. Where it is not, nothing is compared.
    """

    name: str
    error: float
    is_finite: bool = True


@dataclass(frozen=True)
class Comparison(Result):
    """A network in low precision beside float32, node by node; ``print`` shows it as a table.

    Attributes:
        policy: The policy, as text.
        rows: One per operator with an output in float32, the worst first: those that contribute most to the error of
            the outputs.
        outputs: The errors of the network's outputs.
        loss_scale: The loss scale that gradients were compared at; None if they were not.
        lowered_from: The loss scale that `compare` chose first, at which not all gradients are finite; None if it
            stayed there, or the loss scale was given.
    """

    _mark: ClassVar[Tuple[str, str]] = ("kind", KIND)
    _what: ClassVar[str] = "comparison"
    _title: ClassVar[str] = "Low precision beside float32"

    policy: str
    rows: Tuple[NodeComparison, ...]
    outputs: Tuple[OutputComparison, ...]
    loss_scale: Optional[float] = None
    lowered_from: Optional[float] = None

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were compared."""
        return any(row.gradient_carried is not None for row in self.rows)

    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain values; infinity, which JSON lacks, is the text 'inf'."""
        rows, outputs = ([_written(asdict(each)) for each in part] for part in (self.rows, self.outputs))
        scale = {"loss_scale": self.loss_scale, "lowered_from": self.lowered_from}
        return {"kind": KIND, "policy": self.policy, "rows": rows, "outputs": outputs, **scale}

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Comparison:
        rows = tuple(NodeComparison(**_read(NodeComparison, each)) for each in values["rows"])
        outputs = tuple(OutputComparison(**_read(OutputComparison, each)) for each in values["outputs"])
        scales = (values.get(name) for name in ("loss_scale", "lowered_from"))  # which older files lack
        return cls(str(values["policy"]), rows, outputs, *(None if each is None else float(each) for each in scales))

    def _sections(self) -> List[html.Section]:
        return html.compare_sections(self.to_dict())

    @property
    def _lead(self) -> str:
        return self.policy

    @property
    def summary(self) -> List[str]:
        """What stands out, a sentence each."""
        found = [_of_output(each) for each in self.outputs]
        low = [row for row in self.rows if row.own]
        most = max(low, key=lambda row: row.contribution or 0, default=None)
        if most is None and all(each.is_finite for each in self.outputs):
            found.append("No node makes an error of its own.")
        elif most is not None and most.contribution and most.is_finite:
            found.append(
                f"{_node(most)} contributes most: alone, it would move the outputs by {most.contribution:.2g}."
            )
        if self.lowered_from is not None:
            found.append(
                f"Gradients are compared at a loss scale of {self.loss_scale:g}: at {self.lowered_from:g}, where "
                f"compare begins, not all are finite."
            )
        at = "" if self.loss_scale is None else f" at a loss scale of {self.loss_scale:g}"
        for what, own, carried in (("forward", "own", "carried"), (f"backward{at}", *NUMBERS[3:])):
            found += self._not_finite(what, own, carried)
        return found

    def _not_finite(self, what: str, own: str, carried: str) -> List[str]:
        """Return what there is to say about values that are not finite but in float32, in one direction."""
        origins = [row for row in self.rows if getattr(row, own) == math.inf]
        reached = sum(getattr(row, carried) == math.inf and row not in origins for row in self.rows)
        if not origins and not reached:
            return []
        names = ", ".join(_node(row) for row in origins[:3]) + (f" and {len(origins) - 3} more" if origins[3:] else "")
        behind = f"; {reached} node{' gets' if reached == 1 else 's get'} it from others" if reached else ""
        return [f"Not finite {what}, where float32 is, by itself: {names or 'no node'}{behind}."]

    def table(self, narrow: bool = False, worst: Optional[int] = None) -> Table:
        """Return a table of the nodes.

        Args:
            narrow: Whether it has few columns, so that cells share theirs, in several lines.
            worst: How many of the rows to show; all unless given.
        """
        title = Text(f"mxmp compare: {self.policy}".replace(",", ", "))  # it may wrap
        table = Table(title=title)
        numbers = NUMBERS if self.has_gradients else NUMBERS[:3]
        left = ("node, operator, precision",) if narrow else ("node", "operator", "precision")
        for column in left:
            table.add_column(column, overflow="fold")
        for column in numbers:
            table.add_column(column.replace("_", " "), justify="right")
        for row in self.rows[:worst]:
            cells = [visible(cell) for cell in (row.name, row.op, row.precision)]
            cells = ["\n  ".join(cells)] if narrow else cells
            table.add_row(*map(Text, [*cells, *(_text(getattr(row, name)) for name in numbers)]))
        return table

    def listed(self, worst: Optional[int] = WORST) -> str:
        """Return how many operators a table of the ``worst`` shows, of how many."""
        count = len(self.rows) if worst is None else min(worst, len(self.rows))
        return f"{count} of {len(self.rows)} operators, the worst"

    def text(self, worst: Optional[int] = WORST) -> str:
        """Return it as a table for a terminal, and what stands out.

        Args:
            worst: How many operators to show; None for all.
        """
        console = Console(file=io.StringIO(), width=120)
        console.print(self.table(worst=worst))
        more = [f"{self.listed(worst)}; text(worst=None) shows all."]
        for line in [*(more if worst is not None and worst < len(self.rows) else ()), *self.summary]:
            console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
        output: Any = console.file
        return str(output.getvalue())

    def __str__(self) -> str:
        """Return the table of the worst operators, and what stands out."""
        return self.text()


def _node(row: NodeComparison) -> str:
    return f"'{row.name}' ({row.op})"


def _of_output(output: OutputComparison) -> str:
    if output.is_finite:
        return f"The output '{output.name}' is off by {_text(output.error)}."
    rest = f" Elsewhere it is off by {_text(output.error)}." if output.error else ""
    return (
        f"The output '{output.name}' holds inf or NaN in float32 itself, where nothing can be compared: `explain` says "
        f"where that comes from.{rest}"
    )


def _text(value: Optional[float]) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.2g}"


def _written(values: Dict[str, Any]) -> Dict[str, Any]:
    return {name: _INF if value == math.inf else value for name, value in values.items()}


def _read(kind: Any, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the fields of a row or output, checked."""
    written = {"is_finite": True, **values}  # which older files lack
    found = {field.name: written[field.name] for field in fields(kind)}
    for name, value in found.items():
        number = name in (*NUMBERS, "error")
        if number and value is not None:
            found[name] = float(value)
        elif not number and not isinstance(value, bool if name == "is_finite" else str):
            raise TypeError(f"{name} is {value!r}")
    return found
