"""The scales that fit all layers, over random layers: advice contradicts itself nowhere."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mxmp.diagnose.ledger.advice import advise
from mxmp.diagnose.ledger.exponents import BIAS, LARGEST, ZERO
from mxmp.diagnose.ledger.fit import Fit, common_fit
from mxmp.diagnose.ledger.layer import Layer
from mxmp.diagnose.ledger.steps import Steps

LOST = 0.01
OPPOSITE = ("A larger", "at most; if steps are skipped", "No scale fits")

scales = st.integers(-30, 30)
fits = st.lists(
    st.builds(
        lambda name, elements, sure, more, highest: Fit(
            name, elements, None if sure is None else sure + more, sure, highest
        ),
        st.text("abc", min_size=1, max_size=3),
        st.integers(1, 9),
        st.none() | scales,
        st.integers(0, 20),
        st.none() | scales,
    ),
    max_size=6,
    unique_by=lambda fit: fit.name,
)


def layer_of(name, seed, middle, spread, zeros, scale, skips):
    """Return a layer with true gradients around 2**middle that were seen at a scale, in float16."""
    random = np.random.RandomState(seed)
    true = 2.0 ** (middle + spread * random.standard_normal(2000)) * (random.rand(2000) >= zeros)
    given = np.minimum(true * 2.0**scale, 65504).astype(np.float16).astype(np.float32)
    row = np.zeros(LARGEST + 1, np.int64)
    row[ZERO] = np.count_nonzero(given == 0)
    np.add.at(row, np.floor(np.log2(given[given > 0])).astype(int) + BIAS, 1)
    row[LARGEST] = given.max().view(np.uint32)
    layer = Layer(name, 2000)
    layer.add(row, 2.0**scale)
    if skips:
        layer.skips_at[scale] = skips
    return layer


@st.composite
def runs(draw, most=3):
    """Draw a run at a scale: its layers, and how its steps ended."""
    scale, skips = draw(st.integers(-5, 20)), draw(st.integers(0, 20))
    count = draw(st.integers(1, most))
    first = draw(st.integers(0, count - 1))
    layers = [
        layer_of(
            f"layer{number}_weight",
            number,
            draw(st.integers(-30, 6)),
            draw(st.integers(1, 6)),
            draw(st.sampled_from([0, 0.5, 0.9])),
            scale,
            skips if number == first else 0,
        )
        for number in range(count)
    ]
    return layers, Steps({scale: [20, skips]}, 2.0**scale, 0, 0, draw(st.booleans()))


@given(fits)
def test_the_scales_fit_all_layers_that_are_kept_and_the_fewest_are_left_out(drawn):
    common = common_fit(drawn)
    kept = [fit for fit in drawn if fit not in common.left_out]
    low = [fit.sure for fit in kept if fit.sure is not None]
    high = [fit.highest for fit in kept if fit.highest is not None]
    assert not (low and high) or max(low) <= min(high)
    assert common.highest == min(high, default=None)
    if common.lowest is not None and common.highest is not None:
        assert max(low) <= common.lowest <= common.highest
    most = max(sum(fit.holds(scale) for fit in drawn) for scale in [-np.inf, *range(-31, 32), np.inf])
    assert len(kept) == most


@given(fits)
def test_without_the_layers_that_are_left_out_nothing_is(drawn):
    common = common_fit(drawn)
    again = common_fit([fit for fit in drawn if fit not in common.left_out])
    assert again.left_out == () and (again.lowest, again.highest) == (common.lowest, common.highest)


@settings(max_examples=40, deadline=None)
@given(runs())
def test_advice_on_a_run_asks_for_one_thing(run):
    layers, steps = run
    advice = advise(layers, steps, LOST, "float16")
    said = " ".join(advice.sentences)
    assert sum(words in said for words in OPPOSITE) <= 1
    assert (advice.float32_layers != ()) == ("No scale fits" in said)
    if advice.lowest is not None and advice.highest is not None:
        assert advice.lowest <= advice.highest
    if "A larger one keeps" in said:
        assert steps.last < advice.lowest
    if "at most; if" in said:
        assert steps.last > advice.highest
    rest = [layer for layer in layers if layer.name not in advice.float32_layers]
    if not any(layer.skips for layer in rest):  # then the one that skipped steps is in float32
        steps = Steps({scale: [taken, 0] for scale, (taken, _) in steps.by_scale.items()}, steps.last)
    assert advise(rest, steps, LOST, "float16").float32_layers == ()


@settings(max_examples=20, deadline=None)
@given(runs(), st.integers(-5, 20))
@example(([layer_of("w", 0, -20, 2, 0, 0, 0)], Steps({0: [9, 0]}, 1.0)), 20)
def test_advice_is_monotone_in_the_last_scale(run, other):
    """What was seen being the same, a scale is raised below those that are lowered."""
    layers, steps = run
    found = {
        scale: advise(layers, Steps(steps.by_scale, 2.0**scale, 0, 0, False), LOST, "float16")
        for scale in (round(np.log2(steps.last)), other)
    }
    assert len({(advice.lowest, advice.highest, advice.float32_layers) for advice in found.values()}) == 1
    raised = [scale for scale, advice in found.items() if "A larger" in " ".join(advice.sentences)]
    lowered = [scale for scale, advice in found.items() if "at most; if steps" in " ".join(advice.sentences)]
    assert max(raised, default=-99) < min(lowered, default=99)
