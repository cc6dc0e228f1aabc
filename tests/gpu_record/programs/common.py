"""What the programs share: the optimizers, and how a step is run section by section."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping

import mxnet as mx

from mxmp.train import step as train_step
from tools.gpu_record import control

OPTIMIZERS: Dict[str, Dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 1e-3},
}

Step = Callable[[Callable[[str], None]], Any]
"""Runs one step; it is given what begins a section, and returns whether the step was taken."""


def sections(prefix: str) -> Callable[[str], None]:
    """Return a function that begins a section of the record, once all that came before is done."""

    def begin(name: str) -> None:
        mx.nd.waitall()
        control.mark(f"{prefix} {name}")

    return begin


def compare_in(steps: int) -> None:
    """Have weights compared with their masters in so many steps, in place of ten, after which each step is like these."""
    train_step.COMPARED_STEPS = steps


def run_steps(mode: str, step: Step) -> Dict[str, Any]:
    """Run two steps that are taken to warm up, one that is taken, and one that is skipped.

    The sections' names begin with the mode and a slash.

    Returns:
        Whether the third and the fourth were taken, as the step says.
    """
    control.deliver(1.0)  # what the host reads of finite flags
    compare_in(2)
    step(sections(f"{mode}/warm up 1"))
    step(sections(f"{mode}/warm up 2"))
    taken = step(sections(f"{mode}/taken"))
    sections("between")("steps")
    begin = sections(f"{mode}/skipped")

    def begin_skipped(name: str) -> None:
        begin(name)
        if name == "update":
            _deliver_once(0.0)

    skipped = step(begin_skipped)
    sections("between")("steps")
    return {"taken": taken, "skipped": skipped}


def _deliver_once(value: float) -> None:
    """Have the host's next read deliver a value, and all later ones 1: gradients are not finite, but the loss is."""
    read = mx.nd.NDArray.asnumpy

    def asnumpy(array: Any) -> Any:
        mx.nd.NDArray.asnumpy = read
        try:
            return read(array)
        finally:
            control.deliver(1.0)

    control.deliver(value)
    mx.nd.NDArray.asnumpy = asnumpy


def write(path: str, facts: Mapping[str, Any]) -> None:
    """Wait for what still runs, and write what the record cannot tell."""
    mx.nd.waitall()
    control.mark("end")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file)
