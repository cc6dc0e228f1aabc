"""A Module whose executors run its symbol's conversion, and whose parameters are float32 all the same."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.module.executor_group import DataParallelExecutorGroup

from ..arrays import to_float32
from ..devices.check import require_bfloat16
from ..errors import ConvertError, TrainerError
from ..mxnet_private import modules, parse_data_desc
from ..passes import EraseCasts
from ..policy import Policy, check_matches
from ..symbol import to_graph
from ..symbol.arguments import require_kernels
from ..symbol.monitors import NetworkNames, WatchedExecutor
from ..symbol.rewrite import ShapeOutcomes
from ..train.scaler import Scaler
from ..write_counts import UnwrittenArrays, write_count
from .binding import LOSS_SCALE, Runnable, accumulates, as_bound, as_float32, input_types, prepare, store_params
from .metrics import Widening
from .params import Float32Params, host_zeros
from .training import Training

_MAX_RUNNABLES = 32  # conversions that are kept for shapes to come back to


class ConvertedModule(Float32Params):
    """Binding and parameters of a module in mixed precision; it is made as ``mx.mod.Module``.

    ``symbol`` stays what it was. ``_arg_params`` holds float32 values of every weight that executors hold in low
    precision. ``scaler`` says whether loss heads, Custom operators in ``loss_heads`` too, get a loss scale.
    """

    binded: bool

    def __init__(self, *args: Any, policy: Policy, scaler: Scaler, loss_heads: FrozenSet[str]) -> None:
        super().__init__(*args)
        self._policy = policy
        self._scaler = scaler
        self._loss_heads = loss_heads
        self._runnable: Optional[Runnable] = None
        self._training: Optional[Training] = None
        self._monitor: Any = None
        self._stores_params = True  # where it alone infers; a bucket may not, whose parameters others share
        self._fused: Optional[UnwrittenArrays] = None  # the parameters and states that fused operators have seen
        self._watched: List[WatchedExecutor] = []  # what the monitor was given
        self._outcomes: Any = None  # what shapes decide about the symbol
        self._runnables: Dict[Any, Runnable] = {}  # by what shapes decided, least recently used first

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
            if self.params_initialized and self.mx_params_dirty:
                modules.sync_params_from_devices(self)
            modules.reset_bind(self)
            self._end_window()
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if inputs_need_grad and not for_training:
            raise TrainerError("bind: inputs_need_grad=True needs for_training=True.")
        if isinstance(grad_req, (list, tuple)):  # the graph that is bound has one argument more
            grad_req = dict(zip(self.mx_symbol.list_arguments(), grad_req))
        self.for_training, self.inputs_need_grad, self.mx_grad_req = for_training, inputs_need_grad, grad_req
        shared = None if shared_module is None else _require_shareable(shared_module)
        if shared is not None:
            self._share_scaler(shared)
            shared._unstore_params()
        descs = self._descs(data_shapes, label_shapes)
        runnable = self._prepare(descs, shared)
        types = input_types(self.mx_symbol, _inputs(descs))
        self._outcomes = ShapeOutcomes(self.mx_symbol, self._policy.compute_dtype, types, self._host_names())
        self._runnables = {self._outcomes(_shapes_of(descs)): runnable}
        self.mx_data_shapes, self.mx_label_shapes = descs
        if self._stores_params and shared is None and not for_training:
            runnable = store_params(runnable, frozenset(self.mx_param_names), _inputs(descs))
        self._use(runnable, shared.mx_exec_group if shared else None)
        self._place_params(shared)
        if shared is not None and shared.optimizer_initialized:
            self.borrow_optimizer(shared)
        self.binded = True

    def _share_scaler(self, shared: ConvertedModule) -> None:
        """Work with the loss scale of another module."""
        self._scaler = shared._scaler

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Take other shapes, as ``mx.mod.Module.reshape``; convert anew if verdicts change with them."""
        runnable = self._bound("reshape")
        descs = self._descs(data_shapes, label_shapes)
        if self._outcomes.depends:
            outcome = self._outcomes(_shapes_of(descs))
            found = self._runnables.pop(outcome, None) or self._prepare(descs, self)
            self._runnables[outcome] = found
            if len(self._runnables) > _MAX_RUNNABLES:
                del self._runnables[next(iter(self._runnables))]
            if found.converted.graph != runnable.converted.graph:
                self._unstore_params()
                self.mx_data_shapes, self.mx_label_shapes = descs
                self._use(found, self.mx_exec_group)
                return
        super().reshape(*descs)
        if self._monitor is not None:
            self._watch()

    def _descs(self, data_shapes: Any, label_shapes: Any) -> Any:
        """Return descriptions of data and of labels, in the dtypes in which executors take them."""
        data, labels = parse_data_desc(self.data_names, self.label_names, data_shapes, label_shapes)
        used = {desc.name for desc in labels or ()} & set(self.mx_symbol.list_arguments())
        return as_float32(self.mx_symbol, data), as_float32(self.mx_symbol, labels) if used else None

    def forward(self, data_batch: Any, is_train: Optional[bool] = None) -> None:
        """Run forward with the parameters as they are now, as ``mx.mod.Module.forward``."""
        require_bfloat16(self._policy.compute_dtype, self.mx_context, f"forward: symbol '{self.mx_symbol.name}'")
        if self.binded and self.params_initialized and not self.for_training and self._bound("forward").on_cpu:
            self._renew_fused()
        super().forward(as_bound(data_batch, self.mx_data_shapes, self.mx_label_shapes), is_train)

    def _renew_fused(self) -> None:
        """Make executors anew if parameters or auxiliary states were written since the last call.

        MXNet fuses what is bound to infer. A fused layer keeps the weights of its first call if it has no BatchNorm,
        and BatchNorm's statistics if it has one.
        """
        if self._fused is not None and not self._fused.are_unwritten():
            self._use(self._bound("forward"), self.mx_exec_group)
        if self._fused is None:
            group = self.mx_exec_group
            held = [array for arrays in (*group.param_arrays, *group.aux_arrays) for array in arrays]
            known = [count for count in map(write_count, held) if count is not None]
            self._fused = UnwrittenArrays(known) if known else None

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the last outputs, as ``mx.mod.Module.update_metric``; bfloat16 ones in float32."""
        super().update_metric(Widening(eval_metric), labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Install a monitor on all executors; it sees the network's own names and float32 values.

        What mxmp puts in, casts for example, it does not see. Gradients are scaled by the loss scale.
        """
        self._bound("install_monitor")
        self._monitor = mon
        self._watch()

    def _watch(self) -> None:
        """Let the monitor see the executors of now, and no earlier ones."""
        runnable, held = self._bound("install_monitor"), getattr(self._monitor, "exes", [])
        held[:] = [each for each in held if each not in self._watched]
        self._watched = []
        for executor in self.mx_exec_group.execs:
            watched = WatchedExecutor(executor, NetworkNames(runnable.scaling, runnable.symbol, runnable.on_cpu))
            self._watched.append(watched)
            self._monitor.install(watched)

    def _prepare(self, descs: Any, shared: Optional[ConvertedModule]) -> Runnable:
        """Return what to run for data and labels of these descriptions."""
        require_kernels(self._policy, self.mx_context, f"bind: symbol '{self.mx_symbol.name or self.mx_symbol}'")
        stored: FrozenSet[str] = frozenset()
        if shared is None:  # a bucket may lack what a pattern of the policy means
            graph = EraseCasts()(to_graph(self.mx_symbol)).graph
            check_matches(self._policy, [(node.op, node.name) for node in graph.operators()])
        else:
            stored = shared._low_weights() - shared._bound("bind").stored_params
        keeps = shared is self  # other shapes, after which a loss scale can be set as before
        scaled = self._bound("reshape").scaled if keeps else self.for_training and self._scaler.active
        inputs, names, contexts = _inputs(descs), self._host_names(), self.mx_context
        heads, trains, adds = self._loss_heads, self.for_training, accumulates(self.mx_grad_req)
        found = prepare(self.mx_symbol, self._policy, inputs, names, stored, contexts, scaled, heads, trains, adds)
        if shared is not None:
            _check_sharing(self.mx_param_names, shared.mx_param_names, found.converted.low_params - stored)
        return found

    def _host_names(self) -> FrozenSet[str]:
        """Return the names of the parameters and auxiliary states."""
        return frozenset([*self.mx_param_names, *self.mx_aux_names])

    def _use(self, runnable: Runnable, shared_group: Any) -> None:
        """Make executors for the present shapes; they share parameters with another group's."""
        names = set(self.mx_param_names)
        group = DataParallelExecutorGroup(
            runnable.symbol,
            self.mx_context,
            self.mx_work_load_list,
            self.mx_data_shapes,
            self.mx_label_shapes,
            [name for name in runnable.symbol.list_arguments() if name in names],
            self.for_training,
            self.inputs_need_grad,
            shared_group,
            logger=self.logger,
            fixed_param_names=self.mx_fixed_param_names,
            grad_req=self.mx_grad_req,
            group2ctxs=self.mx_group2ctxs,
            state_names=self.mx_state_names,
        )
        # A cast behind an output has the output's name, but not the attribute that says where its batch is.
        layouts = [output.attr("__layout__") for output in self.mx_symbol]
        group.output_layouts = [mx.io.DataDesc.get_batch_axis(layout) for layout in layouts]
        if not self.mx_label_shapes:  # labels that the symbol does not use reach metrics alone
            group.label_names, group.label_layouts = self.label_names, [0] * len(self.label_names)
        if runnable.has_loss_scale:
            write_loss_scale(group, 1.0)
        self._runnable, self.mx_exec_group, self._fused = runnable, group, None
        self.mx_total_exec_bytes = modules.group_exec_bytes(group)
        if self.binded and self._monitor is not None:
            self._watch()

    def _unstore_params(self) -> None:
        """Let executors hold parameters as the policy says and cast them at each call, as others can share them."""
        runnable = self._bound("bind").unstored
        if runnable is None:
            return
        if self.params_initialized:  # executors may hold others, if their arrays were written
            modules.sync_params_from_devices(self)
        self._use(runnable, None)
        if self.params_initialized:
            self.mx_exec_group.set_params(self.mx_arg_params, self.mx_aux_params)

    def _place_params(self, shared: Optional[ConvertedModule]) -> None:
        """Share the host's parameters, copy them to the devices, or make room for them."""
        group = self.mx_exec_group
        if shared is not None:
            self.params_initialized = True
            self.mx_arg_params, self.mx_aux_params = shared.mx_arg_params, shared.mx_aux_params
            return
        if self.params_initialized:
            self.mx_arg_params = {name: to_float32(array) for name, array in self.mx_arg_params.items()}
            group.set_params(self.mx_arg_params, self.mx_aux_params)
            return
        self.mx_arg_params, self.mx_aux_params = (
            {name: host_zeros(arrays[0]) for name, arrays in pairs}
            for pairs in (zip(group.param_names, group.param_arrays), zip(group.aux_names, group.aux_arrays))
        )

    def _bound(self, call: str) -> Runnable:
        if not self.binded or self._runnable is None:
            raise TrainerError(f"{call}: the module is not bound; call bind first.")
        return self._runnable

    def _end_window(self) -> None:
        """Forget gradients that wait to be used."""
        if self._training is not None:
            self._training.step.discard()
        else:
            self._scaler.end_step()


def _check_sharing(names: Sequence[str], shared: Sequence[str], low: FrozenSet[str]) -> None:
    """Raise if parameters cannot be shared; ``low`` are those that are stored in low precision here alone."""
    unknown = [name for name in names if name not in shared]
    if unknown:
        raise TrainerError(
            f"bind: parameters {unknown} are missing in the module that is shared with; the default bucket must have "
            "the parameters of all."
        )
    if low:
        raise ConvertError(
            f"parameters {sorted(low)} are stored in float32 by the module that is shared with, but in low precision "
            "here; use a policy with param_dtype='float32', such as 'O1'."
        )


def _inputs(descs: Any) -> List[mx.io.DataDesc]:
    return [desc for group in descs for desc in group or ()]


def _shapes_of(descs: Any) -> Dict[str, Tuple[int, ...]]:
    return {desc.name: tuple(desc.shape) for desc in _inputs(descs)}


def write_loss_scale(group: DataParallelExecutorGroup, value: float) -> None:
    """Set the loss scale that the executors of a group read."""
    for executor in group.execs:
        executor.arg_dict[LOSS_SCALE][:] = value


def _require_shareable(module: Any) -> ConvertedModule:
    if not isinstance(module, ConvertedModule) or not module.binded or not module.params_initialized:
        raise TrainerError(f"bind: shared_module is {module!r}; expected a bound and initialized mxmp.module.Module.")
    return module
