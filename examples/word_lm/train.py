"""Train an LSTM language model with Gluon, in float32 or in mixed precision.

It runs as it is, on the source of Python's standard library; --text names another text. Backpropagation
is truncated at the batch, and gradients are clipped by their global norm after they are unscaled. On a
CPU float16 is emulated: its perplexity is real, its speed is not.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxnet as mx
from mxnet import autograd, gluon

import mxmp
from examples.common.command import Command
from examples.common.loop import Learner, run, total_steps
from examples.common.options import Options, training_options
from examples.word_lm.model import LanguageModel, RecurrentPart, split
from examples.word_lm.text import Batch, Text, read


class WordLearner(Learner):
    """A converted language model and its trainer.

    Args:
        net: The model, not initialized.
        text: What it is to learn.
        options: The options of the script.
        learning_rate: Of Adam, at its largest.
        clip: The global norm that gradients of the mean loss of a word are clipped to.
    """

    def __init__(self, net: LanguageModel, text: Text, options: Options, learning_rate: float, clip: float) -> None:
        mx.random.seed(options.seed)
        self._ctx, self._clip = list(options.ctx), clip
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        net.initialize(mx.init.Uniform(0.1), ctx=self._ctx)
        net.hybridize(static_alloc=True)
        symbol = mx.sym.Group(net(*map(mx.sym.Variable, ("data", "hidden", "cell"))))
        self._net = mxmp.gluon.convert(net, options.policy)
        steps = total_steps(text, options)
        schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=learning_rate, warmup_steps=steps // 20)
        params = {"learning_rate": learning_rate, "lr_scheduler": schedule}
        self._trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", params, loss_scale=options.loss_scale)
        self._part = RecurrentPart(net, self._trainer, symbol, self._ctx)
        self.parts = {"model": self._part}

    @property
    def loss_scale(self) -> float:
        """The present loss scale."""
        return self._trainer.loss_scale.value

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far."""
        return self._trainer.skipped_steps

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch, from the states that the one before it ended with."""
        size = len(batch.words)
        words, following = split(batch.words, self._ctx), split(batch.following, self._ctx)
        if batch.first:
            self._part.states = [self._net.begin(len(part), part.context) for part in words]
        with autograd.record():
            found = [self._net(part, *states) for part, states in zip(words, self._part.states)]
            logits = [each[0].astype("float32", copy=False) for each in found]
            losses = [self._loss(*pair) for pair in zip(logits, following)]  # (N,), means over T words
            with self._trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        self._part.states = [[state.detach() for state in states] for _, *states in found]
        self._trainer.clip_global_norm(self._clip * size)  # of gradients summed over N, as long as no step divides
        self._trainer.step(size)
        tally = Tally()
        for outputs, labels in zip(logits, following):
            tally.add(outputs, labels)
        return {"loss": tally.loss, "accuracy": tally.accuracy}

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return perplexity and accuracy on batches."""
        tally, states = Tally(), []
        for batch in batches:
            words = batch.words.as_in_context(self._ctx[0])
            if batch.first:
                states = self._net.begin(len(words), words.context)
            logits, *states = self._net(words, *states)
            tally.add(logits.astype("float32", copy=False), batch.following.as_in_context(words.context))
        return {"perplexity": math.exp(min(tally.loss, 700.0)), "accuracy": tally.accuracy}


class Tally:
    """Sums over words."""

    def __init__(self) -> None:
        self._sums: List[float] = [0.0, 0.0]
        self._count = 0

    def add(self, logits: mx.nd.NDArray, labels: mx.nd.NDArray) -> None:
        """Add logits (N, T, vocabulary), float32, and the words (N, T) that follow; waits for the logits."""
        losses = -mx.nd.pick(mx.nd.log_softmax(logits), labels)
        right = logits.argmax(axis=2) == labels
        sums = mx.nd.stack(losses.sum(), right.sum()).asnumpy().ravel()
        self._sums = [before + float(each) for before, each in zip(self._sums, sums)]
        self._count += labels.size

    @property
    def loss(self) -> float:
        """The mean cross-entropy of a word, in nats."""
        return self._sums[0] / self._count

    @property
    def accuracy(self) -> float:
        """The fraction of words that had the largest logit, from 0 to 1."""
        return self._sums[1] / self._count


_at_least_1 = click.IntRange(min=1)
_positive = click.FloatRange(min=0, min_open=True)


@click.command(cls=Command)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text in UTF-8.  [default: modules of Python's standard library]",
)
@click.option("--vocabulary", type=click.IntRange(min=2), default=5000, show_default=True, help="Words told apart.")
@click.option("--length", type=_at_least_1, default=35, show_default=True, help="Words that gradients reach back.")
@click.option("--hidden", type=_at_least_1, default=200, show_default=True, help="Units of each layer.")
@click.option("--layers", type=_at_least_1, default=2, show_default=True, help="Layers of LSTM.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.2, show_default=True)
@click.option("--tied/--untied", default=True, show_default=True, help="One weight for embedding and last layer.")
@click.option("--clip", type=_positive, default=0.25, show_default=True, help="The largest norm of all gradients.")
@click.option("--learning-rate", type=_positive, default=0.004, show_default=True, help="The largest.")
@training_options("word_lm", epochs=6, batch_size=32)
def main(
    options: Options,
    text: Optional[Path],
    vocabulary: int,
    length: int,
    learning_rate: float,
    clip: float,
    **model: Any,
) -> None:
    """Train an LSTM language model with Gluon, in float32 or in mixed precision."""
    data = Text(*read(text), vocabulary, length)
    data.test(options.batch_size)  # refuses a text that is too short before it trains
    learner = WordLearner(LanguageModel(len(data.words), **model), data, options, learning_rate, clip)
    settings = {
        "script": "word_lm",
        "text": data.checksum,
        "vocabulary": len(data.words),
        "length": length,
        "learning rate": learning_rate,
        "clip": clip,
        **model,
    }
    trained, tested = data.sizes
    click.echo(f"{trained:,} words to train on, {tested:,} held out, {len(data.words):,} told apart")
    run(learner, data, options, settings, f"LSTM on {text.name if text else 'the standard library'}, Gluon")


if __name__ == "__main__":
    main()
