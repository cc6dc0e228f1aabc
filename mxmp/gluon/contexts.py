"""Parameters on several contexts: one is updated, and the others copy."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence, Tuple

import mxnet as mx

from ..masters.copies import forget_masters
from ..masters.optimizer import MasterState
from .gradients import Update

Params = Sequence[mx.gluon.Parameter]


def on_first_context(updates: Sequence[Sequence[Update]], params: Params) -> List[Update]:
    """Return one update for each parameter that is to be updated on any context, all reduced to one gradient."""
    found = [(i, params[i]) for i in sorted({i for group in updates for i, _, _ in group})]
    return [(i, param.list_grad()[0], param.list_data()[0]) for i, param in found]


def copy_to_others(updates: Iterable[Update], params: Params) -> None:
    """Give all contexts the weights of the first, whose masters are the only ones from now on."""
    for index, _, weight in updates:
        for other in params[index].list_data()[1:]:
            weight.copyto(other)
        forget_masters(params[index], but=weight.ctx)


def keep_masters_of(states: Dict[int, Any], params: Params) -> None:
    """Let parameters keep the masters of a kvstore that updates, which works on a context of its own."""
    for index, state in states.items():
        if isinstance(state, MasterState) and state.master is not None:
            forget_masters(params[index], but=state.master.ctx)


def running_statistics(params: Params) -> List[Tuple[str, mx.nd.NDArray]]:
    """Return BatchNorm's statistics and their like on every context: parameters that no gradient is for."""
    return [(param.name, data) for param in params if not param._differentiable for data in param._data or ()]
