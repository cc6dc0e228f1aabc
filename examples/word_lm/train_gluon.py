"""Train an LSTM language model with Gluon, in float32 or in mixed precision.

It runs as it is, on the source of Python's standard library; --text names another text. Backpropagation
is truncated at the batch, whose length varies, and gradients are clipped by their global norm after they
are unscaled. On a CPU float16 is emulated: its perplexity is real, its speed is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
from mxnet import autograd, gluon

from examples.common.command import Command
from examples.common.loop import Learner
from examples.common.options import Options, training_options
from examples.common.parts import gluon_part
from examples.common.tally import Tally
from examples.word_lm.model import INITIALIZER, LanguageModel
from examples.word_lm.settings import Hyperparameters, language_options, optimizer_params, train
from examples.word_lm.states import States, begin, recurrent_part, spread
from examples.word_lm.text import Batch, Text


class GluonLearner(Learner):
    """A converted language model and its trainer."""

    def __init__(self, text: Text, options: Options, given: Hyperparameters) -> None:
        mx.random.seed(options.seed)
        self._ctx, self._given = list(options.ctx), given
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        net = LanguageModel(len(text.words), given)
        net.initialize(INITIALIZER, ctx=self._ctx)
        net.hybridize(static_alloc=True)
        symbol = mx.sym.Group(net(*map(mx.sym.Variable, ("data", "hidden", "cell"))))
        self._net = mxmp.gluon.convert(net, options.policy)
        params = optimizer_params(text, options, given)
        self._schedule = params["lr_scheduler"]
        self.scaler = self._trainer = mxmp.gluon.Trainer(
            net.collect_params(), "adam", params, loss_scale=options.loss_scale
        )
        self.states: List[States] = []
        self.parts = {"model": recurrent_part(gluon_part(net, self._trainer, symbol), self, self._ctx)}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch, from the states that the one before it ended with."""
        size = len(batch.words)
        words, following = spread(batch.words, self._ctx), spread(batch.following, self._ctx)
        if batch.first:
            self.states = [self._begin(part) for part in words]
        with autograd.record():
            found = [self._net(part, *states) for part, states in zip(words, self.states)]
            logits = [each[0].astype("float32", copy=False) for each in found]
            losses = [self._loss(*pair) for pair in zip(logits, following)]  # (N,), means over T words
            with self._trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        self.states = [[state.detach() for state in states] for _, *states in found]
        self._trainer.clip_global_norm(self._given.clip * size)  # of gradients summed over N, until step divides them
        self._schedule.see(batch.words)
        self._trainer.step(size)
        tally = Tally(logits=True)
        for pair in zip(logits, following):
            tally.add(*pair)
        return tally.figures()

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return perplexity and accuracy on batches."""
        tally = Tally(logits=True)
        states: States = []
        for batch in batches:
            words = batch.words.as_in_context(self._ctx[0])
            logits, *states = self._net(words, *(self._begin(words) if batch.first else states))
            tally.add(logits, batch.following)
        return {"perplexity": tally.perplexity, "accuracy": tally.accuracy}

    def _begin(self, words: mx.nd.NDArray) -> States:
        return begin(self._given.layers, len(words), self._given.hidden, words.context)


@click.command(cls=Command)
@language_options
@training_options("word_lm_gluon", epochs=6, batch_size=32)
def main(options: Options, **values: Any) -> None:
    """Train an LSTM language model with Gluon, in float32 or in mixed precision."""
    train("Gluon", GluonLearner, options, **values)


if __name__ == "__main__":
    main()
