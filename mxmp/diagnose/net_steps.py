"""The step of a trainer as something that can be run again: the calls of its converted nets, which are noted."""

from __future__ import annotations

from typing import Optional

from mxnet import autograd

from ..gluon import Trainer
from ..gluon.calls import NetCall
from ..probe.batch_faults import nan_given
from ..probe.faults import NO_FAULT
from ..probe.step_replay import Call, Gradients, LossGradients
from ..probe.verdict import judge
from ..train.explanations import bad_input, explain


def replayed(noted: NetCall, scale: float, of_loss: Optional[LossGradients] = None, backward: bool = True) -> Call:
    """Return a call that was noted as something that can be run again, perhaps backward.

    ``scale`` is that of the gradients that are kept; ``of_loss`` computes them where they are not finite, or not known.
    """
    traced, decisions = noted.graph.trace, noted.graph.converted.decisions
    names = [symbol.name for symbol in traced.inputs]
    values = {name: param.data(noted.context) for name, param in traced.params.items()}
    values.update(zip(names, noted.inputs))
    trained = frozenset(name for name, param in traced.params.items() if param.grad_req != "null")
    gradients: Optional[Gradients] = of_loss
    if noted.zeros and backward:
        with autograd.pause():
            gradients = Gradients([zero.grad.astype("float32") / scale for zero in noted.zeros], of_loss)
    fields = str(noted.net.name), decisions, values, names, trained, gradients, noted.context, noted.training
    return Call(*fields, follows_lost=noted.follows_lost, linked=noted.linked)


@explain.register(Trainer)
def _explain(trainer: Trainer) -> Optional[str]:
    """Return why the present step of a trainer is not finite; dropout is off, so that no random number is drawn."""
    calls, state = trainer._calls, trainer._scaler.state
    if not calls.noted:
        return None
    verdict = judge([replayed(noted, state.scale).without_dropout() for noted in calls.noted], state.scale)
    if verdict.kind != NO_FAULT:
        return str(verdict)
    outside = state.loss_finite is False and not calls.lost
    return "all outputs of the nets are finite here: look at the loss, and at its labels." if outside else None


@bad_input.register(Trainer)
def _bad_input(trainer: Trainer) -> Optional[str]:
    """Return which input of the step holds NaN; None if none is known to, or another net may have given it."""
    first = next(iter(trainer._calls.noted), None)
    return None if first is None else nan_given(replayed(first, 1.0))
