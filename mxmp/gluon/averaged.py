"""An exponential moving average of a net's parameters, in float32."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Sequence

import mxnet as mx
from mxnet import autograd, gluon

from ..arrays import is_low_precision, round_into, to_float32
from ..dtypes import PRECISIONS, canonical
from ..errors import StateError, TrainerError, a_type_of
from ..files import path_of
from ..mxnet_private import is_initialized
from ..train.masters import exact_value as _exact_value
from ..train.masters import is_owned, masters_of
from . import files
from .blocks import undone
from .trainer import Trainer


def exact_value(param: gluon.Parameter, ctx: mx.Context | None = None) -> mx.nd.NDArray:
    """Return the float32 value of a parameter, a copy: of its master where it is stored in low precision.

    Args:
        param: An initialized parameter.
        ctx: One of its contexts; the first unless given.

    Returns:
        The value, of the parameter's shape, on that context.

    Raises:
        TrainerError: If the parameter is not initialized, or was written to past its master.
    """
    if not isinstance(param, gluon.Parameter):
        raise TrainerError(f"exact_value: expected a gluon Parameter, found {a_type_of(param)}.")
    if not is_initialized(param):
        raise TrainerError(f"exact_value: parameter '{param.name}' is not initialized.")
    with autograd.pause():
        weight = param.list_data()[0] if ctx is None else param.data(ctx)
        return to_float32(_exact_value(weight, param)).copy()


class averaged:
    """An exponential moving average of the parameters of a net, of their float32 values.

    With decay d it becomes d * average + (1 - d) * value at each `update`, to be called after a step::

        average = mxmp.gluon.averaged(net, decay=0.999)
        for x, y in loader:
            ...
            if trainer.step(batch_size):
                average.update()
        with average.swapped_in():
            evaluate(net)

    Running statistics, such as BatchNorm's, are averaged too; parameters of integers are not. If contexts have values
    of their own (statistics, and weights without a kvstore), their mean is averaged, as MXNet saves it.

    The states of a trainer do not hold the averages: `save` and `load` do. The file has the names of
    ``net.save_parameters``, so that ``load_parameters`` takes it too, to deploy the averages.

    Args:
        net: A net whose parameters are initialized, converted or not.
        decay: From 0 to below 1.

    Raises:
        TrainerError: If a parameter has no value yet, or ``decay`` is no such number.

    References:
        ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``.
    """

    def __init__(self, net: gluon.Block, decay: float = 0.999) -> None:
        if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
            raise TrainerError(f"averaged: decay={decay!r}; expected a number from 0 to below 1.")
        if not isinstance(net, gluon.Block):
            raise TrainerError(f"averaged: expected a Gluon net, found {a_type_of(net)}.")
        self.decay = float(decay)
        params: Dict[str, gluon.Parameter] = net.collect_params()
        for name, param in params.items():
            if not is_initialized(param):
                raise TrainerError(
                    f"averaged: parameter '{name}' has no value yet; initialize the net, and run one batch if its "
                    f"shapes follow from the input's. Then call averaged(net)."
                )
        self._net, floats = net, (*PRECISIONS, "float64")
        self._params = {name: param for name, param in params.items() if canonical(param.dtype) in floats}
        self._values = {name: _mean(_exact_values(param)) for name, param in self._params.items()}

    @property
    def values(self) -> Dict[str, mx.nd.NDArray]:
        """The averages by the names of the parameters, float32, each on the first context of its parameter."""
        return dict(self._values)

    def update(self) -> None:
        """Move the averages towards the present values."""
        with autograd.pause():
            for name, param in self._params.items():
                average = self._values[name]
                # The trainer's steps compare weights with their masters. A single master is that of all contexts.
                if is_owned(param):
                    values = list(masters_of(param).values())
                else:
                    values = [to_float32(_exact_value(weight, param)) for weight in param.list_data()]
                average += (1 - self.decay) * (_mean(values) - average)

    def save(self, fname: str) -> None:
        """Save the averages to one file, in float32; it is written whole or not at all.

        Args:
            fname: Any name; the format is that of ``net.save_parameters``.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        names: Dict[str, str] = {}
        for path, name in self._saved_names().items():
            names.setdefault(name, path)
        write = mx.npx.save if mx.util.is_np_array() else mx.nd.save
        files.save(path_of(fname), lambda file: write(file, {names[name]: v for name, v in self._values.items()}))

    def load(self, fname: str) -> None:
        """Continue with the averages of a file that `save` wrote, of this net or one like it.

        Args:
            fname: The file.

        Raises:
            CheckpointError: If there is no such file, or it is damaged.
            StateError: If an average is missing, unknown or has another shape; then nothing is changed.
        """
        files.check(path_of(fname))
        loaded = (mx.npx.load if mx.util.is_np_array() else mx.nd.load)(path_of(fname))
        arrays: Dict[str, Any] = loaded if isinstance(loaded, dict) else dict.fromkeys(map(str, range(len(loaded))))
        names = self._saved_names()
        loaded_values = {names[path]: array for path, array in arrays.items() if path in names}
        faults = [f"{path!r} is unknown" for path in arrays if path not in names]
        for path, name in names.items():
            average: Any = self._values.get(name)  # A parameter of integers has none.
            array: Any = loaded_values.get(name)
            if average is not None and array is None:
                faults.append(f"{path!r} is missing")
            elif average is not None and array.stype != "default":
                faults.append(f"{path!r} is {array.stype}, expected a dense array")
            elif average is not None and array.shape != average.shape:
                faults.append(f"{path!r} has the shape {array.shape}, expected {average.shape}")
        if faults:
            more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise StateError(
                f"{fname}: its averages are not those of this net: {', '.join(faults[:3])}{more}. Load a file that "
                f"average.save wrote for this net."
            )
        with autograd.pause():
            for name, average in self._values.items():
                average[:] = to_float32(loaded_values[name]).as_in_context(average.ctx)

    def _saved_names(self) -> Dict[str, str]:
        """Return the names that ``net.save_parameters`` gives to parameters: those of the parameters themselves."""
        paths = {path: param.name for path, param in self._net._collect_params_with_prefix().items()}
        rest = set(self._values) - set(paths.values())  # The net's own ``collect_params`` may have more.
        return {**paths, **{name: name for name in sorted(rest)}}

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the net have the averages within this context; it has its own values again after it, bit for bit.

        A step of a trainer of mxmp within it is a TrainerError, because its changes would be lost.
        """
        own_values = {name: _exact_values(param) for name, param in self._params.items()}
        owners = [param._trainer for param in self._params.values()]
        trainers = {owner for owner in owners if isinstance(owner, Trainer) and not owner._training_step.has_averages}

        def give_back() -> None:
            for trainer in trainers:
                trainer._training_step.has_averages = False
            for name in list(own_values):  # An interrupted first call has given some back.
                _give_back(self._params[name], own_values[name])
                del own_values[name]

        with undone(give_back):
            for trainer in trainers:
                trainer._training_step.has_averages = True
            for name, param in self._params.items():
                param.set_data(self._values[name])
            yield


def _exact_values(param: gluon.Parameter) -> List[mx.nd.NDArray]:
    """Return copies of the float32 values of a parameter, one for each context."""
    first = exact_value(param)
    return [first, *(exact_value(param, ctx) for ctx in param.list_ctx()[1:])]


def _mean(values: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return the mean of the values of all contexts, on the first; to the bit where all are alike."""
    first, *others = values
    differences = [other.as_in_context(first.ctx) - first for other in others]
    return first + mx.nd.add_n(*differences) / len(values) if others else first


def _give_back(param: gluon.Parameter, values: Sequence[mx.nd.NDArray]) -> None:
    """Set a parameter to a float32 value of its own on each context, with its masters."""
    param.set_data(values[0])
    with autograd.pause():
        for weight, value in list(zip(param.list_data(), values))[1:]:
            if is_low_precision(weight):
                round_into(value, weight)
            else:
                value.copyto(weight)
            master = masters_of(param).get(weight.ctx)
            if master is not None:
                value.copyto(master)
