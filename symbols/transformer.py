"""Transformer encoder with a classifier on its first token: BERT and its small relatives.

References:
    Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762.
    Devlin et al., "BERT", 2019, https://arxiv.org/abs/1810.04805: learned positions, token types, GELU, the pooler.
    Turc et al., "Well-Read Students Learn Better", 2019, https://arxiv.org/abs/1908.08962: the sizes below base.
    Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020, https://arxiv.org/abs/2002.04745:
    normalization before each sublayer (``norm='pre'``), where one after the last layer replaces the embedding's.
Deviations: queries, keys and values have one weight, the rows of each head together (query, key, value of head 0, then
of head 1, ...), which is the order of MXNet's interleaved operators (src/operator/contrib/transformer.cc). Padding is
masked by lengths, not by adding a large negative number. Dropout is off unless asked for.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import mxnet as mx

from .blocks import choose, classifier

_EPS = 1e-12  # of LayerNorm in BERT's code
_UNITS_PER_HEAD = 64
_POST_NORM = {"post": True, "pre": False}

NETWORKS = {
    "bert_tiny": {"num_layers": 2, "num_hidden": 128},
    "bert_mini": {"num_layers": 4, "num_hidden": 256},
    "bert_small": {"num_layers": 4, "num_hidden": 512},
    "bert_medium": {"num_layers": 8, "num_hidden": 512},
    "bert_base": {"num_layers": 12, "num_hidden": 768},
    "bert_large": {"num_layers": 24, "num_hidden": 1024},
}


def get_symbol(
    num_classes: int = 2,
    vocab_size: int = 30522,
    num_layers: int = 4,
    num_hidden: int = 256,
    num_heads: Optional[int] = None,
    num_ffn: Optional[int] = None,
    max_length: int = 512,
    num_token_types: int = 2,
    use_valid_length: bool = True,
    attention: str = "batch_dot",
    norm: str = "post",
    dropout: float = 0.0,
) -> Any:
    """Return the encoder with its classifier, label ``softmax_label`` (N,).

    Args:
        num_classes: Number of classes.
        vocab_size: Tokens in the vocabulary; BERT's uncased one by default.
        num_layers: Layers, each attention and a feed-forward network.
        num_hidden: Units of each token.
        num_heads: Heads of attention; one for each 64 units if None.
        num_ffn: Units within the feed-forward network; 4 * ``num_hidden`` if None.
        max_length: Positions that have an embedding; sequences may be shorter.
        num_token_types: Sorts of tokens (BERT: first or second sentence); with 0 there is no ``token_types`` input.
        use_valid_length: Whether there is a ``valid_length`` input.
        attention: ``batch_dot``, or ``interleaved`` for MXNet's fused operators; with the same weights, the same.
        norm: ``post`` or ``pre``: where LayerNorm stands.
        dropout: Fraction dropped of embeddings, attention and sublayers' outputs.

    Returns:
        The probabilities (N, num_classes). Inputs: ``data`` and ``token_types`` (N, T), indices, and ``valid_length``
        (N,), tokens before the padding, from 1 to T.

    Raises:
        ValueError: If the heads do not divide the units, or an option is unknown.
    """
    num_heads = max(1, num_hidden // _UNITS_PER_HEAD) if num_heads is None else num_heads
    if num_heads < 1 or num_hidden % num_heads:
        raise ValueError(f"num_heads={num_heads!r}: expected a divisor of num_hidden={num_hidden}.")
    attend, post_norm = choose("attention", attention, _ATTENTION), choose("norm", norm, _POST_NORM)
    tokens = mx.sym.Variable("data")
    lengths = _lengths(tokens, num_heads) if use_valid_length else None
    data = _embed(tokens, vocab_size, num_hidden, max_length, num_token_types)
    data = _dropout(_norm(data, "embed") if post_norm else data, dropout, "embed")
    data = mx.sym.transpose(data, axes=(1, 0, 2), name="embed_transpose")  # (T, N, num_hidden) from here on
    for layer in range(num_layers):
        for part in ("attention", "ffn"):
            name = f"layer{layer}_{part}"
            body = data if post_norm else _norm(data, name)
            if part == "attention":
                body = _attention(body, name, attend, num_hidden, num_heads, lengths, dropout)
            else:
                body = _feed_forward(body, name, num_hidden, 4 * num_hidden if num_ffn is None else num_ffn)
            data = mx.sym.elemwise_add(data, _dropout(body, dropout, name), name=f"{name}_plus")
            data = _norm(data, name) if post_norm else data
    data = data if post_norm else _norm(data, "final")
    return classifier(_dropout(_pool(data, num_hidden), dropout, "pooler"), num_classes, "classifier")


def _embed(tokens: Any, vocab_size: int, num_hidden: int, max_length: int, num_token_types: int) -> Any:
    """Return the sum of the embeddings of tokens, token types and positions, (N, T, num_hidden)."""
    data = mx.sym.Embedding(tokens, input_dim=vocab_size, output_dim=num_hidden, name="word_embed")
    if num_token_types:
        types = mx.sym.Variable("token_types", dtype="float32")  # declared, since nothing else tells it
        types = mx.sym.Embedding(types, input_dim=num_token_types, output_dim=num_hidden, name="token_type_embed")
        data = mx.sym.elemwise_add(data, types, name="embed_types")
    positions = mx.sym.Variable("position_embed_weight", shape=(1, max_length, num_hidden))
    positions = mx.sym.slice_like(positions, data, axes=(1,), name="positions")
    return mx.sym.broadcast_add(data, positions, name="embed_positions")


def _lengths(tokens: Any, num_heads: int) -> Any:
    """Return the valid length of each row of attention scores, (N * num_heads, T), int32."""
    lengths = mx.sym.expand_dims(mx.sym.Variable("valid_length", dtype="float32"), axis=1, name="length_column")
    lengths = mx.sym.broadcast_like(lengths, tokens, lhs_axes=(1,), rhs_axes=(1,), name="length_rows")
    lengths = mx.sym.repeat(lengths, repeats=num_heads, axis=0, name="length_heads")
    return mx.sym.Cast(lengths, dtype="int32", name="lengths")


def _attention(
    data: Any, name: str, attend: Callable[..., Any], num_hidden: int, num_heads: int, lengths: Any, dropout: float
) -> Any:
    """Return self-attention, (T, N, num_hidden)."""
    qkv = mx.sym.FullyConnected(data, num_hidden=3 * num_hidden, flatten=False, name=f"{name}_qkv")

    def weigh(scores: Any) -> Any:
        # The softmax itself leaves out what lies beyond the length: no -1e9, which float16 does not have.
        mask = {} if lengths is None else {"length": lengths, "use_length": True}
        weights = mx.sym.softmax(scores, axis=-1, name=f"{name}_softmax", **mask)
        return _dropout(weights, dropout, f"{name}_softmax")

    context = attend(qkv, name, num_heads, weigh)
    return mx.sym.FullyConnected(context, num_hidden=num_hidden, flatten=False, name=f"{name}_proj")


def _batch_dot(qkv: Any, name: str, num_heads: int, weigh: Callable[[Any], Any]) -> Any:
    split = mx.sym.Reshape(qkv, shape=(0, 0, num_heads, 3, -1), name=f"{name}_split")
    split = mx.sym.transpose(split, axes=(3, 1, 2, 0, 4), name=f"{name}_heads")  # (3, N, heads, T, units)
    split = mx.sym.Reshape(split, shape=(0, -3, 0, 0), name=f"{name}_batches")
    query, key, value = mx.sym.SliceChannel(split, num_outputs=3, axis=0, squeeze_axis=True, name=f"{name}_slice")
    query = mx.sym.contrib.div_sqrt_dim(query, name=f"{name}_scaled")
    scores = mx.sym.batch_dot(query, key, transpose_b=True, name=f"{name}_scores")
    context = mx.sym.batch_dot(weigh(scores), value, name=f"{name}_mix")
    context = mx.sym.Reshape(context, shape=(-4, -1, num_heads, 0, 0), name=f"{name}_mix_heads")
    context = mx.sym.transpose(context, axes=(2, 0, 1, 3), name=f"{name}_mix_steps")
    return mx.sym.Reshape(context, shape=(0, 0, -3), name=f"{name}_context")


def _interleaved(qkv: Any, name: str, num_heads: int, weigh: Callable[[Any], Any]) -> Any:
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(qkv, heads=num_heads, name=f"{name}_scores")
    return mx.sym.contrib.interleaved_matmul_selfatt_valatt(qkv, weigh(scores), heads=num_heads, name=f"{name}_context")


_ATTENTION: Dict[str, Callable[..., Any]] = {"batch_dot": _batch_dot, "interleaved": _interleaved}


def _feed_forward(data: Any, name: str, num_hidden: int, num_ffn: int) -> Any:
    data = mx.sym.FullyConnected(data, num_hidden=num_ffn, flatten=False, name=f"{name}_1")
    data = mx.sym.LeakyReLU(data, act_type="gelu", name=f"{name}_gelu")
    return mx.sym.FullyConnected(data, num_hidden=num_hidden, flatten=False, name=f"{name}_2")


def _pool(data: Any, num_hidden: int) -> Any:
    """Return BERT's summary of a sequence: a layer on its first token, (N, num_hidden)."""
    first = mx.sym.slice_axis(data, axis=0, begin=0, end=1, name="first_token")
    first = mx.sym.Reshape(first, shape=(-3, 0), name="first_token_rows")
    pooled = mx.sym.FullyConnected(first, num_hidden=num_hidden, name="pooler")
    return mx.sym.Activation(pooled, act_type="tanh", name="pooler_tanh")


def _norm(data: Any, name: str) -> Any:
    return mx.sym.LayerNorm(data, axis=-1, eps=_EPS, name=f"{name}_norm")


def _dropout(data: Any, fraction: float, name: str) -> Any:
    return mx.sym.Dropout(data, p=fraction, name=f"{name}_dropout") if fraction else data
