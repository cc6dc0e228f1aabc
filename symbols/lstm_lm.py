"""LSTM language model: embedding, layers of LSTM, softmax over the words.

References:
    Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014,
    https://arxiv.org/abs/1409.2329: the sizes, and dropout on the connections that are not recurrent.
    Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017,
    https://arxiv.org/abs/1608.05859: tied weights.
Deviations: each gate has two biases, as in cuDNN and MXNet's RNN operator; the forget gate's add up to 1 at the start
(Jozefowicz et al., "An Empirical Exploration of Recurrent Network Architectures", 2015). The state starts at zero in
each batch, as in MXNet's bucketing examples, where the paper carries it over. The paper's dropout of the large model is
0.65, with weights from -0.04 to 0.04; initial weights are the caller's to choose.

The parameters have the names of ``mx.rnn.FusedRNNCell(prefix='lstm_')`` and, unrolled, of its ``unfuse()``: the
``unpack_weights`` and ``pack_weights`` of those two turn one model's weights into the other's.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import mxnet as mx

_FORGET_BIAS = 1.0

NETWORKS = {
    "lstm_lm_small": {"num_hidden": 200},
    "lstm_lm_medium": {"num_hidden": 650, "dropout": 0.5},
    "lstm_lm_large": {"num_hidden": 1500, "dropout": 0.65},
}

SymGen = Callable[[int], Tuple[Any, Tuple[str, ...], Tuple[str, ...]]]


def get_symbol(
    num_classes: int = 10000,
    seq_len: int = 35,
    num_hidden: int = 200,
    num_embed: Optional[int] = None,
    num_layers: int = 2,
    dropout: float = 0.0,
    fused: bool = True,
    tie_weights: bool = False,
    ignore_label: int = -1,
) -> Any:
    """Return the model for ``data`` (N, T), word indices, and ``softmax_label`` (N, T), the words that follow.

    The output, (N * T, num_classes), has the order of the labels. Gradients are summed over words, as in the paper;
    Module divides them by N. Binding needs the shape of the label as well, for inference too.

    Args:
        num_classes: Words in the vocabulary.
        seq_len: T, in words; only the unrolled model is bound to it.
        num_hidden: Units per layer.
        num_embed: Size of the embedding; ``num_hidden`` if None.
        num_layers: Layers of LSTM.
        dropout: Fraction dropped of the embedding, between layers and of the last layer's output.
        fused: Whether to use MXNet's RNN operator; else one set of nodes for each step.
        tie_weights: Whether the embedding is the weight of the output layer as well.
        ignore_label: A label that adds nothing to the gradient, such as padding.

    Raises:
        ValueError: If weights are tied, but the embedding has another size than the output.
    """
    num_embed = num_hidden if num_embed is None else num_embed
    if tie_weights and num_embed != num_hidden:
        raise ValueError(f"tie_weights: num_embed={num_embed} differs from num_hidden={num_hidden}; make them equal.")
    table = mx.sym.Variable("embed_weight")
    words = mx.sym.Embedding(mx.sym.Variable("data"), table, input_dim=num_classes, output_dim=num_embed, name="embed")
    sequence = mx.sym.transpose(words, axes=(1, 0, 2), name="steps")  # (T, N, num_embed)
    sequence = _dropout(sequence, dropout, "embed_dropout")
    if fused:
        sequence = _fused(sequence, num_hidden, num_layers, dropout)
    else:
        for layer in range(num_layers):
            if layer:
                sequence = _dropout(sequence, dropout, f"lstm_l{layer - 1}_dropout")
            sequence = _unrolled(sequence, f"lstm_l{layer}", num_hidden, seq_len)
    sequence = _dropout(sequence, dropout, "lstm_dropout")
    return _predict(sequence, num_classes, table if tie_weights else mx.sym.Variable("pred_weight"), ignore_label)


def sym_gen(num_classes: int = 10000, **kwargs: Any) -> SymGen:
    """Return what BucketingModule wants: a function of the sequence length, in words.

    Args:
        num_classes: Words in the vocabulary.
        **kwargs: Further arguments of ``get_symbol``, but for ``seq_len``.
    """

    def generate(seq_len: int) -> Tuple[Any, Tuple[str, ...], Tuple[str, ...]]:
        return get_symbol(num_classes, seq_len=seq_len, **kwargs), ("data",), ("softmax_label",)

    return generate


def _fused(sequence: Any, num_hidden: int, num_layers: int, dropout: float) -> Any:
    # FusedRNN gives its bias to both of a forget gate's biases (python/mxnet/initializer.py).
    initial = mx.init.FusedRNN(None, num_hidden, num_layers, "lstm", forget_bias=_FORGET_BIAS / 2)
    zeros = {"shape": (num_layers, 0, num_hidden)}  # 0: the batch size, to be inferred
    return mx.sym.RNN(
        sequence,
        parameters=mx.sym.Variable("lstm_parameters", init=initial),
        state=mx.sym.zeros(name="lstm_begin_state", **zeros),
        state_cell=mx.sym.zeros(name="lstm_begin_cell", **zeros),
        mode="lstm",
        state_size=num_hidden,
        num_layers=num_layers,
        p=dropout,
        name="lstm_rnn",
    )


def _unrolled(sequence: Any, name: str, num_hidden: int, seq_len: int) -> Any:
    """Return one layer's outputs (T, N, num_hidden); its inputs are multiplied for all steps at once."""
    bias = mx.sym.Variable(f"{name}_i2h_bias", init=mx.init.LSTMBias(forget_bias=_FORGET_BIAS))
    weight, weight_bias = mx.sym.Variable(f"{name}_h2h_weight"), mx.sym.Variable(f"{name}_h2h_bias")
    i2h = mx.sym.FullyConnected(sequence, bias=bias, num_hidden=4 * num_hidden, flatten=False, name=f"{name}_i2h")
    inputs = mx.sym.SliceChannel(i2h, num_outputs=seq_len, axis=0, squeeze_axis=True, name=f"{name}_inputs")
    state = mx.sym.zeros(shape=(0, num_hidden), name=f"{name}_begin_state")
    cell = mx.sym.zeros(shape=(0, num_hidden), name=f"{name}_begin_cell")
    outputs = []
    for step in range(seq_len):
        at = f"{name}_t{step}"
        h2h = mx.sym.FullyConnected(state, weight, weight_bias, num_hidden=4 * num_hidden, name=f"{at}_h2h")
        state, cell = _step(mx.sym.elemwise_add(inputs[step], h2h, name=f"{at}_gates"), cell, at)
        outputs.append(state)
    return mx.sym.stack(*outputs, axis=0, name=f"{name}_outputs")


def _step(gates: Any, cell: Any, name: str) -> Tuple[Any, Any]:
    """Return the next state and cell, (N, num_hidden) both, from the gates in MXNet's order: i, f, c, o."""
    gate_in, gate_forget, candidate, gate_out = mx.sym.SliceChannel(gates, num_outputs=4, axis=1, name=f"{name}_slice")
    gate_in = mx.sym.Activation(gate_in, act_type="sigmoid", name=f"{name}_i")
    gate_forget = mx.sym.Activation(gate_forget, act_type="sigmoid", name=f"{name}_f")
    candidate = mx.sym.Activation(candidate, act_type="tanh", name=f"{name}_c")
    gate_out = mx.sym.Activation(gate_out, act_type="sigmoid", name=f"{name}_o")
    kept = mx.sym.elemwise_mul(gate_forget, cell, name=f"{name}_kept")
    added = mx.sym.elemwise_mul(gate_in, candidate, name=f"{name}_added")
    cell = mx.sym.elemwise_add(kept, added, name=f"{name}_cell")
    shown = mx.sym.Activation(cell, act_type="tanh", name=f"{name}_shown")
    return mx.sym.elemwise_mul(gate_out, shown, name=f"{name}_state"), cell


def _predict(sequence: Any, num_classes: int, weight: Any, ignore_label: int) -> Any:
    rows = mx.sym.transpose(sequence, axes=(1, 0, 2), name="batches")
    rows = mx.sym.Reshape(rows, shape=(-3, 0), name="rows")  # (N * T, num_hidden)
    logits = mx.sym.FullyConnected(rows, weight, num_hidden=num_classes, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,), name="label_rows")
    return mx.sym.SoftmaxOutput(logits, label, use_ignore=True, ignore_label=ignore_label, name="softmax")


def _dropout(data: Any, fraction: float, name: str) -> Any:
    return mx.sym.Dropout(data, p=fraction, name=name) if fraction else data
