"""Why a step is not finite: the records of `mxmp.diagnose.explain`, of the node that it names, and of value ranges.

They are plain values, so that a page is made of them without MXNet.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, Iterable, List, Optional, Tuple, Type

from .. import dtypes
from ..display import NUMBER, Column, Facts, Notes, Record, Section, Table, figure, wrappable
from ..errors import ConvertError, MxmpError

FORWARD, BACKWARD, DATA, PARAMETER, LOSS = "forward", "backward", "data", "parameter", "loss"
"""Where inf or NaN comes up: `NonFinite.where`."""

_COLUMNS = (
    Column("tensor"),
    Column("what it is"),
    Column("elements", NUMBER),
    Column("NaN", NUMBER),
    Column("inf", NUMBER),
    Column("smallest", NUMBER, "The smallest finite value"),
    Column("largest", NUMBER, "The largest finite value"),
)

SCALE_TOO_HIGH = "scale too high"
OUT_OF_RANGE = "activation out of range"
GRADIENT_OUT_OF_RANGE = "gradient out of range"
BROKEN = "float32 model broken"
BAD_DATA = "data"
BAD_PARAMETERS = "parameters"
NO_FAULT = "no fault found"
"""The kinds of an `Explanation`."""


@dataclass(frozen=True)
class ValueRange:
    """The values of one tensor.

    Attributes:
        name: Its name: that of an output, an input or a parameter.
        size: How many elements it has.
        nans: How many are NaN.
        infs: How many are inf or -inf.
        smallest: The smallest finite value; 0 if there is none.
        largest: The largest finite value; 0 if there is none.
    """

    name: str
    size: int
    nans: int
    infs: int
    smallest: float
    largest: float

    @property
    def bad(self) -> int:
        """How many elements are inf or NaN."""
        return self.nans + self.infs

    @property
    def magnitude(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.smallest), abs(self.largest))

    @property
    def kinds(self) -> str:
        """'inf', 'NaN', 'inf and NaN', or 'finite values'."""
        kinds = [kind for kind, count in (("inf", self.infs), ("NaN", self.nans)) if count]
        return " and ".join(kinds) or "finite values"

    def times(self, factor: float) -> ValueRange:
        """Return the range of the values times a positive factor."""
        return replace(self, smallest=self.smallest * factor, largest=self.largest * factor)


@dataclass(frozen=True)
class NonFinite(Record):
    """Where inf or NaN comes up first.

    Attributes:
        where: 'forward' or 'backward', a node of the network; 'data' or 'parameter', a value that it is given, or, of a
            parameter in low precision, one out of its range; 'loss', the loss outside of the network.
        name: The node, input or parameter.
        op: The node's operator; empty if it is no node. A cast that a conversion put in is a 'cast'.
        precision: The dtype in which it is: 'float16', 'bfloat16' or 'float32'.
        output: The array that holds inf or NaN: the node's output; backward, the gradient that it hands on.
        inputs: The node's inputs; backward, the gradients of its outputs come before them.
        float32: The same output in float32, a gradient at the same loss scale; None where that is not known.
        rows: Of data, the rows (numbers along the first axis) that hold inf or NaN; of a loss, those whose gradient is
            beyond float32's range.
        keep: The operators to keep in float32 so that it does not overflow here: the node, and those in low precision
            that read its output. Those follow that fail alike: whose values (of the same operator) or gradients are
            beyond the range too, in float32.
        inf_from: Of a node whose output is NaN because of an inf that it reads, the node that this comes from, such as
            an attention mask's -inf; '' if it reads none.
    """

    _kind: ClassVar[str] = "finding of inf or NaN"
    _title: ClassVar[str] = "Where inf or NaN comes up first"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    where: str
    name: str
    op: str
    precision: str
    output: ValueRange
    inputs: Tuple[ValueRange, ...] = ()
    float32: Optional[ValueRange] = None
    rows: Tuple[int, ...] = ()
    keep: Tuple[str, ...] = ()
    inf_from: str = ""

    def __post_init__(self) -> None:
        """Raise a ValueError if a value is missing that its sentence reads."""
        if self.where == LOSS and not self.inputs:
            raise ValueError("inputs is empty; expected the output that the loss reads.")

    def __str__(self) -> str:
        count = f"{self.output.bad:,} of {self.output.size:,} elements"
        more = f" and {len(self.rows) - 5} more" if len(self.rows) > 5 else ""
        listed = ", ".join(map(str, self.rows[:5]))
        rows = f", in row{'s' if len(self.rows) > 1 else ''} {listed}{more}" if self.rows else ""
        if self.where in (DATA, PARAMETER):
            kind = "input" if self.where == DATA else "parameter"
            if self.precision in dtypes.LOW_PRECISION:
                return f"{kind} '{self.name}' is {self.output.kinds} in {self.precision} in {count}{self._reached()}"
            return f"{kind} '{self.name}' holds {self.output.kinds} in {count}{rows}"
        if self.where == LOSS:
            held = f"is {self.output.kinds} in {count}" if self.output.bad else f"reaches {self.output.magnitude:.4g}"
            return (
                f"the gradient of the loss with respect to '{self.name}' {held}{rows}, though that output is finite: "
                f"it reaches {self.inputs[0].magnitude:.4g}"
            )
        node = f"'{self.name}' ({self.op}, {self.precision})"
        if self.op == "cast":  # It has the name of its input.
            node = f"the cast of '{self.name}' ({self.precision})"
        if self.where == FORWARD:
            return f"forward: {node} gives {self.output.kinds} in {count}{self._reached()}"
        gradient = f"a gradient of {self.output.kinds} in {count} for '{self.output.name}'"
        return f"backward: {node} gives {gradient}{self._reached()}"

    def _reached(self) -> str:
        """Return how large the values around it are, as the end of a sentence."""
        reached = [each for each in self.inputs if each.size]
        is_low = self.precision in dtypes.LOW_PRECISION
        end = f"{self.precision} ends at {dtypes.limits(self.precision).max:.5g}" if is_low else ""
        text = ""
        if reached and self.where == PARAMETER:
            return f": it reaches {reached[0].magnitude:.4g}, {end}"
        if reached and self.where == BACKWARD:
            text = f"; the gradient that it gets reaches {reached[0].magnitude:.4g}"
        elif reached:
            *first, end_of_list = [f"{each.magnitude:.4g}" for each in reached[:3]]
            ends = f"{', '.join(first)} and {end_of_list}" if first else end_of_list
            text = f"; its {'inputs reach' if len(reached) > 1 else 'input reaches'} {ends}"
        text += f", and it reads inf, which comes from '{self.inf_from}'" if self.inf_from else ""
        text += f", {end}" if is_low else ""
        if self.float32 is not None and not self.float32.bad:
            text += f"; in float32 it reaches {self.float32.magnitude:.4g}"
        return text

    @property
    def overrides(self) -> str:
        """The overrides of a policy that keep `keep` in float32: 'name:conv3=float32'; '' if there is nothing to keep.

        For a cast that no operator reads it is 'output=float32'.
        """
        is_output = self.op == "cast" and not self.keep and self.where == FORWARD
        return "output=float32" if is_output else float32_overrides(self.keep)

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the sentence and the overrides."""
        return {**super().to_dict(), "overrides": self.overrides, "text": str(self)}

    def _sections(self) -> List[Section]:
        ranges = [("what holds it", self.output), *(("what is read", each) for each in self.inputs)]
        ranges += [] if self.float32 is None else [("the same in float32", self.float32)]
        rows = [(r.name, kind, r.size, r.nans, r.infs, r.smallest, r.largest) for kind, r in ranges]
        facts = [("where", self.where), ("name", self.name), ("precision", self.precision)]
        facts += [("overrides that mend it", wrappable(self.overrides))] if self.overrides else []
        blocks = Facts(facts), Table("Values around it", _COLUMNS, rows, "tensors")
        return [Section(self._title, blocks, str(self))]


def float32_overrides(names: Iterable[str], ending: str = "") -> str:
    """Return overrides that keep operators in float32: those named, or with "*" those whose names begin so."""
    return ",".join(dict.fromkeys(f"name:{glob.escape(name)}{ending}=float32" for name in names))


@dataclass(frozen=True)
class Explanation(Record):
    """Why a step is not finite.

    Attributes:
        kind: 'scale too high' (the skip was right), 'activation out of range' (of low precision, at any scale),
            'gradient out of range' (at scale 1; 1/8 and 1/64 are tried too), 'float32 model broken', 'data',
            'parameters', or 'no fault found'.
        text: Sentences that say so and end in the remedy.
        node: Where inf or NaN comes up first; None if it does nowhere.
        scale: The loss scale of the step.
        finite_scale: The largest scale tried at which the step is finite; None if none was, or none was looked for.
    """

    _kind: ClassVar[str] = "explanation"
    _title: ClassVar[str] = "Why a step is not finite"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    kind: str
    text: str
    node: Optional[NonFinite] = None
    scale: float = 1.0
    finite_scale: Optional[float] = None

    def __str__(self) -> str:
        return self.text if self.text.startswith(f"{self.kind}: ") else f"{self.kind}: {self.text}"

    @property
    def overrides(self) -> str:
        """The overrides of a policy that mend an activation, gradient or parameter out of low precision's range.

        'name:conv3=float32', for ``f"O1,{explanation.overrides}"``; '' for every other fault.
        """
        mends = self.kind in (OUT_OF_RANGE, GRADIENT_OUT_OF_RANGE, BAD_PARAMETERS) and self.node is not None
        return self.node.overrides if mends and self.node is not None else ""

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the overrides."""
        return {**super().to_dict(), "overrides": self.overrides}

    def _sections(self) -> List[Section]:
        facts = [("kind", self.kind), ("loss scale", figure(self.scale))]
        if self.finite_scale is not None:
            facts.append(("finite at a loss scale of", figure(self.finite_scale)))
        blocks = Facts(facts), Notes([str(self)], "Explanation")
        sections = [Section(self._title, blocks)]
        if self.node is None:
            return sections
        return [*sections, *replace(self.node, keep=self.node.keep if self.overrides else ())._sections()]
