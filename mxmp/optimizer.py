"""Front: an optimizer for loops without a trainer: a loss scale, float32 masters and exact skips, as Keras has it."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

import mxnet as mx

from .arrays import all_finite as all_finite
from .arrays import is_low_precision, to_float32, tree_leaves, tree_map
from .dtypes import FLOAT32, PRECISIONS, canonical
from .errors import LossScaleError, TrainerError, a_type_of
from .loss_scale import LARGEST_SCALE, DynamicLossScale, LossScale, StaticLossScale
from .mxnet_private import is_initialized
from .names import hooks as _hooks
from .train import states
from .train.kernels import Update
from .train.loss_heads import ScaledLoss, map_losses, refuse_recorded, require_backward
from .train.masters import Masters, copy_to_other_contexts, sync_master_from_weight
from .train.multi_precision import MultiPrecision as MultiPrecision
from .train.multi_precision import require_finite, unwrapped
from .train.running_stats import RunningStats
from .train.scaler import Scaler, ScalerStatus
from .train.states import Target, WeightInfo
from .train.step import Step

globals().update(_hooks(__name__))

# The defaults of tf.keras 2.12.
INITIAL_SCALE = 2.0**15
DYNAMIC_GROWTH_STEPS = 2000

_FLOATS = (*PRECISIONS, "float64")

Weight = Union[mx.nd.NDArray, mx.gluon.Parameter]

_ORDER = "get_scaled_loss, backward, get_unscaled_gradients, apply_gradients"


class LossScaleOptimizer(ScalerStatus):
    """An optimizer with a loss scale, float32 masters and exact skips, for loops written by hand.

    The order of calls::

        optimizer = LossScaleOptimizer(mx.optimizer.Adam())
        with autograd.record():
            scaled = optimizer.get_scaled_loss(loss_fn(net(x), y))
        scaled.backward()
        grads = optimizer.get_unscaled_gradients([p.grad() for p in params])
        optimizer.apply_gradients(zip(grads, params))

    It can also be given to `mxmp.gluon.Trainer` and `mxmp.module.Module`, which take its optimizer and
    its loss scale over. It is no optimizer of MXNet: those update weight by weight, before all gradients are checked.
    Options such as ``momentum`` are attributes of `inner_optimizer`.

    Two things differ from Keras. Forgotten or repeated calls are errors. And gradients that stay
    non-finite at scale 1 raise after 50 steps in a row, as everywhere in mxmp.

    Weights that are NDArrays may be written to between steps. A low precision `Parameter` is
    written to by ``set_data``, as with `mxmp.gluon.Trainer`: see `MultiPrecision`.

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

    def __init__(
        self,
        inner: mx.optimizer.Optimizer,
        dynamic: bool = True,
        initial_scale: Optional[float] = None,
        dynamic_growth_steps: Optional[int] = None,
    ) -> None:
        self._scaler = Scaler(make_loss_scale(dynamic, initial_scale, dynamic_growth_steps))
        self._inner, masters = unwrapped(_require_inner(inner))
        self._updater, self._masters = mx.optimizer.get_updater(self._inner), Masters(self._inner, masters)
        self._weights: List[Weight] = []  # In the order of their indices.
        self._scaled_losses: List[ScaledLoss] = []  # The losses of the present step.
        self._scaled_grads: List[mx.nd.NDArray] = []  # The arguments of get_unscaled_gradients in this step.
        self._owner: Optional[str] = None  # The trainer or module that has the optimizer now, if any.

    # ------------------------------------------------------------------ names of Keras

    @property
    def inner_optimizer(self) -> mx.optimizer.Optimizer:
        """The optimizer that was given, or the one within a `MultiPrecision`."""
        return self._inner

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return isinstance(self._scaler.loss_scale, DynamicLossScale)

    @property
    def initial_scale(self) -> float:
        """The first scale."""
        scale = self._scaler.loss_scale
        return float(getattr(scale, "init_scale", scale.value))

    @property
    def dynamic_growth_steps(self) -> Optional[int]:
        """Finite steps after which the scale doubles; None if it does not."""
        return getattr(self._scaler.loss_scale, "growth_interval", None)

    @property  # type: ignore[override]  # a number, as Keras has it
    def loss_scale(self) -> float:
        """The present scale. May be set between steps."""
        self._require_own("loss_scale")
        return self._scaler.loss_scale.value

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._require_ready("setting loss_scale")
        present, scale = self._scaler.loss_scale, StaticLossScale(value)
        if isinstance(present, DynamicLossScale):
            self._scaler.loss_scale = dataclasses.replace(present, value=scale.value, growth_tracker=0, floor_skips=0)
        else:
            self._scaler.loss_scale = scale

    @property
    def iterations(self) -> int:
        """Steps taken; skipped ones do not count."""
        return int(self._inner.num_update - self._inner.begin_num_update)

    @property
    def learning_rate(self) -> float:
        """The inner optimizer's present learning rate. May be set."""
        return float(self._inner.learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        require_finite(value)
        self._inner.set_learning_rate(value)

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
        scaler = self._scaler
        if scaler.window is not None and scaler.window.is_true:
            raise TrainerError(
                "get_scaled_loss came after get_unscaled_gradients, so that scaled and true gradients would mix; call "
                "apply_gradients first, or discard_grads to start again."
            )
        if any(leaf is each.scaled for leaf in tree_leaves(loss) for each in self._scaled_losses):
            raise TrainerError("get_scaled_loss: the loss is scaled already; call get_scaled_loss once for each loss.")
        if scaler.window is None:
            scaler.factors.release()  # The graphs of the last step are freed.
        scale = scaler.loss_scale.value if scaler.window is None else scaler.window.scale
        losses: List[ScaledLoss] = []

        def multiply(path: str, array: mx.nd.NDArray) -> mx.nd.NDArray:
            losses.append(scaler.factors.multiply(path, array, scale))
            return losses[-1].scaled

        scaled = map_losses(loss, multiply)
        if not scaler.has_checked_loss_heads:
            refuse_recorded(losses)
            scaler.has_checked_loss_heads = True
        begins = scaler.window is None
        scaler.ensure_window(scale).flag("losses", all_finite([each.cast_loss for each in losses]) if losses else None)
        self._scaled_losses.extend(losses)
        for observer in list(scaler.observers.values()):
            observer.on_losses([each.loss for each in losses], begins)
        return scaled

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> List[Any]:
        """Return gradients divided by the loss scale, in float32; the given ones stay as they are.

        Call it once in a step, with all gradients, and go on with the returned ones. A gradient that is not
        finite makes the step skip, even if it is changed later. Nothing is read on the host; on a CPU large gradients
        of low precision are waited for.

        Args:
            grads: NDArrays, dense or row_sparse; or lists of them, one per context; or None.

        Returns:
            The same, of float32 where they had low precision.

        Raises:
            TrainerError: If no loss was scaled, or backward (an ``autograd.grad`` that frees the graph) not
                called on each scaled loss; twice in a step; or if ``grads`` are no gradients.
        """
        self._require_own("get_unscaled_gradients")
        window = self._scaler.window
        if window is None:
            raise TrainerError(
                "get_unscaled_gradients: no loss was scaled since the last step; call get_scaled_loss and run backward "
                "on the loss that it returns."
            )
        if window.is_true:
            raise TrainerError(
                "get_unscaled_gradients: the gradients of this step are unscaled already; call it once, with all of "
                "them, then apply_gradients."
            )
        grads = _read_grads(grads)
        try:
            require_backward(self._scaled_losses)
        except TrainerError as e:
            raise TrainerError(f"{e} Call discard_grads to start the step again.") from None
        self._scaled_grads = [leaf for leaf in tree_leaves(grads) if leaf is not None]
        unscaled = list(tree_map(grads, lambda grad: _unscaled(grad, 1.0 / window.scale)))
        window.flag("gradients", all_finite(self._scaled_grads))
        window.is_true = True
        return unscaled

    def apply_gradients(self, grads_and_vars: Iterable[Tuple[Any, Any]]) -> bool:
        """Check all gradients and update the weights, or skip all. One host read.

        A gradient on several contexts is summed; every context gets the same weight. The weights of
        the first call are those of `build`.

        Args:
            grads_and_vars: Pairs of a gradient, true and not scaled, and its weight: an NDArray or a
                gluon Parameter. The gradient of a Parameter on several contexts is a list. Weights
                whose gradient is None are not updated. The arrays that `get_unscaled_gradients` was given
                are refused, at a scale of 1 too: all gradients must have gone through it.

        Returns:
            True if the weights were updated, False if the step was skipped.

        Raises:
            TrainerError: If `get_scaled_loss` or `get_unscaled_gradients` was forgotten, its argument
                is given here again, or the pairs are none. Then the step can still be made.
            NonFiniteLossError: If the loss itself was not finite; nothing is updated.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        self._require_own("apply_gradients")
        if self._scaler.window is None or not self._scaler.window.is_true:
            missing = "get_scaled_loss" if self._scaler.window is None else "get_unscaled_gradients"
            raise TrainerError(f"apply_gradients: {missing} was not called in this step; the order is {_ORDER}.")
        pairs = _read_pairs(grads_and_vars)
        weights = self._weights or _checked_weights([], [weight for _, weight in pairs])
        updates = _make_updates(pairs, weights, {id(array) for array in self._scaled_grads})
        self._set_weights(weights)
        self._sync_masters_of_arrays(updates)
        self._scaled_losses, self._scaled_grads = [], []
        step = OptimizerStep(self._scaler, self._updater, self._masters, updates, weights)
        return step.run(self._inner.rescale_grad)

    def discard_grads(self) -> None:
        """Give up the present step, after an error between its calls: nothing is updated."""
        self._require_own("discard_grads")
        self._scaled_losses, self._scaled_grads = [], []
        self._scaler.end_step()

    # ------------------------------------------------------------------ weights and their states

    def build(self, var_list: Iterable[Any]) -> None:
        """Make weights known, in an order that saved states keep; `apply_gradients` does it by itself.

        Args:
            var_list: NDArrays and gluon Parameters that are initialized, all on the same contexts.
                Those that are known already keep their place.

        Raises:
            TrainerError: If one is no weight, comes twice or lies elsewhere; then none is added.
        """
        self._require_own("build")
        self._set_weights(_checked_weights(self._weights, list(var_list)))

    def save_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        Args:
            fname: Any name; the format is .npz with a JSON header, and no pickle.

        Raises:
            TrainerError: Between `get_scaled_loss` and `apply_gradients`, before `build`, or if a low precision
                Parameter was written to past its float32 master.
        """
        target = self._target("save_states")
        updates = [Update(index, array, array) for index, (array, *_) in enumerate(map(_arrays_of, self._weights))]
        self._sync_masters_of_arrays(updates)
        states.save(fname, target, self._scaler.to_dict())

    def load_states(self, fname: str) -> None:
        """Load states that `save_states` saved, for weights that `build` has made known.

        Args:
            fname: The file; it decides over every field that it has, the kind of the loss scale too.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: As `save_states`.
            CheckpointError: If ``fname`` is a folder or no path. If there is no such file, it is a FileNotFoundError
                too.
        """
        states.restore(fname, self._target("load_states"), self._scaler)

    def _set_weights(self, weights: List[Weight]) -> None:
        self._weights = weights
        # Multipliers of learning rate and weight decay come from the Parameters.
        self._inner.param_dict = {i: each for i, each in enumerate(weights) if isinstance(each, mx.gluon.Parameter)}

    def _sync_masters_of_arrays(self, updates: Iterable[Update]) -> None:
        """Write changed elements of weights that are arrays into their masters: a write to an array is not noticed."""
        for index, _, weight in updates:
            if index not in self._inner.param_dict and index in self._masters.arrays:
                sync_master_from_weight(self._masters.arrays[index], weight)

    def _target(self, call: str) -> Target:
        self._require_ready(call)
        if not self._weights:
            raise TrainerError(f"{call}: the weights are not known yet; call build with all of them first.")
        params = [
            each if isinstance(each, mx.gluon.Parameter) else WeightInfo(_name_of(each, index), each.shape, each.dtype)
            for index, each in enumerate(self._weights)
        ]
        context = _arrays_of(self._weights[0])[0].ctx
        return Target(self._inner, [self._updater], [self._masters], [context], params)

    # ------------------------------------------------------------------ owners

    def peek_optimizer_and_scale(self, owner: str = "trainer") -> Tuple[MultiPrecision, LossScale]:
        """Return a `MultiPrecision` of the optimizer and the loss scale, which `hand_over` would give away.

        Args:
            owner: Their new owner, for errors.

        Raises:
            TrainerError: If it has weights of its own, or an owner, or is in the middle of a step.
        """
        self._require_ready(f"giving it to a {owner}")
        if self._weights:
            raise TrainerError(f"this LossScaleOptimizer has weights of its own; make another one for the {owner}.")
        return MultiPrecision(self._inner, self._masters.kept), self._scaler.loss_scale

    def hand_over(self, owner: str) -> Tuple[MultiPrecision, LossScale]:
        """Return optimizer and scale, as `peek_optimizer_and_scale`; from now on this object only shows attributes."""
        optimizer_and_scale = self.peek_optimizer_and_scale(owner)
        self._owner = owner
        return optimizer_and_scale

    def _require_own(self, call: str) -> None:
        if self._owner is not None:
            raise TrainerError(
                f"{call}: this optimizer belongs to a {self._owner} already, whose own methods scale the loss and step."
            )

    def _require_ready(self, call: str) -> None:
        self._require_own(call)
        if self._scaler.window is not None:
            raise TrainerError(
                f"{call} came between get_scaled_loss and apply_gradients; call apply_gradients first, or "
                "discard_grads to give the step up."
            )


def _require_inner(inner: Any) -> mx.optimizer.Optimizer:
    """Return an optimizer; raise if it is none, has a loss scale, or is a trainer's."""
    if isinstance(inner, LossScaleOptimizer):
        raise TrainerError(
            "inner is a LossScaleOptimizer, which has a loss scale already; wrap the optimizer in it once."
        )
    if not isinstance(inner, mx.optimizer.Optimizer):
        raise TrainerError(
            f"inner is {inner!r}; expected an mx.optimizer.Optimizer. Create it by name with mx.optimizer.create."
        )
    if inner.param_dict:
        raise TrainerError("inner is the optimizer of a trainer, which would go on using it; make another one.")
    return inner


def make_loss_scale(dynamic: Any, initial_scale: Any, growth_steps: Any) -> LossScale:
    """Return the loss scale that the arguments of `LossScaleOptimizer` mean.

    Raises LossScaleError if they contradict each other, or are no numbers.
    """
    if not isinstance(dynamic, bool):
        raise LossScaleError(f"dynamic is {dynamic!r}; expected True or False.")
    if not dynamic and growth_steps is not None:
        raise LossScaleError(f"dynamic_growth_steps={growth_steps!r} with dynamic=False: a static scale does not grow.")
    if not dynamic and initial_scale is None:
        raise LossScaleError("initial_scale is missing: with dynamic=False the scale has to be given, such as 1024.")
    try:
        if not dynamic:
            return StaticLossScale(initial_scale)
        return DynamicLossScale(
            init_scale=INITIAL_SCALE if initial_scale is None else initial_scale,
            growth_interval=DYNAMIC_GROWTH_STEPS if growth_steps is None else growth_steps,
            max_scale=LARGEST_SCALE,
        )
    except LossScaleError as e:
        arguments = f"initial_scale={initial_scale!r}, dynamic_growth_steps={growth_steps!r}"
        raise LossScaleError(f"{arguments}: {e}") from e


# Weights, and gradients for them, as a user gives them: checked, summed over contexts, unscaled.


def _name_of(weight: Weight, index: int) -> str:
    """Return the name of a weight for errors."""
    return f"parameter '{weight.name}'" if isinstance(weight, mx.gluon.Parameter) else f"weight {index}"


def _arrays_of(weight: Weight, index: int = 0) -> List[mx.nd.NDArray]:
    """Return the value of a weight on each context, or raise if it is no weight or not initialized."""
    if isinstance(weight, mx.gluon.Parameter):
        if not is_initialized(weight):
            raise TrainerError(f"parameter '{weight.name}' is not initialized yet; run a forward pass first.")
        return list(weight.list_data())
    if not isinstance(weight, mx.nd.NDArray):
        raise TrainerError(f"weight {index} is {a_type_of(weight)}; expected an NDArray or a gluon Parameter.")
    return [weight]


def _checked_weights(earlier: Sequence[Weight], weights: Sequence[Weight]) -> List[Weight]:
    """Return the earlier weights, and after them the new ones.

    Raises TrainerError if one is no weight, comes twice or lies on other contexts than the first.
    """
    ids = {id(weight) for weight in earlier}
    if len({id(weight) for weight in weights}) < len(weights):
        raise TrainerError("a weight comes twice; give each once, with its gradients added up.")
    weights = [*earlier, *(weight for weight in weights if id(weight) not in ids)]
    contexts = [[array.ctx for array in _arrays_of(weight, index)] for index, weight in enumerate(weights)]
    for index, ctx in enumerate(contexts):
        if ctx != contexts[0]:
            raise TrainerError(
                f"{_name_of(weights[index], index)} is on {ctx}, the weights before it are on {contexts[0]}; put all "
                "on the same contexts."
            )
    return weights


def _read_grads(grads: Any) -> List[Any]:
    """Return the gradients that are to be unscaled as a list: arrays, lists of them, and None.

    Raises TrainerError that names the first item that is no gradient, or if there is none.
    """
    if isinstance(grads, mx.nd.NDArray):
        grads = [grads]
    if not isinstance(grads, Iterable):
        raise TrainerError(f"get_unscaled_gradients: expected a list of NDArrays, found {a_type_of(grads)}.")
    items = list(grads)
    if all(leaf is None for leaf in tree_leaves(items)):
        raise TrainerError("get_unscaled_gradients: there is no gradient; give those of all weights.")
    for number, item in enumerate(items):
        for leaf in tree_leaves(item):
            is_float = isinstance(leaf, mx.nd.NDArray) and canonical(leaf.dtype) in _FLOATS
            if not (leaf is None or is_float):
                raise TrainerError(
                    f"get_unscaled_gradients: item {number} holds {_text(leaf)}; expected floating point NDArrays."
                )
    return items


def _unscaled(grad: mx.nd.NDArray, factor: float) -> mx.nd.NDArray:
    """Return a gradient times a factor, in float32 if it has low precision; dense or row_sparse."""
    with mx.autograd.pause():
        result = mx.nd._internal._mul_scalar(to_float32(grad.as_nd_ndarray()), scalar=factor)
    return result.as_np_ndarray() if isinstance(grad, mx.np.ndarray) else result


def _read_pairs(grads_and_vars: Iterable[Any]) -> List[Tuple[Any, Any]]:
    """Return pairs as a list, or raise if they are none."""
    pairs = list(grads_and_vars)
    for number, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TrainerError(
                f"apply_gradients: item {number} is {a_type_of(pair)}; expected pairs (gradient, weight), as "
                "zip(grads, weights) gives."
            )
    return pairs


def _make_updates(pairs: Sequence[Tuple[Any, Any]], weights: Sequence[Weight], scaled: Iterable[int]) -> List[Update]:
    """Return the updates of a step; pairs without a gradient are left out.

    Raises TrainerError if a gradient does not fit its weight, or a weight is none of ``weights``. A gradient that is
    scaled is an error too: its id is in ``scaled``, or it is the array that backward writes.
    """
    indices = {id(weight): index for index, weight in enumerate(weights)}
    updates = {}
    for number, (grad, weight) in enumerate(pairs):
        index = indices.get(id(weight))
        if index is None:
            raise TrainerError(
                f"apply_gradients: {_name_of(weight, number)} is none of the {len(weights)} weights of this optimizer; "
                "give the same arrays in every step, or call build with the new ones."
            )
        if grad is None:
            continue
        if index in updates:
            raise TrainerError("apply_gradients: a weight comes twice; give each once, with its gradients added up.")
        arrays, grads = _arrays_of(weight, number), list(tree_leaves(grad))
        text, expected = (", ".join(map(_text, each)) for each in (grads, arrays))
        if text != expected:
            raise TrainerError(
                f"apply_gradients: the gradient of {_name_of(weight, number)} is {text}; expected {expected}."
            )
        from_backward = (weight._grad or ()) if isinstance(weight, mx.gluon.Parameter) else ()
        if any(id(each) in {*scaled, *map(id, from_backward)} for each in grads):
            raise TrainerError(
                f"apply_gradients: the gradient of {_name_of(weight, number)} is an array that backward wrote, scaled; "
                "give all gradients to get_unscaled_gradients, and use the gradients that it returns here."
            )
        with mx.autograd.pause():
            terms = [to_float32(each.as_nd_ndarray()) for each in grads]
            on_first = [each.as_in_context(terms[0].ctx) for each in terms]
            total = terms[0] if len(terms) == 1 else mx.nd.add_n(*on_first)
        updates[index] = Update(index, total, arrays[0].as_nd_ndarray())
    if not updates:
        raise TrainerError("apply_gradients: no weight has a gradient.")
    return list(updates.values())


def _text(value: Any) -> str:
    """Return dtype, shape and context as a text that a gradient and its weight must share; low precision is float32."""
    if not isinstance(value, mx.nd.NDArray):
        return f"{a_type_of(value)}"
    return f"{FLOAT32 if is_low_precision(value) else canonical(value.dtype)} {value.shape} on {value.ctx}"


class OptimizerStep(Step):
    """A step with gradients that a user gave for some weights, true and summed over the contexts.

    The updater updates the weights on their first context; ``weights`` are all, by their indices.
    """

    def __init__(
        self,
        scaler: Scaler,
        updater: mx.optimizer.Updater,
        masters: Masters,
        updates: Sequence[Update],
        weights: Sequence[Weight],
    ) -> None:
        self.scaler, self.last_stats = scaler, RunningStats()
        self.optimizer, self.updaters, self.masters = updater.optimizer, [updater], [masters]
        self._updates, self._weights = list(updates), weights

    def groups(self) -> List[List[Update]]:
        """Return the updates, which are on the first context."""
        return [self._updates]

    def name(self, index: int) -> str:
        """Return the name of a Parameter, or of a plain array its number."""
        weight = self._weights[index]
        return str(weight.name) if isinstance(weight, mx.gluon.Parameter) else _name_of(weight, index)

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Copy the weights of the first context to the others. Only the masters of the first are kept."""
        for index in indices:
            weight = self._weights[index]
            copy_to_other_contexts(_arrays_of(weight), weight if isinstance(weight, mx.gluon.Parameter) else None)
