"""Train an LSTM language model with the Symbolic API, in float32 or in mixed precision.

It runs as it is, on the source of Python's standard library; --text names another text. Backpropagation
is truncated at the batch, whose length varies: each length is a bucket. Gradients are clipped by their
global norm after they are unscaled. On a CPU float16 is emulated: its perplexity is real, its speed is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx

from examples.common.command import Command
from examples.common.loop import Learner
from examples.common.options import Options, training_options
from examples.common.parts import module_part
from examples.common.tally import Tally
from examples.word_lm.model import INITIALIZER, symbol_generator
from examples.word_lm.settings import Hyperparameters, language_options, optimizer_params, train
from examples.word_lm.states import States, begin, recurrent_part
from examples.word_lm.text import Batch, Text
from symbols.lstm_lm import STATES

Descriptions = Tuple[Tuple[mx.io.DataDesc, ...], Tuple[mx.io.DataDesc, ...]]


class ModuleLearner(Learner):
    """A language model of several lengths in mixed precision.

    The states are data: they go in with the words, and come out behind the probabilities.
    """

    def __init__(self, text: Text, options: Options, given: Hyperparameters) -> None:
        mx.random.seed(options.seed)
        self._ctx, self._given = options.ctx[0], given
        longest = max(text.lengths)  # as the default: all others then find room in its memory
        module = mxmp.module.BucketingModule(
            symbol_generator(len(text.words), given),
            default_bucket_key=longest,
            context=list(options.ctx),
            policy=options.policy,
            loss_scale=options.loss_scale,
        )
        module.bind(*self._describe(options.batch_size, longest))
        module.init_params(INITIALIZER)
        params = optimizer_params(text, options, given)
        self._schedule = params["lr_scheduler"]
        module.init_optimizer(optimizer="adam", optimizer_params=params)
        self.scaler = self._module = module
        self.states: List[States] = []
        self.parts = {"model": recurrent_part(module_part(module), self, [self._ctx])}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch, from the states that the one before it ended with."""
        states = self._begin(batch) if batch.first else self.states[0]
        self._module.forward_backward(self._feed(batch, states))
        probabilities, states = self._outputs()
        self.states = [states]
        size = len(batch.words)
        self._module.clip_global_norm(self._given.clip * size)  # of gradients summed over N, until update divides them
        self._schedule.see(batch.words)
        self._module.update()
        tally = Tally(logits=False)
        tally.add(probabilities, batch.following)
        return tally.figures()

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return perplexity and accuracy on batches."""
        tally = Tally(logits=False)
        states: States = []
        for batch in batches:
            self._module.forward(self._feed(batch, self._begin(batch) if batch.first else states), is_train=False)
            probabilities, states = self._outputs()
            tally.add(probabilities, batch.following)
        return {"perplexity": tally.perplexity, "accuracy": tally.accuracy}

    def _begin(self, batch: Batch) -> States:
        return begin(self._given.layers, len(batch.words), self._given.hidden, self._ctx)

    def _feed(self, batch: Batch, states: States) -> mx.io.DataBatch:
        """Return a batch that says which bucket it belongs to."""
        data, label = self._describe(*batch.words.shape)
        return mx.io.DataBatch(
            [batch.words, *states],
            [batch.following],
            bucket_key=batch.words.shape[1],
            provide_data=data,
            provide_label=label,
        )

    def _outputs(self) -> Tuple[mx.nd.NDArray, States]:
        """Return probabilities and states; these are copies, as the next batch overwrites what the executors hold."""
        probabilities, *states = self._module.get_outputs()
        return probabilities, [state.astype("float32") for state in states]

    def _describe(self, batch_size: int, length: int) -> Descriptions:
        """Return shapes and layouts of data and labels."""
        words, state = (batch_size, length), (self._given.layers, batch_size, self._given.hidden)
        states = (mx.io.DataDesc(name, state, layout="LNC") for name in STATES)
        return (mx.io.DataDesc("data", words), *states), (mx.io.DataDesc("softmax_label", words),)


@click.command(cls=Command)
@language_options
@training_options("word_lm_module", epochs=6, batch_size=32)
def main(options: Options, **values: Any) -> None:
    """Train an LSTM language model with the Symbolic API, in float32 or in mixed precision."""
    train("Module", ModuleLearner, options, **values)


if __name__ == "__main__":
    main()
