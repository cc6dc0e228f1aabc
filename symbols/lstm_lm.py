"""LSTM language model: embedding, layers of LSTM, softmax over the words.

References:
    Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014,
    https://arxiv.org/abs/1409.2329: the sizes, and dropout on the connections that are not recurrent.
    Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017,
    https://arxiv.org/abs/1608.05859: tied weights.
Deviations: each gate has two biases, as in cuDNN and MXNet's RNN operator; the forget gate's add up to 1 at the start
(Jozefowicz et al., "An Empirical Exploration of Recurrent Network Architectures", 2015). The state starts at zero in
each batch, as in MXNet's bucketing examples, unless ``carry_states`` has it carried over, as in the paper. The paper's
dropout of the large model is 0.65, with weights from -0.04 to 0.04; initial weights are the caller's to choose.

The parameters have the names of ``mx.rnn.FusedRNNCell(prefix='lstm_')`` and, unrolled, of its ``unfuse()``: the
``unpack_weights`` and ``pack_weights`` of those two turn one model's weights into the other's.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Tuple

import mxnet as mx

_FORGET_BIAS = 1.0

NETWORKS = {
    "lstm_lm_small": {"num_hidden": 200},
    "lstm_lm_medium": {"num_hidden": 650, "dropout": 0.5},
    "lstm_lm_large": {"num_hidden": 1500, "dropout": 0.65},
}

SymGen = Callable[[int], Tuple[Any, Tuple[str, ...], Tuple[str, ...]]]

STATES = ("lstm_begin_state", "lstm_begin_cell")
"""Names of the inputs for carried states, both (num_layers, N, num_hidden)."""


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
    carry_states: bool = False,
    layer_dropout: Optional[float] = None,
    grad_scale: float = 1.0,
) -> Any:
    """Return the model for ``data`` (N, T), word indices, and ``softmax_label`` (N, T), the words that follow.

    The output, (N * T, num_classes), has the order of the labels. Gradients are summed over words, as in the paper;
    Module divides them by N. Binding needs the shape of the label as well, for inference too. Carried states are
    inputs, named as in `STATES`, and further outputs of the same shape and order, through which no gradient flows.

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
        carry_states: Whether states come in and go out; else each batch starts from zeros.
        layer_dropout: Fraction dropped between layers; ``dropout`` if None. In the RNN operator on a CPU its seed is
            not MXNet's, so that only 0 gives runs that can be repeated.
        grad_scale: Multiplies all gradients; ``1 / seq_len`` makes them those of the mean over a row's words.

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
    layer_dropout = dropout if layer_dropout is None else layer_dropout
    begin = [mx.sym.Variable(name) for name in STATES] if carry_states else None
    make = _fused if fused else functools.partial(_unrolled, seq_len=seq_len)
    sequence, *end = make(sequence, begin, num_hidden, num_layers, layer_dropout)
    sequence = _dropout(sequence, dropout, "lstm_dropout")
    table = table if tie_weights else mx.sym.Variable("pred_weight")
    output = _predict(sequence, num_classes, table, ignore_label, grad_scale)
    return mx.sym.Group([output, *map(_stop, end, ("lstm_end_state", "lstm_end_cell"))]) if carry_states else output


def sym_gen(num_classes: int = 10000, **kwargs: Any) -> SymGen:
    """Return what BucketingModule wants: a function of the sequence length, in words.

    Args:
        num_classes: Words in the vocabulary.
        **kwargs: Further arguments of ``get_symbol``, but for ``seq_len``.
    """

    def generate(seq_len: int) -> Tuple[Any, Tuple[str, ...], Tuple[str, ...]]:
        symbol = get_symbol(num_classes, seq_len=seq_len, **kwargs)
        return symbol, ("data", *(STATES if kwargs.get("carry_states") else ())), ("softmax_label",)

    return generate


def _fused(sequence: Any, begin: Optional[List[Any]], num_hidden: int, num_layers: int, dropout: float) -> Any:
    """Return the last layer's outputs (T, N, num_hidden), and the last states if there are any to begin with."""
    # FusedRNN gives its bias to both of a forget gate's biases (python/mxnet/initializer.py).
    initial = mx.init.FusedRNN(None, num_hidden, num_layers, "lstm", forget_bias=_FORGET_BIAS / 2)
    zeros = {"shape": (num_layers, 0, num_hidden)}  # 0: the batch size, to be inferred
    state, cell = begin or [mx.sym.zeros(name=name, **zeros) for name in STATES]
    return mx.sym.RNN(
        sequence,
        parameters=mx.sym.Variable("lstm_parameters", init=initial),
        state=state,
        state_cell=cell,
        mode="lstm",
        state_size=num_hidden,
        num_layers=num_layers,
        p=dropout,
        state_outputs=begin is not None,
        name="lstm_rnn",
    )


def _unrolled(
    sequence: Any, begin: Optional[List[Any]], num_hidden: int, num_layers: int, dropout: float, seq_len: int
) -> List[Any]:
    """Return what `_fused` does."""
    split = {"num_outputs": num_layers, "axis": 0, "squeeze_axis": True}
    states = [mx.sym.SliceChannel(each, name=f"{each.name}_layers", **split) for each in begin or ()]
    ends = []
    for layer in range(num_layers):
        name = f"lstm_l{layer}"
        if layer:
            sequence = _dropout(sequence, dropout, f"lstm_l{layer - 1}_dropout")
        zeros = [mx.sym.zeros(shape=(0, num_hidden), name=f"{name}_begin_{kind}") for kind in ("state", "cell")]
        start = [each[layer] for each in states] or zeros
        sequence, *end = _unrolled_layer(sequence, start, name, num_hidden, seq_len)
        ends.append(end)
    kinds = zip(("state", "cell"), zip(*ends))
    return [sequence, *(mx.sym.stack(*end, axis=0, name=f"lstm_{kind}s") for kind, end in kinds)]


def _unrolled_layer(sequence: Any, start: List[Any], name: str, num_hidden: int, seq_len: int) -> Tuple[Any, Any, Any]:
    """Return one layer's outputs and last states; its inputs are multiplied for all steps at once."""
    bias = mx.sym.Variable(f"{name}_i2h_bias", init=mx.init.LSTMBias(forget_bias=_FORGET_BIAS))
    weight, weight_bias = mx.sym.Variable(f"{name}_h2h_weight"), mx.sym.Variable(f"{name}_h2h_bias")
    i2h = mx.sym.FullyConnected(sequence, bias=bias, num_hidden=4 * num_hidden, flatten=False, name=f"{name}_i2h")
    inputs = mx.sym.SliceChannel(i2h, num_outputs=seq_len, axis=0, squeeze_axis=True, name=f"{name}_inputs")
    state, cell = start
    outputs = []
    for step in range(seq_len):
        at = f"{name}_t{step}"
        h2h = mx.sym.FullyConnected(state, weight, weight_bias, num_hidden=4 * num_hidden, name=f"{at}_h2h")
        state, cell = _step(mx.sym.elemwise_add(inputs[step], h2h, name=f"{at}_gates"), cell, at)
        outputs.append(state)
    return mx.sym.stack(*outputs, axis=0, name=f"{name}_outputs"), state, cell


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


def _predict(sequence: Any, num_classes: int, weight: Any, ignore_label: int, grad_scale: float) -> Any:
    rows = mx.sym.transpose(sequence, axes=(1, 0, 2), name="batches")
    rows = mx.sym.Reshape(rows, shape=(-3, 0), name="rows")  # (N * T, num_hidden)
    logits = mx.sym.FullyConnected(rows, weight, num_hidden=num_classes, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,), name="label_rows")
    options = {"use_ignore": True, "ignore_label": ignore_label, "grad_scale": grad_scale}
    return mx.sym.SoftmaxOutput(logits, label, name="softmax", **options)


def _stop(state: Any, name: str) -> Any:
    """Return a state that stops gradients; executors of several contexts are told its batch axis by its layout."""
    return mx.sym.BlockGrad(state, name=name, attr={"__layout__": "LNC"})


def _dropout(data: Any, fraction: float, name: str) -> Any:
    return mx.sym.Dropout(data, p=fraction, name=name) if fraction else data
