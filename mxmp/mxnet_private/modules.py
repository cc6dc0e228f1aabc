"""Private names of ``mx.mod.Module`` and ``BucketingModule``: shapes, executors, parameters, buckets."""

from __future__ import annotations

from typing import Any, Dict

import mxnet as mx
from mxnet.module.executor_group import DataParallelExecutorGroup

from .names import attribute, method, override

_Module, _Buckets = mx.mod.Module, mx.mod.BucketingModule

group_exec_bytes = attribute(DataParallelExecutorGroup, "_total_exec_bytes", "the memory of a group of executors")

buckets = attribute(_Buckets, "_buckets", "the modules by bucket key")
default_key = attribute(_Buckets, "_default_bucket_key", "the key of the bucket that is bound first")
sym_gen = attribute(_Buckets, "_sym_gen", "makes the symbol of a key")
current_module = attribute(_Buckets, "_curr_module", "the module of the present bucket")
make_symbol = method(_Buckets, "_call_sym_gen", "makes and checks (symbol, data names, label names) of a key")

# Of what a module was made with, under the names that its constructor has.
_OPTIONS = {
    name: attribute(_Buckets, f"_{name}", f"the {name} that a module was made with")
    for name in ("context", "work_load_list", "fixed_param_names", "state_names", "group2ctxs", "compression_params")
}


def made_with(module: mx.mod.BaseModule) -> Dict[str, Any]:
    """Return the options that a module of MXNet's was made with, bucketing or not, by the names of its constructor."""
    return {name: of(module) for name, of in _OPTIONS.items()}


# Called as MXNet calls them, so that a user's class that overrides one is asked.
reset_bind = method(_Module, "_reset_bind", "forgets the executors")
sync_params_from_devices = method(_Module, "_sync_params_from_devices", "copies values from the executors")
contexts = attribute(_Module, "_context", "the list of contexts")
grad_req = attribute(_Module, "_grad_req", "the grad_req given to bind; None before it")


class ModuleBase(mx.mod.Module):
    """A module whose private attributes have names, and whose private methods can be overridden."""

    mx_symbol = attribute(_Module, "_symbol", "the symbol, as it was given")
    mx_context = contexts
    mx_work_load_list = attribute(_Module, "_work_load_list", "the share of a batch that each context gets")
    mx_param_names = attribute(_Module, "_param_names", "the names of the parameters")
    mx_aux_names = attribute(_Module, "_aux_names", "the names of the auxiliary states")
    mx_fixed_param_names = attribute(_Module, "_fixed_param_names", "the parameters that are not trained")
    mx_state_names = attribute(_Module, "_state_names", "the inputs that are states")
    mx_group2ctxs = attribute(_Module, "_group2ctxs", "the contexts of groups of nodes")
    mx_grad_req = grad_req
    mx_data_shapes = attribute(_Module, "_data_shapes", "the DataDescs of the data")
    mx_label_shapes = attribute(_Module, "_label_shapes", "the DataDescs of the labels")
    mx_exec_group = attribute(_Module, "_exec_group", "the executors, one for each context")
    mx_total_exec_bytes = attribute(_Module, "_total_exec_bytes", "the memory of the executors, shared on bind")
    mx_arg_params = attribute(_Module, "_arg_params", "the parameters on the CPU, by name")
    mx_aux_params = attribute(_Module, "_aux_params", "the auxiliary states on the CPU, by name")
    mx_params_dirty = attribute(_Module, "_params_dirty", "whether the executors' values are newer than these")
    mx_optimizer = attribute(_Module, "_optimizer", "the optimizer")
    mx_updater = attribute(_Module, "_updater", "the updater, with the optimizer's states")
    mx_kvstore = attribute(_Module, "_kvstore", "the kvstore; None without one")
    mx_updates_on_kvstore = attribute(_Module, "_update_on_kvstore", "whether the kvstore updates")
    mx_compression_params = attribute(_Module, "_compression_params", "the gradient compression asked for")
    mx_preload_opt_states = attribute(_Module, "_preload_opt_states", "the file of states that init_optimizer loads")
    mx_reset_bind = override(_Module, "_reset_bind", "forgets the executors")
    mx_sync_params_from_devices = override(_Module, "_sync_params_from_devices", "copies values from the executors")


class BucketingModuleBase(mx.mod.BucketingModule):
    """A bucketing module whose private attributes have names, and whose private methods can be overridden."""

    mx_buckets = buckets
    mx_current = current_module
    mx_default_key = default_key
    mx_sym_gen = sym_gen
    mx_context = attribute(_Buckets, "_context", "the contexts that were given")
    mx_monitor = attribute(_Buckets, "_monitor", "the monitor that later buckets get too")
    mx_params_dirty = attribute(_Buckets, "_params_dirty", "whether the executors' values are newer than the CPU's")
    mx_reset_bind = override(_Buckets, "_reset_bind", "forgets the buckets")
