"""LSTM language model: fused against unrolled and against Gluon's LSTM, sizes, bucketing."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_graph
from symbols import get_symbol, lstm_lm

WORDS, STEPS, BATCH = 11, 5, 3
SMALL = {"num_classes": WORDS, "seq_len": STEPS, "num_hidden": 6, "num_embed": 4}
INPUTS = {"data": (BATCH, STEPS), "softmax_label": (BATCH, STEPS)}
# A few dozen roundings of values below one, in another order.
TOLERANCE = 32 * np.finfo(np.float32).eps

both = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unrolled"])


def weight_shapes(symbol, **inputs):
    inputs = inputs or INPUTS
    return {n: s for n, s in zip(symbol.list_arguments(), symbol.infer_shape(**inputs)[0]) if n not in inputs}


def count(symbol):
    return sum(int(np.prod(shape)) for shape in weight_shapes(symbol).values())


def draw(shapes, seed=0):
    rng = np.random.RandomState(seed)
    return {n: mx.nd.array(rng.uniform(-0.5, 0.5, s)) for n, s in shapes.items()}


def sentences(seed=1):
    words = np.random.RandomState(seed).randint(0, WORDS, (BATCH, STEPS + 1))
    return {"data": mx.nd.array(words[:, :-1]), "softmax_label": mx.nd.array(words[:, 1:])}


def run(symbol, weights, inputs, is_train=False):
    """Return the output and, in training, the gradients of the weights."""
    request = {n: "null" if n in inputs else "write" for n in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=request, **{n: v.shape for n, v in inputs.items()})
    executor.copy_params_from(weights)
    output = executor.forward(is_train=is_train, **inputs)[0].asnumpy()
    if is_train:
        executor.backward()
    return output, {n: g.copy() for n, g in executor.grad_dict.items() if g is not None and is_train}


def as_unrolled(weights, num_layers=2):
    """Return a fused model's weights under the names of the unrolled one, by MXNet's own tools."""
    cell = mx.rnn.FusedRNNCell(SMALL["num_hidden"], num_layers, mode="lstm", prefix="lstm_")
    return cell.unfuse().pack_weights(cell.unpack_weights(weights))


@pytest.mark.parametrize(
    "name, millions, tied",
    [
        # The table of results on Penn Treebank in Inan et al., "Tying Word Vectors and Word Classifiers", 2017,
        # https://arxiv.org/abs/1611.01462: Zaremba's medium and large model, and a large one with tied weights.
        ("lstm_lm_medium", 20, False),
        ("lstm_lm_large", 66, False),
        ("lstm_lm_large", 51, True),
    ],
)
@both
def test_sizes_are_the_papers(name, millions, tied, fused):
    assert round(count(get_symbol(name, fused=fused, seq_len=STEPS, tie_weights=tied)) / 1e6) == millions


@both
def test_network_is_float32_by_construction(fused):
    arguments, outputs, _ = lstm_lm.get_symbol(fused=fused).infer_type(data="float32")
    assert {np.dtype(t).name for t in (*arguments, *outputs)} == {"float32"}


@both
def test_names_are_unique_and_do_not_depend_on_what_was_built_before(fused):
    first = lstm_lm.get_symbol(fused=fused, dropout=0.1, seq_len=3).tojson()
    assert lstm_lm.get_symbol(fused=fused, dropout=0.1, seq_len=3).tojson() == first
    names = [node["name"] for node in json.loads(first)["nodes"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_unrolled_equals_fused(tied):
    options = {**SMALL, "num_embed": 6, "tie_weights": tied}
    fused, unrolled = (lstm_lm.get_symbol(fused=fused, **options) for fused in (True, False))
    weights, inputs = draw(weight_shapes(fused)), sentences()
    renamed = as_unrolled(weights)
    assert {n: w.shape for n, w in renamed.items()} == weight_shapes(unrolled)
    (expected, slopes), (found, found_slopes) = run(fused, weights, inputs, True), run(unrolled, renamed, inputs, True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    for name, slope in as_unrolled(slopes).items():
        assert slope.asnumpy().any(), name
        np.testing.assert_allclose(found_slopes[name].asnumpy(), slope.asnumpy(), atol=16 * TOLERANCE, err_msg=name)


def test_fused_equals_gluons_lstm():
    symbol = lstm_lm.get_symbol(**SMALL)
    weights, inputs = draw(weight_shapes(symbol)), sentences()
    embed, lstm = mx.gluon.nn.Embedding(WORDS, 4), mx.gluon.rnn.LSTM(6, 2, layout="NTC", input_size=4)
    dense = mx.gluon.nn.Dense(WORDS, flatten=False, in_units=6)
    for block in (embed, lstm, dense):
        block.initialize()
    embed.weight.set_data(weights["embed_weight"])
    dense.weight.set_data(weights["pred_weight"])
    dense.bias.set_data(weights["pred_bias"])
    for name, value in as_unrolled(weights).items():
        if name.startswith("lstm_"):
            getattr(lstm, name[len("lstm_") :]).set_data(value)
    expected = mx.nd.softmax(dense(lstm(embed(inputs["data"])))).asnumpy()
    found, _ = run(symbol, weights, inputs)
    np.testing.assert_allclose(found, expected.reshape(-1, WORDS), atol=TOLERANCE)


def test_tied_weights_are_one_parameter():
    shapes = weight_shapes(lstm_lm.get_symbol(**{**SMALL, "num_embed": None}, tie_weights=True))
    assert shapes["embed_weight"] == (WORDS, 6)
    assert "pred_weight" not in shapes and shapes["pred_bias"] == (WORDS,)


def test_tied_weights_need_one_size():
    with pytest.raises(ValueError, match="tie_weights: num_embed=4 differs from num_hidden=6; make them equal."):
        lstm_lm.get_symbol(tie_weights=True, **SMALL)


@both
def test_padding_adds_nothing_to_the_gradient(fused):
    symbol = lstm_lm.get_symbol(fused=fused, **SMALL)
    weights, inputs = draw(weight_shapes(symbol)), sentences()
    inputs["softmax_label"][:] = -1
    assert not any(g.asnumpy().any() for g in run(symbol, weights, inputs, True)[1].values())
    inputs["softmax_label"][0, 0] = 1
    assert run(symbol, weights, inputs, True)[1]["pred_bias"].asnumpy().any()


@both
def test_dropout_acts_in_training_alone(fused):
    plain, dropping = (lstm_lm.get_symbol(fused=fused, dropout=p, **SMALL) for p in (0.0, 0.5))
    weights, inputs = draw(weight_shapes(plain)), sentences()
    expected, _ = run(plain, weights, inputs)
    np.testing.assert_array_equal(run(dropping, weights, inputs)[0], expected)
    assert np.abs(run(dropping, weights, inputs, is_train=True)[0] - expected).max() > 0.01


@pytest.mark.parametrize(
    "fused, where",
    [
        (True, {"embed_dropout": "0.3", "lstm_rnn": "0.3", "lstm_dropout": "0.3"}),
        (False, {"embed_dropout": "0.3", "lstm_l0_dropout": "0.3", "lstm_dropout": "0.3"}),
    ],
    ids=["fused", "unrolled"],
)
def test_dropout_is_where_the_paper_has_it(fused, where):
    """Zaremba et al., section 3.1: on what goes up, not on what goes on in time."""
    nodes = json.loads(lstm_lm.get_symbol(fused=fused, dropout=0.3, **SMALL).tojson())["nodes"]
    assert {node["name"]: node["attrs"]["p"] for node in nodes if "p" in node.get("attrs", {})} == where


@both
def test_forget_gates_start_open(fused):
    """Their two biases add up to 1, those of the other gates to 0."""
    symbol = lstm_lm.get_symbol(fused=fused, **SMALL)
    module = mx.mod.Module(symbol, label_names=("softmax_label",))
    module.bind([("data", INPUTS["data"])], [("softmax_label", INPUTS["softmax_label"])])
    module.init_params(mx.init.Uniform(0.1))
    weights = module.get_params()[0]
    weights = as_unrolled(weights) if fused else weights
    for layer in range(2):
        bias = sum(weights[f"lstm_l{layer}_{arm}_bias"].asnumpy() for arm in ("i2h", "h2h"))
        np.testing.assert_array_equal(bias.reshape(4, 6)[1], 1)  # gates: i, f, c, o
        np.testing.assert_array_equal(bias.reshape(4, 6)[[0, 2, 3]], 0)


def test_one_step_can_be_unrolled():
    symbol = lstm_lm.get_symbol(fused=False, **{**SMALL, "seq_len": 1})
    assert symbol.infer_shape(data=(BATCH, 1), softmax_label=(BATCH, 1))[1] == [(BATCH, WORDS)]


@both
def test_bucketing_module_trains_it(fused):
    """Counting sentences, in which each word determines the next, of two lengths."""
    text = [[(start + 3 * step) % WORDS for step in range(n)] for start in range(WORDS) for n in (4, 7, 7, 4)]
    batches = mx.rnn.BucketSentenceIter(text, batch_size=4, buckets=[4, 7], invalid_label=-1)
    module = mx.mod.BucketingModule(
        lstm_lm.sym_gen(WORDS, fused=fused, num_hidden=16, num_layers=1), default_bucket_key=batches.default_bucket_key
    )
    metric = mx.metric.Perplexity(ignore_label=-1)
    mx.random.seed(3)
    np.random.seed(3)
    module.fit(
        batches,
        num_epoch=12,
        eval_metric=metric,
        initializer=mx.init.Xavier(),
        optimizer="adam",
        optimizer_params={"learning_rate": 0.03, "rescale_grad": 1 / 4},
    )
    batches.reset()
    assert {len(batch.data[0][0]) for batch in batches} == {4, 7}
    batches.reset()
    # By chance 11; 1 is perfect.
    assert module.score(batches, metric)[0][1] < 2


@both
def test_carried_states_give_what_one_long_text_gives(fused):
    whole, inputs = lstm_lm.get_symbol(fused=fused, **SMALL), sentences()
    weights = draw(weight_shapes(whole))
    expected = run(whole, weights, inputs)[0].reshape(BATCH, STEPS, WORDS)
    states = dict.fromkeys(lstm_lm.STATES, mx.nd.zeros((2, BATCH, 6)))
    found = []
    for start, stop in ((0, 2), (2, STEPS)):
        symbol = lstm_lm.get_symbol(fused=fused, carry_states=True, **{**SMALL, "seq_len": stop - start})
        assert symbol.list_outputs()[1:] == ["lstm_end_state_output", "lstm_end_cell_output"]
        part = {**{name: array[:, start:stop] for name, array in inputs.items()}, **states}
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", **{name: array.shape for name, array in part.items()})
        executor.copy_params_from(weights)
        output, *end = executor.forward(**part)
        found.append(output.asnumpy().reshape(BATCH, stop - start, WORDS))
        states = dict(zip(lstm_lm.STATES, end))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=TOLERANCE)


def test_states_are_inputs_of_a_bucket_only_where_they_are_carried():
    assert lstm_lm.sym_gen(WORDS)(STEPS)[1] == ("data",)
    symbol, data_names, label_names = lstm_lm.sym_gen(WORDS, carry_states=True)(STEPS)
    assert data_names == ("data", "lstm_begin_state", "lstm_begin_cell")
    assert set(data_names + label_names) < set(symbol.list_arguments())


@both
def test_dropout_between_layers_may_be_another(fused):
    nodes = json.loads(lstm_lm.get_symbol(fused=fused, dropout=0.3, layer_dropout=0.0, **SMALL).tojson())["nodes"]
    found = {node["name"]: float(node["attrs"]["p"]) for node in nodes if "p" in node.get("attrs", {})}
    assert found.pop("lstm_rnn", 0.0) == 0.0
    assert found == {"embed_dropout": 0.3, "lstm_dropout": 0.3}


def test_gradients_are_multiplied_by_their_scale():
    plain, scaled = (lstm_lm.get_symbol(grad_scale=scale, **SMALL) for scale in (1.0, 0.25))
    weights, inputs = draw(weight_shapes(plain)), sentences()
    (expected, slopes), (found, found_slopes) = (run(symbol, weights, inputs, True) for symbol in (plain, scaled))
    np.testing.assert_array_equal(found, expected)
    for name, slope in slopes.items():
        assert slope.asnumpy().any(), name
        np.testing.assert_allclose(found_slopes[name].asnumpy(), 0.25 * slope.asnumpy(), rtol=1e-5, atol=1e-7)


@both
def test_float16_reaches_every_product_and_no_index(fused):
    symbol = lstm_lm.get_symbol(fused=fused, **SMALL)
    policy = Policy.parse("mixed_float16,op:RNN=float16" if fused else "mixed_float16")
    converted = convert_graph(symbol, policy, INPUTS, params=frozenset(weight_shapes(symbol)))
    ops = {"RNN": 1, "FullyConnected": 1} if fused else {"FullyConnected": 1 + 2 * (1 + STEPS)}
    graph, facts = converted.graph, converted.facts
    products = [node for node in graph.nodes if node.op in ops]
    assert {op: sum(node.op == op for node in products) for op in ops} == ops
    assert {facts.dtype(entry) for node in products for entry in node.inputs} == {"float16"}
    readers = [node.op for node in graph.nodes if any(graph.nodes[e.node].name == "data" for e in node.inputs)]
    assert readers == ["Embedding"]
    weights, inputs = draw(weight_shapes(symbol)), sentences()
    found, _ = run(converted.on_cpu(), weights, inputs)
    expected, _ = run(symbol, weights, inputs)
    # Logits of order one, some tens of roundings of random sign.
    assert 0 < np.abs(found - expected).max() < 8 * 2.0**-10
