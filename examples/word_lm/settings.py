"""What both training scripts share beside model and text: options, schedule, and the run itself."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import click
import mxnet as mx

from examples.common.loop import Learner, run, total_steps
from examples.common.options import Options, add_options, learning_rate_option
from examples.word_lm.text import Text, read


@dataclass(frozen=True)
class Hyperparameters:
    """What decides on model and training.

    Attributes:
        length: T, words that a batch usually has of each row.
        hidden: Units of each layer, and of the embedding.
        layers: Layers of LSTM.
        dropout: Fraction dropped of the embedding and of the last layer's output.
        tied: Whether the embedding is the weight of the last layer as well.
        clip: The global norm that gradients of the mean loss of a word are clipped to.
        learning_rate: Of Adam, at its largest.
    """

    length: int
    hidden: int
    layers: int
    dropout: float
    tied: bool
    clip: float
    learning_rate: float


class LengthSchedule(mx.lr_scheduler.CosineScheduler):
    """A rate that warms up, falls like a cosine to 0, and is in proportion to the length of the present batch.

    Without that short batches would count for more than long ones.

    Args:
        steps: Of the whole run; skipped ones do not count as any.
        learning_rate: The largest, of a batch of the usual length.
        length: The usual length.

    Attributes:
        factor: Length of the present batch over the usual one.

    References:
        Merity et al., "Regularizing and Optimizing LSTM Language Models", 2017, section 4.1,
        https://arxiv.org/abs/1708.02182
    """

    def __init__(self, steps: int, learning_rate: float, length: int) -> None:
        super().__init__(steps, base_lr=learning_rate, warmup_steps=steps // 20)
        self._length = length
        self.factor = 1.0

    def see(self, words: mx.nd.NDArray) -> None:
        """Take the length of a batch (N, T) that is about to be learned."""
        self.factor = words.shape[1] / self._length

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of an update."""
        return self.factor * super().__call__(num_update)


def optimizer_params(text: Text, options: Options, given: Hyperparameters) -> Dict[str, Any]:
    """Return the parameters of Adam."""
    schedule = LengthSchedule(total_steps(text, options), given.learning_rate, given.length)
    return {"learning_rate": given.learning_rate, "lr_scheduler": schedule}


_at_least_1 = click.IntRange(min=1)
_add = functools.partial(click.option, show_default=True)
_OPTIONS = (
    click.option(
        "--text",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A text in UTF-8.  [default: modules of Python's standard library]",
    ),
    _add("--vocabulary", type=click.IntRange(min=2), default=5000, help="Words told apart."),
    _add("--length", type=_at_least_1, default=35, help="Words that gradients reach; some batches have more or fewer."),
    _add("--hidden", type=_at_least_1, default=200, help="Units of each layer."),
    _add("--layers", type=_at_least_1, default=2, help="Layers of LSTM."),
    _add("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.2),
    _add("--tied/--untied", default=True, help="One weight for embedding and last layer."),
    _add("--clip", type=click.FloatRange(min=0, min_open=True), default=0.25, help="The largest norm of gradients."),
    learning_rate_option(0.004),
)


def language_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of text, model and training; they are the arguments of `train` but for the first two."""
    return add_options(function, _OPTIONS)


def train(
    front: str,
    learner: Callable[[Text, Options, Hyperparameters], Learner],
    options: Options,
    text: Optional[Path],
    vocabulary: int,
    **hyperparameters: Any,
) -> None:
    """Train on a text, as `examples.common.loop.run` does.

    Args:
        front: 'Gluon' or 'Module'.
        learner: What makes the model and its trainer.
        options: The options that every script has.
        text: The text's file; None for the standard library.
        vocabulary: Words told apart.
        **hyperparameters: `Hyperparameters`.
    """
    given = Hyperparameters(**hyperparameters)
    data = Text(*read(text), vocabulary, given.length)
    data.test(options.batch_size)  # refuses a text that is too short before it trains
    made = learner(data, options, given)
    own = {
        "script": f"word_lm_{front.lower()}",
        "text": data.checksum,
        "vocabulary": len(data.words),
        **dataclasses.asdict(given),
    }
    trained, tested = data.sizes
    click.echo(f"{trained:,} words to train on, {tested:,} held out, {len(data.words):,} told apart")
    title = f"LSTM on {text.name if text else 'the standard library'}, {front}"
    run(made, data, options, {name.replace("_", " "): value for name, value in own.items()}, title)
