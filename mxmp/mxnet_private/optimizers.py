"""Private names of optimizers: counts of updates, and what an optimizer around another hands on."""

from __future__ import annotations

import mxnet as mx

from .names import attribute, method, override

_Optimizer = mx.optimizer.Optimizer

all_update_counts = attribute(_Optimizer, "_all_index_update_counts", "the counts of updates by device and index")
update_counts = attribute(_Optimizer, "_index_update_count", "the counts of the present device by index")
set_current_context = method(_Optimizer, "_set_current_context", "chooses the device whose counts are used")
update_count = method(_Optimizer, "_update_count", "counts an update of one index or several")
learning_rates = method(_Optimizer, "_get_lrs", "gives the learning rates of indices")
weight_decays = method(_Optimizer, "_get_wds", "gives the weight decays of indices")
update_sgd = method(mx.optimizer.SGD, "_update_impl", "updates lists of weights by one kernel, with masters or without")


class OptimizerBase(mx.optimizer.Optimizer):
    """An optimizer whose private methods, which updaters and optimizers call, can be overridden."""

    mx_set_current_context = override(_Optimizer, "_set_current_context", "chooses the device whose counts are used")
    mx_update_count = override(_Optimizer, "_update_count", "counts an update of one index or several")
    mx_learning_rates = override(_Optimizer, "_get_lrs", "gives the learning rates of indices")
    mx_weight_decays = override(_Optimizer, "_get_wds", "gives the weight decays of indices")
