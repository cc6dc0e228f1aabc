"""The step of a module as something that can be run again: executors hold data, labels and parameters."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import mxnet as mx

from ..module import Module
from ..module.binding import LOSS_SCALE
from ..probe.batch_faults import nan_given
from ..probe.faults import NO_FAULT
from ..probe.step_replay import Call, Gradients
from ..probe.verdict import judge
from ..train.explanations import bad_input, explain


def calls_of(module: Module, copied: bool = False) -> List[Call]:
    """Return the calls of a module's executors, one per context.

    ``copied`` says whether data and labels are copied, which the next batch overwrites.
    """
    runnable, group, out_grads = module._bound("replay"), module.mx_exec_group, module._out_grads
    data = [*group.data_names, *(group.label_names or ())]
    trained = frozenset(weight.name for weight in module._trained())
    calls = []
    for executor, context in zip(group.execs, module.mx_context):
        values = {**executor.arg_dict, **executor.aux_dict}
        values.pop(LOSS_SCALE, None)
        names = [name for name in data if name in values]
        if copied:
            values.update({name: values[name].copy() for name in names})
        gradients = _gradients(executor.outputs, runnable.loss_outputs, out_grads, len(group.execs))
        decisions = runnable.converted.decisions
        training, heads = module.for_training, module._loss_heads
        calls.append(
            Call(str(module.symbol.name), decisions, values, names, trained, gradients, context, training, heads)
        )
    return calls


def _gradients(
    outputs: Sequence[Any], losses: Sequence[int], out_grads: Optional[Sequence[Any]], contexts: int
) -> Optional[Gradients]:
    """Return the gradients of an executor's outputs; ones for losses, whose backward begins by itself.

    ``out_grads`` are the true gradients that backward was given, which are known on one context alone.
    """
    if out_grads is not None:
        pairs = zip(out_grads, outputs)
        return Gradients([grad.copyto(output.ctx) for grad, output in pairs]) if contexts == 1 else None
    ones, zeros = mx.nd.ones_like, mx.nd.zeros_like
    return Gradients([(ones if number in losses else zeros)(output) for number, output in enumerate(outputs)])


@explain.register(Module)
def _explain(module: Module) -> Optional[str]:
    """Return why the present step of a module is not finite; its dropout is off, so that no random number is drawn."""
    verdict = judge([call.without_dropout() for call in calls_of(module)], module._backward_scale)
    return None if verdict.kind == NO_FAULT else str(verdict)


@bad_input.register(Module)
def _bad_input(module: Module) -> Optional[str]:
    """Return which input holds NaN; not where a context is a GPU, whose arrays would have to be looked at there."""
    if not module._bound("replay").on_cpu:  # see `nan_given`
        return None
    return next(filter(None, map(nan_given, calls_of(module))), None)
