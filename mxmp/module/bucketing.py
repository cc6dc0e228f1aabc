"""A BucketingModule with a precision policy and one loss scale over all buckets."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Iterable, Optional, Union

import mxnet as mx

from ..errors import TrainerError
from ..loss_scale import LossScale
from ..policy import Policy
from ..report import Report
from ..train.scaler import Scaler
from .common import PolicyStatus, load_buckets, loss_scale_of, policy_of, save_checkpoint, states_files
from .module import Module


class BucketingModule(PolicyStatus, mx.mod.BucketingModule):
    """Trains symbols of several input lengths as ``mx.mod.BucketingModule``, in mixed precision.

    Every bucket is a `Module`, converted for its own shapes. All share parameters, masters,
    optimizer and one loss scale. The default bucket must have the parameters of all.

    Args:
        sym_gen: As for ``mx.mod.BucketingModule``. The next eight too.
        default_bucket_key: As above.
        logger: As above.
        context: As above.
        work_load_list: As above.
        fixed_param_names: As above.
        state_names: As above.
        group2ctxs: As above.
        compression_params: As above.
        policy: As for `Module`.
        loss_scale: As for `Module`.
        loss_heads: As for `Module`; of every bucket.

    Raises:
        PolicyError: If the policy is not one.
        LossScaleError: If the loss scale is not one.
    """

    def __init__(
        self,
        sym_gen: Callable[[Any], Any],
        default_bucket_key: Any = None,
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
        self._options: Dict[str, Any] = {
            "logger": logger,
            "context": mx.cpu() if context is None else context,
            "work_load_list": work_load_list,
            "fixed_param_names": fixed_param_names,
            "state_names": state_names,
            "group2ctxs": group2ctxs,
            "compression_params": compression_params,
        }
        super().__init__(sym_gen, default_bucket_key, **self._options)
        self._policy = policy_of(policy, context)
        self._options.update(policy=self._policy, loss_heads=tuple(loss_heads))
        self._scaler = Scaler(loss_scale_of(self._policy, loss_scale))
        self._scaler.owners.add(self)

    @property
    def report(self) -> Report:
        """The report on the conversion of the current bucket."""
        return self._current("report").report

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if the executors of any bucket have no input for a loss scale."""
        for module in self._buckets.values():
            module._require_fitting(loss_scale)

    # ------------------------------------------------------------------ buckets

    def _add_bucket(self, key: Any, symbol: Any = None) -> None:
        """Make the module of a bucket where it is missing; it is bound later, by MXNet."""
        if key not in self._buckets:
            generated, data_names, label_names = self._call_sym_gen(key)
            module = Module(generated if symbol is None else symbol, data_names, label_names, **self._options)
            module._scaler = self._scaler
            self._buckets[key] = module

    def _reset_bind(self) -> None:
        """Forget all buckets, and make a new one for the default key."""
        super()._reset_bind()
        self._add_bucket(self._default_bucket_key)

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Bind the default bucket, as ``mx.mod.BucketingModule.bind``; a rebind keeps the optimizer.

        Raises:
            ConvertError: As `Module.bind`. The others too.
            PassError: As above.
            TrainerError: As above.
        """
        before = self._curr_module
        if force_rebind and before is not None:
            before.discard_grads()
        self._add_bucket(self._default_bucket_key)
        super().bind(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        if self.optimizer_initialized and self._curr_module is not before:
            self._curr_module.borrow_optimizer(before)
            self._curr_module._record_write(self._curr_module._arg_params)  # contexts without a kvstore get their mean

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Make a bucket the current one; it is converted and bound the first time."""
        was_bound = bucket_key in self._buckets and self._buckets[bucket_key].binded
        self._add_bucket(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        if self._monitor is not None and not was_bound:
            self._curr_module.install_monitor(self._monitor)

    def get_params(self) -> Any:
        """Return the float32 parameters, of all buckets, and the auxiliary states: `Module.get_params`.

        Raises:
            TrainerError: If a parameter was written to past its float32 master.
        """
        module = self._current("get_params")
        # MXNet asks the current bucket, which may lack parameters that the default one has.
        self._curr_module = self._buckets[self._default_bucket_key]
        try:
            return super().get_params()
        finally:
            self._curr_module = module

    # ------------------------------------------------------------------ training

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Set up the optimizer for the parameters of the default bucket: `Module.init_optimizer`."""
        module = self._current("init_optimizer")
        self._curr_module = self._buckets[self._default_bucket_key]
        try:
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        finally:
            self._curr_module = module

    def unscale(self) -> None:
        """Make the gradients true ones: `Module.unscale`."""
        self._current("unscale").unscale()

    def clip_global_norm(self, max_norm: float, batch_size: Optional[float] = None) -> float:
        """Clip the gradients of the current bucket: `Module.clip_global_norm`."""
        return self._current("clip_global_norm").clip_global_norm(max_norm, batch_size)

    def update(self) -> bool:
        """Update the parameters or skip: `Module.update`."""
        module = self._current("update")
        self._params_dirty = True
        return module.update()

    def discard_grads(self) -> None:
        """Give up the present window: `Module.discard_grads`."""
        self._current("discard_grads").discard_grads()

    def _current(self, call: str) -> Module:
        module: Optional[Module] = self._curr_module
        if module is None:
            raise TrainerError(f"{call}: the module is not bound; call bind first.")
        return module

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = False
    ) -> None:
        """Write the float32 symbols of all buckets and the float32 parameters: all files or none.

        Args:
            prefix: Of the files.
            epoch: Four digits in the names.
            save_optimizer_states: Also write optimizer states, masters and the loss scale.
            remove_amp_cast: As for ``mx.mod.BucketingModule``.

        Raises:
            TrainerError: If states are asked for between backward and update; nothing is written.
            CheckpointError: If a file cannot be written; then nothing is changed.
        """
        if save_optimizer_states:
            self._current("save_checkpoint")._require_between_steps("save_checkpoint")
        keys = list(self._buckets)
        symbols = {f"{prefix}-{key}-symbol.json": self._sym_gen(key)[0] for key in keys}
        save_checkpoint(self, prefix, epoch, save_optimizer_states, symbols, remove_amp_cast, keys)

    def save_optimizer_states(self, fname: str) -> None:
        """Save optimizer states, masters and the loss scale: `Module.save_optimizer_states`."""
        self._current("save_optimizer_states").save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Load states that `save_optimizer_states` saved."""
        self._current("load_optimizer_states").load_optimizer_states(fname)
        self._params_dirty = True

    @classmethod
    def load(
        cls,
        prefix: str,
        epoch: int,
        sym_gen: Optional[Callable[[Any], Any]] = None,
        default_bucket_key: Any = None,
        load_optimizer_states: bool = False,
        **kwargs: Any,
    ) -> BucketingModule:
        """Return a module made from a checkpoint.

        Args:
            prefix: As for `save_checkpoint`.
            epoch: Likewise.
            sym_gen: Required, as for `BucketingModule`; gives the names of data and labels.
            default_bucket_key: Required; a whole number, as the keys of a checkpoint are.
            load_optimizer_states: Whether `init_optimizer` loads the states and the loss scale.
            **kwargs: As for `BucketingModule`.

        Raises:
            TrainerError: If an argument is missing.
            CheckpointError: If a file is missing or damaged, or was not saved together with the others;
                the message names it.
        """
        symbols, *params = load_buckets(prefix, epoch, load_optimizer_states)
        module = cls.load_dict(symbols, sym_gen, default_bucket_key, *params, **kwargs)
        module._curr_module._preload_opt_states = next(iter(states_files(prefix, epoch, load_optimizer_states)), None)
        return module

    @classmethod
    def load_dict(
        cls,
        sym_dict: Optional[Dict[Any, Any]] = None,
        sym_gen: Optional[Callable[[Any], Any]] = None,
        default_bucket_key: Any = None,
        arg_params: Optional[Dict[str, mx.nd.NDArray]] = None,
        aux_params: Optional[Dict[str, mx.nd.NDArray]] = None,
        **kwargs: Any,
    ) -> BucketingModule:
        """Return a module made from the symbols of its buckets and their parameters.

        Args:
            sym_dict: Required; symbols by bucket key, the default one included.
            sym_gen: As for `load`. The next one too.
            default_bucket_key: As above.
            arg_params: Required.
            aux_params: Required; may be empty.
            **kwargs: As for `BucketingModule`.

        Raises:
            TrainerError: If an argument is missing.
        """
        parts = {"sym_dict": sym_dict, "sym_gen": sym_gen, "default_bucket_key": default_bucket_key}
        for name, value in {**parts, "arg_params": arg_params, "aux_params": aux_params}.items():
            if value is None:
                raise TrainerError(f"load: {name} is missing; a BucketingModule is made from all of its parts.")
        assert sym_gen is not None and sym_dict is not None
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in sym_dict.items():
            module._add_bucket(key, symbol)
        module._add_bucket(default_bucket_key)
        first = module._curr_module = module._buckets[default_bucket_key]
        first._arg_params, first._aux_params = arg_params, aux_params
        first.params_initialized = module.params_initialized = True
        return module
