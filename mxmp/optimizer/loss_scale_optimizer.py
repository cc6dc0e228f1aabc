"""A loss scale around an optimizer, under the names of Keras, for loops without a trainer."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays import all_finite
from ..errors import TrainerError
from ..loss_scale import LossScale
from ..train import states
from ..train.masters import MultiPrecision
from ..train.scale_loss import scale_loss
from ..train.scaled_loss import ScaledLoss, require_backward
from ..train.scaler import Scaler
from ..train.states import Target
from ..train.step import Step
from .gradient_pairs import (
    GivenGradients,
    Weight,
    check_unscaled,
    check_weights,
    contexts_of,
    described,
    leaves,
    make_updates,
    mapped,
    read_grads,
    read_pairs,
    unscaled,
)
from .keras import KerasOptimizer, make_loss_scale, wrapped

_ORDER = "get_scaled_loss, backward, get_unscaled_gradients, apply_gradients"


class LossScaleOptimizer(KerasOptimizer):
    """An optimizer with a loss scale, float32 masters and exact skips, for loops written by hand.

    The order of calls::

        optimizer = LossScaleOptimizer(mx.optimizer.Adam())
        with autograd.record():
            scaled = optimizer.get_scaled_loss(loss_fn(net(x), y))
        scaled.backward()
        grads = optimizer.get_unscaled_gradients([p.grad() for p in params])
        optimizer.apply_gradients(zip(grads, params))

    It can also be given to `mxmp.gluon.Trainer` and `mxmp.module.Module`, which take its optimizer and
    its loss scale over. All attributes that it does not name are those of the inner optimizer.

    Two things differ from Keras. Forgotten or repeated calls are errors. And gradients that stay
    non-finite at scale 1 raise after 50 steps in a row, as everywhere in mxmp.

    Args:
        inner: An ``mx.optimizer.Optimizer``, or a `MultiPrecision` around one. Its ``rescale_grad``
            is applied as it is: set it to 1/batch_size for a loss per sample.
        dynamic: Whether the scale moves: halved by a non-finite step, down to 1; doubled after
            ``dynamic_growth_steps`` finite ones.
        initial_scale: The first scale; 2**15 if dynamic, else it must be given.
        dynamic_growth_steps: Steps; 2000 by default. Only if dynamic.

    Raises:
        TrainerError: If ``inner`` is no optimizer, has a loss scale already, or is a trainer's.
        LossScaleError: If the other arguments are invalid or contradict each other.

    Example:
        >>> LossScaleOptimizer(mx.optimizer.SGD(learning_rate=0.5)).loss_scale
        32768.0

    References:
        tf.keras.mixed_precision.LossScaleOptimizer of TensorFlow 2.12.
    """

    _own = ("_scaler", "_training_step", "_state_updater", "_weights", "_scaled", "_given", "_owner")

    def __init__(
        self,
        inner: mx.optimizer.Optimizer,
        dynamic: bool = True,
        initial_scale: Optional[float] = None,
        dynamic_growth_steps: Optional[int] = None,
    ) -> None:
        value = make_loss_scale(dynamic, initial_scale, dynamic_growth_steps)
        multi = wrapped(inner)
        self.__setstate__({"inner": multi.inner, "masters": multi.masters})
        self._scaler = Scaler(value)
        self._training_step = Step(self._scaler)
        self._state_updater = mx.optimizer.get_updater(multi)
        self._weights: List[Weight] = []  # in the order of their indices
        self._scaled: List[ScaledLoss] = []  # those of this window
        self._given: List[mx.nd.NDArray] = []  # its scaled gradients, as get_unscaled_gradients saw them
        self._owner: Optional[str] = None

    # ------------------------------------------------------------------ a step

    def get_scaled_loss(self, loss: Any) -> Any:
        """Return the loss times the loss scale, in float32; call backward on it.

        As often as wanted before a step; the scale stays the same up to it.

        Args:
            loss: An NDArray of any shape and floating point dtype, or nested lists and tuples of
                them; inside or outside of ``autograd.record()``.

        Raises:
            TrainerError: After `get_unscaled_gradients`, or if ``loss`` is scaled already or no loss.
        """
        self._require_own("get_scaled_loss")
        if self._scaler.state.is_unscaled:
            raise TrainerError(
                "get_scaled_loss came after get_unscaled_gradients, so that scaled and true gradients would mix; call "
                "apply_gradients first, or discard_grads to start again."
            )
        if any(leaf is each.scaled for leaf in leaves(loss) for each in self._scaled):
            raise TrainerError("get_scaled_loss: the loss is scaled already; call get_scaled_loss once for each loss.")
        with scale_loss(loss, [self._scaler], self._scaled.extend) as scaled:
            return scaled

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> List[Any]:
        """Return gradients divided by the loss scale, in float32; the given ones stay as they are.

        Call it once in a step, with all gradients, and go on with what it returns. Those that are not
        finite make the step skip, whatever becomes of them. No host read, but on a CPU a wait for large
        gradients of low precision.

        Args:
            grads: NDArrays, dense or row_sparse; or lists of them, one per context; or None.

        Returns:
            The same, of float32 where they had low precision.

        Raises:
            TrainerError: If no loss was scaled, or backward (an ``autograd.grad`` that frees the graph) not
                called on each scaled loss; twice in a step; or if ``grads`` are no gradients.
        """
        self._require_own("get_unscaled_gradients")
        state = self._scaler.state
        if state.is_ready:
            raise TrainerError(
                "get_unscaled_gradients: no loss was scaled since the last step; call get_scaled_loss and run backward "
                "on what it returns."
            )
        if state.is_unscaled:
            raise TrainerError(
                "get_unscaled_gradients: the gradients of this step are unscaled already; call it once, with all of "
                "them, then apply_gradients."
            )
        grads = read_grads(grads)
        try:
            require_backward(self._scaled)
        except TrainerError as e:
            raise TrainerError(f"{e} Call discard_grads to start the step again.") from None
        arrays = [leaf for leaf in leaves(grads) if leaf is not None]
        self._scaler.unscaled(all_finite(arrays))
        self._given = arrays
        factor = 1.0 / state.scale
        return [mapped(grad, lambda array: unscaled(array, factor)) for grad in grads]

    def apply_gradients(self, grads_and_vars: Iterable[Tuple[Any, Any]]) -> bool:
        """Check all gradients and update the weights, or skip all. One host read.

        A gradient on several contexts is summed; every context gets the same weight. The weights of
        the first call are those of `build`.

        Args:
            grads_and_vars: Pairs of a gradient, true and not scaled, and its weight: an NDArray or a
                gluon Parameter. The gradient of a Parameter on several contexts is a list. Weights
                whose gradient is None are left alone. The arrays that `get_unscaled_gradients` was
                given and the weights' own gradients are refused, at a scale of 1 too and whatever was
                written into them: all gradients must have gone through it.

        Returns:
            True if the weights were updated, False if the step was skipped.

        Raises:
            TrainerError: If `get_scaled_loss` or `get_unscaled_gradients` was forgotten, what it returned
                is not what is given here, or the pairs are none. Then the step can still be made.
            NonFiniteLossError: If the loss itself was not finite; nothing is updated.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        self._require_own("apply_gradients")
        if not self._scaler.state.is_unscaled:
            missing = "get_scaled_loss" if self._scaler.state.is_ready else "get_unscaled_gradients"
            raise TrainerError(f"apply_gradients: {missing} was not called in this step; the order is {_ORDER}.")
        pairs = read_pairs(grads_and_vars)
        weights = self._weights or check_weights([], [weight for _, weight in pairs])
        updates = make_updates(pairs, weights)
        check_unscaled(pairs, self._given)
        self.check_states((u.index, u.weight, self._state_updater.states.get(u.index)) for u in updates)
        self._set_weights(weights)
        self._scaled, self._given = [], []
        return self._training_step.run(GivenGradients(self._state_updater, updates, weights), self.inner.rescale_grad)

    def discard_grads(self) -> None:
        """Give up the present step, after an error between its calls: nothing is updated."""
        self._require_own("discard_grads")
        self._scaled, self._given = [], []
        self._training_step.discard()

    def build(self, var_list: Iterable[Any]) -> None:
        """Make weights known, in an order that saved states keep; `apply_gradients` does it by itself.

        Args:
            var_list: NDArrays and gluon Parameters that are initialized, all on the same contexts.
                Those that are known already keep their place.

        Raises:
            TrainerError: If one is no weight, comes twice or lies elsewhere; then none is added.
        """
        self._require_own("build")
        self._set_weights(check_weights(self._weights, list(var_list)))

    def save_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        Args:
            fname: Any name; the format is .npz with a JSON header, and no pickle.

        Raises:
            TrainerError: Between `get_scaled_loss` and `apply_gradients`, or before `build`.
        """
        self._require_ready("save_states")
        states.save(fname, self._target("save_states"), self._scaler.to_dict())

    def load_states(self, fname: str) -> None:
        """Load what `save_states` saved, for weights that `build` has made known.

        Args:
            fname: The file; it decides over every field that it has.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: As `save_states`.
        """
        self._require_ready("load_states")
        states.restore(fname, self._target("load_states"), self._scaler, make_loss_scale(True, None, None))

    def peek_optimizer_and_scale(self, owner: str = "trainer") -> Tuple[MultiPrecision, LossScale]:
        """Return the optimizer with masters and the loss scale, which `hand_over` would give away.

        Args:
            owner: What would get them, for errors.

        Raises:
            TrainerError: If it has weights of its own, or an owner, or is in the middle of a step.
        """
        self._require_ready(f"giving it to a {owner}")
        if self._weights:
            raise TrainerError(f"this LossScaleOptimizer has weights of its own; make another one for the {owner}.")
        return self._state_updater.optimizer, self._scaler.loss_scale

    parts = peek_optimizer_and_scale  # its name up to version 0.1

    def hand_over(self, owner: str) -> Tuple[MultiPrecision, LossScale]:
        """Return what `peek_optimizer_and_scale` does; from now on this object only shows attributes."""
        found = self.peek_optimizer_and_scale(owner)
        self._owner = owner
        return found

    # ------------------------------------------------------------------ parts

    def _set_weights(self, weights: List[Weight]) -> None:
        self._weights = weights
        # Multipliers of learning rate and weight decay come from the Parameters.
        self.inner.param_dict = {i: each for i, each in enumerate(weights) if isinstance(each, mx.gluon.Parameter)}

    def _target(self, call: str) -> Target:
        if not self._weights:
            raise TrainerError(f"{call}: the weights are not known yet; call build with all of them first.")
        params = [described(weight, index) for index, weight in enumerate(self._weights)]
        return Target(self._state_updater.optimizer, [self._state_updater], contexts_of(self._weights[0])[:1], params)
