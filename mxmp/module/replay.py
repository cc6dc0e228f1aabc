"""The step of a module as something that can be run again: executors hold data, labels and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence

import mxnet as mx

from ..probe.faults import NO_FAULT
from ..probe.step_replay import Call, Gradients
from ..probe.verdict import judge
from .binding import LOSS_SCALE

if TYPE_CHECKING:
    from .module import Module


def calls_of(module: Module, out_grads: Optional[Sequence[Any]] = None, copied: bool = False) -> List[Call]:
    """Return the calls of a module's executors, one per context.

    ``out_grads`` are the true gradients that backward was given, on one context; ``copied`` says whether data and
    labels are copied, which the next batch overwrites.
    """
    runnable, group = module._bound("replay"), module.mx_exec_group
    data = [*group.data_names, *(group.label_names or ())]
    trained = frozenset(
        name for name, grads in zip(group.param_names, group.grad_arrays) if grads and grads[0] is not None
    )
    found = []
    for executor, context in zip(group.execs, module.mx_context):
        values = {**executor.arg_dict, **executor.aux_dict}
        values.pop(LOSS_SCALE, None)
        names = [name for name in data if name in values]
        if copied:
            values.update({name: values[name].copy() for name in names})
        gradients = _gradients(executor.outputs, runnable.loss_outputs, out_grads, len(group.execs))
        decisions = runnable.converted.decisions
        training, heads = module.for_training, module._loss_heads
        found.append(
            Call(str(module.symbol.name), decisions, values, names, trained, gradients, context, training, heads)
        )
    return found


def _gradients(
    outputs: Sequence[Any], losses: Sequence[int], out_grads: Optional[Sequence[Any]], contexts: int
) -> Optional[Gradients]:
    """Return the gradients of an executor's outputs; ones for losses, whose backward begins by itself."""
    if out_grads is not None:
        return (
            Gradients([each.copyto(output.ctx) for each, output in zip(out_grads, outputs)]) if contexts == 1 else None
        )
    ones, zeros = mx.nd.ones_like, mx.nd.zeros_like
    return Gradients([(ones if number in losses else zeros)(each) for number, each in enumerate(outputs)])


def explain(module: Module, scale: float, out_grads: Optional[Sequence[Any]]) -> Optional[str]:
    """Return why the present step of a module is not finite, in sentences; None if that is not found out.

    Nobody has asked for it, so dropout is off: the user's random numbers stay as they are.
    """
    verdict = judge([call.without_dropout() for call in calls_of(module, out_grads)], scale)
    return None if verdict.kind == NO_FAULT else str(verdict)
