"""Find where inf and NaN come from, and whether a skipped step is a bug or an overflow.

`find_nonfinite` and `explain` run a network on a batch that is given; a `Watch` keeps what the last step ran on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional, Union

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError
from ..gluon.api import convert
from ..gluon.calls import NetCalls
from ..mxnet_private import modules
from ..policy import Policy
from ..probe.finding import NonFinite
from ..probe.step_replay import Call, Gradients, LossGradients
from ..probe.verdict import Verdict, find, judge
from ..symbol import convert_graph, convert_model
from .batches import Batch, call_net, fill_inputs, one_batch
from .kept import kept
from .net_steps import replayed
from .reading import LossFunction as Loss
from .reading import Subject, losses_of, read_subject, require_scale, run_backward


def find_nonfinite(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Union[None, str, Loss] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Optional[NonFinite]:
    """Return the first node of a network whose output or gradient is inf or NaN, in the order in which it runs.

    The network runs twice, in float32 and as it is converted. What float32 has too is no fault as long as float32's
    result is finite: the -inf of an attention mask. If float32's is not, the first operator is named that gives inf or
    NaN in float32 though it reads none; or the data or the parameter that holds it. Where an operator's own constant is
    inf (a mask's ``m * -inf``), the one that makes NaN of it is named instead: the softmax of a row that is masked
    wholly. Bodies of control flow are not looked into: the node around them is named. Nothing of what is given is
    changed, but dropout draws random numbers.

    Args:
        net_or_model: A network, as for `compare`.
        batch: One batch, as for `compare`; with ``loss``, its last array is the label, which must be there. Of a symbol
            or Module labels may be left out as for `compare`: they are zeros, of which gradients are looked at then.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others, as for `compare`.
        loss: ``loss(outputs, label)`` gives the loss of a Gluon net, an NDArray or nested lists of them: then backward
            runs too. Where the loss reads no label, end the batch with None. 'outputs' says that the net computes its
            losses by itself, as GluonCV's YOLO does, and returns them; no array of the batch is a label then. A Module
            or symbol has loss heads, whose backward always runs.
        loss_scale: The loss scale; positive.
        ctx: Where a symbol runs, the CPU unless given; a net and a Module run where their parameters are.

    Returns:
        Where it comes up first; None if all is finite. What reaches an output of the network comes first, then
        gradients, in the order of backward, then what does no harm. ``str()`` of it is a sentence.

    Raises:
        ConvertError: If the network or the batch is none, or they do not fit each other; or if the policy computes in
            bfloat16, which MXNet does not run here.
        PolicyError: If the policy is not one.
        LossScaleError: If ``loss_scale`` is not positive and finite.
    """
    return find(_calls(net_or_model, batch, policy, loss, ctx), require_scale(loss_scale))


def explain(
    net_or_model: Any,
    batch: Any,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Union[None, str, Loss] = None,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Verdict:
    """Return whether inf or NaN in a training step on a batch is a bug, an overflow, or bad data.

    The step runs in float32, at the loss scale given, and at 1/8 of it and so on down to 1; at 1/8 and 1/64 too where a
    gradient leaves the range at 1.

    The arguments are those of `find_nonfinite`, and so are the errors raised.

    Returns:
        The verdict; ``print`` it. What mends an activation that leaves float16's range is its ``overrides``. Class
        indices that ``pick`` clips are a hint in its text and no fault, as the loss may mask them.
    """
    return judge(_calls(net_or_model, batch, policy, loss, ctx), require_scale(loss_scale))


def _calls(given: Any, batch: Any, policy: Any, loss: Union[None, str, Loss], ctx: Any) -> List[Call]:
    """Return the calls of a network for a batch."""
    inside = loss == "outputs"
    loss = _outputs if inside else loss
    subject = read_subject(given, loss, ctx)
    wanted, read = subject.policy_or(policy), one_batch(batch)
    if subject.net is not None:
        return _of_net(subject.net, read, wanted, loss, inside)
    return [_of_symbol(subject.of_bucket([read.bucket]), read, wanted, ctx)]


# ---------------------------------------------------------------------- symbols and Modules


def _of_symbol(subject: Subject, batch: Batch, policy: Policy, ctx: Any) -> Call:
    plain = convert_model(subject.symbol, subject.args, subject.aux, "O0")  # without casts, should it be converted
    module, params = subject.module, frozenset((*plain.arg_params, *plain.aux_params))
    names = [name for name in plain.symbol.list_inputs() if name not in params]
    values = fill_inputs(plain, batch.by_name(subject.inputs()))
    types = {name: dtypes.canonical(values[name].dtype) for name in names}
    shapes = {name: array.shape for name, array in values.items()}
    found = convert_graph(plain.symbol, policy, shapes, types, params)
    ctx = modules.context(module)[0] if module is not None else ctx or mx.cpu()
    values = {name: array.as_in_context(ctx) for name, array in values.items()}
    trains, trained = module is None or module.for_training, frozenset(plain.arg_params)
    made = str(subject.symbol.name), found.decisions, values, names, trained, _Ones(), ctx, trains
    return Call(*made, subject.heads)


class _Ones(Gradients):
    """Ones for each output: of a loss, whose sum is then derived."""

    def __init__(self) -> None:
        super().__init__([])

    def __call__(self, heads: List[Any]) -> List[Any]:
        return [mx.nd.ones_like(head) for head in heads]


# ---------------------------------------------------------------------- Gluon


def _outputs(outputs: Any, label: Any) -> Any:
    """Return the losses that a net computes by itself."""
    return outputs


def _of_net(net: gluon.Block, batch: Batch, policy: Policy, loss: Any, inside: bool) -> List[Call]:
    """Run the net once, with the loss if there is one, and return its calls; ``inside``: the net computes it."""
    inputs, label, has_label = batch.for_net(loss is not None and not inside).beside(net)
    if loss is not None and not has_label and not inside:
        raise ConvertError(
            "batch has no label, which loss reads; give a tuple of inputs and, last, the label, or None for a loss "
            "that reads none."
        )
    with kept(net):  # which gives it as it was written
        # What is not converted runs as it was written, unseen: a float32 net is converted to nothing but float32.
        convert(net, policy if policy.is_mixed else Policy.parse("O1", names={"*": dtypes.FLOAT32}))
        calls = NetCalls.watching(net)
        with autograd.record(train_mode=loss is not None):
            outputs = call_net(net, inputs, without_loss=loss is None)
            losses = None if loss is None else losses_of(loss, outputs, label)
        if not calls.noted:
            raise ConvertError(f"block '{net.name}' ran no HybridBlock on this batch, so there is no graph to look at.")
        known = losses is not None and not (len(calls.noted) == 1 and calls.noted[0].outputs is outputs)
        if losses is not None and known:
            run_backward(losses)
        last = LossGradients(loss, [label], outputs) if loss is not None else None
        found = [replayed(each, 1.0, last if each.outputs is outputs else None, known) for each in calls.noted]
    return found if policy.is_mixed else [_in_float32(call) for call in found]


def _in_float32(call: Call) -> Call:
    """Return a call of a network that is not converted."""
    decisions = call.decisions
    return replace(call, decisions=replace(decisions, after=decisions.before))
