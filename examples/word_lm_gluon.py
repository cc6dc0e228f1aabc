"""A language model with Gluon
===========================

Trains an LSTM on text in mixed precision. Backpropagation through time ends at the batch, and states are carried over.
``trainer.clip_global_norm`` clips the true gradients, without the loss scale.

Run ``python word_lm_gluon.py --epochs 2 --words 20000 --vocabulary 500`` on the source of Python's standard library.
``--text`` takes a file::

    epoch 1: perplexity 111.45, loss scale 2048, 1 steps skipped
    epoch 2: perplexity 110.17, loss scale 2048, 1 steps skipped
"""

import argparse
import math

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from rich.console import Console
from rich.progress import track

from plots import curves  # next to this file
from sample_data import lines, numbers  # next to this file: reads a text

parser = argparse.ArgumentParser(description="Train an LSTM language model with Gluon.")
parser.add_argument("--text", metavar="FILE", help="in UTF-8; default: modules of Python's standard library")
parser.add_argument("--words", type=int, default=150000, help="of the text that are read; an eighth is held out")
parser.add_argument("--vocabulary", type=int, default=2000, help="words told apart")
parser.add_argument("--hidden", type=int, default=100, help="units of each layer")
parser.add_argument("--policy", default="O1,op:RNN=float16", help="O1 alone keeps the LSTM in float32, O0 all")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
BATCH_SIZE, LENGTH = 32, 35  # rows of text side by side; words that gradients reach
mx.random.seed(args.seed)


def read_words():
    """Return the first words of a text as numbers, the most frequent word first; 0 is any other word."""
    words = [word for line in lines(args.text) for word in (*line, "\n")][: args.words]
    number = numbers(words, args.vocabulary, first=1)
    return np.array([number.get(word, 0) for word in words], dtype="float32")


def make_batches(words):
    """Return pairs of arrays (BATCH_SIZE, LENGTH): words, and the words that follow them."""
    columns = len(words) // BATCH_SIZE
    rows = mx.nd.array(words[: columns * BATCH_SIZE].reshape(BATCH_SIZE, columns), ctx=ctx)
    starts = range(0, columns - LENGTH, LENGTH)
    return [(rows[:, at : at + LENGTH], rows[:, at + 1 : at + LENGTH + 1]) for at in starts]


class LanguageModel(gluon.HybridBlock):
    """Embedding, LSTM, and the logits of the word that follows."""

    def __init__(self):
        super().__init__(prefix="lm_")
        with self.name_scope():
            self.embedding = nn.Embedding(args.vocabulary, args.hidden)
            self.dropout = nn.Dropout(0.2)
            self.lstm = rnn.LSTM(args.hidden, layout="NTC", input_size=args.hidden)
            self.decoder = nn.Dense(args.vocabulary, flatten=False, in_units=args.hidden, params=self.embedding.params)

    def hybrid_forward(self, F, words, hidden, cell):
        """Return logits (N, T, vocabulary) and the states after the last word."""
        outputs, states = self.lstm(self.dropout(self.embedding(words)), [hidden, cell])
        return (self.decoder(self.dropout(outputs)), *states)


words = read_words()
training, held_out = make_batches(words[: -len(words) // 8]), make_batches(words[-len(words) // 8 :])
net = LanguageModel()
net.initialize(mx.init.Uniform(0.1), ctx=ctx)
net.hybridize(static_alloc=True)
mxmp.gluon.convert(net, args.policy)
schedule = mx.lr_scheduler.CosineScheduler(args.epochs * len(training), base_lr=0.004, warmup_steps=len(training) // 4)
trainer = mxmp.gluon.Trainer(net, "adam", {"learning_rate": 0.004, "lr_scheduler": schedule})
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
zeros = [mx.nd.zeros((1, BATCH_SIZE, args.hidden), ctx=ctx) for _ in range(2)]

history = []
for epoch in range(1, args.epochs + 1):
    states = zeros
    for inputs, following in track(training, f"epoch {epoch}", console=Console(stderr=True), transient=True):
        states = [state.detach() for state in states]
        with autograd.record():
            logits, *states = net(inputs, *states)
            loss = cross_entropy(logits, following)  # (N,), means over the words of a row
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.clip_global_norm(0.25, BATCH_SIZE)  # of the mean over the rows, by which step updates
        trainer.step(BATCH_SIZE)
    states, losses = zeros, []
    for inputs, following in held_out:
        logits, *states = net(inputs, *states)
        losses.append(cross_entropy(logits, following).mean().asscalar())
    perplexity = math.exp(np.mean(losses))
    text = f"epoch {epoch}: perplexity {perplexity:.2f}"
    history.append((perplexity, trainer.loss_scale.value))
    print(f"{text}, loss scale {trainer.loss_scale.value:g}, {trainer.skipped_steps} steps skipped", flush=True)
net.save_parameters("language_model.params")
perplexities, scales = zip(*history)
curves("word_lm_gluon.png", "Words of Python's standard library", "epoch", perplexity=perplexities, loss_scale=scales)
