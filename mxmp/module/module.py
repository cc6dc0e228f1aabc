"""A Module with a precision policy and a loss scale."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Union

import mxnet as mx

from ..arrays import is_low_precision, require_positive, to_float32, tree_map
from ..devices.check import amx_notes, require_bfloat16
from ..dtypes import BFLOAT16, FLOAT16, canonical
from ..errors import ConvertError, TrainerError
from ..files import saving
from ..loss_scale import LossScale, NoOpLossScale
from ..optimizer import LossScaleOptimizer
from ..passes import EraseCasts
from ..policy import Policy, check_matches
from ..report import Report
from ..symbol import load_checkpoint, to_graph
from ..symbol.arguments import require_symbol
from ..train import states
from ..train.kvstores import open_for_module, refuse_compression, updates_on_kvstore
from ..train.masters import masters_flag, sync_master_from_weight
from ..train.scaler import Scaler
from ..train.step import hand_on_observers
from ..train.window import Alive
from .binding import (
    LOSS_SCALE,
    BoundSymbol,
    Conversions,
    MonitorHook,
    WriteCounter,
    accumulates,
    cast_batch,
    describe,
    make_group,
)
from .common import PolicyStatus, loss_scale_of, policy_of, save_checkpoint, states_files
from .training import (
    ModuleStep,
    Training,
    Weight,
    host_zeros,
    make_optimizer,
    running_stats_of,
    show_true_on_read,
    store_mean,
    weights_of,
)

Outputs = Union[List[mx.nd.NDArray], List[List[mx.nd.NDArray]]]

_INITIALIZER = mx.init.Uniform(0.01)  # MXNet's default.
_WHOLE_NUMBERS = 2048  # Float16 has all whole numbers up to this one, because its numbers have 11 bits.


class Module(PolicyStatus, mx.mod.Module):
    """Trains and runs a symbol as ``mx.mod.Module``, in mixed precision.

    Executors run the conversion of the symbol under the policy. ``symbol``, parameters and checkpoints
    stay float32 and load in plain MXNet. On CPU contexts float16 is emulated. A policy that stores
    parameters in low precision (O2) gives them float32 masters, which `get_params` and
    `save_checkpoint` return. Data and labels in float16 or float64 are cast to float32, unless their
    variable declares a dtype.

    With a loss scale every loss head (SoftmaxOutput, MakeLoss, the regression outputs, ...) scales
    its gradient by an input of the graph, so that the scale changes without a new executor. A step
    whose gradients are not finite is skipped: weights, optimizer states, update counts and schedule
    keep every bit. `update` reads once on the host to know. With a loss scale the kvstore never
    updates weights, because it would do so before the check.

    The order of calls is MXNet's; two may come in between::

        module.forward_backward(batch)
        module.unscale()                 # optional: true gradients
        module.clip_global_norm(1.0, 32) # optional; of the mean over a batch of 32
        module.update()

    With ``grad_req='add'`` all backwards of a window have one scale; zero the gradients after
    `update`. Name a Custom operator that ignores the gradient of its output (``need_top_grad=False``)
    in ``loss_heads``. If its own gradient is zero, put a BlockGrad in front of it.

    Parts of a ``mx.mod.SequentialModule`` have loss scales of their own, and skip apart. Compose their symbols into
    one module, ``head(features=body)``, where they are to skip together.

    Change a parameter only by `set_params` or `load_params`. A direct write to the executors'
    arrays is a TrainerError in the first ten updates, and when parameters or states are read or
    saved. Later the next `update` overwrites it from the master.

    Args:
        symbol: As for ``mx.mod.Module``; a float32 network, or one that mxmp converted before.
        data_names: As for ``mx.mod.Module``. The next seven too.
        label_names: As above.
        logger: As above.
        context: As above.
        work_load_list: As above.
        fixed_param_names: As above.
        state_names: As above.
        group2ctxs: As above.
        compression_params: As above.
        policy: A policy or its name; 'auto' for the one that is fastest on the contexts, which ``report`` names.
        loss_scale: 'dynamic', a number, a `LossScale`, None for no scaling and no checks, or
            'policy' for the policy's own.
        loss_heads: Names of Custom operators that are loss heads.

    Raises:
        PolicyError: If the policy is not one.
        LossScaleError: If the loss scale is not one.
    """

    _arg_params: Any  # MXNet's, as are the next three: type checkers do not know them
    _aux_params: Any
    _update_on_kvstore: Any
    _preload_opt_states: Any

    binded: bool
    optimizer_initialized: bool

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
        self._policy = policy_of(policy, context)
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
        )
        self._loss_heads = frozenset(loss_heads)
        self._conversions: Optional[Conversions] = None
        self._bound_symbol: Optional[BoundSymbol] = None
        self._training: Optional[Training] = None
        self._monitor_hook = MonitorHook()
        self._write_counter = WriteCounter()
        self._count_when_fused: Optional[int] = None  # Writes before layers were fused.
        self._backward_scale = 1.0
        self._warned_of_labels = False
        self._out_grads: Any = None  # The unscaled argument of the last backward pass.
        self._use_scaler(Scaler(loss_scale_of(self._policy, loss_scale)))

    @property
    def report(self) -> Report:
        """The report on the conversion for the shapes that are bound now."""
        report = self._require_bound("report").converted.report
        return replace(report, notes=(*report.notes, *amx_notes(report.count)))

    # ------------------------------------------------------------------ binding

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
        """Convert the symbol for these shapes and make executors, as ``mx.mod.Module.bind``.

        Raises:
            ConvertError: If the network does not type-check by itself; it names the node. Also if the policy uses
                bfloat16 and a context is a GPU, for which MXNet has no bfloat16 kernels.
            PassError: If the network's gradient cannot be scaled; it names the node.
            TrainerError: If ``shared_module`` is no bound and initialized `Module` of mxmp.
        """
        if force_rebind and self.binded:
            if self.params_initialized:
                self.get_params()
            self._reset_bind()
            self.discard_grads()
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if inputs_need_grad and not for_training:
            raise TrainerError("bind: inputs_need_grad=True needs for_training=True.")
        symbol, shared = self._symbol, shared_module
        if shared is not None and not (isinstance(shared, Module) and shared.binded and shared.params_initialized):
            raise TrainerError(
                f"bind: shared_module is {shared!r}; expected a bound and initialized mxmp.module.Module."
            )
        require_bfloat16(self._policy.compute_dtype, self._context, f"bind: symbol '{symbol.name or symbol}'")
        if isinstance(grad_req, (list, tuple)):  # the graph that is bound has one argument more
            grad_req = dict(zip(symbol.list_arguments(), grad_req))
        self.for_training, self.inputs_need_grad, self._grad_req = for_training, inputs_need_grad, grad_req
        if shared is None:  # a bucket may lack what a pattern of the policy means
            graph = EraseCasts()(to_graph(symbol)).graph
            check_matches(self._policy, [(node.op, node.name) for node in graph.operators()])
        else:
            unknown = [name for name in self._param_names if name not in shared._param_names]
            if unknown:
                raise TrainerError(
                    f"bind: parameters {unknown} are missing in the module that is shared with; the default bucket "
                    "must have the parameters of all."
                )
            self._use_scaler(shared._scaler)
            self._write_counter = shared._write_counter
        params, scaled = frozenset([*self._param_names, *self._aux_names]), for_training and self._scaler.active
        fixed = frozenset(self._fixed_param_names or ())
        facts = (params, self._context, self._loss_heads, fixed, scaled, for_training, accumulates(grad_req))
        self._conversions = Conversions(symbol, self._policy, *facts)
        descs = describe(self, data_shapes, label_shapes)
        self._bind_executors(self._convert(descs, shared), descs, shared._exec_group if shared else None)
        self._place_params(shared)
        if shared is not None and shared.optimizer_initialized:
            self.borrow_optimizer(shared)
        self.binded = True

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Take other shapes, as ``mx.mod.Module.reshape``; convert anew if verdicts change with them."""
        before, descs = self._require_bound("reshape"), describe(self, data_shapes, label_shapes)
        bound = self._convert(descs, self)
        if bound.converted.graph != before.converted.graph:
            self._bind_executors(bound, descs, self._exec_group)
            return
        super().reshape(*descs)
        self._monitor_hook.see(self._exec_group)

    def _convert(self, descs: Any, shared: Optional[Module]) -> BoundSymbol:
        """Return the conversion for data and labels; a module that shares its parameters says how they are stored."""
        assert self._conversions is not None
        stored = frozenset() if shared is None else shared._low_weights()
        bound = self._conversions.find([desc for group in descs for desc in group or ()], stored)
        low_params = bound.converted.low_params - stored
        if shared is not None and low_params:
            raise ConvertError(
                f"parameters {sorted(low_params)} are stored in float32 by the module that is shared with, but in low "
                "precision here; use a policy with param_dtype='float32', such as 'O1'."
            )
        return bound

    def _bind_executors(self, bound: BoundSymbol, descs: Any, shared_group: Any) -> None:
        """Make executors for data and labels; they share parameters with another group's."""
        self._data_shapes, self._label_shapes = descs
        group = make_group(self, bound.symbol, shared_group)
        self._bound_symbol, self._exec_group, self._count_when_fused = bound, group, None
        self._write_loss_scale(1.0)
        self._total_exec_bytes = group._total_exec_bytes
        if self.binded:
            self._monitor_hook.see(group)

    def _place_params(self, shared: Optional[Module]) -> None:
        """Share the host's parameters, copy them to the devices, or make room for them."""
        group = self._exec_group
        if shared is not None:
            self.params_initialized = True
            self._arg_params, self._aux_params = shared._arg_params, shared._aux_params
        elif self.params_initialized:
            self._arg_params = {name: to_float32(array) for name, array in self._arg_params.items()}
            group.set_params(self._arg_params, self._aux_params)
            self._record_write(self._arg_params)
        else:
            self._arg_params = host_zeros(group.param_names, group.param_arrays)
            self._aux_params = host_zeros(group.aux_names, group.aux_arrays)

    def install_monitor(self, mon: Any) -> None:
        """Install a monitor on all executors; it sees the operators that run, as with contrib.amp.

        Casts are among them, and values are in the dtypes in which they are computed; on a CPU float16 is emulated in
        float32. The network's outputs have their names. Gradients are scaled by the loss scale.
        """
        self._require_bound("install_monitor")
        self._monitor_hook.monitor = mon
        self._monitor_hook.see(self._exec_group)

    def _require_bound(self, call: str) -> BoundSymbol:
        if not self.binded or self._bound_symbol is None:
            raise TrainerError(f"{call}: the module is not bound; call bind first.")
        return self._bound_symbol

    # ------------------------------------------------------------------ parameters

    def init_params(
        self,
        initializer: Any = _INITIALIZER,
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initialize parameters in float32, as ``mx.mod.Module.init_params``.

        Where a call has nothing to do, as that of ``fit`` on a loaded module, it does not warn of it.
        """
        self._require_bound("init_params")
        applies = force_init or not self.params_initialized
        if not applies and arg_params is None and aux_params is None:
            return
        super().init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        if applies:
            self._record_write(self._arg_params)

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters, float32 masters included, as ``mx.mod.Module.set_params``."""
        self._require_bound("set_params")
        applies = allow_missing and (force_init or not self.params_initialized)
        super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        if applies:  # else init_params has done it
            names = self._low_weights() & set(arg_params)
            for name in names:
                arg_params[name].copyto(self._arg_params[name])
            self._record_write({name: self._arg_params[name] for name in names})  # in float32, whatever they were

    def get_params(self) -> Any:
        """Return the float32 parameters and the auxiliary states, as ``mx.mod.Module.get_params``.

        Raises:
            TrainerError: If a parameter was written to past its float32 master.
        """
        if self._training is not None and not self._params_dirty:
            self._require_masters()
        return super().get_params()

    def _sync_params_from_devices(self) -> None:
        """Bring the host's parameters up to date: the masters of low precision weights, or their values widened."""
        if self._update_on_kvstore:
            super()._sync_params_from_devices()
            return
        training, group = self._training, self._exec_group
        if training is not None:
            self._require_masters()
        for weight in weights_of(group):
            arrays = weight.arrays if training is None else weight.arrays[: len(training.updaters)]
            exact = [self._exact(weight.name, number, array) for number, array in enumerate(arrays)]
            store_mean(exact, self._arg_params[weight.name])
        for name, arrays in zip(group.aux_names, group.aux_arrays):
            store_mean(arrays, self._aux_params[name])
        self._params_dirty = False

    def _require_masters(self) -> None:
        """Raise a TrainerError if a weight was written to past its master; one host read, none without masters."""
        step = self._training_step
        flag = masters_flag(zip(step.masters, step.groups()))
        if flag is not None and flag.asscalar() != 1.0:
            raise step.overwritten_weight()

    def _exact(self, name: str, number: int, array: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a weight's master; without one the host's value where that still rounds to it."""
        if not is_low_precision(array):
            return array
        master = None if self._training is None else self._training.master(name, number)
        if master is None:
            master = self._arg_params[name].copyto(array.ctx)
            sync_master_from_weight(master, array)
        return master

    def _record_write(self, values: Dict[str, mx.nd.NDArray]) -> None:
        """Make the float32 values, by name, that parameters were set to their masters."""
        self._write_counter.count += 1
        if self._training is not None:
            self._training.set_masters(self._trained(), values)

    def _trained(self) -> List[Weight]:
        return list(self._training_step.weights.values())

    def _low_weights(self) -> FrozenSet[str]:
        return frozenset(weight.name for weight in weights_of(self._exec_group) if weight.is_low)

    # ------------------------------------------------------------------ optimizer and loss scale

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Set up the optimizer, as ``mx.mod.Module.init_optimizer``, with float32 masters.

        ``optimizer_params`` may hold ``multi_precision``, which is True by default here. The
        loss scale is taken out of gradients through ``rescale_grad``, which stays as it is set
        (1/batch_size by default, of the batches of all workers).

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
        self.get_params()
        has_low_weights, compression = bool(self._low_weights()), self._compression_params
        refuse_compression(compression, self._scaler.active, has_low_weights)
        store, can_update = open_for_module(kvstore, compression, len(self._context), self._arg_params)
        self.discard_grads()
        self._write_counter.count += 1
        if updates_on_kvstore(store, can_update, self._scaler.active, has_low_weights):
            self._training = None
            super().init_optimizer(store, optimizer, optimizer_params, force_init)
            return
        weights = weights_of(self._exec_group)
        batch_size = self._exec_group.batch_size * (store.num_workers if store is not None else 1)
        names = [weight.name for weight in weights]
        made, masters = make_optimizer(optimizer, dict(optimizer_params), self._symbol, names, 1.0 / batch_size)
        if store is not None and compression:
            store.set_gradient_compression(compression)
        self._training = Training(made, masters, store, self._context, weights, self._arg_params)
        self._training.set_masters(self._trained(), self._arg_params)
        self._optimizer, self._kvstore, self._update_on_kvstore = made, store, False
        self._updater = self._training.updaters[0]
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
            self._use_scaler(shared_module._scaler)
        super().borrow_optimizer(shared_module)
        self._training = shared_module._training

    def _use_scaler(self, scaler: Scaler) -> None:
        """Work with a loss scale, its own or another module's, which must fit this one too from now on."""
        before = vars(self).get("_scaler")
        if before is not scaler:
            scaler.owners.add(self)
            self._scaler = scaler
            if before is not None:
                hand_on_observers(self, before)

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if the executors have no input for a loss scale."""
        conversions = self._conversions if self.binded and self.for_training else None
        if conversions is not None and not conversions.scaled and not isinstance(loss_scale, NoOpLossScale):
            raise TrainerError(
                f"loss_scale: this module was bound without a loss scale, and cannot work with {loss_scale}; set it "
                "before bind, or make the module with loss_scale=1 to set it later."
            )

    def _require(self, call: str, optimizer: bool = True) -> None:
        for is_done, needed in (
            (self.binded, "bind"),
            (self.params_initialized, "init_params"),
            (self.optimizer_initialized or not optimizer, "init_optimizer"),
        ):
            if not is_done:
                raise TrainerError(f"{call}: the module is not ready; call {needed} first.")

    # ------------------------------------------------------------------ training

    def forward(self, data_batch: Any, is_train: Optional[bool] = None) -> None:
        """Run forward, as ``mx.mod.Module.forward``.

        A module that is bound to infer uses the parameters that were set, or trained by a module that it shares them
        with. As in MXNet a write to executors' arrays may not be seen: bind anew.
        """
        where = f"forward: symbol '{self._symbol.name}'"
        require_bfloat16(self._policy.compute_dtype, self._context, where, runs=True)
        if self.binded and not self.for_training and self._require_bound("forward").on_cpu:
            if self._count_when_fused not in (None, self._write_counter.count):
                descs = self._data_shapes, self._label_shapes
                self._bind_executors(self._require_bound("forward"), descs, self._exec_group)
            self._count_when_fused = self._write_counter.count
        self._warn_of_rounded_labels(data_batch)
        super().forward(cast_batch(data_batch, self._data_shapes, self._label_shapes), is_train)

    def _warn_of_rounded_labels(self, data_batch: Any) -> None:
        """Say once if labels come in float16 and there are more classes than it has whole numbers."""
        labels = zip(self.label_names or (), getattr(data_batch, "label", None) or ())
        for name, label in () if self._warned_of_labels or not self.binded else labels:
            shapes = [shape for _, shape in self.output_shapes] if canonical(label.dtype) == FLOAT16 else []
            classes = max([shape[1] for shape in shapes if len(shape) == len(label.shape) + 1], default=0)
            if classes > _WHOLE_NUMBERS:
                self._warned_of_labels = True
                warnings.warn(
                    f"label '{name}' comes in float16, which rounds whole numbers above {_WHOLE_NUMBERS} (65505 to "
                    f"65504), and an output has {classes} classes; give the iterator labels in float32 or int32.",
                    stacklevel=3,
                )

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the last outputs, as ``mx.mod.Module.update_metric``; bfloat16 ones in float32."""

        def update_dict(labels: Any, outputs: Dict[str, mx.nd.NDArray]) -> None:  # numpy cannot read bfloat16
            in_float32 = {name: to_float32(a) if canonical(a.dtype) == BFLOAT16 else a for name, a in outputs.items()}
            eval_metric.update_dict(labels, in_float32)

        super().update_metric(SimpleNamespace(update_dict=update_dict), labels, pre_sliced)

    def backward(self, out_grads: Any = None) -> None:
        """Run backward with the loss scaled; gradients stay scaled up to `unscale` or `update`.

        Args:
            out_grads: As for ``mx.mod.Module``: true gradients of outputs that are no loss heads.

        Raises:
            TrainerError: After `unscale`, or if nothing can be scaled because the network has no
                loss head and ``out_grads`` is not given.
        """
        bound, scaler = self._require_bound("backward"), self._scaler
        scaler.require_can_scale("backward", "update")
        scale = 1.0
        if scaler.active:
            scale = scaler.loss_scale.value if scaler.window is None else scaler.window.scale
            if out_grads is None and not bound.has_loss_scale:
                raise TrainerError(
                    f"backward: none of the outputs {self.output_names} comes from a loss head, so there is nothing to "
                    "scale. End the network in one, such as SoftmaxOutput or make_loss; or give out_grads; or set "
                    "loss_scale=None."
                )
        if scaler.window is not None:
            scaler.window.scale_again()
        self._write_loss_scale(scale)
        self._out_grads = out_grads = [out_grads] if isinstance(out_grads, mx.nd.NDArray) else out_grads
        if out_grads is not None and scale != 1.0:
            out_grads = [to_float32(grad) * scale for grad in out_grads]
        if scaler.active and self._training is not None:
            self._training.last_stats.keep(running_stats_of(self._exec_group))
        super().backward(out_grads)
        self._write_counter.count += 1  # MXNet's BatchNorm writes its running statistics in the backward pass
        self._backward_scale = scale
        if scaler.active or accumulates(self._grad_req):
            window = scaler.ensure_window(scale)
            if scale != 1.0:
                window.written.owners.add(self)
                show_true_on_read(self._exec_group, window)

    def _write_loss_scale(self, scale: float) -> None:
        """Set the loss scale that executors read, if they have an input for it."""
        for executor in self._exec_group.execs:
            if LOSS_SCALE in executor.arg_dict:
                executor.arg_dict[LOSS_SCALE][:] = scale

    def get_input_grads(self, merge_multi_context: bool = True) -> Outputs:
        """Return the true gradients of the inputs, the loss scale taken out in float32."""
        grads: Outputs = super().get_input_grads(merge_multi_context)
        factor = 1.0 / self._backward_scale
        return grads if factor == 1.0 else tree_map(grads, lambda grad: to_float32(grad) * factor)

    def unscale(self) -> None:
        """Make the gradients of the parameters true ones, in float32, reduced over the contexts.

        They are seen in the executor group's ``grad_arrays``; of float16 and bfloat16 parameters
        as float32 copies, up to `update`, which uses them. Gradients that were not finite
        before still make the step skip. No host read, but on a CPU a wait for large gradients of low
        precision.

        Raises:
            TrainerError: Twice in a window, or before backward.
        """
        step, window = self._require_gradients("unscale"), self._scaler.window
        if window is not None and window.is_true and window.is_summed:
            raise TrainerError(
                "unscale: the gradients are unscaled already; call unscale once, then update; to leave an update out "
                "call discard_grads."
            )
        step.unscale()

    def clip_global_norm(self, max_norm: float, batch_size: Optional[float] = None) -> float:
        """Scale the gradients down so that their global norm is at most ``max_norm``.

        With a ``batch_size`` the norm is that of the mean gradient. Without it the norm is that of the gradients
        before ``rescale_grad``: of MXNet's loss heads these are sums over the batch, unless ``normalization`` says
        otherwise. Unscales first if `unscale` was not called. One host read, after which `update` makes none.
        Contexts without a kvstore have gradients of their own: the largest norm counts.

        Args:
            max_norm: Positive.
            batch_size: How many samples the gradients are sums over, with a distributed kvstore of all workers.

        Returns:
            The norm before clipping, computed in float32, of the mean gradient if there is a ``batch_size``. It is inf
            or NaN if the gradients are not finite. Then nothing is clipped, and the step will be skipped. Without a
            loss scale the step is not skipped, because nothing is checked.

        Raises:
            TrainerError: If an argument is not positive, or before backward.
        """
        require_positive("clip_global_norm: max_norm", max_norm)
        if batch_size is not None:
            require_positive("clip_global_norm: batch_size", batch_size)
        step = self._require_gradients("clip_global_norm")
        return step.clip_global_norm(max_norm, 1.0 / (batch_size or 1.0))

    def update(self) -> bool:
        """Reduce the gradients, check them and update the parameters, or skip.

        Reads once on the host; where the gradients are not finite, once more to see whether the
        loss is.

        Returns:
            True if the parameters were updated, False if the step was skipped.

        Raises:
            TrainerError: If a loss scale is set and no backward has run since the last update. Or if a
                parameter was written to past its float32 master.
            NonFiniteLossError: If the gradients are not finite because the outputs of the loss
                heads are not; nothing is updated.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        self._require("update")
        self._write_counter.count += 1
        if self._training is None:
            super().update()
            return True
        step = self._require_gradients("update")
        self._params_dirty = True  # Auxiliary states change in a skipped step too.
        self._scaler.stepping = Alive([self])  # Of modules that share a scaler, the one that steps.
        return step.run(self._optimizer.rescale_grad)

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated."""
        if self.binded:
            self._training_step.discard()
        else:
            self._scaler.end_step()

    @property
    def _training_step(self) -> ModuleStep:
        """The step of the executors that are bound now."""
        bound = self._bound_symbol
        return ModuleStep(self._scaler, self._training, self._exec_group, () if bound is None else bound.loss_outputs)

    def _require_gradients(self, call: str) -> ModuleStep:
        self._require(call)
        if self._training is None:
            raise TrainerError(f"{call} cannot be used where the kvstore updates.")
        if self._scaler.active and self._scaler.window is None:
            raise TrainerError(
                f"{call}: no backward has run since the last update; call forward_backward first, or leave {call} out. "
                f"Only a module with loss_scale=None updates without a backward, with the gradients that are there."
            )
        return self._training_step

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = False
    ) -> None:
        """Write the float32 symbol and parameters, which plain MXNet loads: all files or none.

        Args:
            prefix: Of the files ``<prefix>-symbol.json``, ``-<epoch>.params`` and ``.states``.
            epoch: Four digits in the names.
            save_optimizer_states: Also write optimizer states, masters and the loss scale.
            remove_amp_cast: As for ``mx.mod.Module``; False by default, so that nothing is lost.

        Raises:
            TrainerError: If states are asked for between backward and update, or a parameter was written
                to past its float32 master; nothing is written.
            CheckpointError: If a file cannot be written; then nothing is changed.
        """
        symbols = {f"{prefix}-symbol.json": self.symbol}
        if save_optimizer_states:
            self._require_between_steps("save_checkpoint")
        save_checkpoint(self, prefix, epoch, save_optimizer_states, symbols, remove_amp_cast)

    def _require_between_steps(self, call: str) -> None:
        self._require(call)
        if self._training is not None:
            self._scaler.require_ready(call)

    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """Return a module made from a checkpoint; of mxmp or, without states, of plain MXNet.

        Args:
            prefix: As for `save_checkpoint`.
            epoch: Likewise.
            load_optimizer_states: Whether `init_optimizer` loads the states and the loss scale.
            **kwargs: As for `Module`.

        Raises:
            CheckpointError: If a file is missing or damaged, or was not saved together with the others;
                the message names it.
        """
        files = states_files(prefix, epoch, load_optimizer_states)
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch, *files)
        module = cls(symbol, **kwargs)
        module._arg_params, module._aux_params = arg_params, aux_params
        module.params_initialized = True
        module._preload_opt_states = next(iter(files), None)
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        A run that loads it, with the parameters, goes on bit for bit as if never stopped. Where
        the kvstore updates, MXNet writes its own format.

        Raises:
            TrainerError: Between backward and update: gradients are not saved. Or if a parameter was
                written to past its float32 master.
        """
        self._require("save_optimizer_states")
        if self._training is not None:
            self._scaler.require_ready("save_optimizer_states")
            self._require_masters()
            states.save(fname, self._training.target, self._scaler.to_dict())
            return
        with saving(f"{fname}: the states", fname) as (name,):
            super().save_optimizer_states(name)

    def load_optimizer_states(self, fname: str) -> None:
        """Load states that `save_optimizer_states` saved; the file decides over every field it has.

        Where a parameter is not its loaded master, rounded, the parameter decides, as one that was set
        between the two.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: Between backward and update; or if the file has a loss scale and this module
                was bound without one (make it with ``loss_scale=1``); then nothing is changed.
            CheckpointError: If there is no such file; it is a FileNotFoundError too.
        """
        self._require("load_optimizer_states")
        if self._training is None:
            super().load_optimizer_states(fname)
        else:
            self._scaler.require_ready("load_optimizer_states")
            states.restore(fname, self._training.target, self._scaler)
            self._training.set_masters(self._trained(), self._arg_params, loaded=True)
            self._params_dirty = True
