"""A Module with a precision policy and a loss scale."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Iterable, List, Optional, Sequence, Union

import mxnet as mx

from ..arrays import mapped, require_positive, to_float32
from ..devices import amx
from ..errors import TrainerError
from ..policy import Policy
from ..probe.batch_faults import nan_given
from ..report import Report
from ..symbol.arguments import require_symbol
from ..train.running_stats import Named
from .binding import accumulates
from .converted import write_loss_scale
from .replay import calls_of, explain
from .saving import ModuleFiles
from .setup import make_scaler
from .training import BoundWeights, Training

Outputs = Union[List[mx.nd.NDArray], List[List[mx.nd.NDArray]]]


class Module(ModuleFiles):
    """Trains and runs a symbol as ``mx.mod.Module``, in mixed precision.

    The symbol stays as it was given, and so do ``symbol``, parameters and checkpoints, which are
    float32 and load in plain MXNet; what executors run is its conversion under the policy. On CPU
    contexts float16 is emulated. Where a policy stores parameters in low precision (O2), they have
    float32 masters, which are what `get_params` and `save_checkpoint` give. Data and labels in
    float16 or float64 are cast to float32, unless their variable declares a dtype.

    With a loss scale every loss head (SoftmaxOutput, MakeLoss, the regression outputs, ...) scales
    its gradient by an input of the graph, so that the scale changes without a new executor. A step
    whose gradients are not finite is skipped without a trace in weights, optimizer states, update
    counts and schedule; `update` reads once on the host to know. Weights are then never updated
    inside of the kvstore, which would come before the check.

    The order of calls is MXNet's; two may come in between::

        module.forward_backward(batch)
        module.unscale()                 # optional: true gradients
        module.clip_global_norm(1.0)     # optional
        module.update()

    With ``grad_req='add'`` all backwards of a window have one scale; zero the gradients after
    `update`. A Custom operator that ignores the gradient of its output (``need_top_grad=False``)
    is seen as a loss head only if it is named in ``loss_heads``.

    Args:
        symbol: As for ``mx.mod.Module``; a float32 network, or one that mxmp converted before.
        data_names: As for ``mx.mod.Module``, and so are the next seven.
        label_names: As above.
        logger: As above.
        context: As above.
        work_load_list: As above.
        fixed_param_names: As above.
        state_names: As above.
        group2ctxs: As above.
        compression_params: As above.
        policy: A policy or its name.
        loss_scale: 'dynamic', a number, a `LossScale`, None for no scaling and no checks, or
            'policy' for what the policy says.
        loss_heads: Names of Custom operators that are loss heads.

    Raises:
        PolicyError: If the policy is not one.
        LossScaleError: If the loss scale is not one.
    """

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        work_load_list: Any = None,
        fixed_param_names: Any = None,
        state_names: Any = None,
        group2ctxs: Any = None,
        compression_params: Any = None,
        policy: Union[str, Policy] = "O1",
        loss_scale: Any = "policy",
        loss_heads: Iterable[str] = (),
    ) -> None:
        policy = Policy.parse(policy)
        super().__init__(
            require_symbol(symbol),
            data_names,
            label_names,
            logger,
            mx.cpu() if context is None else context,
            work_load_list,
            fixed_param_names,
            state_names,
            group2ctxs,
            compression_params,
            policy=policy,
            scaler=make_scaler(policy, loss_scale),
            loss_heads=frozenset(loss_heads),
        )
        self._backward_scale = 1.0
        self._out_grads: Any = None  # true gradients of outputs that the present step was given
        self._scaler.validate = self._require_fitting

    @property
    def policy(self) -> Policy:
        """The precision policy."""
        return self._policy

    @property
    def report(self) -> Report:
        """What the conversion decided for the shapes that are bound now."""
        found = self._bound("report").converted.report
        return replace(found, notes=amx.notes(found.count))

    def _set_loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        self._scaler.loss_scale = make_scaler(self._policy, spec).loss_scale

    # ------------------------------------------------------------------ training

    def backward(self, out_grads: Any = None) -> None:
        """Run backward with the loss scaled; gradients stay scaled up to `unscale` or `update`.

        Args:
            out_grads: As for ``mx.mod.Module``: true gradients of outputs that are no loss heads.

        Raises:
            TrainerError: After `unscale`, or if nothing can be scaled because the network has no
                loss head and ``out_grads`` is not given.
        """
        runnable = self._bound("backward")
        self._scaler.require_can_scale("backward", "update")
        state = self._scaler.state
        scale = 1.0
        if self._scaler.active:
            scale = state.scale if state.is_scaled else self._scaler.loss_scale.value
            if out_grads is None and not runnable.has_loss_scale:
                raise TrainerError(
                    f"backward: none of the outputs {self.output_names} comes from a loss head, so there is nothing to "
                    "scale. End the network in one, such as SoftmaxOutput or make_loss; or give out_grads; or set "
                    "loss_scale=None."
                )
        if runnable.has_loss_scale:
            write_loss_scale(self.mx_exec_group, scale)
        self._out_grads = out_grads = [out_grads] if isinstance(out_grads, mx.nd.NDArray) else out_grads
        if out_grads is not None:
            out_grads = [to_float32(grad) * scale for grad in out_grads] if scale != 1.0 else out_grads
        if self._scaler.active and self._training is not None:
            self._training.step.keep_running_stats(self._running_stats())
        super().backward(out_grads)
        self._backward_scale = scale
        if self._scaler.active or accumulates(self.mx_grad_req):
            self._scaler.scaled(scale)

    def get_input_grads(self, merge_multi_context: bool = True) -> Outputs:
        """Return the true gradients of the inputs, the loss scale taken out in float32."""
        found: Outputs = super().get_input_grads(merge_multi_context)
        factor = 1.0 / self._backward_scale
        if factor != 1.0:
            found = mapped(found, lambda grad: to_float32(grad) * factor)
        return found

    def unscale(self) -> None:
        """Make the gradients of the parameters true ones, in float32, reduced over the contexts.

        They are seen in the executor group's ``grad_arrays``; of float16 and bfloat16 parameters
        as float32 copies, up to `update`, which uses what it finds. Gradients that were not finite
        before still make the step skip. No host read, but on a CPU a wait for large gradients of low
        precision.

        Raises:
            TrainerError: Twice in a window, or before backward.
        """
        training = self._require_gradients("unscale")
        if self._scaler.state.is_unscaled:
            raise TrainerError("unscale: the gradients are unscaled already; call unscale once, then update.")
        training.step.unscale(self._step_weights(training))

    def clip_global_norm(self, max_norm: float) -> float:
        """Scale the gradients down so that their global norm is at most ``max_norm``.

        Unscales first if `unscale` was not called. The norm is that of the gradients before
        ``rescale_grad``, so of a sum over the batch. One host read, after which `update` makes none.
        Contexts without a kvstore have gradients of their own: the largest norm counts.

        Args:
            max_norm: Positive.

        Returns:
            The norm before clipping, computed in float32. It is inf or NaN if the gradients are not
            finite; then nothing is clipped, and the step will be skipped unless there is no loss scale:
            then nothing is checked, here as in `update`.

        Raises:
            TrainerError: If ``max_norm`` is not positive, or before backward.
        """
        require_positive("clip_global_norm: max_norm", max_norm)
        training = self._require_gradients("clip_global_norm")
        return training.step.clip_global_norm(self._step_weights(training), max_norm)

    def update(self) -> bool:
        """Reduce the gradients, check them and update the parameters, or skip.

        Reads once on the host; where the gradients are not finite, once more to see whether the
        loss is.

        Returns:
            True if the parameters were updated, False if the step was skipped.

        Raises:
            TrainerError: If a loss scale is set and no backward has run since the last update.
            NonFiniteLossError: If the gradients are not finite because the outputs of the loss
                heads are not; nothing is updated.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        self._require("update")
        if self._training is None:
            super().update()
            return True
        if self._scaler.active:
            self._require_gradients("update")
        self.mx_params_dirty = True  # auxiliary states change in a skipped step as well
        try:
            return self._training.step.run(self._step_weights(self._training), self.mx_optimizer.rescale_grad)
        finally:
            self._out_grads = None

    def _step_weights(self, training: Training) -> BoundWeights:
        """Return what the next step trains, with the outputs of the scaled loss heads and the running statistics."""
        group, numbers = self.mx_exec_group, self._bound("update").loss_outputs
        # Of the modules that share a scaler, the one that steps.
        self._scaler.explain, self._scaler.bad_input = self._explain, self._bad_input
        losses = [executor.outputs[number] for executor in group.execs for number in numbers]
        return BoundWeights(training, self._trained(), losses, self._running_stats())

    def _explain(self) -> Optional[str]:
        return explain(self, self._backward_scale, self._out_grads)

    def _bad_input(self) -> Optional[str]:
        if not self._bound("update").on_cpu:  # see `nan_given`
            return None
        return next(filter(None, map(nan_given, calls_of(self))), None)

    def _running_stats(self) -> Named:
        """Return the running statistics by name, on every context."""
        group = self.mx_exec_group
        return [(name, array) for name, arrays in zip(group.aux_names, group.aux_arrays) for array in arrays]

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated."""
        self._end_window()

    def _require_gradients(self, call: str) -> Training:
        self._require(call)
        if self._training is None:
            raise TrainerError(f"{call} cannot be used where the kvstore updates.")
        if self._scaler.active and self._scaler.state.is_ready:
            raise TrainerError(f"{call}: no backward has run since the last update; call forward_backward first.")
        return self._training
