"""What a ledger advises, on runs whose true gradients are known."""

from __future__ import annotations

from fnmatch import fnmatch

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.diagnose import Ledger
from mxmp.diagnose.ledger import words
from mxmp.errors import TrainerError
from mxmp.loss_scale import DynamicLossScale
from mxmp.policy import Policy
from tests.diagnose.ledger.runs import Run, lognormal, seen


def lost_at(scale, *true):
    """Return the share of values, those that are 0 left out, that float16 rounds to 0 at a scale."""
    values = np.concatenate([each.ravel() for each in true])
    values = values[values != 0]
    return np.mean((values * scale).astype(np.float16) == 0)


def with_zeros(values, share=0.7, seed=1):
    """Return values of which a share is 0, as behind ReLUs."""
    return values * (np.random.RandomState(seed).rand(values.size) >= share)


# ---------------------------------------------------------------------- what vanishes


@pytest.mark.parametrize("spread", [2, 4, 6])
@pytest.mark.parametrize("median", [2.0**-28, 2.0**-24])
@pytest.mark.parametrize("zeros", [0, 0.5])
def test_a_scale_of_one_lets_gradients_vanish_and_a_larger_one_is_advised(median, spread, zeros):
    true = with_zeros(lognormal(median, spread), zeros)
    advice = seen({"fc_weight": true}, scale=1.0).advice(lost=0.05)
    assert lost_at(1.0, true) > 0.05
    assert "At the scale of 1 an estimated" in advice.sentences[0] and "'fc_weight'" in advice.sentences[0]
    assert lost_at(advice.lowest, true) < lost_at(1.0, true)
    assert advice.lowest <= advice.highest


@pytest.mark.parametrize("spread", [2, 3, 4])
def test_the_lowest_scale_is_near_the_one_that_float16_needs(spread):
    true = lognormal(2.0**-22, spread)
    advice = seen({"w": true}, scale=2.0).advice(lost=0.01)
    needed = next(scale for scale in range(-10, 40) if lost_at(2.0**scale, true) <= 0.01)
    assert abs(np.log2(advice.lowest) - needed) <= 4


@pytest.mark.parametrize("spread", [1, 3, 5])
def test_a_scale_under_which_nothing_vanishes_needs_no_extrapolation(spread):
    true = lognormal(2.0**-12, spread)
    advice = seen({"w": true}, scale=256.0).advice(lost=0.01)
    needed = next(scale for scale in range(-30, 40) if lost_at(2.0**scale, true) <= 0.01)
    assert abs(np.log2(advice.lowest) - needed) <= 1


@pytest.mark.parametrize("zeros", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [1, 3])
def test_zeros_of_healthy_gradients_are_no_reason_for_advice(zeros, spread):
    true = {f"conv{n}_weight": with_zeros(lognormal(2.0 ** -(12 + n), spread, seed=n), zeros, n) for n in range(4)}
    ledger = seen(true, scale=2.0**12)
    assert ledger.advice().sentences == () and ledger.advice().float32_layers == ()
    assert str(ledger.advice()) == "Nothing is wrong with the gradients that were seen."


@pytest.mark.parametrize("stray", [1, 10, 30])
def test_a_few_stray_elements_at_the_bottom_make_no_alarm(stray):
    """As of ResNet-18's last stage, on 2 x 2 pixels: half is 0, and a handful is what rounding left of a 0."""
    true = with_zeros(lognormal(2.0**-8, 2, size=100000), 0.5)
    true[:stray] = 2.0**-24
    assert seen({"conv_weight": true}, scale=1.0).advice().sentences == ()


def test_gradients_evenly_spread_around_zero_are_healthy():
    true = np.random.RandomState(0).uniform(-1e-3, 1e-3, 50000)
    assert seen({"w": true}, scale=64.0).advice().sentences == ()


def test_zeros_that_a_larger_scale_shows_too_have_not_vanished():
    """Flat from 2**-26 on: at a scale of 1 the zeros may all have vanished; at 2**10 they are seen to be zeros."""
    random = np.random.RandomState(0)
    true = with_zeros(2.0 ** random.uniform(-26, -10, 20000), 0.6)
    shares = []
    for scales in ([1.0], [1.0, 1024.0]):
        run = Run({"w": true.shape}, loss_scale=1.0)
        ledger = Ledger(every=1).attach(run.trainer)
        for scale in scales:
            run.trainer.loss_scale = scale
            run.step({"w": (true * scale).astype(np.float16)})
        run.trainer.loss_scale = 1.0
        run.step({"w": true.astype(np.float16)})
        sentences = ledger.advice().sentences
        shares.append(float(sentences[0].split("an estimated ")[1].split("%")[0]) / 100 if sentences else 0.0)
    assert shares[1] < shares[0]
    assert shares[1] == pytest.approx(lost_at(1.0, true), abs=0.05)


def test_what_is_computed_in_float32_does_not_vanish():
    run = Run({"gamma": (1000,), "w": (1000,)}, {"gamma": "float32"}, loss_scale=1.0)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"gamma": lognormal(2.0**-30, 3, 1000), "w": lognormal(2.0**-8, 2, 1000).astype(np.float16)})
    assert ledger.advice().sentences == ()


def test_a_float32_run_says_which_scales_would_do():
    true = lognormal(2.0**-22, 2)
    run = Run({"w": true.shape}, {"w": "float32"}, loss_scale=1.0)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": true})
    needed = next(scale for scale in range(-10, 40) if lost_at(2.0**scale, true) <= 0.01)
    advice = ledger.advice()
    assert abs(np.log2(advice.lowest) - needed) <= 1 and advice.sentences == ()


# ---------------------------------------------------------------------- what overflows


def test_the_highest_scale_leaves_a_margin_below_the_largest_gradient():
    highest = seen({"w": np.float64([0.5, -3.0])}).advice().highest
    assert highest * 3.0 * 4 <= 65504 < highest * 3.0 * 8


def test_a_scale_at_which_steps_are_skipped_is_too_high():
    run = Run({"w": (1,), "v": (1,)}, loss_scale=4096.0)
    ledger = Ledger(every=1).attach(run.trainer)
    for number in range(10):
        run.step({"w": np.inf if number % 2 else 1.0, "v": 2.0**14})
    advice = ledger.advice()
    assert advice.highest == 512
    assert advice.sentences == (
        "At the scale of 4096 5 of 10 steps were skipped, first in the gradients of 'w'. Scale the loss by 2**9 at "
        "most; if steps are skipped there too, ask a Watch or mxmp.diagnose.explain.",
    )


@pytest.mark.parametrize(("exponent", "far"), [(10, True), (12, False)])
def test_skips_while_gradients_stay_far_below_the_maximum_are_not_the_scale_s(exponent, far):
    run = Run({"w": (1,)}, loss_scale=1024.0)
    ledger = Ledger(every=1).attach(run.trainer)
    for number in range(40):
        run.step({"w": np.nan if number % 20 == 7 else 1.5 * 2.0**exponent})
    advice = ledger.advice()
    assert (advice.highest == 128) != far
    (sentence,) = advice.sentences
    assert sentence.startswith("At the scale of 1024 2 of 40 steps were skipped, first in the gradients of 'w'.")
    assert ("Scale the loss by 2**7 at most" in sentence) != far
    assert sentence.endswith(
        "The scale is hardly the cause, for the gradients of those that were taken stay far from overflow: "
        "mxmp.diagnose.explain or a Watch names the operator or input that is."
    ) == far


def test_skips_by_which_a_dynamic_scale_finds_its_place_are_healthy():
    run = Run({"w": (1,)}, loss_scale=DynamicLossScale(init_scale=2.0**16, growth_interval=50))
    ledger = Ledger(every=1).attach(run.trainer)
    for _ in range(120):
        scaled = 4.0 * run.trainer.loss_scale.value
        run.step({"w": scaled if scaled <= 65504 else np.inf})
    assert ledger.skipped >= 3 and ledger.advice().sentences == ()


# ---------------------------------------------------------------------- float32 layers


def test_a_layer_that_no_scale_serves_is_to_be_kept_in_float32():
    narrow, wide = lognormal(2.0**-4, 1), np.concatenate([lognormal(2.0**-34, 2, 500), lognormal(2.0**6, 1, 500)])
    ledger = seen({"conv_weight": narrow, "attn_weight": wide}, scale=128.0)
    advice = ledger.advice()
    assert advice.float32_layers == ("attn_weight",)
    assert Policy.parse(f"O1,{advice.overrides}").names == (("attn*", "float32"),)
    (sentence,) = advice.sentences
    assert sentence.startswith("No scale fits all layers: 2**-18 to 2**14 fits all but 'attn_weight' (2**")
    assert sentence.endswith("Keep this layer in float32: 'name:attn*=float32'.")


NETS = {
    "dense": lambda: (gluon.nn.Dense(2, in_units=3), (4, 3)),
    "conv": lambda: (gluon.nn.Conv2D(2, 3, in_channels=3), (1, 3, 4, 4)),
    "batchnorm": lambda: (gluon.nn.BatchNorm(in_channels=3), (4, 3)),
    "lstm": lambda: (gluon.rnn.LSTM(2, num_layers=2, bidirectional=True, input_size=3), (4, 1, 3)),
    "projected lstm": lambda: (gluon.rnn.LSTM(3, projection_size=2, input_size=3), (4, 1, 3)),
    "name with brackets": lambda: (gluon.nn.Dense(2, in_units=3, prefix="a[0]_"), (4, 3)),
}


@pytest.mark.parametrize("kind", NETS)
def test_the_overrides_are_those_of_the_layer_s_operators(kind):
    net, shape = NETS[kind]()
    net.initialize()
    trained = [name for name, param in net.collect_params().items() if param.grad_req != "null"]
    wide = np.concatenate([lognormal(2.0**-34, 2, 500), lognormal(2.0**6, 1, 500)])
    overrides = {seen({name: wide}, scale=128.0).advice().overrides for name in trained}
    assert len(overrides) == 1
    mxmp.gluon.convert(net, f"O1,{overrides.pop()}")
    net(mx.nd.ones(shape))
    assert not any(row.precision == "float16" for row in mxmp.gluon.report(net).rows)


def test_the_overrides_of_a_recurrent_cell_are_those_of_all_its_steps():
    cell = gluon.rnn.LSTMCell(2, input_size=3)
    name = list(cell.collect_params())[0]
    steps = cell.unroll(2, [mx.sym.var("a"), mx.sym.var("b")], merge_outputs=True)[0]
    operators = [each for each in steps.get_internals().list_outputs() if "_t0_h2h" in each or "_t1_h2h" in each]
    (pattern,) = (each for each, _ in Policy.parse(f"O1,{words.overrides([name])}").names)
    assert len(operators) == 2 and all(fnmatch(each, pattern) for each in operators)


def test_a_layer_may_vanish_because_another_overflows():
    ledger = seen({"big_weight": lognormal(2.0**12, 1), "small_weight": lognormal(2.0**-30, 2)}, scale=1.0)
    assert ledger.advice().float32_layers == ("small_weight",)


def test_an_estimate_alone_leaves_no_layer_out():
    """Flat down to the bottom: what vanished may lie 24 binades below. At the scale advised it is seen to be enough."""
    true = with_zeros(2.0 ** np.random.RandomState(0).uniform(-37, -8, 20000), 0.3)
    advice = seen({"head_weight": true, "body_weight": lognormal(2.0**-9, 1)}, scale=2.0**10).advice()
    assert advice.float32_layers == () and "A larger one keeps them, such as 2**" in advice.sentences[0]
    assert 2.0**10 < advice.lowest <= advice.scale <= advice.highest
    assert seen({"head_weight": true}, scale=advice.highest).advice().sentences == ()


@pytest.mark.parametrize(("loud", "left_out"), [(2.0**15, ()), (1.5 * 2.0**15, ()), (2.0**18, ("quiet_weight",))])
def test_the_margin_alone_leaves_no_layer_out(loud, left_out):
    """The quiet layer has room below overflow itself at a scale of 1, and none at 2**-2 or 2**-3."""
    quiet = np.repeat([2.0**-24, 2.0**-23, 2.0**-22], [500, 300, 200])
    run = Run({"loud_weight": (100000,), "quiet_weight": quiet.shape}, loss_scale=2.0**-3)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"loud_weight": loud * 2.0**-3, "quiet_weight": 0.0})
    run.trainer.loss_scale = 1.0
    run.step({"loud_weight": min(loud, 2.0**15), "quiet_weight": quiet.astype(np.float16)})
    advice = ledger.advice()
    assert advice.float32_layers == left_out and (advice.highest == 1) == (not left_out)


def test_a_small_layer_that_vanishes_as_a_whole_is_told():
    true = {"body_weight": lognormal(2.0**-8, 2, 200000), "box_weight": lognormal(2.0**-25, 1, 500)}
    advice = seen(true, scale=1.0).advice()
    assert "most of 'box_weight' (" in advice.sentences[0]
    assert lost_at(advice.lowest, true["box_weight"]) < 0.1 < lost_at(1.0, true["box_weight"])


def test_most_of_a_layer_being_subnormal_is_told_where_a_larger_scale_mends_it():
    true = lognormal(2.0**-18, 1)
    (sentence,) = seen({"fc_weight": true}, scale=1.0).advice().sentences
    assert sentence.startswith("At the scale of 1 most of 'fc_weight' (100%) is subnormal: it does not vanish")
    assert seen({"fc_weight": true}, scale=256.0).advice().sentences == ()
    assert seen({"fc_weight": true, "loud_weight": np.full(9, 2.0**13)}, scale=1.0).advice().sentences == ()


def test_a_layer_without_any_gradient_is_named():
    run = Run({"w": (40,), "box_weight": (40,)}, loss_scale=8.0)
    ledger = Ledger(every=1).attach(run.trainer)
    said = []
    for _ in range(2):  # the first step of a layer behind one that starts with zeros has none
        run.step({"w": 1.0, "box_weight": 0.0})
        said.append(ledger.advice().sentences)
    assert said == [
        (),
        (
            "All gradients of 'box_weight' were 0: they vanish, which a larger scale shows, or the loss does not depend on "
            "this layer.",
        ),
    ]


def test_a_gamma_that_is_fixed_is_not_named():
    """BatchNorm's in symbols, unless it is said."""
    out = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), name="bn")
    module = mxmp.module.Module(mx.sym.SoftmaxOutput(out, name="softmax"), policy="O1")
    ledger = Ledger(every=1).attach(module)
    data = np.random.RandomState(0).randn(32, 3)
    module.fit(mx.io.NDArrayIter(data, np.arange(32) % 4, 8), num_epoch=1)
    assert ledger.advice().sentences == ()


# ---------------------------------------------------------------------- skips that no scale mends


def steps_of(scales, bad, taken=0, loss_scale=1024.0):
    """Return a ledger of steps taken at one scale, and then of skipped ones at others."""
    run = Run({"w": (4,), "v": (4,)}, loss_scale=loss_scale)
    ledger = Ledger(every=1).attach(run.trainer)
    for _ in range(taken):
        run.step({"w": 1.0, "v": 1.0})
    for scale in scales:
        run.trainer.loss_scale = scale
        run.step(bad)
    return ledger


BAD = {"w": np.float16([np.inf, 0, 0, 0]), "v": np.nan}


def test_skips_at_smaller_scales_than_were_taken_are_not_the_scale_s():
    (sentence,) = steps_of([64.0, 8.0, 1.0, 1.0], BAD, taken=30).advice().sentences
    assert sentence == (
        "The last 4 steps were skipped, down to the scale of 1, first in the gradients of 'w'. The scale is hardly the "
        "cause, for 30 steps were taken at larger ones: mxmp.diagnose.explain or a Watch names the operator or input that "
        "is."
    )


def test_skips_down_to_a_scale_of_one_are_not_the_scale_s():
    (sentence,) = steps_of([64.0, 8.0, 1.0, 1.0], BAD).advice().sentences
    assert "down to the scale of 1" in sentence and "The scale is hardly the cause: mxmp.diagnose.explain" in sentence


def test_a_static_scale_that_is_too_high_is_lowered():
    advice = steps_of([2.0**20] * 5, BAD).advice()
    assert advice.highest == 2.0**17 and advice.float32_layers == ()
    assert advice.sentences[0].startswith("At the scale of 1.04858e+06 5 of 5 steps were skipped")


# ---------------------------------------------------------------------- updates


@pytest.mark.parametrize(("rate", "said"), [(1e-4, True), (0.5, False)])
def test_updates_that_are_lost_want_masters(rate, said):
    run = Run({"fc_weight": (100,)}, learning_rate=rate, multi_precision=False)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"fc_weight": 1024.0})
    sentence = (
        "100% of the updates are lost, below half a bit of their weight, most of 'fc_weight'. "
        "Keep float32 masters: multi_precision=True."
    )
    assert ledger.advice().sentences == ((sentence,) if said else ())


def test_before_the_first_step_there_is_no_advice():
    advice = Ledger().advice()
    assert (advice.lowest, advice.highest, advice.last, advice.sentences) == (None, None, None, ())


@pytest.mark.parametrize("lost", [0, 1, -0.1, True, "1%"])
def test_what_may_be_lost_must_be_a_share(lost):
    with pytest.raises(TrainerError, match="lost=.*; expected a share between 0 and 1"):
        Ledger().advice(lost=lost)
