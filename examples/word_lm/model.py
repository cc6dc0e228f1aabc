"""The language model, and a checkpoint of it that remembers where in the text it stands."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

import mxmp
from examples.common.parts import GluonPart

States = List[mx.nd.NDArray]
"""Hidden and cell state of an LSTM, (layers, N, hidden) each."""

_STATE = "state:"


class LanguageModel(gluon.HybridBlock):
    """Embedding, fused LSTM, and logits of the word that follows.

    Args:
        vocabulary: Number of words.
        hidden: Units of each layer, and of the embedding.
        layers: Layers of LSTM.
        dropout: Fraction dropped of the embedding and of the last layer's output.
        tied: Whether the embedding is the weight of the last layer as well.

    References:
        Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017,
        https://arxiv.org/abs/1608.05859
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float, tied: bool) -> None:
        super().__init__(prefix="lm_")
        self._layers, self._hidden = layers, hidden
        with self.name_scope():
            self.embedding = nn.Embedding(vocabulary, hidden, prefix="embedding_")
            # Not the LSTM's own dropout: on a CPU its seed is not MXNet's, and no run could be repeated.
            self.dropout = nn.Dropout(dropout)
            self.lstm = rnn.LSTM(hidden, layers, layout="NTC", input_size=hidden, prefix="lstm_")
            shared = self.embedding.params if tied else None
            self.decoder = nn.Dense(vocabulary, flatten=False, in_units=hidden, params=shared, prefix="decoder_")

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Tuple[Any, Any, Any]:
        """Return logits (N, T, vocabulary) and the states after the last of the words (N, T)."""
        outputs, states = self.lstm(self.dropout(self.embedding(words)), [hidden, cell])
        return (self.decoder(self.dropout(outputs)), *states)

    def begin(self, batch_size: int, ctx: mx.Context) -> States:
        """Return the states before a text's first word: zeros."""
        return [mx.nd.zeros((self._layers, batch_size, self._hidden), ctx=ctx) for _ in range(2)]


class RecurrentPart(GluonPart):
    """A language model whose checkpoint holds the states that the next batch starts from.

    They lie beside the parameters, as ``state:0`` and ``state:1``, where plain MXNet leaves them alone.

    Args:
        net: As for `GluonPart`, and so are the next two.
        trainer: As above.
        symbol: As above.
        ctx: The contexts of the run.

    Attributes:
        states: States by context; empty before the first batch.
    """

    def __init__(self, net: LanguageModel, trainer: mxmp.gluon.Trainer, symbol: Any, ctx: Sequence[mx.Context]) -> None:
        super().__init__(net, trainer, symbol)
        self._ctx = list(ctx)
        self.states: List[States] = []

    def save_params(self, file: str) -> None:
        """Write parameters and states."""
        super().save_params(file)
        together = [mx.nd.concat(*[each.as_in_context(mx.cpu()) for each in kind], dim=1) for kind in zip(*self.states)]
        mx.nd.save(file, {**mx.nd.load(file), **{f"{_STATE}{i}": array for i, array in enumerate(together)}})

    def load_params(self, file: str) -> None:
        """Read what `save_params` wrote, onto as many contexts as there are now."""
        arrays = mx.nd.load(file)
        together = [arrays.pop(name) for name in sorted(arrays) if name.startswith(_STATE)]
        self._net.collect_params().load_dict(arrays, self._ctx)
        self.states = [list(each) for each in zip(*(split(array, self._ctx, axis=1) for array in together))]


def split(array: mx.nd.NDArray, ctx: Sequence[mx.Context], axis: int = 0) -> List[mx.nd.NDArray]:
    """Return an array's parts, one on each context, as even as they can be."""
    return gluon.utils.split_and_load(array, ctx, batch_axis=axis, even_split=False)
