"""Transformer encoder: sizes of the BERT family, a numpy encoder with the same weights, both kinds of attention."""

from __future__ import annotations

import json
import math

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_graph
from symbols import get_symbol, transformer

TOKENS, LENGTH, BATCH, HEADS = 13, 6, 3, 2
TINY = {"vocab_size": TOKENS, "num_layers": 2, "num_hidden": 8, "num_heads": HEADS, "max_length": 9, "num_classes": 4}
# Some tens of sums of eight to thirty-two terms, in another order.
TOLERANCE = 64 * np.finfo(np.float32).eps

attentions = pytest.mark.parametrize("attention", ["batch_dot", "interleaved"])
norms = pytest.mark.parametrize("norm", ["post", "pre"])


def sequences(seed=0):
    rng = np.random.RandomState(seed)
    values = {
        "data": rng.randint(0, TOKENS, (BATCH, LENGTH)),
        "token_types": rng.randint(0, 2, (BATCH, LENGTH)),
        "valid_length": np.array([LENGTH, 1, 4]),
        "softmax_label": np.array([0, 3, 1]),
    }
    return {name: mx.nd.array(value) for name, value in values.items()}


def weight_shapes(symbol, batch=BATCH, length=LENGTH):
    shapes = {n: (batch, length) for n in ("data", "token_types")}
    shapes = {n: s for n, s in {**shapes, "valid_length": (batch,)}.items() if n in symbol.list_arguments()}
    inputs = {*shapes, "softmax_label"}
    return {n: s for n, s in zip(symbol.list_arguments(), symbol.infer_shape(**shapes)[0]) if n not in inputs}


def count(symbol):
    return sum(int(np.prod(shape)) for shape in weight_shapes(symbol).values())


def draw(shapes, seed=1):
    rng = np.random.RandomState(seed)
    around = {n: 1.0 if n.endswith("gamma") else 0.0 for n in shapes}
    return {n: mx.nd.array(around[n] + rng.uniform(-0.5, 0.5, s)) for n, s in shapes.items()}


def run(symbol, weights, inputs, is_train=False):
    """Return the probabilities and, in training, the gradients of the weights."""
    inputs = {n: v for n, v in inputs.items() if n in symbol.list_arguments()}
    request = {n: "null" if n in inputs else "write" for n in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=request, **{n: v.shape for n, v in inputs.items()})
    executor.copy_params_from(weights)
    output = executor.forward(is_train=is_train, **inputs)[0].asnumpy()
    if is_train:
        executor.backward()
    return output, {n: g.asnumpy() for n, g in executor.grad_dict.items() if g is not None and is_train}


# Turc et al. 2019, table 1: millions of parameters, with the head for masked words.
MILLIONS = {"bert_tiny": 4.4, "bert_mini": 11.3, "bert_small": 29.1, "bert_medium": 41.7, "bert_base": 110.1}


def masked_words_head(num_hidden, vocab_size=30522):
    """Return the size of BERT's head for masked words: a layer, LayerNorm, a bias; its matrix is the embedding."""
    return num_hidden * (num_hidden + 1) + 2 * num_hidden + vocab_size


@pytest.mark.parametrize("name", MILLIONS)
@norms
@attentions
def test_sizes_are_the_papers(name, attention, norm):
    symbol = get_symbol(name, attention=attention, norm=norm)
    total = count(symbol) + masked_words_head(transformer.NETWORKS[name]["num_hidden"])
    assert round(total / 1e6, 1) == MILLIONS[name]


@pytest.mark.parametrize("name, hidden, expected", [("bert_base", 768, 110106428), ("bert_large", 1024, 336226108)])
def test_bert_has_as_many_parameters_as_published(name, hidden, expected):
    """Those of Hugging Face's BertForPreTraining, whose second head has two classes."""
    assert count(get_symbol(name, num_classes=2)) + masked_words_head(hidden) == expected


def test_the_twelve_layers_of_bert_base_have_85_million_parameters():
    shapes = weight_shapes(get_symbol("bert_base"))
    assert sum(int(np.prod(s)) for n, s in shapes.items() if n.startswith("layer")) == 85054464


@attentions
def test_network_is_float32_by_construction(attention):
    symbol = transformer.get_symbol(attention=attention)
    arguments, outputs, _ = symbol.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*arguments, *outputs)} == {"float32"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_network_converts_by_name(dtype):
    mixed = get_symbol("bert_tiny", dtype=dtype)
    assert mixed.list_arguments() == get_symbol("bert_tiny").list_arguments()
    assert dtype in mixed.tojson(remove_amp_cast=False)


@attentions
@norms
def test_names_are_unique_and_do_not_depend_on_what_was_built_before(attention, norm):
    options = {"attention": attention, "norm": norm, "dropout": 0.1}
    first = transformer.get_symbol(**options).tojson()
    assert transformer.get_symbol(**options).tojson() == first
    names = [node["name"] for node in json.loads(first)["nodes"]]
    assert len(set(names)) == len(names)


# The encoder in numpy, in float64, one sequence and one head at a time.


def normalize(x, w, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance) * w[f"{name}_norm_gamma"] + w[f"{name}_norm_beta"]


def dense(x, w, name):
    return x @ w[f"{name}_weight"].T + w[f"{name}_bias"]


def attend(x, w, name, length):
    rows = dense(x, w, f"{name}_qkv").reshape(len(x), HEADS, 3, -1)
    heads = []
    for head in range(HEADS):
        query, key, value = (rows[:, head, part] for part in range(3))
        scores = query @ key[:length].T / math.sqrt(key.shape[1])
        weights = np.exp(scores)
        heads.append(weights / weights.sum(-1, keepdims=True) @ value[:length])
    return dense(np.hstack(heads), w, f"{name}_proj")


def feed_forward(x, w, name, length):
    hidden = dense(x, w, f"{name}_1")
    gelu = hidden / 2 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    return dense(gelu, w, f"{name}_2")


def encode(tokens, types, length, w, norm):
    """Return the probabilities of the classes for one sequence."""
    x = w["word_embed_weight"][tokens] + w["token_type_embed_weight"][types]
    x = x + w["position_embed_weight"][0, : len(x)]
    x = normalize(x, w, "embed") if norm == "post" else x
    for layer in range(TINY["num_layers"]):
        for part, function in (("attention", attend), ("ffn", feed_forward)):
            name = f"layer{layer}_{part}"
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
    symbol = transformer.get_symbol(attention=attention, norm=norm, **TINY)
    weights, inputs = draw(weight_shapes(symbol)), sequences()
    found, _ = run(symbol, weights, inputs)
    exact = {n: w.asnumpy().astype(np.float64) for n, w in weights.items()}
    names = ("data", "token_types", "valid_length")
    rows = zip(*(inputs[n].asnumpy().astype(int) for n in names))
    expected = np.array([encode(tokens, types, length, exact, norm) for tokens, types, length in rows])
    assert expected.std() > 0.05
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@norms
def test_both_attentions_have_the_same_gradients(norm):
    by_op, inputs = {}, sequences()
    for attention in ("batch_dot", "interleaved"):
        symbol = transformer.get_symbol(attention=attention, norm=norm, **TINY)
        by_op[attention] = run(symbol, draw(weight_shapes(symbol)), inputs, is_train=True)[1]
    for name, expected in by_op["batch_dot"].items():
        assert expected.any(), name
        scale = np.abs(expected).max()
        np.testing.assert_allclose(by_op["interleaved"][name], expected, atol=TOLERANCE * max(scale, 1), err_msg=name)


@attentions
def test_padding_has_no_influence(attention):
    symbol = transformer.get_symbol(attention=attention, **TINY)
    weights, inputs = draw(weight_shapes(symbol)), sequences()
    expected, _ = run(symbol, weights, inputs)
    inputs["data"][1, 1:] = (inputs["data"][1, 1:] + 5) % TOKENS  # valid_length is 1
    np.testing.assert_array_equal(run(symbol, weights, inputs)[0], expected)
    inputs["valid_length"][1] = 2
    assert np.abs(run(symbol, weights, inputs)[0][1] - expected[1]).max() > 1e-3


def test_full_length_masks_nothing():
    inputs = sequences()
    inputs["valid_length"][:] = LENGTH
    masked, plain = (transformer.get_symbol(use_valid_length=use, **TINY) for use in (True, False))
    weights = draw(weight_shapes(masked))
    np.testing.assert_allclose(run(plain, weights, inputs)[0], run(masked, weights, inputs)[0], atol=TOLERANCE)


def test_inputs_can_be_left_out():
    symbol = transformer.get_symbol(num_token_types=0, use_valid_length=False, **TINY)
    assert {n for n in symbol.list_arguments() if not n.endswith(("weight", "bias", "gamma", "beta"))} == {
        "data",
        "softmax_label",
    }
    assert symbol.infer_shape(data=(BATCH, LENGTH))[1] == [(BATCH, TINY["num_classes"])]


@attentions
def test_dropout_acts_in_training_alone(attention):
    plain, dropping = (transformer.get_symbol(attention=attention, dropout=p, **TINY) for p in (0.0, 0.5))
    weights, inputs = draw(weight_shapes(plain)), sequences()
    expected, _ = run(plain, weights, inputs)
    np.testing.assert_array_equal(run(dropping, weights, inputs)[0], expected)
    assert np.abs(run(dropping, weights, inputs, is_train=True)[0] - expected).max() > 0.01


@attentions
def test_dropout_is_where_bert_has_it(attention):
    symbol = transformer.get_symbol(attention=attention, dropout=0.1, **{**TINY, "num_layers": 1})
    nodes = json.loads(symbol.tojson())["nodes"]
    parts = ("embed", "layer0_attention_softmax", "layer0_attention", "layer0_ffn", "pooler")
    assert [node["name"] for node in nodes if node["op"] == "Dropout"] == [f"{part}_dropout" for part in parts]


@attentions
@norms
def test_module_trains_it_to_look_past_the_first_token(attention, norm):
    """The class of a sequence is a marker word at a random place before the padding; after it are decoys."""
    rng, size = np.random.RandomState(2), 64
    words, lengths = rng.randint(4, TOKENS, (size, LENGTH)), rng.randint(2, LENGTH + 1, size)
    classes, decoys = rng.randint(0, 4, (2, size))
    for row, length in enumerate(lengths):
        words[row, rng.randint(1, length)] = classes[row]
        words[row, length:] = decoys[row]
    inputs = {"data": words, "token_types": np.zeros_like(words), "valid_length": lengths}
    batches = mx.io.NDArrayIter(inputs, {"softmax_label": classes}, batch_size=size)
    symbol = transformer.get_symbol(attention=attention, norm=norm, **{**TINY, "num_hidden": 16})
    module = mx.mod.Module(symbol, data_names=tuple(inputs), label_names=("softmax_label",))
    mx.random.seed(4)
    np.random.seed(4)
    module.fit(
        batches,
        num_epoch=60,
        eval_metric="ce",
        initializer=mx.init.Normal(0.1),
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01},
    )
    assert module.score(batches, "acc")[0][1] > 0.95  # 0.25 by chance


@attentions
@norms
def test_float16_reaches_every_product_and_no_index(attention, norm):
    symbol = transformer.get_symbol(attention=attention, norm=norm, **TINY)
    shapes, inputs = weight_shapes(symbol), sequences()
    sizes = {n: v.shape for n, v in inputs.items()}
    converted = convert_graph(symbol, Policy.parse("mixed_float16"), sizes, params=frozenset(shapes))
    graph, facts = converted.graph, converted.facts
    ops = ("FullyConnected", "batch_dot") if attention == "batch_dot" else ("FullyConnected", "matmul_selfatt")
    products = [node for node in graph.nodes if any(op in node.op for op in ops)]
    assert len(products) == TINY["num_layers"] * 6 + 2
    assert {facts.dtype(entry) for node in products for entry in node.inputs} == {"float16"}
    found = {e: facts.dtype(e) for n in graph.nodes if n.op in ("Embedding", "Cast", "softmax") for e in n.inputs}
    kept = {graph.nodes[e.node].name: dtype for e, dtype in found.items()}
    assert {n: kept[n] for n in ("data", "token_types", "lengths")} == {
        "data": "float32",
        "token_types": "float32",
        "lengths": "int32",
    }
    weights = draw(shapes)
    low, _ = run(converted.on_cpu(), weights, inputs)
    exact, _ = run(symbol, weights, inputs)
    # Logits of order one, some tens of roundings of random sign.
    assert 0 < np.abs(low - exact).max() < 8 * 2.0**-10


ERRORS = {
    "heads": ({"num_hidden": 64, "num_heads": 3}, "num_heads=3: expected a divisor of num_hidden=64."),
    "no heads": ({"num_heads": 0}, "num_heads=0: expected a divisor of num_hidden=256."),
    "attention": ({"attention": "flash"}, "attention='flash': expected one of 'batch_dot', 'interleaved'."),
    "norm": ({"norm": "none"}, "norm='none': expected one of 'post', 'pre'."),
    "classes": ({"num_classes": 0}, "num_classes=0: expected a positive integer."),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_argument(case):
    options, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        transformer.get_symbol(**options)
