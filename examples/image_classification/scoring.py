"""How many images a checkpoint gets right, whatever wrote it."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional

import click
import mxnet as mx
from mxmp.symbol import on_cpu
from mxnet import gluon

from examples.common.options import add_options, ctx_option
from examples.image_classification.arrays import Batch, Images
from examples.image_classification.data import data_options, load


@dataclass(frozen=True)
class Scored:
    """What to score on.

    Attributes:
        name: Of the data.
        images: The data.
        batch_size: Images at once.
        limit: Batches at most; None for all.
        ctx: Where to run.
    """

    name: str
    images: Images
    batch_size: int
    limit: Optional[int]
    ctx: mx.Context

    def batches(self) -> Iterable[Batch]:
        """Return the batches held out, as far as they are wanted."""
        return itertools.islice(self.images.test(self.batch_size), self.limit)


def scoring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what to score on and where; the function gets a `Scored` called ``scored``."""

    @functools.wraps(function)
    def call(data: str, data_dir: Any, image_size: Any, batch_size: int, batches: Any, ctx: Any, **others: Any) -> Any:
        if len(ctx) > 1:
            raise click.BadParameter("scoring takes one context.", param_hint="--ctx")
        images = load(data, data_dir, image_size)
        return function(scored=Scored(data, images, batch_size, batches, ctx[0]), **others)

    count = click.IntRange(min=1)
    options = (
        data_options,
        ctx_option,
        click.option("--batch-size", type=count, default=64, show_default=True, help="Images at once."),
        click.option("--batches", type=count, help="Score at most so many batches.  [default: all]"),
    )
    return add_options(call, options)


class Score(NamedTuple):
    """Accuracy, from 0 to 1, of so many images, and the images per second."""

    accuracy: float
    count: int
    speed: float


def score(model: Iterable[Any], batches: Iterable[Batch], ctx: mx.Context) -> Score:
    """Return how well a model does on batches; the first one does not count for the speed.

    Args:
        model: Symbol, arguments and auxiliary states, in the dtypes that it is to run in. The symbol
            has one output, (N, classes), logits or probabilities.
        batches: Images and labels.
        ctx: Where to run; on a CPU float16 is emulated.
    """
    symbol, arg_params, aux_params = model
    net, inputs = make_block(symbol, {**arg_params, **aux_params}, ctx)
    right, count, timed, seconds = 0, 0, 0, 0.0
    for batch in batches:
        start = time.perf_counter()
        images = batch.images.as_in_context(ctx)
        labels = mx.nd.zeros(len(images), ctx=ctx)  # a loss head asks for them, even to predict
        try:
            outputs = net(*[images if name == "data" else labels for name in inputs])
            predicted = outputs.astype("float32", copy=False).asnumpy().argmax(axis=1)
        except (mx.MXNetError, AssertionError) as e:
            shape = "x".join(map(str, images.shape[1:]))
            raise click.ClickException(f"the network does not take images of {shape}: {_last_line(e)}") from e
        if batch.labels.max().asscalar() >= outputs.shape[1]:
            raise click.ClickException(f"the network has {outputs.shape[1]} classes, and the data has more.")
        if count:
            seconds, timed = seconds + time.perf_counter() - start, timed + len(images)
        right += int((predicted == batch.labels.asnumpy()).sum())
        count += len(images)
    if not count:
        raise click.ClickException("there are no images to score on.")
    return Score(right / count, count, timed / seconds if timed else float("nan"))


def make_block(symbol: Any, params: Mapping[str, Any], ctx: mx.Context) -> Any:
    """Return a Gluon block that runs a symbol, and the names of its inputs.

    A block, since MXNet fuses operators when it binds a symbol for inference on a CPU, and gets some
    residual networks wrong.
    """
    runnable = on_cpu(symbol) if ctx.device_type == "cpu" else symbol
    inputs = [name for name in runnable.list_arguments() if name not in params]
    if "data" not in inputs:
        raise click.ClickException(f"the checkpoint's network has the inputs {inputs}; expected 'data'.")
    net = gluon.SymbolBlock(runnable, [mx.sym.Variable(name) for name in inputs])
    values: Dict[str, Any] = {name: params[name] for name in net.collect_params()}
    net.collect_params().load_dict(values, ctx, cast_dtype=True, dtype_source="saved")
    net.hybridize(static_alloc=True)
    return net, inputs


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
