"""The record of a ledger: a run's gradients counted by layer, how its steps ended, and three rules on both.

`mxmp.diagnose.Ledger` fills it. It is plain values, so that a page is made of it without MXNet.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from ..display import NUMBER, SHARE, SPARK, Column, Figures, Histogram, Notes, Record, Section, Table, figure, power
from ..dtypes import FLOAT16, LOW_PRECISION, limits
from ..errors import MxmpError, StateError, listed

_MARGIN = 2
"""Binades between the largest gradient that was counted and the dtype's maximum: one step in many is counted."""

DIVERGED = 3
"""Steps in a row that were not taken, from which on a run may diverge."""

_SPARE = 4  # binades below the largest scale that fits, where a static scale is safe: gradients grow in a run
_FAR = 4  # binades below that maximum, as far as which gradients do not overflow in one step and not in another
_SUBNORMAL = 0.5  # of a layer's elements that are not 0, from which on the scale is too low
_LOST = 0.1  # of the updates of weights, from which on they want masters
_TOO_MANY = 0.01  # of the steps at a scale are skipped if it is too high; a dynamic scale skips fewer
_IN_A_ROW = 4  # steps that were skipped at one scale after another, from which on the scale is doubted
_GROWN = 4.0  # times as large are the weights of most layers in such a run
_ROWS = 20  # of the table on a terminal


@dataclass
class Layer:
    """The gradients of one parameter over a run.

    Attributes:
        name: The parameter.
        elements: Its elements.
        counts: By log2 of the loss scale, rounded, and by e: how many elements of the scaled gradients are at least
            2**e and below 2**(e+1) in magnitude.
        zeros: By log2 of the loss scale: how many elements were 0.
        largest: The largest magnitude of a scaled gradient; inf if an element was not finite.
        skips: By log2 of the loss scale: skipped steps in which it was the first gradient, see `mxmp.diagnose.Ledger`.
        weight_before: The largest magnitude of its weight at the last sample that counted weights; 0 before one.
        weight: The same after steps that were not taken; 0 where it was not looked at.
        lost: Elements whose update was lost, of weights without a float32 master.
        moved: Elements of such weights whose gradient was not 0.
    """

    name: str
    elements: int = 0
    counts: Dict[int, Dict[int, int]] = field(default_factory=dict)
    zeros: Dict[int, int] = field(default_factory=dict)
    largest: float = 0.0
    skips: Dict[int, int] = field(default_factory=dict)
    weight_before: float = 0.0
    weight: float = 0.0
    lost: int = 0
    moved: int = 0

    def count(self, scale: int, counts: Mapping[int, int], zeros: int, top: float) -> None:
        """Add the counts of a gradient that was multiplied by 2**scale, and whose largest magnitude is ``top``."""
        self.counts[scale] = _added(self.counts.get(scale, {}), counts)
        self.zeros[scale] = self.zeros.get(scale, 0) + zeros
        self.largest = max(self.largest, top)

    @property
    def histogram(self) -> Dict[int, int]:
        """How many elements of all samples are at least 2**e and below 2**(e+1) in magnitude, by e."""
        return dict(sorted(_added(*self.counts.values()).items()))

    @property
    def lost_share(self) -> Optional[float]:
        """The share of updates that were lost; None if the weight has a master, is float32, or was not looked at."""
        return self.lost / self.moved if self.moved else None

    def is_in(self, dtype: str) -> bool:
        """Return whether its gradients have only numbers that a dtype has: others were not computed in it."""
        bottom = round(math.log2(limits(dtype).smallest_subnormal))
        return bool(self.zeros) and min(self.histogram, default=bottom) >= bottom


@dataclass(frozen=True)
class Advice:
    """The advice of a ledger; ``print`` shows the sentences.

    Attributes:
        highest: The largest power of two that fits as a loss scale: it leaves the largest gradient a factor of 4 below
            the dtype's maximum, and steps were not skipped there; None before a sample or a skipped step, and where
            steps are skipped for another reason than the scale.
        scale: A static scale to take: a factor of 16 below that, since gradients grow in a run; None likewise.
        last: The scale of the last step; None before the first.
        diverges: Whether weights grew in most layers until steps were not finite: no scale and no precision mends that.
        sentences: The faults and their remedies; none if there are none.
    """

    highest: Optional[float]
    scale: Optional[float]
    last: Optional[float]
    diverges: bool
    sentences: Tuple[str, ...]

    def __str__(self) -> str:
        """Return the sentences, one a line."""
        if self.last is None:
            return "No step was seen yet."
        return "\n".join(self.sentences) or "Nothing is wrong with the gradients that were seen."


@dataclass
class LedgerRecord(Record):
    """What a ledger has seen, as it is saved and shown; `mxmp.diagnose.Ledger` goes on with it.

    Attributes:
        every: A step in how many is a sample.
        dtype: The low precision dtype that the network computes in.
        steps: How many steps were seen, also those that were skipped or ended by an error.
        sampled: How many samples there are.
        scales: By log2 of the loss scale, rounded: steps taken, and steps skipped.
        last_scale: The scale of the last step; None before the first.
        is_dynamic: Whether the loss scale moves by itself, as of the last step.
        not_taken: How many steps in a row were not taken, up to the last.
        nonfinite_losses: Steps that ended because the loss itself was not finite; these are not skipped.
        layers: What is known of each parameter, in the order of the steps' weights.
    """

    _kind: ClassVar[str] = "ledger"
    _title: ClassVar[str] = "Gradients"
    _error: ClassVar[Type[MxmpError]] = StateError

    every: int = 20
    dtype: str = FLOAT16
    steps: int = 0
    sampled: int = 0
    scales: Dict[int, Tuple[int, int]] = field(default_factory=dict)
    last_scale: Optional[float] = None
    is_dynamic: bool = False
    not_taken: int = 0
    nonfinite_losses: int = 0
    layers: Tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        """Raise a ValueError if a value is none that a ledger has."""
        if self.dtype not in LOW_PRECISION:
            raise ValueError(f"dtype is {self.dtype!r}; expected 'float16' or 'bfloat16'.")
        counts = (self.every - 1, self.steps, self.sampled, self.not_taken, self.nonfinite_losses)
        ends = [count for pair in self.scales.values() for count in pair]
        if min((*counts, *ends)) < 0 or sum(ends) > self.steps:
            raise ValueError("its counts of steps do not fit each other.")
        if self.last_scale is not None and not 0 < self.last_scale < math.inf:
            raise ValueError(f"last_scale is {self.last_scale!r}; expected a positive number.")

    @property
    def skipped(self) -> int:
        """How many steps were skipped."""
        return sum(skipped for _, skipped in self.scales.values())

    def shares_of(self, layers: Sequence[Layer]) -> Tuple[float, float]:
        """Return which shares of the elements of layers are 0 and subnormal, over all samples."""
        zeros = sum(sum(layer.zeros.values()) for layer in layers)
        subnormal, others = self._subnormal([counts for layer in layers for counts in layer.counts.values()])
        return zeros / max(zeros + others, 1), subnormal / max(zeros + others, 1)

    def _subnormal(self, counts: Sequence[Mapping[int, int]]) -> Tuple[int, int]:
        """Return how many elements are subnormal, and how many there are in all."""
        tiny = round(math.log2(limits(self.dtype).tiny))
        pairs = [pair for each in counts for pair in each.items()]
        return sum(count for e, count in pairs if e < tiny), sum(count for _, count in pairs)

    # ------------------------------------------------------------------ three rules

    def advice(self) -> Advice:
        """Return what three rules say: a scale that is too low, steps that are not taken, and updates that are lost."""
        diverges, highest = self._divergence(), self._highest()
        sentences = self._losses() + (diverges or self._skips(highest) or self._too_low(highest)) + self._lost_updates()
        # Where steps are skipped without a scale, a smaller one does not help either.
        hopeless = log2(self.last_scale) <= 0 and min(self.not_taken, self.skipped) >= _IN_A_ROW
        if diverges or highest is None or hopeless:
            return Advice(None, None, self.last_scale, bool(diverges), tuple(sentences))
        return Advice(2.0**highest, 2.0 ** (highest - _SPARE), self.last_scale, False, tuple(sentences))

    def _too_low(self, highest: Optional[int]) -> List[str]:
        """First rule: a static scale is too low if it leaves most of a layer subnormal, and a larger one fits."""
        last, low = log2(self.last_scale), self._low()
        parts = {layer.name: self._subnormal([layer.counts.get(last, {})]) for layer in low}
        shares = {name: subnormal / total for name, (subnormal, total) in parts.items() if total}
        names = sorted((name for name in shares if shares[name] > _SUBNORMAL), key=lambda name: -parts[name][0])
        if names and highest is not None and highest - _SPARE > last and not self.is_dynamic:
            share = sum(subnormal for subnormal, _ in parts.values()) / sum(total for _, total in parts.values())
            named = listed(names, [f" ({shares[name]:.0%})" for name in names])
            return [
                f"At the scale of {self.last_scale:g} an estimated {share:.0%} of the gradients that are not 0 are "
                f"subnormal in {self.dtype}, with fewer bits, and smaller ones become 0: most of {named}. A larger "
                f"scale keeps them, such as 2**{highest - _SPARE}: 2**{highest} at the most; loss_scale='dynamic' "
                f"finds one."
            ]
        # The gradient of a gamma that is fixed, as BatchNorm's in symbols by default, is 0 by definition. In the first
        # sample all below a layer that starts with zeros are 0.
        zero = [each for each in low if not each.histogram and not each.name.endswith("_gamma")]
        if not zero or len(zero) == len(low) or any(sum(each.zeros.values()) < 2 * each.elements for each in zero):
            return []
        return [
            f"All gradients of {listed([layer.name for layer in zero])} were 0: they vanish, which a larger scale "
            f"shows, or the loss does not depend on {'this layer' if len(zero) == 1 else 'these layers'}."
        ]

    def _losses(self) -> List[str]:
        """Second rule: of steps that are not taken, those whose loss was not finite are not the scale's."""
        if not self.nonfinite_losses:
            return []
        return [
            f"The loss itself was NaN or inf in {_counted(self.nonfinite_losses, 'step')}, which no loss scale mends: "
            f"look at the data, the learning rate and the forward pass; mxmp.diagnose.explain does."
        ]

    def _divergence(self) -> List[str]:
        """Nor are those of a run that diverges: one layer that overflows leaves the weights of others as they were."""
        growth = sorted(each.weight / each.weight_before for each in self.layers if each.weight and each.weight_before)
        middle = growth[len(growth) // 2] if len(growth) > 1 else 0.0
        if self.not_taken < DIVERGED or middle < _GROWN:
            return []
        return [
            f"The run diverges: in most layers weights are {middle:,.0f} times as large as before, and the last "
            f"{self.not_taken} steps were not finite. No scale and no precision mends that: go back to an earlier "
            f"checkpoint, and lower the learning rate or clip gradients."
        ]

    def _skips(self, highest: Optional[int]) -> List[str]:
        """Nor those that larger scales, or gradients far from overflow, speak for; the scale is too high for others."""
        last, in_a_row = log2(self.last_scale), min(self.not_taken, self.skipped)
        taken, skipped = self.scales.get(last, (0, 0))
        if in_a_row >= _IN_A_ROW:
            text = f"The last {in_a_row:,} steps were skipped, {'down to' if len(self.scales) > 1 else 'at'} the "
            text += f"scale of {self.last_scale:g}"
        elif skipped > 1 and skipped >= _TOO_MANY * (taken + skipped):
            text = f"At the scale of {self.last_scale:g} {skipped} of {taken + skipped} steps were skipped"
        else:
            return []
        skips = {layer.name: layer.skips[last] for layer in self.layers if last in layer.skips}
        first = sorted(skips, key=lambda name: -skips[name])
        text += f", first in the gradients of {listed(first)}." if first else "."
        above, room = self._taken_above(last), self._room(self.layers, last)
        if above:
            why = f", for {_counted(above, 'step')} {'was' if above == 1 else 'were'} taken at larger ones"
        elif room is not None and room >= _FAR:
            why = ", for the gradients of those that were taken stay far from overflow"
        elif last > 0 and highest is not None:
            lower = f"Scale the loss by 2**{highest} at most; if steps are skipped there too, ask a Watch or"
            return [f"{text} {lower} mxmp.diagnose.explain."]
        else:
            why = ""
        return [f"{text} The scale is hardly the cause{why}: mxmp.diagnose.explain or a Watch names what is."]

    def _lost_updates(self) -> List[str]:
        """Third rule: where many updates are lost, weights want float32 masters."""
        worst = sorted((layer for layer in self.layers if layer.lost), key=lambda layer: -layer.lost)
        moved, lost = sum(layer.moved for layer in self.layers), sum(layer.lost for layer in worst)
        if not moved or lost / moved <= _LOST:
            return []
        return [
            f"{lost / moved:.0%} of the updates are lost, below half a bit of their weight, most of "
            f"{listed([layer.name for layer in worst])}. Keep float32 masters: multi_precision=True."
        ]

    def _low(self) -> List[Layer]:
        """Return the layers whose gradients came out of low precision."""
        return [layer for layer in self.layers if layer.is_in(self.dtype)]

    def _room(self, layers: Sequence[Layer], scale: int) -> Optional[int]:
        """Return how many binades the largest gradient at 2**scale lies below the maximum; None if none was counted."""
        exponents = [max(layer.counts[scale]) for layer in layers if layer.counts.get(scale)]
        return math.floor(math.log2(limits(self.dtype).max)) - max(exponents) if exponents else None

    def _highest(self) -> Optional[int]:
        """Return log2 of the largest scale that fits; of a float32 run the one that would."""
        layers = self._low() or self.layers
        rooms = {scale: self._room(layers, scale) for scale in self.scales}
        ends = [scale + room for scale, room in rooms.items() if room is not None]
        for scale, (taken, skipped) in self.scales.items():
            # Steps that were taken at larger scales would have been taken at this one.
            if skipped > _TOO_MANY * (taken + self._taken_above(scale)) and (rooms[scale] or 0) < _FAR:
                ends.append(scale - 1)
        return min(ends) - _MARGIN if ends else None

    def _taken_above(self, scale: int) -> int:
        return sum(taken for each, (taken, _) in self.scales.items() if each > scale)

    # ------------------------------------------------------------------ what is shown

    @property
    def _lead(self) -> str:
        samples = f"{_counted(self.sampled, 'sample')} in {_counted(self.steps, 'step')}"
        return f"{self.dtype}, {samples}, one in {self.every:,}"

    def _sections(self) -> List[Section]:
        """Return figures and advice, then the layers: those that were first in most skips, then that lose most."""
        advice = self.advice()
        part = f"{self.skipped / self.steps:.2%} of them" if self.skipped else ""
        found = [("steps", figure(self.steps), f"{self.sampled:,} sampled"), ("skipped", figure(self.skipped), part)]
        if self.last_scale is not None:
            # A dynamic scale goes beyond what fits to find it, so that no limit is advised to it.
            remark = "dynamic; a static one at most" if self.is_dynamic else "at most"
            advised = "" if advice.highest is None else f"{remark} {power(log2(advice.highest))}"
            found.append(("loss scale at the end", figure(self.last_scale), advised))
        total, zeros = _added(*(each.histogram for each in self.layers)), _added(*(each.zeros for each in self.layers))
        title, count = f"All gradients, against {self.dtype}'s range", sum(zeros.values())
        drawn = [Histogram(title, total, self.dtype, count)] if total or count else []
        rows = []
        for layer in self.layers:
            numbers = (*self.shares_of([layer]), layer.largest, sum(layer.skips.values()), layer.lost_share)
            rows.append((layer.name, layer.elements, *numbers, layer.histogram))
        rows.sort(key=lambda row: (row[5], row[6] or 0, row[2] + row[3]), reverse=True)
        columns = (
            Column("layer"),
            Column("elements", NUMBER, "Number of the gradient's elements"),
            Column("zero", SHARE, "Share that is zero: behind a ReLU that is off, or because it vanished"),
            Column("subnormal", SHARE, f"Share below {self.dtype}'s normal range, with fewer digits"),
            Column("largest", NUMBER, "Largest magnitude"),
            Column("skips", NUMBER, "Skipped steps in which of no other gradient a smaller share was not finite"),
            Column("lost updates", SHARE, "Share of updates below half a bit of the weight, which change nothing"),
            Column("magnitudes", SPARK, f"By powers of two; shaded where {self.dtype} has none", self.dtype),
        )
        table = Table("Gradients by layer", columns, rows, "layers", _ROWS)
        lead = "Gradients as they were, times the loss scale, in the steps that were sampled."
        summary = Section("Gradients", [Figures(found), Notes(advice.sentences, "Advice")])
        return [summary, Section("Gradients by layer", [*drawn, table], lead)]


def log2(scale: Optional[float]) -> int:
    """Return log2 of a loss scale, rounded; 0 before there is one."""
    return round(math.log2(scale)) if scale else 0


def _added(*several: Mapping[int, int]) -> Dict[int, int]:
    """Return the sums of counts by key."""
    total: Counter[int] = Counter()
    for counts in several:
        total.update(counts)
    return dict(total)


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun: '1 step', '2,000 steps'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
