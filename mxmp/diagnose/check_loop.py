"""Look for what is wrong with a training loop, by two steps of it that do not count."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Sequence, Tuple, Union

import mxnet as mx
from mxnet import gluon

from ..errors import MxmpError, NonFiniteLossError, StaleGradientError, TrainerError, mxnet_reason
from .kept import kept_training
from .loops.findings import LoopFindings
from .loops.state import check_finite, check_frozen, check_parameters, check_speed, check_trainers
from .loops.watch import LoopWatch

Nets = Union[gluon.Block, Sequence[gluon.Block]]
Trainers = Union[gluon.Trainer, Sequence[gluon.Trainer]]

_STEPS = 2
_CAUSES = {"no_gradient": ("never_called", "no_backward")}
"""What an error need not be told beside."""


def check_loop(net: Nets, trainer: Trainers, loop: Callable[[], Any], speed: bool = True) -> LoopFindings:
    """Run two steps of a training loop and return what is wrong with it.

    A dry run: parameters, gradients, running statistics, optimizer states, update counts, loss scale and learning rate
    schedule are as before after it; logs and ledgers of mxmp on the trainer do not see its steps. Not put back is what
    else the loop changes: what hooks and other logs write, the state of random numbers, an iterator that it reads. A
    Module needs none: its ``fit`` makes the steps by itself.

    What is found, by kind. Of the trainer: ``plain_trainer`` (one of MXNet where float16 needs one of mxmp),
    ``wrong_trainer`` (of another net), ``no_loss_scale`` (a note), ``schedule_on_skip`` (the learning rate is set
    though the step was skipped). Of the calls: ``never_called`` (the net was not), ``not_recorded``, ``not_training``,
    ``no_backward``, ``no_step``, ``step_recorded``. Of the loss: ``loss_not_scaled``, ``loss_precision`` (computed in
    low precision), ``loss_not_finite``. Of gradients: ``no_gradient`` (weights that backward does not reach),
    ``zero_grad_missing`` (with ``grad_req='add'``),
    ``divided_twice`` (by the batch: a loss that is a mean over it, and ``step(batch_size)``), ``not_divided`` (a note:
    a sum, and ``step(1)``), ``batch_size`` (divided by another number), ``steps_skipped`` (all of them). What a loss is
    can only be told where ``scale_loss`` gets it; one that is divided by a number is not judged, for that may be a
    weight as well as the batch. Of parameters and data: ``weights_not_finite``, ``norm_precision`` and ``cast_by_hand``
    (``net.cast``), ``frozen_weight`` (of a Dense layer on a CPU whose bias is trained, which MXNet gets wrong),
    ``float64_data``. Of speed, as notes: ``uneven_sizes`` and ``slow_policy``. ``failed`` is an error of mxmp or MXNet.
    Other errors are raised.

    Args:
        net: The net, converted or not; or a list of nets.
        trainer: Its trainer, of mxmp or of MXNet; or a list of them.
        loop: Makes one step of the loop when it is called, and is called twice; it need not return anything.
        speed: Whether sizes that tensor cores do not like, and policies that are slow here, are looked for too.

    Returns:
        The findings; ``print`` them. It is false if nothing was found.

    Raises:
        TrainerError: If something else is given, or the trainer's kvstore holds what cannot be put back.

    Example:
        >>> def step():
        ...     with autograd.record():
        ...         loss = loss_fn(net(data), label)
        ...         with trainer.scale_loss(loss) as scaled:
        ...             scaled.backward()
        ...     trainer.step(data.shape[0])
        >>> print(mxmp.diagnose.check_loop(net, trainer, step))  # doctest: +SKIP
        nothing found
    """
    if not callable(loop):
        raise TrainerError(f"check_loop: loop is a {type(loop).__name__}; give a function that makes one step.")
    with checking(net, trainer, speed) as found:
        for _ in range(_STEPS):
            loop()
    return found


@contextlib.contextmanager
def checking(net: Nets, trainer: Trainers, speed: bool = True) -> Iterator[LoopFindings]:
    """Look for what is wrong with the iterations of a training loop within this context: `check_loop` around them.

    Two iterations are enough. All that `check_loop` puts back is as before after the block, which an error of mxmp or
    MXNet ends, as a finding.

    Args:
        net: As for `check_loop`.
        trainer: As for `check_loop`.
        speed: As for `check_loop`.

    Yields:
        The findings, which are complete after the block.

    Raises:
        TrainerError: As `check_loop`.
    """
    nets = _listed("net", net, gluon.Block)
    trainers = _listed("trainer", trainer, gluon.Trainer)
    found = LoopFindings()
    check_parameters(nets, found)
    check_frozen(nets, found)
    check_finite(nets, 0, found)
    check_trainers(nets, trainers, found)
    with kept_training(nets, trainers):
        watch = LoopWatch(nets, trainers, found)
        try:
            with watch.watching():
                yield found
                mx.nd.waitall()  # for errors of operators whose results nothing has read
        except (MxmpError, mx.MXNetError) as e:
            with contextlib.suppress(mx.MXNetError):
                mx.nd.waitall()  # or the same error comes again where the user waits
            watch.calls.check_recorded()
            if watch.steps:
                watch.finish()
            kind, text = _failure(e)
            if not {kind, *_CAUSES.get(kind, ())} & {*found.kinds}:
                found.add(kind, text)
        else:
            watch.finish()
            if not watch.steps:
                found.add("no_step", "the loop did not call step of the trainer; give the trainer that it steps.")
        if speed:
            check_speed(nets, watch.calls.rows, found)


def _failure(error: Exception) -> Tuple[str, str]:
    """Return kind and text of the finding that an error is."""
    text = mxnet_reason(error) if isinstance(error, mx.MXNetError) else str(error)
    if isinstance(error, StaleGradientError):
        return "no_gradient", text
    if isinstance(error, NonFiniteLossError):
        return "loss_not_finite", text
    if isinstance(error, TrainerError) and text.startswith("no backward was called") and "wrote" not in text:
        return "no_backward", text
    if isinstance(error, TrainerError) and ("was not scaled" in text or "scale_loss" in text):
        return "loss_not_scaled", text
    return "failed", f"the loop fails: {text}"


def _listed(what: str, given: Any, kind: type) -> List[Any]:
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in several:
        if not isinstance(each, kind):
            raise TrainerError(f"check_loop: {what} is a {type(each).__name__}; expected a gluon.{kind.__name__}.")
    if not several:
        raise TrainerError(f"check_loop: {what} is empty; give one at least.")
    return several
