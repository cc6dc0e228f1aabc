"""Copies of values that compare equal only bit for bit, for tests of what must not change."""

from __future__ import annotations

import json
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
    if hasattr(value, "master"):
        return freeze([value.master, value.inner])
    if isinstance(value, mx.lr_scheduler.LRScheduler):
        return type(value), freeze(vars(value))
    return value


def freeze_optimizer(optimizer):
    """Return the fields of an optimizer of MXNet, its counts and schedule among them."""
    return freeze({name: value for name, value in vars(optimizer).items() if name not in NOT_ITS_OWN})


def freeze_saved(save):
    """Return what a method writes to a file of states, but for the loss scale."""
    with tempfile.TemporaryDirectory() as folder:
        fname = str(Path(folder) / "states")
        save(fname)
        header, arrays = read_states(fname)
    del header["extra"]
    return header, freeze(arrays)


def read_states(fname):
    """Return the header and the arrays of a file of states."""
    with np.load(str(fname), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("header"))), arrays


def edit_states(fname, change, more=()):
    """Rewrite a file of states with its header changed in place, and more arrays."""
    header, arrays = read_states(fname)
    change(header)
    with open(fname, "wb") as opened:
        np.savez(opened, header=np.array(json.dumps(header)), **{**arrays, **dict(more)})


def scale_of(owner):
    """Return all that a trainer or module tells about its loss scale."""
    return owner.loss_scale, owner.skipped_steps, owner.consecutive_skips, owner.last_step_skipped
