"""Private names of Gluon parameters: arrays, deferred initialization, what saving and loading call."""

from __future__ import annotations

from operator import getitem, is_
from typing import Any, List, Sequence

from mxnet import gluon

from .names import attribute, method, override

_Parameter = gluon.Parameter

arrays = attribute(_Parameter, "_data", "the values on each context; None before initialization")
gradients = attribute(_Parameter, "_grad", "the gradients on each context; None where there are none")
deferred_init = attribute(_Parameter, "_deferred_init", "(init, contexts, default init, data) until shapes are known")
dtype = attribute(_Parameter, "_dtype", "what Parameter.dtype gives, set here without a cast")
trainer_of = attribute(_Parameter, "_trainer", "the trainer of a parameter; None without one")
is_differentiable = attribute(_Parameter, "_differentiable", "False for running statistics")
storage_type = attribute(_Parameter, "_stype", "'default' or the sparse storage of the values")
grad_storage_type = attribute(_Parameter, "_grad_stype", "the same of the gradients")

reduced = method(_Parameter, "_reduce", "gives the value on the CPU that is saved")
load_value = method(_Parameter, "_load_init", "initializes a parameter with a value, as from a file")
finish_deferred_init = method(_Parameter, "_finish_deferred_init", "initializes once the shape is known")
set_trainer = method(_Parameter, "_set_trainer", "notes the trainer, one for sparse values")
_checked = method(_Parameter, "_check_and_get", "gives the arrays, or raises MXNet's error on what is not initialized")


class ParameterBase(gluon.Parameter):
    """A parameter whose private methods, which MXNet calls, can be overridden."""

    mx_arrays = arrays
    mx_deferred_init = deferred_init
    mx_reduce = override(_Parameter, "_reduce", "gives the value on the CPU that is saved")
    mx_load_value = override(_Parameter, "_load_init", "takes a value from a file")
    mx_init_arrays = override(_Parameter, "_init_impl", "takes the initial value on the given contexts")
    mx_finish_deferred_init = override(_Parameter, "_finish_deferred_init", "initializes once the shape is known")


class ParameterDictBase(gluon.ParameterDict):
    """What ``collect_params`` gives, as a base of other classes."""


def is_initialized(param: gluon.Parameter) -> bool:
    """Return whether a parameter has values."""
    return arrays(param) is not None


def have_arrays(params: Sequence[gluon.Parameter], places: Sequence[int], held: Sequence[Any]) -> bool:
    """Return whether parameters still have these arrays, each at its place among those of its parameter."""
    try:
        return all(map(is_, map(getitem, map(arrays.read, params), places), held))
    except (TypeError, IndexError):  # it has none, or fewer
        return False


def is_deferred(param: gluon.Parameter) -> bool:
    """Return whether a parameter gets its values at the first call, when its shape is known."""
    return bool(deferred_init(param))


def checked_arrays(param: gluon.Parameter) -> List[Any]:
    """Return the values on each context, dense or sparse; raise MXNet's error if there are none (yet)."""
    return list(_checked(param, arrays(param), list))


def checked_gradients(param: gluon.Parameter) -> List[Any]:
    """Return the gradients on each context, dense or sparse; raises as `checked_arrays`."""
    return list(_checked(param, gradients(param), list))
