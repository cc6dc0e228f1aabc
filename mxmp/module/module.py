"""A Module with a precision policy and a loss scale."""

from __future__ import annotations

import logging
from typing import Any, Iterable, List, Sequence, Union

import mxnet as mx

from ..arrays.casts import to_float32
from ..arrays.norms import require_positive
from ..errors import TrainerError
from ..loss_scale import LossScale, NoOpLossScale
from ..optimizer import LossScaleOptimizer
from ..policy import Policy
from ..report import Report
from ..scaling.status import ScalerStatus
from ..symbol.arguments import require_symbol
from ..training.kvstores import open_for_module, refuse_compression, updates_on_kvstore
from .converted import ConvertedModule, write_loss_scale
from .options import accumulates, make_optimizer, make_scaler
from .saving import ModuleFiles
from .training import BoundWeights, Training

Outputs = Union[List[mx.nd.NDArray], List[List[mx.nd.NDArray]]]


class Module(ModuleFiles, ScalerStatus, ConvertedModule):
    """Trains and runs a symbol as ``mx.mod.Module``, in mixed precision.

    The symbol stays as it was given, and so do ``symbol``, parameters and checkpoints, which are
    float32 and load in plain MXNet; what executors run is its conversion under the policy. On CPU
    contexts float16 is emulated. Where a policy stores parameters in low precision (O2), they have
    float32 masters, which are what `get_params` and `save_checkpoint` give.

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
        self._scaler.validate = self._require_fitting

    @property
    def policy(self) -> Policy:
        """The precision policy."""
        return self._policy

    @property
    def report(self) -> Report:
        """What the conversion decided for the shapes that are bound now."""
        return self._bound("report").converted.report

    @ScalerStatus.loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        self._scaler.loss_scale = make_scaler(self._policy, spec).loss_scale

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if the executors have no input for a loss scale."""
        unscaled = self.binded and self.for_training and not self._bound("loss_scale").scaled
        if unscaled and not isinstance(loss_scale, NoOpLossScale):
            raise TrainerError(
                "loss_scale: this module was bound without a loss scale; set it before bind, or make the module with "
                "loss_scale=1 to set it later."
            )

    # ------------------------------------------------------------------ training

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Set up the optimizer, as ``mx.mod.Module.init_optimizer``, with float32 masters.

        ``optimizer_params`` may hold ``multi_precision``, which is True by default here. The
        loss scale is taken out of gradients through ``rescale_grad``, which stays what it is set
        to (1/batch_size by default, of the batches of all workers).

        Args:
            kvstore: As for ``mx.mod.Module``; 'horovod', or a `mxmp.distributed.KVStore`, which says in
                which dtype gradients are summed over workers (float32 by default). All workers then
                start with worker 0's parameters, and decide alike.
            optimizer: As for ``mx.mod.Module``; or a `LossScaleOptimizer`, whose loss scale the module
                then has.
            optimizer_params: As for ``mx.mod.Module``.
            force_init: Likewise.

        Raises:
            TrainerError: If the module is not ready, or the kvstore would update unchecked.
        """
        self._require("init_optimizer", optimizer=False)
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        if isinstance(optimizer, LossScaleOptimizer):
            _, self.loss_scale = optimizer.peek_optimizer_and_scale("Module")
            optimizer, _ = optimizer.hand_over("Module")
        if self._params_dirty:
            self._sync_params_from_devices()
        low = self._low_weights()
        refuse_compression(self._compression_params, self._scaler.active, bool(low))
        store, capable = open_for_module(kvstore, self._compression_params, len(self._context), self._arg_params)
        if updates_on_kvstore(store, capable, self._scaler.active, bool(low)):
            self._training = None
            super().init_optimizer(store, optimizer, optimizer_params, force_init)
            return
        weights = self._weights()
        batch_size = self._exec_group.batch_size * (store.num_workers if store is not None else 1)
        names = [weight.name for weight in weights]
        made = make_optimizer(optimizer, dict(optimizer_params), self._symbol, names, 1.0 / batch_size)
        if store is not None and self._compression_params:
            store.set_gradient_compression(self._compression_params)
        self._end_window()
        self._training = Training(self._scaler, made, store, self._context, weights, self._arg_params)
        self._optimizer, self._kvstore, self._update_on_kvstore = made, store, False
        self._updater = self._training.updaters[0]
        self._renew_masters(self._arg_params)
        self.optimizer_initialized = True
        if self._preload_opt_states is not None:
            self.load_optimizer_states(self._preload_opt_states)
            self._preload_opt_states = None

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Train with another module's optimizer, kvstore and loss scale.

        Raises:
            TrainerError: If this module was bound without a loss scale and the other has one.
        """
        if self._scaler is not shared_module._scaler:
            self._require_fitting(shared_module._scaler.loss_scale)
            self._share_scaler(shared_module)
        super().borrow_optimizer(shared_module)
        self._training = shared_module._training

    def _share_scaler(self, shared: ConvertedModule) -> None:
        """Work with the loss scale of another module, which must fit this one too from now on."""
        if self._scaler is not shared._scaler:
            theirs = shared._scaler.validate

            def refuse(loss_scale: LossScale) -> None:
                theirs(loss_scale)
                self._require_fitting(loss_scale)

            shared._scaler.validate = refuse
            super()._share_scaler(shared)

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
        window = self._scaler.window
        scale = 1.0
        if self._scaler.active:
            scale = window.scale if window.is_scaled else self._scaler.loss_scale.value
            if out_grads is None and not runnable.has_loss_scale:
                raise TrainerError(
                    f"backward: none of the outputs {self.output_names} comes from a loss head, so there is nothing to "
                    "scale. End the network in one, such as SoftmaxOutput or make_loss; or give out_grads; or set "
                    "loss_scale=None."
                )
        if runnable.has_loss_scale:
            write_loss_scale(self._exec_group, scale)
        if out_grads is not None:
            out_grads = [out_grads] if isinstance(out_grads, mx.nd.NDArray) else out_grads
            out_grads = [to_float32(grad) * scale for grad in out_grads] if scale != 1.0 else out_grads
        if self._scaler.active and self._training is not None:
            self._training.step.keep_running_stats(self._step_weights())
        super().backward(out_grads)
        self._backward_scale = scale
        if self._scaler.active or accumulates(self._grad_req):
            self._scaler.begin(scale)

    def get_input_grads(self, merge_multi_context: bool = True) -> Outputs:
        """Return the true gradients of the inputs, the loss scale taken out in float32."""
        found = super().get_input_grads(merge_multi_context)
        factor = 1.0 / self._backward_scale
        if factor == 1.0:
            return found
        if merge_multi_context:
            return [to_float32(grad) * factor for grad in found]
        return [[to_float32(grad) * factor for grad in grads] for grads in found]

    def unscale(self) -> None:
        """Make the gradients of the parameters true ones, in float32, reduced over the contexts.

        They are seen in the executor group's ``grad_arrays``; of float16 and bfloat16 parameters
        as float32 copies, up to `update`, which uses what it finds. Gradients that were not finite
        before still make the step skip. No host read.

        Raises:
            TrainerError: Twice in a window, or before backward.
        """
        training = self._require_gradients("unscale")
        if self._scaler.window.is_unscaled:
            raise TrainerError("unscale: the gradients are unscaled already; call unscale once, then update.")
        training.step.unscale(self._step_weights())

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
        return training.step.clip_global_norm(self._step_weights(), max_norm)

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
        self._params_dirty = True  # auxiliary states change in a skipped step as well
        return self._training.step.run(self._step_weights(), self._optimizer.rescale_grad)

    def _step_weights(self) -> BoundWeights:
        """Return what the next step trains, with the outputs of the scaled loss heads and the running statistics."""
        group, numbers = self._exec_group, self._bound("update").loss_outputs
        losses = [executor.outputs[number] for executor in group.execs for number in numbers]
        stats = [(name, array) for name, arrays in zip(group.aux_names, group.aux_arrays) for array in arrays]
        return self._training.bound(self._trained(), losses, stats)

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated."""
        self._end_window()

    def _require(self, call: str, optimizer: bool = True) -> None:
        for ready, needed in (
            (self.binded, "bind"),
            (self.params_initialized, "init_params"),
            (self.optimizer_initialized or not optimizer, "init_optimizer"),
        ):
            if not ready:
                raise TrainerError(f"{call}: the module is not ready; call {needed} first.")

    def _require_gradients(self, call: str) -> Training:
        self._require(call)
        if self._training is None:
            raise TrainerError(f"{call} cannot be used where the kvstore updates.")
        if self._scaler.active and self._scaler.window.is_ready:
            raise TrainerError(f"{call}: no backward has run since the last update; call forward_backward first.")
        return self._training
