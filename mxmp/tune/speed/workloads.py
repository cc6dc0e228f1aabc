"""What a user gives to tune, as a workload: a Gluon net, a symbol with its parameters, or a Module."""

from __future__ import annotations

from typing import AbstractSet, Any, Dict, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ...errors import TuneError, did_you_mean, mxnet_reason
from ...mxnet_private import modules
from ...symbol import ConvertedModel
from ...symbol.arguments import label_names, require_symbol
from .gluon_net import Forward, GluonWorkload
from .problem import Workload
from .symbol_nets import Inputs, ModelWorkload, ModuleWorkload


def make_workload(
    network: Any, batches: Any, training: bool, for_inference: bool, forward: Optional[Forward] = None
) -> Workload:
    """Return the workload of a network with the first of some batches.

    Raises TuneError if one of the arguments is not what `tune` says.
    """
    batch = first_batch(batches)
    if forward is not None and not isinstance(network, gluon.Block):
        raise TuneError(f"forward: it is for Gluon nets, but net_or_model is a {type(network).__name__}.")
    if forward is not None and not callable(forward):
        raise TuneError(f"forward is a {type(forward).__name__}; expected a function of the net and a batch.")
    if for_inference and isinstance(network, (gluon.Block, mx.mod.Module)):
        raise TuneError(
            f"for_inference: BatchNorm is folded in models, not in a {type(network).__name__}; give its symbol with "
            "its parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."
        )
    if isinstance(network, gluon.Block):
        return GluonWorkload(network, batch, training, forward)
    if isinstance(network, mx.mod.Module):
        return _module(network, batch, training)
    symbol, params = _model(network)
    inputs = _inputs(symbol, batch)
    context = next(iter(inputs.data.values())).ctx
    if training:
        return ModuleWorkload(symbol, params, inputs, [context], training=True)
    return ModelWorkload(symbol, params, inputs, context, for_inference)


def first_batch(batches: Any) -> Any:
    """Return the first of some batches, or raise a TuneError; of MXNet's iterators as a dict by name."""
    if isinstance(batches, (mx.nd.NDArray, Mapping, mx.io.DataBatch, str)):
        raise TuneError(
            f"batches: expected a list or loader of batches, found a {type(batches).__name__}; give [batch]."
        )
    if isinstance(batches, mx.io.DataIter):
        batches.reset()
        found = next(batches, None)
        batches.reset()
    else:
        try:
            found = next(iter(batches), None)
        except TypeError:
            kind = type(batches).__name__
            raise TuneError(f"batches: expected a list or loader of batches, found a {kind}.") from None
    if found is None:
        raise TuneError("batches: there is none; give at least one.")
    return _by_name(found, batches) if isinstance(batches, mx.io.DataIter) else found


def _by_name(batch: mx.io.DataBatch, described: Any) -> Dict[str, mx.nd.NDArray]:
    """Return a batch's arrays by the names that an iterator, or the batch itself, describes them by."""
    descriptions = [*described.provide_data, *(described.provide_label or ())]
    return dict(zip([each[0] for each in descriptions], [*batch.data, *(batch.label or ())]))


def _module(module: mx.mod.Module, batch: Any, training: bool) -> Workload:
    """Return a module's workload; parameters that have no values yet are initialized in copies.

    These are made and bound as the module is: with its fixed parameters, states, contexts of groups and ``grad_req``.
    """
    if isinstance(batch, mx.io.DataBatch):
        names = [*module.data_names, *module.label_names]
        batch = dict(zip(names, [*batch.data, *(batch.label or ())]))
    params = module.get_params() if module.params_initialized else ({}, {})
    inputs = _inputs(module.symbol, batch, set(module.label_names))
    bound = {"grad_req": modules.grad_req(module) or "write", "inputs_need_grad": module.inputs_need_grad}
    contexts = modules.context(module)
    return ModuleWorkload(module.symbol, params, inputs, contexts, training, modules.made_with(module), bound)


def _model(network: Any) -> Tuple[Any, Tuple[Dict[str, Any], Dict[str, Any]]]:
    """Return a symbol and its parameters, or raise a TuneError."""
    if isinstance(network, mx.sym.Symbol):
        raise TuneError("net_or_model: a symbol alone cannot run; give (symbol, arg_params, aux_params).")
    symbol = symbol_of(network)
    _, *params = network
    for name, each in zip(("arg_params", "aux_params"), params):
        if not isinstance(each, Mapping):
            raise TuneError(
                f"net_or_model: {name} is a {type(each).__name__}; expected a dict by the names of variables, "
                f"{{}} for none."
            )
    return symbol, (dict(params[0]), dict(params[1]))


def symbol_of(network: Any) -> Any:
    """Return the symbol of a model, which may be a symbol alone, or raise a TuneError."""
    if isinstance(network, mx.sym.Symbol):
        return require_symbol(network)
    if not isinstance(network, (tuple, list, ConvertedModel)) or len(list(network)) != 3:
        raise TuneError(
            f"net_or_model: expected a Gluon Block, a Module, or (symbol, arg_params, aux_params); found a "
            f"{type(network).__name__}."
        )
    return require_symbol(next(iter(network)))


def _inputs(symbol: Any, batch: Any, labels: AbstractSet[str] = frozenset()) -> Inputs:
    """Return the arrays of a batch by name; labels that lack are zeros."""
    if isinstance(batch, mx.io.DataBatch) and batch.provide_data:
        batch = _by_name(batch, batch)
    if not isinstance(batch, Mapping) or not batch:
        raise TuneError(f"batches: expected dicts of arrays by the names of inputs, found a {type(batch).__name__}.")
    arguments = symbol.list_arguments()
    unknown = sorted(set(batch) - set(arguments))
    if unknown:
        raise TuneError(f"batches: the symbol has no input {unknown[0]!r}{did_you_mean(unknown[0], arguments)}.")
    for name, each in batch.items():
        if not isinstance(each, mx.nd.NDArray):
            raise TuneError(
                f"batches: input {name!r} is a {type(each).__name__}; expected an NDArray, mx.nd.array(...)."
            )
        if not each.size:
            raise TuneError(f"batches: input {name!r} has shape {each.shape}: there is nothing in it.")
    labels = labels | label_names(symbol)
    shapes = {name: each.shape for name, each in batch.items()}
    try:
        sizes = dict(zip(arguments, symbol.infer_shape_partial(**shapes)[0]))
    except mx.MXNetError as e:
        raise TuneError(f"batches: inputs of shapes {shapes} do not fit: {mxnet_reason(e)}") from e
    missing = {name for name in labels & set(sizes) - set(batch) if sizes[name] and 0 not in sizes[name]}
    zeros = {name: mx.nd.zeros(sizes[name]) for name in arguments if name in missing}
    found = {**batch, **zeros}
    data = {name: array for name, array in found.items() if name not in labels}
    if not data:
        raise TuneError(f"batches: a batch has labels alone ({', '.join(batch)}); give the symbol's other inputs too.")
    return Inputs(data, {name: array for name, array in found.items() if name in labels})
