"""Warn where MXNet's own trainer updates the parameters of a converted net."""

from __future__ import annotations

import logging
from typing import Any, List, Sequence

import mxnet as mx
from mxnet import gluon

from ..dtypes import BFLOAT16, LOW_PRECISION
from ..mxnet_private import parameters, trainers
from ..policy import Policy
from ..train.multi_precision import MultiPrecision
from .storage import dtype_of
from .trainer import Trainer

_LOG = logging.getLogger(__name__)
_ATTRIBUTE = "_mxmp_warned"


class PlainTrainerCheck:
    """Checks at calls 1, 2, 4, 8, ... for a trainer of a net's parameters, until there is one.

    A parameter knows its trainer. One that becomes a trainer of mxmp must have done so before the call.
    """

    def __init__(self, net: gluon.Block, policy: Policy) -> None:
        self._net, self._policy = net, policy
        self._calls, self._done = 0, False

    def check(self, params: Sequence[gluon.Parameter]) -> None:
        """Log one warning for each trainer that lacks something; most calls do not look."""
        if self._done:
            return
        self._calls += 1
        if self._calls & (self._calls - 1):
            return
        trained = [param for param in params if param.grad_req != "null" and parameters.trainer_of(param) is not None]
        self._done = bool(trained)
        for param in trained:
            trainer = parameters.trainer_of(param)
            if isinstance(trainer, Trainer) or vars(trainer).get(_ATTRIBUTE):
                continue
            missing = self._missing(trainer, trained)
            if missing:
                setattr(trainer, _ATTRIBUTE, True)
                kind = "mx.gluon.Trainer" if type(trainer) is gluon.Trainer else type(trainer).__name__
                text = (
                    "block '%s' is converted (%s), but parameter '%s' is updated by a plain %s: %s. Use "
                    "mxmp.gluon.Trainer, or call mxmp.gluon.Trainer.adopt(trainer), or amp.init_trainer(trainer)."
                )
                _LOG.warning(text, self._net.name, self._policy, param.name, kind, "; ".join(missing))

    def _missing(self, trainer: gluon.Trainer, trained: Sequence[gluon.Parameter]) -> List[str]:
        """Return what a trainer fails to do for its parameters."""
        found = []
        if self._policy.loss_scale not in (None, 1.0):
            found.append(
                f"its gradients are not scaled, so that small ones are lost in {self._policy.compute_dtype} (if you "
                "scale the loss by hand, give the policy loss_scale=None)"
            )
        own = {dtype_of(param) for param in trained if parameters.trainer_of(param) is trainer} & set(LOW_PRECISION)
        low = sorted(dtype for dtype in own if not _has_masters(trainers.optimizer(trainer), dtype))
        if BFLOAT16 in low:
            found.append(
                "weights stored in bfloat16 have no float32 masters, and MXNet's optimizers cannot update them"
            )
        elif low and not self._policy.pure:
            found.append(f"weights stored in {low[0]} have no float32 masters, so that small updates are rounded away")
        return found


def _has_masters(optimizer: Any, dtype: str) -> bool:
    """Return whether an optimizer keeps float32 masters of weights in a dtype; MXNet's own do of float16."""
    if isinstance(optimizer, MultiPrecision):
        return bool(optimizer.masters)
    return isinstance(optimizer, mx.optimizer.Optimizer) and bool(optimizer.multi_precision) and dtype != BFLOAT16
