"""Where inf or NaN comes up first, and said in a sentence."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .. import dtypes, html
from .result import Result
from .value_range import ValueRange

FORWARD, BACKWARD, DATA, PARAMETER, LOSS = "forward", "backward", "data", "parameter", "loss"


@dataclass(frozen=True)
class NonFinite(Result):
    """Where inf or NaN comes up first.

    Attributes:
        where: 'forward' or 'backward', a node of the network; 'data' or 'parameter', a value that it is given, or, of a
            parameter in low precision, one out of its range; 'loss', the loss outside of the network.
        name: The node, input or parameter.
        op: The node's operator; empty for what is no node. A cast that a conversion put in is a 'cast'.
        precision: The dtype in which it is: 'float16', 'bfloat16' or 'float32'.
        output: What holds inf or NaN: the node's output; backward, the gradient that it hands on.
        inputs: What the node reads; backward, the gradients that its outputs get stand before that.
        float32: The same output in float32, a gradient at the same loss scale; None where that is not known.
        rows: Of data, the rows (numbers along the first axis) that hold inf or NaN.
        keep: The operators to keep in float32 so that it does not overflow here: the node, and those in low precision
            that read its output.
        classes: Of an input with class indices of which some are out of range, how many classes there are; else 0.
        inf_from: Of a node whose output is NaN because of an inf that it reads, the node that this comes from, such as
            an attention mask's -inf; '' if it reads none.
    """

    _mark: ClassVar[Tuple[str, str]] = ("result", "nonfinite")
    _what: ClassVar[str] = "finding of inf or NaN"
    _title: ClassVar[str] = "Where inf or NaN comes up first"

    where: str
    name: str
    op: str
    precision: str
    output: ValueRange
    inputs: Tuple[ValueRange, ...] = ()
    float32: Optional[ValueRange] = None
    rows: Tuple[int, ...] = ()
    keep: Tuple[str, ...] = ()
    classes: int = 0
    inf_from: str = ""

    def __str__(self) -> str:
        count = f"{self.output.bad:,} of {self.output.size:,} elements"
        rows = f", in {_rows(self.rows)}" if self.rows else ""
        if self.classes:
            kind = "label" if self.name.endswith("label") else "input"  # as MXNet's names of labels end
            return (
                f"{kind} '{self.name}' holds class indices from {self.output.smallest:g} to {self.output.largest:g}, "
                f"expected 0 to {self.classes - 1}{rows}"
            )
        if self.where in (DATA, PARAMETER):
            kind = "input" if self.where == DATA else "parameter"
            if self.precision in dtypes.LOW_PRECISION:
                return f"{kind} '{self.name}' is {self.output.what} in {self.precision} in {count}{self._reached()}"
            return f"{kind} '{self.name}' holds {self.output.what} in {count}{rows}"
        if self.where == LOSS:
            return (
                f"the gradient of the loss with respect to '{self.name}' is {self.output.what} in {count}{rows}, "
                f"though that output is finite: it reaches {self.inputs[0].magnitude:.4g}"
            )
        node = f"'{self.name}' ({self.op}, {self.precision})"
        if self.where == FORWARD:
            text = f"forward: {node} gives {self.output.what} in {count}"
        else:
            text = f"backward: {node} gives a gradient of {self.output.what} in {count} for '{self.output.name}'"
        return text + self._reached()

    def _reached(self) -> str:
        reached = [each for each in self.inputs if each.size]
        text = ""
        if reached and self.where == PARAMETER:
            return f": it reaches {reached[0].magnitude:.4g}, {self.precision} ends at {self._end}"
        if reached and self.where == BACKWARD:
            text = f"; the gradient that it gets reaches {reached[0].magnitude:.4g}"
        elif reached:
            ends = " and ".join(f"{each.magnitude:.4g}" for each in reached[:3])
            text = f"; its {'inputs reach' if len(reached) > 1 else 'input reaches'} {ends}"
        if self.inf_from:
            text += f", and it reads inf, which comes from '{self.inf_from}'"
        if self.precision in dtypes.LOW_PRECISION:
            text += f", {self.precision} ends at {self._end}"
        if self.float32 is not None and not self.float32.bad:
            text += f"; in float32 it reaches {self.float32.magnitude:.4g}"
        return text

    @property
    def _end(self) -> str:
        return f"{dtypes.limits(self.precision).max:.5g}"

    @property
    def overrides(self) -> str:
        """What keeps `keep` in float32, as overrides of a policy: 'name:conv3=float32'; '' if there is nothing."""
        return float32_overrides(self.keep)

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the sentence and the overrides."""
        return {
            "result": self._mark[1],
            "where": self.where,
            "name": self.name,
            "op": self.op,
            "precision": self.precision,
            "output": self.output.to_dict(),
            "inputs": [each.to_dict() for each in self.inputs],
            "float32": None if self.float32 is None else self.float32.to_dict(),
            "rows": list(self.rows),
            "keep": list(self.keep),
            "classes": self.classes,
            "inf_from": self.inf_from,
            "overrides": self.overrides,
            "text": str(self),
        }

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> NonFinite:
        where, name, op, precision = (str(values[key]) for key in ("where", "name", "op", "precision"))
        inputs = tuple(ValueRange(**each) for each in values["inputs"])
        float32 = None if values["float32"] is None else ValueRange(**values["float32"])
        rows, keep = tuple(map(int, values["rows"])), tuple(map(str, values["keep"]))
        output = ValueRange(**values["output"])
        more = int(values["classes"]), str(values.get("inf_from", ""))
        return cls(where, name, op, precision, output, inputs, float32, rows, keep, *more)

    def _sections(self) -> List[html.Section]:
        return html.nonfinite_sections(self.to_dict())


def float32_overrides(names: Iterable[str], ending: str = "") -> str:
    """Return overrides that keep operators in float32: those named, or with "*" those whose names begin so."""
    return ",".join(dict.fromkeys(f"name:{glob.escape(name)}{ending}=float32" for name in names))


def _rows(rows: Sequence[int]) -> str:
    listed = ", ".join(map(str, rows[:5]))
    return f"row{'s' if len(rows) > 1 else ''} {listed}{f' and {len(rows) - 5} more' if len(rows) > 5 else ''}"
