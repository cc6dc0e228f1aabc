"""How a module is given its optimizer, kvstore and loss scale."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List

import mxnet as mx

from ..errors import TrainerError
from ..loss_scale import LossScale, NoOpLossScale, parse
from ..mxnet_private import modules
from ..optimizer import LossScaleOptimizer
from ..policy import Policy
from ..train.kvstores import open_for_module, refuse_compression, updates_on_kvstore
from ..train.masters import MultiPrecision
from ..train.scaler import Scaler, ScalerStatus
from .converted import ConvertedModule
from .training import Training


class OptimizerSetup(ScalerStatus, ConvertedModule):
    """A module with an optimizer of its own, or with another module's."""

    optimizer_initialized: bool

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
        if self.mx_params_dirty:
            modules.sync_params_from_devices(self)
        low = self._low_weights()
        refuse_compression(self.mx_compression_params, self._scaler.active, bool(low))
        store, capable = open_for_module(kvstore, self.mx_compression_params, len(self.mx_context), self.mx_arg_params)
        if updates_on_kvstore(store, capable, self._scaler.active, bool(low)):
            self._training = None
            super().init_optimizer(store, optimizer, optimizer_params, force_init)
            return
        weights = self._weights()
        batch_size = self.mx_exec_group.batch_size * (store.num_workers if store is not None else 1)
        names = [weight.name for weight in weights]
        made = make_optimizer(optimizer, dict(optimizer_params), self.mx_symbol, names, 1.0 / batch_size)
        if store is not None and self.mx_compression_params:
            store.set_gradient_compression(self.mx_compression_params)
        self._end_window()
        self._training = Training(self._scaler, made, store, self.mx_context, weights, self.mx_arg_params)
        self.mx_optimizer, self.mx_kvstore, self.mx_updates_on_kvstore = made, store, False
        self.mx_updater = self._training.updaters[0]
        self._renew_masters(self.mx_arg_params)
        self.optimizer_initialized = True
        if self.mx_preload_opt_states is not None:
            self.load_optimizer_states(self.mx_preload_opt_states)
            self.mx_preload_opt_states = None

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

            def validate(loss_scale: LossScale) -> None:
                theirs(loss_scale)
                self._require_fitting(loss_scale)

            shared._scaler.validate = validate
            super()._share_scaler(shared)

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if the executors have no input for a loss scale."""
        unscaled = self.binded and self.for_training and not self._bound("loss_scale").scaled
        if unscaled and not isinstance(loss_scale, NoOpLossScale):
            raise TrainerError(
                "loss_scale: this module was bound without a loss scale; set it before bind, or make the module with "
                "loss_scale=1 to set it later."
            )

    def _require(self, call: str, optimizer: bool = True) -> None:
        for ready, needed in (
            (self.binded, "bind"),
            (self.params_initialized, "init_params"),
            (self.optimizer_initialized or not optimizer, "init_optimizer"),
        ):
            if not ready:
                raise TrainerError(f"{call}: the module is not ready; call {needed} first.")


def make_scaler(policy: Policy, loss_scale: Any) -> Scaler:
    """Return a scaler for a loss scale, or for the policy's own if ``loss_scale`` is 'policy'."""
    follows = isinstance(loss_scale, str) and loss_scale == "policy"
    return Scaler(parse(policy.loss_scale if follows else loss_scale))


def make_optimizer(optimizer: Any, options: Dict[str, Any], symbol: Any, names: List[str], rescale: float) -> Any:
    """Return the optimizer that runs a module, wrapped for low precision weights.

    Of ``options``, its ``optimizer_params``, an instance uses ``multi_precision`` alone. The network's attributes
    hold ``__lr_mult__`` and ``__wd_mult__``; ``names`` are those of the parameters in the order of their indices.
    ``rescale`` is the ``rescale_grad`` of an optimizer given by name, unless ``options`` has one.
    """
    options = dict(options)
    masters = options.pop("multi_precision", True)
    if isinstance(optimizer, str):
        options = {"rescale_grad": rescale, **options}
        optimizer = mx.optimizer.create(optimizer, sym=symbol, param_idx2name=dict(enumerate(names)), **options)
    elif not isinstance(optimizer, mx.optimizer.Optimizer):
        raise TrainerError(f"init_optimizer: optimizer is {optimizer!r}; expected a name or an mx.optimizer.Optimizer.")
    else:
        if optimizer.rescale_grad != rescale:
            warnings.warn(
                f"the optimizer's rescale_grad is {optimizer.rescale_grad}, not 1/batch_size = {rescale}; gradients "
                "are multiplied by it as it is. Is this intended?",
                stacklevel=3,
            )
        if not optimizer.idx2name:
            optimizer.idx2name = dict(enumerate(names))
    return optimizer if isinstance(optimizer, MultiPrecision) else MultiPrecision(optimizer, bool(masters))
