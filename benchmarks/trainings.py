"""A training in one mode that can be stepped and timed, in this process or in another one."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import Any, Optional

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

import mxmp
from benchmarks.comparison import FLOAT32, PEER
from benchmarks.tasks import make_task
from benchmarks.timing import Clock, timer
from mxmp.loss_scale import DynamicLossScale

INIT_SCALE = 2.0**10
"""So low that no step is skipped: a skipped one is a shorter one."""


class Training:
    """A network in one mode, with all that a step of it needs.

    Args:
        name: Of the task.
        mode: `FLOAT32`, which is MXNet alone, `PEER`, or a policy of mxmp.
        batch_size: Of the task.
        seed: Of the task.
        clock: Takes the times.
    """

    def __init__(
        self, name: str, mode: str, batch_size: int = 0, seed: int = 0, clock: Clock = time.perf_counter
    ) -> None:
        self.task = make_task(name, batch_size, seed)
        self.task.net.hybridize(static_alloc=True, static_shape=True)
        optimizer, params = self.task.optimizer
        weights = self.task.net.collect_params()
        self.plain = mode in (FLOAT32, PEER)
        if self.plain:
            self.trainer = gluon.Trainer(weights, optimizer, dict(params))
        else:
            policy = mxmp.Policy.parse(mode)
            mxmp.gluon.convert(self.task.net, policy)
            scale = DynamicLossScale(INIT_SCALE) if policy.loss_scale == "dynamic" else policy.loss_scale
            self.trainer = mxmp.gluon.Trainer(weights, optimizer, dict(params), loss_scale=scale)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.loss = self._step()
        self._timed = timer(self._step, clock)

    @property
    def skipped(self) -> int:
        """Steps that were skipped."""
        return 0 if self.plain else self.trainer.skipped_steps

    def step(self) -> float:
        """Take one step and return its seconds, the wait for its end included."""
        return self._timed()

    def _step(self) -> float:
        """Take one step, wait for it, and return the mean loss."""
        with autograd.record():
            outputs = self.task.net(*self.task.inputs)
            logits = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
            loss = self._loss(logits, self.task.labels)
            if self.plain:
                loss.backward()
            else:
                with self.trainer.scale_loss(loss) as scaled:
                    scaled.backward()
        self.trainer.step(len(self.task.labels))
        mx.nd.waitall()
        return float(loss.mean().asscalar())


class Remote:
    """A `Training` in a process of its own, which shares no operator of MXNet, memory or thread with others.

    Args:
        mode: `PEER`, for which contrib.amp is initialized for bfloat16 in that process, or any other mode.
        name, batch_size, seed, clock: As for `Training`.

    Raises:
        RuntimeError: If the training fails there; with its message.
    """

    def __init__(
        self, name: str, mode: str, batch_size: int = 0, seed: int = 0, clock: Clock = time.perf_counter
    ) -> None:
        self.skipped = 0
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, name, mode, batch_size, seed, clock), daemon=True)
        self._process.start()
        theirs.close()
        self.loss = self._receive()

    def step(self) -> float:
        """Take one step there and return its seconds, as they were measured there."""
        with contextlib.suppress(OSError):  # where the process has ended, what is received says so
            self._pipe.send("step")
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _receive(self) -> float:
        try:
            found, self.skipped, failure = self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            raise RuntimeError(f"the process ended with exit code {self._process.exitcode}") from None
        if failure is not None:
            self.close()
            raise RuntimeError(failure)
        return float(found)


def serve(pipe: Any, name: str, mode: str, batch_size: int, seed: int, clock: Clock) -> None:
    """Send the first loss, then the seconds of a step for each message, until the pipe is closed; skips with both."""
    try:
        if mode == PEER:
            amp.init(target_dtype="bfloat16")
        training = Training(name, mode, batch_size, seed, clock)
        pipe.send((training.loss, training.skipped, None))
        while _next(pipe):
            pipe.send((training.step(), training.skipped, None))
    except Exception as e:  # whatever it is, the other process has to hear of it
        pipe.send((None, 0, f"{type(e).__name__}: {e}"))


def _next(pipe: Any) -> Optional[str]:
    try:
        return str(pipe.recv())
    except EOFError:
        return None
