"""The language model, for Gluon and for the Symbolic API."""

from __future__ import annotations

from typing import Any, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

from examples.word_lm.settings import Hyperparameters
from symbols import lstm_lm

INITIALIZER = mx.init.Uniform(0.1)
"""Of weights; biases start at 0, but for those of forget gates, which add up to 1."""


class LanguageModel(gluon.HybridBlock):
    """Embedding, fused LSTM, and logits of the word that follows.

    Args:
        vocabulary: Number of words.
        given: Sizes, dropout, and whether the embedding is the weight of the last layer as well.

    References:
        Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017,
        https://arxiv.org/abs/1608.05859
    """

    def __init__(self, vocabulary: int, given: Hyperparameters) -> None:
        super().__init__(prefix="lm_")
        hidden = given.hidden
        with self.name_scope():
            self.embedding = nn.Embedding(vocabulary, hidden, prefix="embedding_")
            # Not the LSTM's own dropout: on a CPU its seed is not MXNet's, and no run could be repeated.
            self.dropout = nn.Dropout(given.dropout)
            # The forget bias: Jozefowicz et al., "An Empirical Exploration of Recurrent Network Architectures", 2015.
            options = {"layout": "NTC", "input_size": hidden, "i2h_bias_initializer": mx.init.LSTMBias(1.0)}
            self.lstm = rnn.LSTM(hidden, given.layers, prefix="lstm_", **options)
            shared = self.embedding.params if given.tied else None
            self.decoder = nn.Dense(vocabulary, flatten=False, in_units=hidden, params=shared, prefix="decoder_")

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Tuple[Any, Any, Any]:
        """Return logits (N, T, vocabulary) and the states after the last of the words (N, T)."""
        outputs, states = self.lstm(self.dropout(self.embedding(words)), [hidden, cell])
        return (self.decoder(self.dropout(outputs)), *states)


def symbol_generator(vocabulary: int, given: Hyperparameters) -> lstm_lm.SymGen:
    """Return what BucketingModule wants: a function of the number of words T.

    The symbol is the model of `LanguageModel`, with probabilities (N * T, vocabulary) for logits, and its
    gradients are those of the mean over T. Parameters have names of their own.
    """
    options = {"num_hidden": given.hidden, "num_layers": given.layers, "tie_weights": given.tied}

    def generate(length: int) -> Tuple[Any, Tuple[str, ...], Tuple[str, ...]]:
        dropout = {"dropout": given.dropout, "layer_dropout": 0.0}  # as in LanguageModel, and for the same reason
        return lstm_lm.sym_gen(vocabulary, carry_states=True, grad_scale=1 / length, **dropout, **options)(length)

    return generate
