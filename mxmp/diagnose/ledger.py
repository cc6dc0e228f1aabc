"""The ledger of a run: an observer of training steps that counts gradients by exponent, one step in N."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import is_low_precision, on_gpu, to_float32
from ..display import Section
from ..errors import DtypeError, NonFiniteLossError, TrainerError
from ..loss_scale import DynamicLossScale
from ..report.ledger import DIVERGED, Advice, Layer, LedgerRecord, log2
from ..train.kernels import Update
from ..train.step import Observer, StepEnd, Weights
from .exponents import BIAS, NONFINITE, ZERO, Read, count_exponents, largest, nonfinite_shares


@dataclass
class _Sample:
    """A step whose gradients are counted; on a GPU the counts stay there until they are read."""

    layers: List[Layer]  # of the gradients, in the order of the counts' rows
    counts: Read
    scale: float  # that the gradients were multiplied by
    weights: Dict[str, mx.nd.NDArray]  # of the first context
    loss_scale: float = 1.0
    on_host: bool = True
    magnitudes: Optional[Read] = None  # of the weights before the update, in some samples
    updates: List[Any] = field(default_factory=list)  # of weights without masters: what is compared, then the counts


class Ledger(LedgerRecord, Observer):
    """Keeps over a run, for each parameter, how its gradient fares in low precision; ``print`` shows it.

    One step in ``every`` is a sample. Its gradients are counted by exponent e (from 2**e to below 2**(e + 1), unlike
    those of measured magnitudes: above 2**(e - 1) to 2**e) as backward wrote them: scaled, each context's own, before
    they are summed, clipped or unscaled. On a GPU that is one launch for up to 200 of them, which reads each once and
    copies none; the counts stay there until the next sample, or until the ledger is asked. On a CPU they are counted at
    once, which waits for backward, as the check for overflows does. A sample whose step is skipped does not count, and
    the next step is one instead. Of a row_sparse gradient the stored rows count.

    Gradients in float32, as in 'O1', came through low precision, and are counted on its grid: an element
    below its smallest normal number is subnormal unless it is 0. Those of operators in float32 have numbers that it
    lacks; they lose nothing, and `advice` leaves them out.

    Of a skipped step each gradient that is not finite is noted, which waits for all of them. Backward spreads inf and
    NaN from layer to layer, to ever more elements. So the gradient of which the smallest share is not finite counts as
    the first; all of them if several have it. That is where in the gradients it begins. The operator that made it may
    lie elsewhere, in the forward pass too: a `Watch` names that.

    How large the weights are is counted with the 1st sample, the 4th, the 16th and so on, and again where steps are not
    taken: a run that diverges is told from a scale that is too high by weights that have grown in most layers.

    Where float16 weights have no float32 masters, the update of a sample is compared with the weights before it: it is
    lost where the gradient is not 0 and the weight stayed the same. That copies these weights for a moment.

    Nothing of the training changes, bit for bit. Steps that a kvstore takes by itself are not seen; of several workers
    each has a ledger of its own gradients.

    Args:
        every: A step in how many is a sample.
        dtype: 'float16' or 'bfloat16', in which the network computes.

    Raises:
        TrainerError: If ``every`` is no positive integer.
        DtypeError: If ``dtype`` is not one of the two.

    Example:
        >>> import mxmp, mxnet as mx
        >>> net = mx.gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd")
        >>> ledger = mxmp.diagnose.Ledger(every=20).attach(trainer)
        >>> print(ledger.advice())
        No step was seen yet.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, sections 3.1 and 3.2, https://arxiv.org/abs/1710.03740
    """

    def __init__(self, every: int = 20, dtype: str = "float16", **seen: Any) -> None:
        if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 1:
            raise TrainerError(f"every={every!r}; expected a positive number of steps.")
        name = dtypes.canonical(dtype)
        if name not in dtypes.LOW_PRECISION:
            raise DtypeError(f"dtype={dtype!r}; expected 'float16' or 'bfloat16'.")
        super().__init__(int(every), name, **seen)
        self._layers = {layer.name: layer for layer in self.layers}
        self._due = self.steps  # the number of steps after which the next is a sample
        self._shares: Dict[str, float] = {}
        self._sample: Optional[_Sample] = None  # of this step
        self._unread: Optional[_Sample] = None  # of an earlier one
        self._weights: Dict[str, mx.nd.NDArray] = {}  # of the last sample
        self._first: Sequence[str] = ()  # gradients of this step that are not finite

    # One observer is never another, whatever they have seen.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def detach(self) -> None:
        """Look at no further steps; the counts stay. A second call does nothing."""
        super().detach()
        self._look()
        self._weights = {}

    # ------------------------------------------------------------------ steps

    def on_gradients(self, weights: Weights, scale: float) -> None:
        """Begin to count the gradients if this step is a sample; of some samples the weights too."""
        self._sample, self._first = None, ()
        if self.steps < self._due:
            return
        groups = weights.groups()
        updates = [update for group in groups for update in group]
        layers = [self._layer(weights, update) for update in updates]
        first = {self._layer(weights, each).name: each.weight for group in groups[:1] for each in group}
        self._sample = _Sample(layers, count_exponents([each.grad for each in updates]), scale, first)
        self._sample.on_host = not any(on_gpu(each.grad) for each in updates)
        if math.log2(self.sampled + 1) % 2 == 0:  # often enough to see growth, and never dear in a long run
            self._sample.magnitudes = count_exponents(list(first.values()))

    def on_update(self, weights: Weights) -> None:
        """Keep the weights of a sample that have no masters."""
        if self._sample is None or not weights.masters or weights.masters[0].kept:
            return
        for update in weights.groups()[0]:
            weight, grad = update.weight.as_nd_ndarray(), update.grad.as_nd_ndarray()
            if is_low_precision(weight) and weight.stype == grad.stype == "default" and weight.size:
                with mx.autograd.pause():
                    kept = weight, to_float32(weight), to_float32(grad) != 0
                self._sample.updates.append((self._layer(weights, update), *kept))

    def on_updated(self, weights: Weights) -> None:
        """Compare them; the counts stay on the device."""
        if self._sample is not None:
            with mx.autograd.pause():
                for number, (layer, weight, before, moves) in enumerate(self._sample.updates):
                    lost = (to_float32(weight) == before) * moves
                    self._sample.updates[number] = layer, lost.sum(), moves.sum()

    def on_skip(self, weights: Weights) -> None:
        """Note which gradients are the first that are not finite."""
        for update in weights.groups()[0]:
            self._layer(weights, update)
        shares = nonfinite_shares(weights)
        self._first = [name for name in shares if shares[name] == min(shares.values())]

    def on_end(self, end: StepEnd) -> None:
        """Count the step."""
        scale, sample = log2(end.scale), self._sample
        for layer in (layer for layer in self.layers if layer.name in self._first):
            layer.skips[scale] = layer.skips.get(scale, 0) + 1
        if end.taken or end.skipped:
            taken, skipped = self.scales.get(scale, (0, 0))
            self.scales[scale] = taken + end.taken, skipped + end.skipped
        elif end.error is None or isinstance(end.error, NonFiniteLossError):
            self.nonfinite_losses += 1
        self.last_scale, self.is_dynamic = end.scale, isinstance(end.loss_scale, DynamicLossScale)
        self.not_taken = 0 if end.taken else self.not_taken + 1
        self.steps, self._sample, self._first = self.steps + 1, None, ()
        if sample is not None and end.taken:
            self._read()
            self.sampled, self._due = self.sampled + 1, self.steps - 1 + self.every
            self._unread, self._weights, sample.loss_scale = sample, sample.weights, end.scale
            if sample.on_host:
                self._read()

    def _layer(self, weights: Weights, update: Update) -> Layer:
        """Return the layer of a weight."""
        name = weights.name(update.index)
        layer = self._layers.get(name)
        if layer is None:
            layer = self._layers[name] = Layer(name)
            self.layers += (layer,)
        layer.elements = update.weight.size
        return layer

    def _read(self) -> None:
        """Take over the counts of the last sample; waits for them."""
        sample, self._unread = self._unread, None
        if sample is None:
            return
        # A loop without a trainer hands its gradients in with the scale taken out: they count as if it were not.
        scale, shift = log2(sample.loss_scale), log2(sample.loss_scale) - log2(sample.scale)
        alone = [Layer(layer.name) for layer in sample.layers]
        for layer, of_sample, row in zip(sample.layers, alone, sample.counts()):
            columns = row[ZERO + 1 : NONFINITE].nonzero()[0] + ZERO + 1
            counts = {int(column) - BIAS + shift: int(row[column]) for column in columns}
            top = math.inf if row[NONFINITE] else float(largest(row)) * 2.0**shift
            for each in (layer, of_sample):
                each.count(scale, counts, int(row[ZERO]), top)
        (zero, subnormal), top = self.shares_of(alone), max((layer.largest for layer in alone), default=0.0)
        self._shares = {"zero_share": zero, "subnormal_share": subnormal, "largest": top}
        for layer, lost, moved in sample.updates:
            layer.lost, layer.moved = layer.lost + int(lost.asscalar()), layer.moved + int(moved.asscalar())
        if sample.magnitudes is not None:
            for name, top in zip(sample.weights, largest(sample.magnitudes())):
                self._layers[name].weight_before = float(top)

    def _look(self) -> None:
        """Read all that was counted, and how large the weights are where the run may diverge."""
        self._read()
        if self.not_taken >= DIVERGED and self._weights:
            for name, top in zip(self._weights, largest(count_exponents(list(self._weights.values()))())):
                self._layers[name].weight = float(top)

    # ------------------------------------------------------------------ results, once all counts are read

    def shares(self) -> Dict[str, float]:
        """Return a log's figures, over all parameters at a sample: the last, on a GPU the one before.

        Returns:
            'zero_share' and 'subnormal_share', from 0 to 1, and 'largest', the largest magnitude of a scaled gradient;
            an empty dict before there is a sample.
        """
        return dict(self._shares)

    def advice(self) -> Advice:
        """Return advice on the scale, and on masters."""
        self._look()
        return super().advice()

    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain values, for JSON."""
        self._look()
        return super().to_dict()

    def _sections(self) -> List[Section]:
        self._look()
        return super()._sections()

    def __repr__(self) -> str:
        return f"Ledger(every={self.every}, dtype={self.dtype!r}, steps={self.steps}, sampled={self.sampled})"
