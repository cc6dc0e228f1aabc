"""Copies of values that compare equal only bit for bit, for tests of what must not change."""

import dataclasses
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np

# Of an optimizer: the network's, and what each step sets anew.
NOT_ITS_OWN = ("param_dict", "sym_info", "rescale_grad")


def freeze(value):
    """Return a copy of a value: arrays as bytes, states of optimizers and schedules as their fields."""
    if isinstance(value, (mx.nd.NDArray, np.ndarray)):
        array = value if isinstance(value, np.ndarray) else value.asnumpy()
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return {key: freeze(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [freeze(each) for each in value]
    if dataclasses.is_dataclass(value):
        return freeze([getattr(value, field.name) for field in dataclasses.fields(value) if field.compare])
    if isinstance(value, mx.lr_scheduler.LRScheduler):
        return type(value), freeze(vars(value))
    return value


def freeze_optimizer(optimizer):
    """Return the fields of an optimizer of MXNet, its counts and schedule among them."""
    return freeze({name: value for name, value in vars(optimizer).items() if name not in NOT_ITS_OWN})


def saved_arrays(save):
    """Return the arrays that a method writes to a file of states: the weights' states, without the loss scale."""
    with tempfile.TemporaryDirectory() as folder:
        fname = Path(folder) / "states"
        save(str(fname))
        with np.load(str(fname), allow_pickle=False) as file:
            arrays = [file[name] for name in file.files]
    return freeze([array for array in arrays if array.dtype.kind != "U"])


def scale_of(owner):
    """Return all that a trainer or module tells about its loss scale."""
    return owner.loss_scale, owner.skipped_steps, owner.consecutive_skips, owner.last_step_skipped
