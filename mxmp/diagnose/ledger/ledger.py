"""The ledger of a run: an observer of training steps that counts gradients by exponent, one step in N."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from rich.table import Table

from ... import dtypes, html
from ...display import save_text
from ...errors import DtypeError, TrainerError
from ...train.step import Observation, Observer, StepEnd, Weights, attached_elsewhere, observe
from . import lost, show, storage
from .advice import Advice, advise
from .book import Book
from .layer import Layer, summary_of
from .sample import Sample, Skipped, name_of, skipped, take
from .steps import Steps


class Ledger(Observer):
    """Keeps over a run, for each parameter, what becomes of its gradient in low precision; ``print`` shows it.

    One step in ``every`` is a sample. Its gradients are counted by exponent e (from 2**e to below 2**(e + 1), unlike
    those of measured magnitudes: above 2**(e - 1) to 2**e) as backward wrote them: scaled, each context's own, before
    they are summed, clipped or unscaled. On a GPU that is one launch for up to 200 of them, which reads each once and
    copies none; the counts stay there until the next sample, or until the ledger is asked. On a CPU they are counted at
    once, which waits for backward, as the check for overflows does. A sample whose step is skipped does not count, and
    the next step is one instead. Of a row_sparse gradient the stored rows count.

    Gradients in float32, as in 'O1', came through low precision, and are counted on its grid: 0 is what is 0, and
    subnormal what is below its smallest normal number. Those of operators in float32 have numbers that it lacks; they
    lose nothing, and `advice` leaves them out.

    A skipped step is looked at closely, which is slow: each gradient that is not finite is noted, and how large the
    weights are. Backward spreads what is not finite from layer to layer, to ever more elements. So the gradient of
    which the smallest share is not finite counts as the first; all of them if several have it. That is where in the
    gradients it begins. The operator that made it may lie elsewhere, in the forward pass too: a `Watch` names that.

    What the weights were is counted with the 1st sample, the 4th, the 16th and so on: a run that diverges is told from
    a scale that is too high by weights, and gradients with them, that have grown in most layers since.

    Where float16 weights have no float32 masters, the update of a sample is compared with the weights before it: it is
    lost where the gradient is not 0 and the weight stayed what it was. That copies these weights for a moment.

    Nothing of the training changes, bit for bit. Steps that a kvstore takes by itself are not seen; of several workers
    each has a ledger of its own gradients.

    Args:
        every: A step in how many is a sample.
        dtype: 'float16' or 'bfloat16': what the network computes in.

    Attributes:
        every: As given.
        dtype: As given, in full.
        steps: How many steps were seen, also those that were skipped or ended by an error.
        sampled: How many samples there are.
        skipped: How many steps were skipped; one whose loss was not finite is none of them.

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
        Nothing is wrong with the gradients that were seen.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, sections 3.1 and 3.2, https://arxiv.org/abs/1710.03740
    """

    def __init__(self, every: int = 20, dtype: str = "float16") -> None:
        if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 1:
            raise TrainerError(f"every={every!r}; expected a positive number of steps.")
        self.every, self.dtype = int(every), dtypes.canonical(dtype)
        if self.dtype not in dtypes.LOW_PRECISION:
            raise DtypeError(f"dtype={dtype!r}; expected 'float16' or 'bfloat16'.")
        self.steps = self.sampled = 0
        self._book, self._ends = Book(), Steps()
        self._shares: Dict[str, float] = {}
        self._due = 0  # the number of steps after which the next is a sample
        self._sample: Optional[Sample] = None  # of this step
        self._counted: Optional[Sample] = None  # of an earlier one, not read yet
        self._skipped: Optional[Skipped] = None
        self._before: List[lost.Before] = []
        self._owner: Any = None
        self._observation: Optional[Observation] = None

    # ------------------------------------------------------------------ attach

    def attach(self, owner: Any) -> Ledger:
        """Look at the steps of a trainer, module or optimizer from now on, and return this.

        Args:
            owner: A ``mxmp.gluon.Trainer``, a Module or BucketingModule of mxmp, before or after ``init_optimizer``,
                or a LossScaleOptimizer. A second call with the same one does nothing.

        Raises:
            TrainerError: If ``owner`` is none of them, or the ledger is attached to another.
        """
        if self._observation is not None and self._owner is not owner:
            raise attached_elsewhere(self, self._owner)
        if self._observation is None:
            self._observation = observe(owner, self)
            self._owner = owner
        return self

    def detach(self) -> None:
        """Look at no further steps; what was seen stays. A second call does nothing."""
        if self._observation is not None:
            self._observation.detach()
        self._observation = self._owner = None
        self._read()
        self._book.forget_weights()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    # ------------------------------------------------------------------ steps

    def on_gradients(self, weights: Weights, scale: float) -> None:
        """Begin to count the gradients if this step is a sample; of some samples the weights too."""
        self._sample, self._skipped, self._before = None, None, []
        if self.steps >= self._due:
            self._sample = take(weights, scale, with_weights=_is_power_of_4(self.sampled + 1))

    def on_update(self, weights: Weights) -> None:
        """Keep the weights of a sample that have no masters."""
        if self._sample is not None and not weights.optimizer.masters and weights.updaters:
            self._before = lost.look(weights.groups()[0])

    def on_updated(self, weights: Weights) -> None:
        """Compare them."""
        if self._sample is not None:
            found = lost.compare(self._before)
            self._sample.updates.extend((name_of(weights, index), counts) for index, counts in found)
        self._before = []

    def on_skip(self, weights: Weights) -> None:
        """Look at the gradients, to see which are not finite."""
        self._skipped = skipped(weights)

    def on_end(self, end: StepEnd) -> None:
        """Count the step."""
        self.steps += 1
        self._ends.count(end)
        sample, self._sample, self._before = self._sample, None, []
        gradients, self._skipped = self._skipped, None
        if gradients is not None:
            self._book.skip(gradients, end.scale)
        if not end.taken:
            self._book.look_at_weights()
        elif sample is not None:
            self._read()
            self._book.keep_weights(sample)
            self._counted, self._due = sample.at_scale(end.scale), self.steps - 1 + self.every
            self.sampled += 1
            if sample.on_host:
                self._read()

    # ------------------------------------------------------------------ what was found

    @property
    def skipped(self) -> int:
        """How many steps were skipped."""
        return self._ends.skipped

    @property
    def layers(self) -> Tuple[Layer, ...]:
        """What is known of each parameter, in the order of the steps' weights."""
        self._read()
        self._book.read_weights()
        return tuple(self._book.layers.values())

    def shares(self) -> Dict[str, float]:
        """Return what a log wants, over all parameters at a sample: the last, on a GPU the one before.

        Returns:
            'zero_share' and 'subnormal_share', from 0 to 1, and 'largest', the largest magnitude of a scaled gradient;
            an empty dict before there is a sample.
        """
        return dict(self._shares)

    def advice(self, lost: float = 0.01) -> Advice:
        """Return what to do about the scale, the precision of layers, and masters.

        How many elements have vanished is an estimate (``docs/when_it_goes_wrong.md`` says which): zeros alone are no
        reason for advice.

        Args:
            lost: What share of the elements that are not 0 may vanish.

        Raises:
            TrainerError: If ``lost`` is not between 0 and 1.
        """
        if isinstance(lost, bool) or not isinstance(lost, (int, float)) or not 0 < lost < 1:
            raise TrainerError(f"lost={lost!r}; expected a share between 0 and 1.")
        return advise(self.layers, self._ends, lost, self.dtype)

    @property
    def summary(self) -> str:
        """The ledger in a few sentences."""
        return show.summary(self)

    def compare(self, other: Ledger) -> str:
        """Return the layers of two runs side by side as text, those that differ most first, and what fits each.

        Layers are compared by the names of their parameters, and by shares, so that the runs may be of different
        lengths and ``every``.

        Raises:
            TrainerError: If ``other`` is no ledger.
        """
        if not isinstance(other, Ledger):
            raise TrainerError(f"other is a {type(other).__name__}; expected a Ledger.")
        return show.comparison(self, other)

    def table(self) -> Table:
        """Return a table of the layers, those that lose most first."""
        return show.table(self)

    def __str__(self) -> str:
        """Return the table and the summary for a terminal."""
        return show.text(self)

    def __repr__(self) -> str:
        """Return what was seen."""
        return f"Ledger(every={self.every}, dtype={self.dtype!r}, steps={self.steps}, sampled={self.sampled})"

    # ------------------------------------------------------------------ files

    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain JSON data; an infinity is the string 'inf'."""
        return storage.to_dict(self, self._ends)

    def save(self, path: str) -> None:
        """Write it to a JSON file, whole or not at all.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        save_text(storage.to_json(self.to_dict()), path)

    def to_html(self, path: Optional[str] = None, title: str = "Gradients") -> str:
        """Return it as one self-contained HTML file, and write that if asked to; raises as `save`."""
        text = html.page(title, html.ledger_sections(self.to_dict()))
        if path is not None:
            save_text(text, path)
        return text

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html.fragment("Gradients", html.ledger_sections(self.to_dict()))

    @classmethod
    def load(cls, path: str) -> Ledger:
        """Return what `save` wrote: to look at, or to `attach` to a trainer that goes on.

        Raises:
            CheckpointError: If the file cannot be read.
            StateError: If it is no ledger, or damaged.
        """
        return cls.from_dict(storage.read(path), path)

    @classmethod
    def from_dict(cls, data: Any, what: str = "the ledger") -> Ledger:
        """Return what `to_dict` gave; ``what`` names it in errors.

        Raises:
            StateError: If it is no ledger, or damaged.
        """
        state = storage.state_of(data, what)
        ledger = cls(state.every, state.dtype)
        ledger.steps, ledger.sampled, ledger._due = state.steps, state.sampled, state.steps
        ledger._ends, ledger._book = state.ends, Book(state.layers)
        return ledger

    # ------------------------------------------------------------------

    def _read(self) -> None:
        """Take over what was counted; waits for it."""
        sample, self._counted = self._counted, None
        if sample is not None:
            self._shares = summary_of(self._book.add(sample), self.dtype)


def _is_power_of_4(number: int) -> bool:
    """Return whether a number is 1, 4, 16, ...: often enough to see growth, and never dear in a long run."""
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1
