"""Find where inf and NaN come from, and whether a skipped step is a bug or an overflow.

`find_nonfinite` and `explain` run a network on a batch that is given; a `Watch` keeps what the last step ran on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError, LossScaleError
from ..gluon.api import convert
from ..gluon.calls import NetCalls
from ..gluon.kept import kept
from ..gluon.lookup import blocks_in, conversions_of
from ..module import Module
from ..mxnet_private.modules import contexts, current_module
from ..policy import Policy
from ..probe.nonfinite import NonFinite
from ..probe.step_replay import Call, Gradients, LossGradients
from ..probe.verdict import Verdict, find, judge
from ..symbol import ConvertedModel, convert_graph, convert_model
from .batches import fill_inputs
from .networks.gluon_net import require_values

Loss = Callable[..., Any]


def find_nonfinite(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Optional[Loss] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Optional[NonFinite]:
    """Return the first node of a network whose output or gradient is inf or NaN, in the order in which it runs.

    The network runs twice, in float32 and as it is converted. What float32 has too is no fault as long as float32's
    result is finite: the -inf of an attention mask. If float32's is not, the first operator is named that gives inf or
    NaN in float32 though it reads none; or the data or the parameter that holds it. Bodies of control flow are not
    looked into: the node around them is named. Nothing of what is given is changed, but dropout draws random numbers.

    Args:
        net_or_model: A Gluon net, converted or not; a bound Module or BucketingModule, mxmp's or MXNet's; a
            `mxmp.symbol.ConvertedModel`, or a tuple of symbol, ``arg_params`` and ``aux_params``.
        batch: What it runs on. Of a Gluon net an NDArray or a tuple of inputs; with ``loss``, the last item is the
            label. Of a Module a DataBatch; of a Module or symbol a dict of NDArrays by name, labels included.
        policy: The policy to run under; None for that of a converted net, model or Module, and float32 for others.
        loss: ``loss(outputs, label)`` gives the loss of a Gluon net, as an NDArray: then backward runs too. A
            Module or symbol has loss heads, whose backward always runs.
        loss_scale: The loss scale; positive.
        ctx: Where a symbol runs, the CPU unless given; a net and a Module run where their parameters are.

    Returns:
        Where it comes up first; None if all is finite. What reaches an output of the network comes first, then
        gradients, in the order of backward, then what does no harm. ``str()`` of it is a sentence.

    Raises:
        ConvertError: If the network or the batch is none, or they do not fit each other.
        PolicyError: If the policy is not one.
        LossScaleError: If ``loss_scale`` is not positive and finite.
    """
    return find(_calls(net_or_model, batch, policy, loss, ctx), _checked(loss_scale))


def explain(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Optional[Loss] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Verdict:
    """Return whether inf or NaN in a training step on a batch is a bug, an overflow, or bad data.

    The step runs in float32, at the loss scale given, and at 1/8 of it and so on down to 1; at 1/8 and 1/64 too where a
    gradient leaves the range at 1.

    Args:
        net_or_model: As for `find_nonfinite`, and so are the others.
        batch: As above.
        policy: As above.
        loss: As above.
        loss_scale: As above.
        ctx: As above.

    Returns:
        The verdict.

    Raises:
        ConvertError: As `find_nonfinite`.
        PolicyError: As above.
        LossScaleError: As above.
    """
    return judge(_calls(net_or_model, batch, policy, loss, ctx), _checked(loss_scale))


def _checked(scale: float) -> float:
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < float("inf"):
        raise LossScaleError(f"loss_scale is {scale!r}; expected a positive and finite number.")
    return float(scale)


def _calls(model: Any, batch: Any, policy: Any, loss: Optional[Loss], ctx: Any) -> List[Call]:
    wanted = None if policy is None else Policy.parse(policy)
    if isinstance(model, gluon.Block):
        return _of_net(model, batch, wanted, loss)
    if loss is not None:
        raise ConvertError("loss is given, but a symbol or Module has its loss heads in it; leave loss out.")
    if isinstance(model, mx.mod.BucketingModule):
        model = current_module(model)
    if isinstance(model, mx.mod.Module):
        return _of_module(model, batch, wanted)
    if isinstance(model, ConvertedModel):
        sym, args, aux = model.symbol, model.arg_params, model.aux_params
        wanted = wanted or model.decisions.policy
    elif isinstance(model, tuple) and len(model) == 3:
        sym, args, aux = model
    else:
        raise ConvertError(
            f"net_or_model is a {type(model).__name__}; expected a Gluon net, a Module, a ConvertedModel, or a tuple "
            "of symbol, arg_params and aux_params."
        )
    return [_of_symbol(sym, args, aux, batch, wanted, ctx or mx.cpu())]


# ---------------------------------------------------------------------- symbols and Modules


def _of_symbol(
    sym: Any,
    args: Mapping[str, Any],
    aux: Mapping[str, Any],
    batch: Any,
    policy: Optional[Policy],
    ctx: Any,
    heads: FrozenSet[str] = frozenset(),
    trains: bool = True,
) -> Call:
    if not isinstance(batch, Mapping):
        raise ConvertError(f"batch is a {type(batch).__name__}; expected a dict of NDArrays by name.")
    plain = convert_model(sym, args, aux, "O0")  # without casts, should it be converted
    values = fill_inputs(plain, batch)
    params = frozenset((*plain.arg_params, *plain.aux_params))
    names = [name for name in plain.symbol.list_inputs() if name not in params]
    types = {name: dtypes.canonical(values[name].dtype) for name in names}
    shapes = {name: array.shape for name, array in values.items()}
    found = convert_graph(plain.symbol, policy or Policy.parse("O0"), shapes, types, params)
    values = {name: array.as_in_context(ctx) for name, array in values.items()}
    trained = frozenset(plain.arg_params)
    return Call(str(sym.name), found.decisions, values, names, trained, _Ones(), ctx, trains, heads)


class _Ones(Gradients):
    """Ones for each output: of a loss, whose sum is then derived."""

    def __init__(self) -> None:
        super().__init__([])

    def __call__(self, heads: List[Any]) -> List[Any]:
        return [mx.nd.ones_like(head) for head in heads]


def _of_module(module: Any, batch: Any, policy: Optional[Policy]) -> List[Call]:
    if not (module.binded and module.params_initialized):
        raise ConvertError(f"the {type(module).__name__} is not bound, or has no parameters; call bind, set_params.")
    if isinstance(batch, mx.io.DataBatch):
        names = [*module.data_names, *(module.label_names or ())]
        batch = dict(zip(names, [*batch.data, *(batch.label or ())]))
    heads: FrozenSet[str] = frozenset()
    if isinstance(module, Module):
        policy, heads = policy or module.policy, module._loss_heads
    context = contexts(module)[0]
    args, aux = module.get_params()
    return [_of_symbol(module.symbol, args, aux, batch, policy, context, heads, module.for_training)]


# ---------------------------------------------------------------------- Gluon


def _of_net(net: gluon.Block, batch: Any, policy: Optional[Policy], loss: Optional[Loss]) -> List[Call]:
    """Run the net once, with the loss if there is one, and return its calls."""
    inputs, labels = _split(batch, loss)
    policy = policy or next((each.policy for each in conversions_of(blocks_in(net))), Policy.parse("O0"))
    require_values(net)
    with kept(net):  # which gives it as it was written
        # What is not converted runs as it was written, unseen: a float32 net is converted to nothing but float32.
        convert(net, policy if policy.is_mixed else Policy.parse("O1", names={"*": dtypes.FLOAT32}))
        calls = NetCalls.watching(net)
        with autograd.record(train_mode=loss is not None):
            outputs = net(*inputs)
            value = None if loss is None else loss(outputs, *labels)
        if not calls.noted:
            raise ConvertError(f"block '{net.name}' ran no HybridBlock on this batch, so there is no graph to look at.")
        gradients = None
        if loss is not None and len(calls.noted) == 1 and calls.noted[0].outputs is outputs:
            gradients = LossGradients(loss, labels, outputs)
        elif value is not None:
            autograd.backward(list(value) if isinstance(value, (list, tuple)) else [value])
        known = loss is not None and gradients is None
        found = [each.replay(1.0, gradients, backward=known) for each in calls.noted]
    return found if policy.is_mixed else [_in_float32(call) for call in found]


def _in_float32(call: Call) -> Call:
    """Return a call of a network that is not converted."""
    decisions = call.decisions
    return replace(call, decisions=replace(decisions, after=decisions.before))


def _split(batch: Any, loss: Optional[Loss]) -> Tuple[Sequence[Any], Sequence[Any]]:
    """Return a net's inputs, and the label that the loss reads."""
    if isinstance(batch, mx.nd.NDArray):
        batch = (batch,)
    if not isinstance(batch, (list, tuple)) or not batch:
        raise ConvertError(f"batch is a {type(batch).__name__}; expected an NDArray or a tuple of them.")
    if loss is None:
        return batch, ()
    if not callable(loss):
        raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of outputs and label, or a Block.")
    if len(batch) < 2:
        raise ConvertError("batch has no label, which loss reads; give a tuple of inputs and, last, the label.")
    return batch[:-1], batch[-1:]
