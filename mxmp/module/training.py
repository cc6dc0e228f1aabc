"""The optimizer of a module, or of all buckets of one, and its weights as those of a training step."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays import is_low_precision, to_float32
from ..distributed import KVStore
from ..errors import TrainerError
from ..train.kernels import Update
from ..train.masters import Masters, copy_to_other_contexts, sync_master_from_weight
from ..train.multi_precision import unwrapped
from ..train.running_stats import NamedArrays, RunningStats
from ..train.scaler import Scaler
from ..train.states import Target, WeightInfo
from ..train.step import Step
from ..train.window import TrueOnRead, Window, plain


class Weight(NamedTuple):
    """One parameter: its value and gradient on each context; ``grads`` is the executor group's own list.

    The gradients of a parameter that is not trained are None.
    """

    name: str
    arrays: List[mx.nd.NDArray]
    grads: List[Any]
    accumulates: bool

    @property
    def is_low(self) -> bool:
        """Whether executors hold it in low precision."""
        return is_low_precision(self.arrays[0])


def weights_of(group: Any) -> List[Weight]:
    """Return all parameters of a group of executors."""
    grads = group.grad_arrays or [[None] * len(arrays) for arrays in group.param_arrays]
    adds = [group.grad_req.get(name) == "add" for name in group.param_names]
    return [Weight(*fields) for fields in zip(group.param_names, group.param_arrays, grads, adds)]


def host_zeros(names: Sequence[str], arrays: Sequence[List[mx.nd.NDArray]]) -> Dict[str, mx.nd.NDArray]:
    """Return zeros for the host's values of parameters by name: float32 where executors hold them in low precision."""
    first = {name: each[0] for name, each in zip(names, arrays)}
    dtypes = {name: "float32" if is_low_precision(array) else array.dtype for name, array in first.items()}
    return {name: mx.nd.zeros(a.shape, dtype=dtypes[name], stype=a.stype) for name, a in first.items()}


def store_mean(arrays: Sequence[mx.nd.NDArray], out: mx.nd.NDArray) -> None:
    """Store the mean of the contexts' values, as MXNet does; of one context, its value."""
    if len(arrays) > 1:
        arrays = [sum(array.copyto(mx.cpu()) for array in arrays) / len(arrays)]
    arrays[0].astype(out.dtype).copyto(out)


def make_optimizer(
    optimizer: Any, options: Dict[str, Any], symbol: Any, names: List[str], rescale: float
) -> Tuple[mx.optimizer.Optimizer, bool]:
    """Return the optimizer that runs a module, and whether low precision weights have masters.

    Args:
        optimizer: A name or an instance.
        options: The ``optimizer_params``. An instance uses only ``multi_precision``.
        symbol: The network, whose attributes have ``__lr_mult__`` and ``__wd_mult__``.
        names: The names of the parameters, in the order of their indices.
        rescale: The ``rescale_grad`` of an optimizer given by name, unless ``options`` has one.
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
    return unwrapped(optimizer, masters)


class Training:
    """An optimizer at work on the weights of a module, or of all buckets of one.

    Args:
        optimizer: The optimizer.
        keeps_masters: Whether low precision weights have masters.
        kvstore: Sums gradients over the contexts; None leaves every context its own.
        contexts: The contexts. There is an updater for each; with a kvstore only for the first, see `Step`.
        weights: All parameters in the order of the optimizer's indices.
        values: Their float32 values by name, which low precision ones are rounded from. With a kvstore over several
            workers these and the weights become worker 0's.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        keeps_masters: bool,
        kvstore: Any,
        contexts: Sequence[mx.Context],
        weights: Sequence[Weight],
        values: Mapping[str, mx.nd.NDArray],
    ) -> None:
        self.last_stats = RunningStats()
        self.optimizer = optimizer
        self.kvstore = kvstore
        contexts = list(contexts if kvstore is None else contexts[:1])
        self.updaters = [mx.optimizer.get_updater(optimizer) for _ in contexts]
        self.masters = [Masters(optimizer, keeps_masters) for _ in contexts]
        self.indices = {weight.name: index for index, weight in enumerate(weights)}
        described = [WeightInfo(w.name, w.arrays[0].shape, w.arrays[0].dtype) for w in weights]
        self.target = Target(optimizer, self.updaters, self.masters, contexts, described)
        for weight in weights if kvstore is not None else ():
            if isinstance(kvstore, KVStore):
                value = values[weight.name]
                first = value.as_in_context(weight.arrays[0].ctx)
                kvstore.broadcast(weight.name, first, [value, *weight.arrays])
            else:
                kvstore.init(weight.name, to_float32(weight.arrays[0]))  # It sums in the dtype of the first value.

    def master(self, name: str, number: int) -> Optional[mx.nd.NDArray]:
        """Return the float32 master of a parameter on a context, None if it has none."""
        index = self.indices.get(name)
        return None if index is None else self.masters[number].arrays.get(index)

    def set_masters(self, weights: Sequence[Weight], values: Mapping[str, mx.nd.NDArray], loaded: bool = False) -> None:
        """Give low precision weights the masters, float32 values by name, that they were rounded from.

        With ``loaded``, the masters come from a file. Elements of a weight that differ from its master, rounded,
        replace those of the master.
        """
        for weight in weights if self.masters[0].kept else ():
            if not weight.is_low or weight.name not in values:
                continue
            index = self.indices[weight.name]
            for masters, array in zip(self.masters, weight.arrays):
                if not loaded or index not in masters.arrays:
                    masters.arrays[index] = to_float32(values[weight.name]).copyto(array.ctx)
                if loaded:
                    sync_master_from_weight(masters.arrays[index], array)


def show_true_on_read(group: Any, window: Window) -> None:
    """Let an executor group show true gradients to readers, up to the end of a step."""
    arrays = group.grad_arrays
    for number, each in enumerate(arrays):
        if not isinstance(each, TrueOnRead) or each.window is not window:
            arrays[number] = TrueOnRead(getattr(each, "plain", each), window)


def running_stats_of(group: Any) -> NamedArrays:
    """Return the running statistics of an executor group by name, on every context."""
    return [(name, array) for name, arrays in zip(group.aux_names, group.aux_arrays) for array in arrays]


class ModuleStep(Step):
    """The step of a module that is bound now.

    Args:
        scaler: The loss scale.
        training: The optimizer and its masters; None without one, or where a kvstore updates.
        group: The executors.
        loss_outputs: The numbers of their outputs that come from scaled loss heads.
    """

    flags_losses = False

    def __init__(
        self, scaler: Scaler, training: Optional[Training], group: Any, loss_outputs: Sequence[int]
    ) -> None:
        self.scaler, self._group, self._loss_outputs = scaler, group, loss_outputs
        trained = [weight for weight in weights_of(group) if plain(weight.grads)[0] is not None]
        indices = {weight.name: index for index, weight in enumerate(trained)}
        if training is not None:
            self.optimizer, self.kvstore, self.last_stats = training.optimizer, training.kvstore, training.last_stats
            self.updaters, self.masters = training.updaters, training.masters
            indices = training.indices
        self.weights = {indices[weight.name]: weight for weight in trained}

    def groups(self) -> List[List[Update]]:
        """Return all weights, for each context."""
        return [
            [Update(index, plain(weight.grads)[k], weight.arrays[k]) for index, weight in self.weights.items()]
            for k in range(len(self._group.execs))
        ]

    def name(self, index: int) -> str:
        """Return the name of a weight."""
        return self.weights[index].name

    def accumulates(self, index: int) -> bool:
        """Return whether a weight was bound with ``grad_req='add'``."""
        return self.weights[index].accumulates

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradients of a weight on all contexts."""
        return list(plain(self.weights[index].grads))

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the executor group's ``grad_arrays`` hold other arrays."""
        for index, arrays in grads.items():
            list_of_grads = self.weights[index].grads
            if isinstance(list_of_grads, TrueOnRead):
                list_of_grads.show(arrays)
            else:
                list_of_grads[:] = arrays

    def release(self) -> None:
        """Give the executor group its own lists of gradients back."""
        arrays = self._group.grad_arrays or []
        for number, each in enumerate(arrays):
            if isinstance(each, TrueOnRead):
                arrays[number] = each.plain

    def sum_grads(self) -> None:
        """Sum the gradients over contexts and workers."""
        for index, weight in self.weights.items() if self.kvstore is not None else ():
            grads = plain(weight.grads)
            if grads[0].stype == weight.arrays[0].stype == "default":
                self.kvstore.pushpull(weight.name, grads, priority=-index)
            else:
                self.kvstore.push(weight.name, grads, priority=-index)
                self.kvstore.pull(weight.name, out=grads, priority=-index, ignore_sparse=False)

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Give contexts without an updater the weights of those that have one."""
        for index in indices if len(self.updaters) < len(self._group.execs) else ():
            copy_to_other_contexts(self.weights[index].arrays)

    def losses(self) -> Sequence[mx.nd.NDArray]:
        """Return the outputs of the scaled loss heads."""
        return [executor.outputs[number] for executor in self._group.execs for number in self._loss_outputs]

    def running_stats(self) -> NamedArrays:
        """Return the running statistics on every context."""
        return running_stats_of(self._group)
