"""Private names of ``gluon.Trainer``: parameters, updaters, kvstore, and the steps of its setup."""

from __future__ import annotations

from mxnet import gluon

from .names import attribute, method, override

_Trainer = gluon.Trainer

params = attribute(_Trainer, "_params", "the parameters, in the order of their indices")
optimizer = attribute(_Trainer, "_optimizer", "the optimizer, with which updaters are made")
updaters = attribute(_Trainer, "_updaters", "an updater, with the optimizer's states, for each context")
kvstore = attribute(_Trainer, "_kvstore", "the kvstore; None without one")
kvstore_params = attribute(_Trainer, "_kvstore_params", "the kvstore and update_on_kvstore that were asked for")
is_kvstore_ready = attribute(_Trainer, "_kv_initialized", "whether the kvstore is set up")
updates_on_kvstore = attribute(_Trainer, "_update_on_kvstore", "whether the kvstore updates; None before it is set up")


# Called as MXNet calls them, so that a user's class that overrides one is asked.
init_optimizer = method(_Trainer, "_init_optimizer", "makes the optimizer and the updaters")
init_kvstore = method(_Trainer, "_init_kvstore", "opens the kvstore before the first use")
init_params = method(_Trainer, "_init_params", "gives the kvstore the parameters that are initialized by now")
allreduce_grads = method(_Trainer, "_allreduce_grads", "sums gradients over contexts and workers")


class TrainerBase(gluon.Trainer):
    """A trainer whose private attributes have names, and whose private methods can be overridden."""

    mx_params = params
    mx_param_indices = attribute(_Trainer, "_param2idx", "the indices by the parameters' names")
    mx_params_to_init = attribute(_Trainer, "_params_to_init", "the parameters that the kvstore does not have yet")
    mx_contexts = attribute(_Trainer, "_contexts", "the contexts of the parameters; None before they are known")
    mx_optimizer = optimizer
    mx_updaters = updaters
    mx_scale = attribute(_Trainer, "_scale", "the rescale_grad that the optimizer was made with")
    mx_kvstore = kvstore
    mx_kvstore_params = kvstore_params
    mx_is_kvstore_ready = is_kvstore_ready
    mx_updates_on_kvstore = updates_on_kvstore
    mx_compression_params = attribute(_Trainer, "_compression_params", "the gradient compression asked for")
    mx_init_optimizer = override(_Trainer, "_init_optimizer", "makes the optimizer and the updaters")
    mx_init_kvstore = override(_Trainer, "_init_kvstore", "opens the kvstore before the first use")
    mx_init_params = override(_Trainer, "_init_params", "gives the kvstore the parameters that are initialized by now")
    mx_reset_kvstore = override(_Trainer, "_reset_kvstore", "forgets the kvstore when states or contexts are loaded")
