"""The options that every training script has, read into one value."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import click
import mxmp
import mxnet as mx
from mxmp import Policy
from mxmp.diagnose.processor import describe_bfloat16, read_processor, runs_bfloat16
from mxmp.errors import LossScaleError, PolicyError
from mxmp.loss_scale import LossScale

OUTPUT = Path(__file__).resolve().parent.parent / "output"
"""Where scripts write unless told otherwise; git ignores it."""


@dataclass(frozen=True)
class Options:
    """What the options of a training script mean.

    Attributes:
        policy: The precision policy.
        loss_scale: The first loss scale.
        ctx: The contexts to train on.
        epochs: Epochs of the whole run, those before ``--resume`` included.
        batches: Steps per epoch at most, and batches to score at most; None for all.
        batch_size: Examples per step, on all contexts together.
        seed: Decides on the weights, the order of the examples and all noise.
        resume: Whether to go on from the checkpoint in ``output``.
        force: Whether a checkpoint in ``output`` may be replaced.
        output: Folder to write to.
    """

    policy: Policy
    loss_scale: LossScale
    ctx: Tuple[mx.Context, ...]
    epochs: int
    batches: Optional[int]
    batch_size: int
    seed: int
    resume: bool
    force: bool
    output: Path

    def settings(self) -> Dict[str, Any]:
        """Return, as JSON data, those that decide on a run's course; it resumes with the same alone."""
        return {
            "policy": str(self.policy),
            "loss-scale": self.loss_scale.to_dict(),
            "epochs": self.epochs,
            "batches": self.batches,
            "batch-size": self.batch_size,
            "seed": self.seed,
        }


class PolicyType(click.ParamType):
    """A policy's name or text."""

    name = "policy"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Policy:
        """Return the policy."""
        try:
            return Policy.parse(value)
        except PolicyError as e:
            self.fail(str(e), param, ctx)


class LossScaleType(click.ParamType):
    """'policy', 'dynamic', 'none' or a number."""

    name = "scale"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Any:
        """Return the loss scale, or 'policy'."""
        if value == "policy":
            return value
        try:
            return mxmp.loss_scale.parse(None if value == "none" else value)
        except LossScaleError as e:
            self.fail(str(e).replace(" a LossScale or None", " 'none' or 'policy'"), param, ctx)


class ContextsType(click.ParamType):
    """One context or several: 'cpu', 'cpu:0,cpu:1', 'gpu:0'."""

    name = "contexts"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Any:
        """Return the contexts, all of which exist here."""
        if isinstance(value, tuple):
            return value
        found = tuple(self._context(text.strip(), param, ctx) for text in value.split(","))
        if len(set(found)) < len(found) or len({each.device_type for each in found}) > 1:
            self.fail(f"{value!r}: expected different contexts of one kind.", param, ctx)
        return found

    def _context(self, text: str, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> mx.Context:
        kind, _, number = text.partition(":")
        if kind not in ("cpu", "gpu") or not (number or "0").isdigit():
            self.fail(f"{text!r} is no context; expected 'cpu', 'gpu:0', or several: 'cpu:0,cpu:1'.", param, ctx)
        found = mx.Context(kind, int(number or 0))
        if kind == "gpu" and found.device_id >= mx.context.num_gpus():
            self.fail(f"{text!r}: MXNet sees {mx.context.num_gpus()} GPUs on this machine.", param, ctx)
        return found


def training_options(name: str, **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options and calls the function with an `Options` first.

    Args:
        name: Folder of the script's output within ``examples/output``.
        **defaults: Defaults by option that are not those below: ``epochs``, ``batch_size``, ...
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {field.name: values.pop(field.name) for field in fields(Options)}
            if own["loss_scale"] == "policy":
                own["loss_scale"] = mxmp.loss_scale.parse(own["policy"].loss_scale)
            require_batch(own["batch_size"], own["ctx"])
            _require_bfloat16(own["policy"], own["ctx"])
            return function(Options(**own), **values)

        for add in reversed(_options(name, defaults)):
            add(call)
        return call

    return decorate


def require_batch(batch_size: int, ctx: Tuple[mx.Context, ...]) -> None:
    """Raise if there is not an example for each context.

    Raises:
        click.BadParameter: If so.
    """
    if batch_size < len(ctx):
        raise click.BadParameter(f"{batch_size} for {len(ctx)} contexts.", param_hint="--batch-size")


def _require_bfloat16(policy: Policy, ctx: Tuple[mx.Context, ...]) -> None:
    if policy.compute_dtype == "bfloat16" and ctx[0].device_type == "cpu" and not runs_bfloat16():
        raise click.BadParameter(describe_bfloat16(read_processor(), runs=False), param_hint="--policy")


ctx_option = click.option(
    "--ctx",
    type=ContextsType(),
    default="cpu",
    show_default=True,
    help="Where to run: cpu, gpu:0, or several: gpu:0,gpu:1.",
)


def policy_option(default: str) -> Callable[[Any], Any]:
    """Return the option ``--policy`` with a default."""
    return click.option(
        "--policy",
        type=PolicyType(),
        default=default,
        show_default=True,
        help="Precision: O0 (float32), O1, O2, mixed_bfloat16, or a policy's fields.",
    )


def _options(name: str, defaults: Dict[str, Any]) -> Tuple[Callable[[Any], Any], ...]:
    at_least_1 = click.IntRange(min=1)
    add = functools.partial(click.option, show_default=True)
    return (
        policy_option(defaults.get("policy", "O1")),
        add("--loss-scale", type=LossScaleType(), default="policy", help="dynamic, a number, none, or the policy's."),
        ctx_option,
        add("--epochs", type=at_least_1, default=defaults.get("epochs", 12)),
        add("--batches", type=at_least_1, help="At most so many per epoch, and to score.  [default: all]"),
        add("--batch-size", type=at_least_1, default=defaults.get("batch_size", 64), help="Of all contexts together."),
        add("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Of weights, order and noise."),
        add("--resume", is_flag=True, help="Go on from the checkpoint in --output, to the bit."),
        add("--force", is_flag=True, help="Replace the checkpoint in --output."),
        click.option(
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            default=OUTPUT / name,
            help=f"Folder to write to.  [default: {os.path.relpath(OUTPUT / name)}]",
        ),
    )
