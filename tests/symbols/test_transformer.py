"""Transformer encoder: sizes of the BERT family, a numpy encoder with the same weights, both kinds of attention."""

import math

import mxnet as mx
import numpy as np
import pytest

from symbols import get_symbol, transformer
from tests.symbols.networks import check_dropout, count, draw_small, dropouts, execute, shapes_of

TOKENS, LENGTH, BATCH, HEADS = 13, 6, 3, 2
TINY = {"vocab_size": TOKENS, "num_layers": 2, "num_hidden": 8, "num_heads": HEADS, "max_length": 9, "num_classes": 4}
SHAPES = {"data": (BATCH, LENGTH), "token_types": (BATCH, LENGTH), "valid_length": (BATCH,)}
# Some tens of sums of eight to thirty-two terms, in another order.
TOLERANCE = 64 * np.finfo(np.float32).eps

attentions = pytest.mark.parametrize("attention", ["batch_dot", "interleaved"])
norms = pytest.mark.parametrize("norm", ["post", "pre"])


def tiny(**options):
    """Return a tiny encoder, weights and sequences."""
    symbol, rng = transformer.get_symbol(**{**TINY, **options}), np.random.RandomState(0)
    inputs = {
        "data": rng.randint(0, TOKENS, (BATCH, LENGTH)),
        "token_types": rng.randint(0, 2, (BATCH, LENGTH)),
        "valid_length": np.array([LENGTH, 1, 4]),
        "softmax_label": np.array([0, 3, 1]),
    }
    weights = draw_small(shapes_of(symbol, **SHAPES)[0])
    return symbol, weights, {name: mx.nd.array(value) for name, value in inputs.items()}


# Millions of parameters, with the head for masked words: Turc et al. 2019, table 1; the last as Hugging Face's
# BertForPreTraining, which has 336,226,108.
MILLIONS = {"bert_tiny": 4.4, "bert_mini": 11.3, "bert_small": 29.1, "bert_medium": 41.7, "bert_base": 110.1, "bert_large": 336.2}


@pytest.mark.parametrize("name", MILLIONS)
@norms
@attentions
def test_sizes_are_the_papers(name, attention, norm):
    hidden = transformer.NETWORKS[name]["num_hidden"]
    total = count(shapes_of(get_symbol(name, attention=attention, norm=norm, num_classes=2), **SHAPES)[0])
    # BERT's head for masked words: a layer, LayerNorm, a bias; its matrix is the embedding.
    assert round((total + hidden * (hidden + 1) + 2 * hidden + 30522) / 1e6, 1) == MILLIONS[name]


# The encoder in numpy, in float64, one sequence and one head at a time.


def normalize(x, w, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance) * w[f"{name}_norm_gamma"] + w[f"{name}_norm_beta"]


def dense(x, w, name):
    return x @ w[f"{name}_weight"].T + w[f"{name}_bias"]


def attend(x, w, name, length):
    rows, heads = dense(x, w, f"{name}_qkv").reshape(len(x), HEADS, 3, -1), []
    for head in range(HEADS):
        query, key, value = (rows[:, head, part] for part in range(3))
        weights = np.exp(query @ key[:length].T / math.sqrt(key.shape[1]))
        heads.append(weights / weights.sum(-1, keepdims=True) @ value[:length])
    return dense(np.hstack(heads), w, f"{name}_proj")


def feed_forward(x, w, name, length):
    hidden = dense(x, w, f"{name}_1")
    return dense(hidden / 2 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))), w, f"{name}_2")  # GELU


def encode(tokens, types, length, w, norm):
    """Return the probabilities of the classes for one sequence."""
    x = w["word_embed_weight"][tokens] + w["token_type_embed_weight"][types]
    x = x + w["position_embed_weight"][0, : len(x)]
    x = normalize(x, w, "embed") if norm == "post" else x
    for layer in range(TINY["num_layers"]):
        for name, function in ((f"layer{layer}_attention", attend), (f"layer{layer}_ffn", feed_forward)):
            if norm == "post":
                x = normalize(x + function(x, w, name, length), w, name)
            else:
                x = x + function(normalize(x, w, name), w, name, length)
    x = x if norm == "post" else normalize(x, w, "final")
    logits = dense(np.tanh(dense(x[0], w, "pooler")), w, "classifier")
    return np.exp(logits) / np.exp(logits).sum()


@attentions
@norms
def test_probabilities_are_those_of_a_numpy_encoder(attention, norm):
    symbol, weights, inputs = tiny(attention=attention, norm=norm)
    exact = {n: w.asnumpy().astype(np.float64) for n, w in weights.items()}
    rows = zip(*(inputs[n].asnumpy().astype(int) for n in SHAPES))
    expected = np.array([encode(tokens, types, length, exact, norm) for tokens, types, length in rows])
    assert expected.std() > 0.05
    np.testing.assert_allclose(execute(symbol, weights, inputs)[0], expected, atol=TOLERANCE)


def test_inputs_can_be_left_out():
    """A full length masks nothing, as no length does; without types there is one input."""
    masked, weights, inputs = tiny()
    inputs["valid_length"][:] = LENGTH
    plain = execute(tiny(use_valid_length=False)[0], weights, inputs)[0]
    np.testing.assert_allclose(plain, execute(masked, weights, inputs)[0], atol=TOLERANCE)
    symbol = transformer.get_symbol(num_token_types=0, use_valid_length=False, **TINY)
    assert symbol.infer_shape(data=(BATCH, LENGTH))[1] == [(BATCH, TINY["num_classes"])]


@attentions
def test_dropout_is_where_bert_has_it_and_acts_in_training_alone(attention):
    check_dropout(tiny(attention=attention)[0], *tiny(attention=attention, dropout=0.5))
    parts = ("embed", "layer0_attention_softmax", "layer0_attention", "layer0_ffn", "pooler")
    symbol = tiny(attention=attention, dropout=0.1, num_layers=1)[0]
    assert dropouts(symbol) == {f"{part}_dropout": 0.1 for part in parts}
