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
from mxmp.diagnose import runs_bfloat16
from mxmp.loss_scale import LossScale

OUTPUT = Path(__file__).resolve().parent.parent / "output"
"""Where scripts write unless told otherwise; git ignores it."""

Decorator = Callable[[Any], Any]


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
        kept = {name.replace("_", "-"): getattr(self, name) for name in ("epochs", "batches", "batch_size", "seed")}
        return {"policy": str(self.policy), "loss-scale": self.loss_scale.to_dict(), **kept}


def parsed_option(parse: Callable[[str], Any], *names: str, **settings: Any) -> Decorator:
    """Return an option whose text is parsed; a ValueError of the parser is the user's."""

    def read(ctx: click.Context, param: click.Parameter, text: str) -> Any:
        try:
            return parse(text)
        except ValueError as e:
            raise click.BadParameter(str(e), ctx, param) from e

    return click.option(*names, callback=read, **{"show_default": True, **settings})


def read_contexts(text: str) -> Tuple[mx.Context, ...]:
    """Return one context or several: 'cpu', 'cpu:0,cpu:1', 'gpu:0'; all exist here."""
    found = []
    for each in map(str.strip, text.split(",")):
        kind, _, number = each.partition(":")
        if kind not in ("cpu", "gpu") or not (number or "0").isdigit():
            raise ValueError(f"{each!r} is no context; expected 'cpu', 'gpu:0', or several: 'cpu:0,cpu:1'.")
        if kind == "gpu" and int(number or 0) >= mx.context.num_gpus():
            raise ValueError(f"{each!r}: MXNet sees {mx.context.num_gpus()} GPUs on this machine.")
        found.append(mx.Context(kind, int(number or 0)))
    if len(set(found)) < len(found) or len({each.device_type for each in found}) > 1:
        raise ValueError(f"{text!r}: expected different contexts of one kind.")
    return tuple(found)


def read_loss_scale(text: str) -> Optional[LossScale]:
    """Return what 'dynamic', 'none' or a number means; None for 'policy'."""
    try:
        return None if text == "policy" else mxmp.loss_scale.parse(None if text == "none" else text)
    except mxmp.errors.LossScaleError as e:
        raise ValueError(str(e).replace(" a LossScale or None", " 'none' or 'policy'")) from e


def training_options(name: str, policy: str = "O1", epochs: int = 12, batch_size: int = 64) -> Decorator:
    """Return a decorator that adds the options and calls the function with an `Options` first.

    The name is that of the folder within `OUTPUT`.
    """
    at_least_1 = click.IntRange(min=1)
    add = functools.partial(click.option, show_default=True)
    scale = {"default": "policy", "metavar": "SCALE", "help": "dynamic, a number, none, or the policy's."}
    options = (
        policy_option(policy),
        parsed_option(read_loss_scale, "--loss-scale", **scale),
        ctx_option,
        add("--epochs", type=at_least_1, default=epochs),
        add("--batches", type=at_least_1, help="At most so many per epoch, and to score.  [default: all]"),
        add("--batch-size", type=at_least_1, default=batch_size, help="Of all contexts together."),
        add("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Of weights, order and noise."),
        add("--resume", is_flag=True, help="Go on from the checkpoint in --output, to the bit."),
        add("--force", is_flag=True, help="Replace the checkpoint in --output."),
        output_option(name, "Folder to write to."),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {field.name: values.pop(field.name) for field in fields(Options)}
            own["loss_scale"] = own["loss_scale"] or mxmp.loss_scale.parse(own["policy"].loss_scale)
            require_batch(own["batch_size"], own["ctx"])
            if own["policy"].compute_dtype == "bfloat16" and own["ctx"][0].device_type == "cpu" and not runs_bfloat16():
                raise click.BadParameter(
                    "bfloat16 does not run on this processor: MXNet needs AVX-512 for it.", param_hint="--policy"
                )
            return function(Options(**own), **values)

        return add_options(call, options)

    return decorate


def add_options(function: Callable[..., Any], options: Tuple[Decorator, ...]) -> Callable[..., Any]:
    """Return a function with options, which help lists in this order."""
    return functools.reduce(lambda each, add: add(each), reversed(options), function)


def require_batch(batch_size: int, ctx: Tuple[mx.Context, ...]) -> None:
    """Raise a click.BadParameter if there is not an example for each context."""
    if batch_size < len(ctx):
        raise click.BadParameter(f"{batch_size} for {len(ctx)} contexts.", param_hint="--batch-size")


ctx_option = parsed_option(
    read_contexts, "--ctx", default="cpu", metavar="CONTEXTS", help="Where to run: cpu, gpu:0, or several: gpu:0,gpu:1."
)


def policy_option(default: str) -> Decorator:
    """Return the option ``--policy`` with a default."""
    text = "Precision: O0 (float32), O1, O2, mixed_bfloat16, or a policy's fields."
    return parsed_option(Policy.parse, "--policy", default=default, metavar="POLICY", help=text)


def learning_rate_option(default: float) -> Decorator:
    """Return the option ``--learning-rate`` with a default."""
    positive = click.FloatRange(min=0, min_open=True)
    return click.option("--learning-rate", type=positive, default=default, show_default=True, help="The largest.")


def output_option(name: str, text: str) -> Decorator:
    """Return the option ``--output``, by default a folder within `OUTPUT`."""
    kind: Any = click.Path(file_okay=False, path_type=Path)
    text = f"{text}  [default: {os.path.relpath(OUTPUT / name)}]"
    return click.option("--output", type=kind, default=OUTPUT / name, help=text)
