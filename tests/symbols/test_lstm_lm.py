"""LSTM language model: fused against unrolled and against Gluon's LSTM, sizes, bucketing."""

import mxnet as mx
import numpy as np
import pytest

from symbols import get_symbol, lstm_lm
from tests.symbols.networks import check_dropout, count, draw_small, dropouts, execute, shapes_of

WORDS, STEPS, BATCH = 11, 5, 3
SMALL = {"num_classes": WORDS, "seq_len": STEPS, "num_hidden": 6, "num_embed": 4}
INPUTS = {"data": (BATCH, STEPS), "softmax_label": (BATCH, STEPS)}
# A few dozen roundings of values below one, in another order.
TOLERANCE = 32 * np.finfo(np.float32).eps

both = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unrolled"])


def weight_shapes(symbol):
    return shapes_of(symbol, **INPUTS)[0]


def small(**options):
    """Return a small model, weights and sentences."""
    symbol, words = lstm_lm.get_symbol(**{**SMALL, **options}), np.random.RandomState(1).randint(0, WORDS, (BATCH, STEPS + 1))
    inputs = {"data": mx.nd.array(words[:, :-1]), "softmax_label": mx.nd.array(words[:, 1:])}
    return symbol, draw_small(weight_shapes(symbol)), inputs


def as_unrolled(weights):
    """Return a fused model's weights under the names of the unrolled one, by MXNet's own tools."""
    cell = mx.rnn.FusedRNNCell(SMALL["num_hidden"], 2, mode="lstm", prefix="lstm_")
    return cell.unfuse().pack_weights(cell.unpack_weights({name: mx.nd.array(value) for name, value in weights.items()}))


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
def test_sizes_are_the_papers(name, millions, tied):
    assert round(count(weight_shapes(get_symbol(name, seq_len=STEPS, tie_weights=tied))) / 1e6) == millions


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_unrolled_equals_fused(tied):
    options = {"num_embed": None if tied else 6, "tie_weights": tied}
    fused, weights, inputs = small(**options)
    unrolled, renamed = lstm_lm.get_symbol(fused=False, **{**SMALL, **options}), as_unrolled(weights)
    assert {n: w.shape for n, w in renamed.items()} == weight_shapes(unrolled)
    assert ("pred_weight" not in weights) == tied and renamed["embed_weight"].shape == (WORDS, 6)
    (expected, slopes), (found, found_slopes) = execute(fused, weights, inputs, True), execute(unrolled, renamed, inputs, True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    for name, slope in as_unrolled(slopes).items():
        assert slope.asnumpy().any(), name
        np.testing.assert_allclose(found_slopes[name], slope.asnumpy(), atol=16 * TOLERANCE, err_msg=name)


def test_fused_equals_gluons_lstm():
    symbol, weights, inputs = small()
    lstm, unrolled = mx.gluon.rnn.LSTM(6, 2, layout="NTC", input_size=4), as_unrolled(weights)
    lstm.initialize()
    for name, parameter in lstm.collect_params().items():
        parameter.set_data(unrolled["lstm_" + name[len(lstm.prefix) :]])
    hidden = lstm(mx.nd.take(weights["embed_weight"], inputs["data"])).reshape(-1, 6)
    expected = mx.nd.softmax(mx.nd.dot(hidden, weights["pred_weight"].T) + weights["pred_bias"]).asnumpy()
    np.testing.assert_allclose(execute(symbol, weights, inputs)[0], expected, atol=TOLERANCE)


@both
def test_gradients_have_their_scale_and_nothing_of_padding(fused):
    symbol, weights, inputs = small(fused=fused)
    slopes, scaled = (execute(each, weights, inputs, True)[1] for each in (symbol, small(fused=fused, grad_scale=0.25)[0]))
    for name, slope in slopes.items():
        assert slope.any(), name
        np.testing.assert_allclose(scaled[name], 0.25 * slope, rtol=1e-5, atol=1e-7)
    inputs["softmax_label"][:] = -1
    assert not any(g.any() for g in execute(symbol, weights, inputs, True)[1].values())


@both
def test_dropout_is_where_the_paper_has_it_and_acts_in_training_alone(fused):
    """Zaremba et al., section 3.1: on what goes up, not on what goes on in time; between layers it may be another."""
    check_dropout(small(fused=fused)[0], *small(fused=fused, dropout=0.5))
    ends = {"embed_dropout": 0.3, "lstm_dropout": 0.3}
    assert dropouts(small(fused=fused, dropout=0.3)[0]) == {**ends, "lstm_rnn" if fused else "lstm_l0_dropout": 0.3}
    assert dropouts(small(fused=fused, dropout=0.3, layer_dropout=0.0)[0]) == ends


@both
def test_forget_gates_start_open(fused):
    """Their two biases add up to 1, those of the other gates to 0."""
    module = mx.mod.Module(small(fused=fused)[0], label_names=("softmax_label",))
    module.bind([("data", INPUTS["data"])], [("softmax_label", INPUTS["softmax_label"])])
    module.init_params(mx.init.Uniform(0.1))
    weights = as_unrolled(module.get_params()[0]) if fused else module.get_params()[0]
    for layer in range(2):
        bias = sum(weights[f"lstm_l{layer}_{arm}_bias"].asnumpy() for arm in ("i2h", "h2h"))
        assert bias.reshape(4, 6).tolist() == [[0] * 6, [1] * 6, [0] * 6, [0] * 6]  # gates: i, f, c, o


@both
def test_carried_states_give_what_one_long_text_gives(fused):
    whole, weights, inputs = small(fused=fused)
    assert lstm_lm.sym_gen(WORDS)(STEPS)[1] == ("data",)
    bucket = lstm_lm.sym_gen(WORDS, fused=fused, carry_states=True, num_hidden=6, num_embed=4)
    states, found = dict.fromkeys(lstm_lm.STATES, mx.nd.zeros((2, BATCH, 6))), []
    for start, stop in ((0, 2), (2, 4), (4, STEPS)):  # the last of one step
        symbol, data_names, label_names = bucket(stop - start)
        assert symbol.list_outputs()[1:] == ["lstm_end_state_output", "lstm_end_cell_output"]
        part = {**{name: array[:, start:stop] for name, array in inputs.items()}, **states}
        assert {*data_names, *label_names} == set(part)
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", **{name: array.shape for name, array in part.items()})
        executor.copy_params_from(weights)
        output, *end = executor.forward(**part)
        found.append(output.asnumpy().reshape(BATCH, stop - start, WORDS))
        states = dict(zip(lstm_lm.STATES, end))
    expected = execute(whole, weights, inputs)[0].reshape(BATCH, STEPS, WORDS)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=TOLERANCE)
