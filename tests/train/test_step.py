"""What a training step does, whoever makes it: one table of behaviours over all adapters."""

import contextlib
import itertools
import logging
import re

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import LossScaleError, NonFiniteLossError, StateError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.train.adapters import ADAPTERS, START, Module
from tests.train.state_files import edit_states
from tests.values import DTYPES, as_float32, in_dtype

BAD = [np.inf, np.nan]
SETUPS = [("float16", 2), ("float32", 1), ("bfloat16", 1)]  # dtypes, and how many contexts
SCALES = {
    "growing": DynamicLossScale(init_scale=4, growth_interval=1),
    "none": None,
    "one": 1,
    "static": 2.0**12,
    "below one": 2.0**-3,
}
OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "wd": 0.125, "learning_rate": 0.25},
    "adam": {"learning_rate": 0.125},
    "nadam": {"learning_rate": 0.125},
    "lamb": {"learning_rate": 0.125},
    "lbsgd": {"momentum": 0.9, "warmup_strategy": "lars", "learning_rate": 0.125},
}


# What a value of a loop needs of an adapter, beside what the test needs.
NEEDS = {
    "bfloat16": {"bfloat16"},
    "none": {"None"},
    "dynamic": {"options"},
    "unscale": {"calls"},
    "clip": {"calls", "clip"},
    "unscale, clip": {"calls", "clip"},
    "backward, clip to 0": {"clip"},
    "clipped by norm": {"clip"},
    "scale_twice": {"nesting"},
    "scale_alone": {"nesting"},
    "a loss before": {"losses"},
    "skipped": {"one read of a skip"},
}


def over(*needs, **loops):
    """Parametrize a test over the adapters that lack none of what it needs, and over the loops that it names."""
    cases = []
    for values in itertools.product(*loops.values()):
        later = {name for name, value in zip(loops, values) if value != next(iter(loops[name]))}
        parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
        wanted = set(needs).union(*(NEEDS.get(part, ()) for part in parts))
        cases += [(make, *values) for make in ADAPTERS if not (wanted & set(make.lacks) or later & set(make.thin))]
    ids = [re.sub("[(,' )]+", "-", str((make.__name__, *values))).strip("-") for make, *values in cases]
    return pytest.mark.parametrize(["make", *loops], cases, ids=ids)


def backing_off(init=64.0, **options):
    return DynamicLossScale(init_scale=init, **options)


def gradients(count, contexts=1, seed=0):
    """Return numbers of few bits for each step and context: exact in every dtype, sums over two contexts too."""
    draw = np.random.RandomState(seed)
    return [
        [{name: draw.randint(-16, 17, len(value)) / 8 for name, value in START.items()} for _ in range(contexts)]
        for _ in range(count)
    ]


def schedule():
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.125)


def by_mxnet(steps, optimizer="sgd", dtype="float32", **options):
    """Return the weights that MXNet's own optimizer makes of the sums over contexts, in float32, then rounded."""
    options = options or {"learning_rate": 1.0}
    updater = mx.optimizer.get_updater(mx.optimizer.create(optimizer, **options))
    weights = [mx.nd.array(value) for value in START.values()]
    for contexts in steps:
        sums = [sum(np.asarray(each[name]) for each in contexts) for name in START]
        updater([0, 1], [mx.nd.array(np.broadcast_to(x, w.shape)) for x, w in zip(sums, weights)], weights)
    return {name: as_float32(in_dtype(weight, DTYPES[dtype])) for name, weight in zip(START, weights)}


def assert_weights(training, expected, rtol=0.0):
    for name, value in training.read().items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=rtol, err_msg=name)


def use(training, call):
    """Unscale or clip gradients before the step, if the call says so; return their norm."""
    if "unscale" in call:
        training.unscale()
    return training.clip(1.0) if "clip" in call else None


# A step that is taken.


@over(case=[*((scale, "sgd") for scale in SCALES), *(("growing", optimizer) for optimizer in OPTIMIZERS)])
def test_an_update_is_float32s_at_every_scale_with_every_optimizer(make, case):
    """Powers of two move exponents alone: not one bit of a weight depends on the scale.

    Optimizers get true gradients, those too that take norms, or add gradients up, before they apply ``rescale_grad``.
    """
    scale, optimizer = case
    steps, training = gradients(4), make(SCALES[scale], optimizer, OPTIMIZERS[optimizer])
    assert all(training.run(x) for x in steps)
    assert_weights(training, by_mxnet(steps, optimizer, **OPTIMIZERS[optimizer]))
    assert training.optimizer.num_update == 4


@pytest.mark.behaviour(41)
@over(setup=[("float16", 2), ("bfloat16", 1)])
def test_low_precision_weights_have_float32_masters(make, setup):
    """Each update is below half a unit in the last place; what counts is their sum."""
    dtype, contexts = setup
    steps = [[{"a": 2 / contexts, "b": 8 / contexts}] * contexts] * 9
    options = {"learning_rate": {"float16": 2.0**-15, "bfloat16": 2.0**-12}[dtype]}
    training = make(2.0**6, options=options, dtype=dtype, contexts=contexts)
    assert all(training.run(x) for x in steps)
    expected = by_mxnet(steps, dtype=dtype, **options)
    assert_weights(training, expected)
    assert training.alike() and expected["a"][0] < 0.5


@over("kvstore", kvstore=["local", "device", None])
def test_contexts_are_summed_where_there_is_a_kvstore(make, kvstore):
    steps = gradients(3, contexts=2)
    training = make(SCALES["growing"], "adam", OPTIMIZERS["adam"], contexts=2, kvstore=kvstore)
    assert all(training.run(x) for x in steps)
    assert_weights(training, by_mxnet(steps if kvstore else [x[:1] for x in steps], "adam", **OPTIMIZERS["adam"]))
    assert training.alike() == (kvstore is not None)


@over("kvstore", dtype=["float16"], kvstore=["local", "device"])
def test_low_precision_gradients_are_summed_over_contexts_in_float32(make, dtype, kvstore):
    """Float16 has neither 120000 nor 2049."""
    training = make(1, options={"learning_rate": 2.0**-22}, dtype=dtype, contexts=2, kvstore=kvstore)
    steps = [[{"a": [60000, 2048], "b": 0}, {"a": [60000, 1], "b": 0}]] * 9
    assert all(training.run(x) for x in steps)
    assert_weights(training, by_mxnet(steps, dtype=dtype, learning_rate=2.0**-22))
    assert training.alike()


@over(optimizer=["nadam", "sgld"])
def test_contexts_stay_alike_where_the_optimizer_counts_calls_or_draws_noise(make, optimizer):
    training = make(4, optimizer, {"learning_rate": 0.125}, contexts=2)
    assert all(training.run(x) for x in gradients(3, contexts=2))
    assert training.alike() and not np.array_equal(training.read()["a"], START["a"])


@over(dtype=["float16", "float32"])
def test_a_weight_that_is_set_between_steps_counts(make, dtype):
    training = make(8, dtype=dtype)
    training.run(0.5)
    training.set_weight("a", [4.0, 5.0])
    training.run(0.5)
    assert training.read()["a"].tolist() == [3.5, 4.5] and training.read()["b"].tolist() == [1.0]


# A step that is skipped.


@pytest.mark.behaviour(46)
@pytest.mark.behaviour("an infinite step")
@over(optimizer=["sgd", "adam", "nadam", "lamb"])
def test_a_skipped_step_leaves_no_trace(make, optimizer):
    """Weights, states, counts and schedule; and what comes after is as if there had been no such step."""
    steps, options = gradients(3), OPTIMIZERS[optimizer]
    training = make(64, optimizer, {**options, "lr_scheduler": schedule()})
    for x, bad in zip(steps, [np.inf, -np.inf, np.nan]):
        before = training.trace()
        assert training.run(x, bad) is False
        assert training.trace() == before
        assert training.run(x) is True
    assert_weights(training, by_mxnet(steps, optimizer, **options, lr_scheduler=schedule()))
    assert (training.scale, *training.counts) == (64, False, 0, 3)  # a static scale never moves


@pytest.mark.behaviour(47)
@pytest.mark.behaviour("an overflow on one context", "a NaN on one replica")
@over(setup=SETUPS)
def test_one_bad_number_anywhere_skips_all(make, setup):
    training = make(64, "adam", {"learning_rate": 0.125}, *setup)
    assert training.run()
    before = training.trace()
    for place in range(setup[1]):
        for name in START:
            assert training.run(bad=np.nan, name=name, place=place) is False
            assert training.trace() == before
    assert training.run() and training.trace() != before


@pytest.mark.behaviour("overflows in a row")
@over()
def test_a_gradient_that_overflows_by_its_scale_backs_off(make):
    """1e36 times 2**8 has no float32, times 2**7 it has; the loss itself is small, or large but finite."""
    training = make(backing_off(2.0**9), options={"learning_rate": 2.0**-120})
    assert [training.run(1.5e36) for _ in range(4)] == [False, False, True, True]
    assert training.scale == 2.0**7


@over(contexts=[2, 1])
def test_a_sum_over_contexts_that_overflows_skips(make, contexts):
    training = make(1, options={"learning_rate": 2.0**-130}, contexts=contexts)
    before = training.trace()
    assert training.run([{"a": [3e38, 0], "b": 0}] * contexts) is (contexts == 1)  # of two, 6e38
    assert (training.trace() == before) is (contexts == 2)


@over(call=["step", "unscale", "clip"])
def test_a_gradient_that_overflows_when_it_is_unscaled_skips(make, call):
    """1e37 at a scale of 2**-10 stands for 1e40, which float32 has not."""
    training = make(2.0**-10)
    before = training.trace()
    training.backward()
    training.spoil(1e37)
    use(training, call)
    assert not training.step()
    assert training.trace() == before


# The scale and the counts.


@pytest.mark.behaviour(43)
@pytest.mark.behaviour("growth and back-off", "a step's answer", "an infinite step", "counts of skips")
@over()
def test_the_scale_backs_off_and_grows_and_skips_are_counted(make):
    training = make(backing_off(8.0, growth_interval=2))
    seen = []
    for bad in (False, True, True, False, False, True):
        assert training.run(0.0, np.inf if bad else None) is not bad
        seen.append((training.scale, *training.counts))
    assert seen == [
        (8, False, 0, 0),
        (4, True, 1, 1),
        (2, True, 2, 2),
        (2, False, 0, 2),
        (4, False, 0, 2),  # after two finite steps, counted from the back-off on
        (2, True, 1, 3),
    ]


@over("None", call=["step", "clip"])
def test_without_a_scale_nothing_is_checked(make, call):
    training = make(None)
    training.backward()
    training.spoil(np.nan, "b")
    assert call == "step" or np.isnan(use(training, call))
    assert training.step() is True
    assert training.read()["a"].tolist() == [0.25, -1.75] and np.isnan(training.read()["b"]).all()
    assert training.counts == (False, 0, 0)


@over(spec=["128", "dynamic", "none"])
def test_the_scale_may_be_set_between_steps(make, spec):
    training = make(8)
    training.run(0.5)
    training.set_scale({"128": 128, "none": None}.get(spec, spec))
    assert training.scale == {"dynamic": DynamicLossScale().value, "128": 128, "none": 1}[spec]
    training.run(0.5)
    assert_weights(training, {name: np.array(value) - 1 for name, value in START.items()})
    before = training.scale
    with pytest.raises(LossScaleError):
        training.set_scale(-1)
    assert training.scale == before and training.run(0.5)


@pytest.mark.behaviour(44)
@pytest.mark.behaviour("overflows in a row")
@over("options")
def test_the_floor_raises_and_names_the_first_bad_gradient(make):
    training = make(backing_off(2.0, max_floor_skips=3))
    assert training.run(0.5)
    before = training.trace()
    with pytest.raises(LossScaleError) as caught:
        for _ in range(9):
            training.run(0.5, np.nan, name="b")
    name = "b_weight" if isinstance(training, Module) else "b"
    assert str(caught.value) == (
        f"gradients non-finite for 3 steps in a row and the scale is at min_scale=1.0; first bad gradient: '{name}' at "
        "step 5. Lower the learning rate, or keep the layer in float32 by an override of the policy."
    )
    assert training.trace() == before and training.counts == (True, 4, 4)
    assert training.run(0.5) and training.counts == (False, 0, 4)  # and training can go on


HELD = {"init_scale": 1, "max_floor_skips": 1}
LOGS = {
    "ever more rarely": (8, "-" * 120, [("WARNING", number) for number in (1, 10, 50, 100)]),
    "a new row anew": (8, "--+-+", [("WARNING", 1), ("INFO", 3), ("WARNING", 4)]),
    "a scale that falls in vain": (backing_off(2.0**24), "-" * 12, [("INFO", 1), ("WARNING", 10)]),
    "the end of the warm-up": ("dynamic", "++-++", [("INFO", 3)]),
    "no skip": ("dynamic", "+" * 10, []),
    "a floor that holds": (DynamicLossScale(**HELD, at_floor="hold"), "-" * 3, [("WARNING", 1)]),
    "a floor that warns": (
        DynamicLossScale(**HELD, at_floor="warn"),
        "-" * 3,
        [("WARNING", 1), ("INFO", 1), ("WARNING", 2), ("WARNING", 3)],
    ),
}


@over("log")
def test_skips_are_logged_with_the_scale_before_and_after(make, caplog):
    training = make(backing_off(2.0, growth_interval=1))
    with caplog.at_level(logging.INFO, logger="mxmp"):
        for bad in (np.nan, np.nan, None):
            training.run(0.5, bad)
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name.startswith("mxmp")] == [
        ("INFO", "step 1 skipped, its gradients are not finite: DynamicLossScale 2 -> 1; 1 skipped in a row, 1 in all"),
        ("INFO", "step 3 taken, after 2 skipped in a row: DynamicLossScale 1 -> 2"),
    ]


@pytest.mark.parametrize(("loss_scale", "outcomes", "expected"), LOGS.values(), ids=LOGS)
def test_skips_in_a_row_are_logged_ever_more_rarely(loss_scale, outcomes, expected, caplog):
    """Of '+' steps that are taken and '-' skipped: (level, number of the step) of each line."""
    training, lines = ADAPTERS[0](loss_scale), []
    for number, outcome in enumerate(outcomes, 1):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="mxmp"):
            training.run(0.0, np.nan if outcome == "-" else None)
        lines += [(record.levelname, number) for record in caplog.records]
    assert lines == expected


# A loss that is not finite itself.


@pytest.mark.behaviour(45)
@over(bad=BAD, call=["step", "unscale", "clip"])
def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing(make, bad, call):
    training = make(backing_off(), "adam", {"learning_rate": 0.125}, contexts=2)
    assert training.run()
    before, scale = training.trace(), training.scale
    training.backward([0.5, {"a": bad, "b": 1}])
    with pytest.raises(NonFiniteLossError, match="the loss itself is NaN or inf, before any scaling; no loss"):
        use(training, call)
        training.step()
    assert training.trace() == before
    assert training.scale == scale and training.counts == (False, 0, 0)
    assert training.run()


# Unscaled gradients.


@over("calls", setup=SETUPS)
def test_unscale_shows_true_gradients_in_float32(make, setup):
    """Reduced once; what would be 0 in float16 is not; and the step uses them."""
    dtype, contexts = setup
    training = make(2.0**15, dtype=dtype, contexts=contexts, options={"learning_rate": 1 / make.smallest})
    before = {name: [array.dtype for array in arrays] for name, arrays in training.gradients().items()}
    parts = [make.smallest * (1 + place) for place in range(contexts)]
    for number in (1, 2):
        training.backward([{"a": part, "b": 0} for part in parts])
        training.unscale()
        shown = [array.asnumpy().reshape(-1) for array in training.gradients()["a"]]
        assert {array.dtype for array in shown} == {np.dtype("float32")}
        assert [array[0] for array in shown] == ([sum(parts)] * contexts if training.sums_early else parts)
        assert training.step()
        assert_weights(training, {"a": np.array(START["a"]) - number * sum(parts) / make.smallest, "b": START["b"]})
        assert {name: [a.dtype for a in arrays] for name, arrays in training.gradients().items()} == before


@pytest.mark.behaviour("gradients changed before the step")
@over("calls", dtype=["float16"])
def test_a_step_uses_gradients_that_were_changed_after_unscale(make, dtype):
    training = make(2.0**10, dtype=dtype)
    training.backward({"a": [5.0, 0.25], "b": 0})
    training.unscale()
    (grad,) = training.gradients()["a"]
    mx.nd.clip(grad, -1, 1, out=grad)
    assert training.step()
    assert_weights(training, {"a": [-0.5, -1.75], "b": START["b"]})


@pytest.mark.behaviour("clipping an overflow", "clipping in Keras", "gradients changed before the step")
@over("calls", overflow=["clipped away", "made after unscale", "clipped by norm"], bad=BAD)
def test_an_overflow_skips_whatever_was_done_with_the_gradients(make, overflow, bad):
    """It is clipped away after unscale, made after unscale, or part of the norm that gradients are clipped by."""
    training = make(64)
    before = training.trace()
    training.backward()
    if overflow == "made after unscale":
        training.unscale()
    training.spoil(bad)
    if overflow == "clipped by norm":
        assert not np.isfinite(training.clip(1.0))
    if overflow == "clipped away":
        training.unscale()
        for arrays in training.gradients().values():
            arrays[0][:] = 1.0
    assert not training.step()
    assert training.trace() == before


NORM = 13.0  # of 3, 4 and 12


@pytest.mark.behaviour(48)
@pytest.mark.behaviour("clipping of true gradients")
@over("calls", "clip", scale=SCALES, contexts=[2])
def test_clipping_is_of_true_gradients(make, scale, contexts):
    """By their norm over all parameters, after the reduction; what is within the norm is left alone."""
    x = [{"a": np.array([3.0, 4.0]) / contexts, "b": 12.0 / contexts}] * contexts
    for max_norm, factor in ((6.5, 0.5), (1e6, 1.0)):
        training = make(SCALES[scale], contexts=contexts)
        training.backward(x)
        norm = training.clip(max_norm)
        assert type(norm) is float and norm == pytest.approx(NORM, rel=1e-6)
        assert training.step()
        expected = {"a": np.array(START["a"]) - factor * np.array([3, 4]), "b": [2.0 - factor * 12]}
        assert_weights(training, expected, rtol=1e-6)


@over("calls", "clip", dtype=["float16", "float32", "bfloat16"])
def test_a_norm_does_not_overflow_where_its_squares_do(make, dtype):
    big = 3e37 if dtype == "float32" else 512.0
    training = make(1, dtype=dtype)
    training.backward({"a": big, "b": 0})
    assert training.clip(1.0) == pytest.approx(big * np.sqrt(2), rel=1e-2 if dtype == "bfloat16" else 1e-6)
    assert training.step()
    np.testing.assert_allclose(training.read()["a"], np.array(START["a"]) - np.sqrt(0.5), rtol=2.0**-7)


@over("calls", "clip")
def test_clipping_after_unscale_and_twice_clips_further(make):
    training = make(64)
    training.backward({"a": [3.0, 4.0], "b": 0})
    training.unscale()
    training.gradients()["a"][0][:] *= 2
    assert [training.clip(max_norm) for max_norm in (5.0, 2.5)] == [pytest.approx(10), pytest.approx(5)]
    assert training.step()
    assert_weights(training, {"a": [0.5 - 1.5, -1.5 - 2], "b": START["b"]}, rtol=1e-6)


# Gradients that are added up.


@pytest.mark.behaviour("accumulation")
@over("accumulation", setup=SETUPS[:2])
def test_gradients_accumulate_at_one_scale(make, setup):
    dtype, contexts = setup
    training = make(backing_off(2.0**6, growth_interval=1), dtype=dtype, contexts=contexts, grad_req="add")
    steps = [gradients(3, contexts, seed) for seed in range(3)]
    for number, micro in enumerate(steps):
        for x in micro:
            training.backward(x)
        if number == 2:
            training.unscale()
        assert training.step() and training.scale == 2.0 ** (7 + number)
        training.zero()
    sums = [[{n: sum(x[place][n] for x in micro) for n in START} for place in range(contexts)] for micro in steps]
    assert_weights(training, by_mxnet(sums, dtype=dtype))


@over("accumulation", bad=["a gradient before", "a loss before"])
def test_one_bad_backward_among_several_spoils_the_step(make, bad):
    training = make(64, grad_req="add")
    before = training.trace()
    training.backward(np.nan if "loss" in bad else 0.5)
    if "gradient" in bad:
        training.spoil()
    training.backward(0.5)
    with pytest.raises(NonFiniteLossError) if "loss" in bad else contextlib.nullcontext():
        assert training.step() is False
    assert training.trace() == before
    training.zero()
    assert training.run()


# Calls out of turn.


ARGS = {"clip": (1.0,), "clip to 0": (0,), "set_scale": (4,), "save": ("x",), "load": ("x",)}
MISUSES = {  # the calls, the last of which is refused, the call that the message names, and the message
    "step": ("step", ": no (parameter|backward|loss)"),
    "unscale": ("unscale", "{}: no"),
    "clip": ("clip_global_norm", "{}: no"),
    "backward, unscale, unscale": ("unscale", "{}: .*unscaled already; call (unscale|it) once"),
    "backward, unscale, backward": (
        "scale_loss",
        "came after (the gradients were unscaled|get_unscaled_gradients)|called after the gradients were unscaled",
    ),
    "backward, set_scale": ("", "^setting loss_scale came between"),
    "backward, save": ("save_states", "^{} came between"),
    "backward, load": ("load_states", "^{} came between"),
    "scale_twice": ("", "inside a scale_loss block of the same trainer; end the block|scaled already"),
    "scale_alone": ("", r"^no backward was called on loss\[0\] times the loss scale"),
    "backward, clip to 0": ("", "max_norm=0; expected a positive number"),
}


@pytest.mark.behaviour("a scale that changes while accumulating", "backward after unscale", "unscale twice")
@over("calls", misuse=list(MISUSES))
def test_misuse_is_an_error_that_changes_nothing(make, misuse, tmp_path, monkeypatch):
    name, message = MISUSES[misuse]
    *first, last = ((getattr(make, call.split()[0]), ARGS.get(call, ())) for call in misuse.split(", "))
    monkeypatch.chdir(tmp_path)
    training = make(backing_off(), "sgd", OPTIMIZERS["sgd"])
    assert training.run()
    before = training.trace()
    for call, args in first:
        call(training, *args)
    with pytest.raises(TrainerError, match=message.format(training.names.get(name, name))):
        last[0](training, *last[1])
    training.discard()
    assert training.trace() == before and list(tmp_path.iterdir()) == []
    assert (training.scale, *training.counts) == (64, False, 0, 0)
    assert training.run()  # and there is a way on


@over("calls", call=["step", "unscale"])
def test_discarding_gives_a_step_up(make, call):
    training = make(64)
    before = training.trace()
    training.backward()
    training.spoil()
    use(training, call)
    training.discard()
    assert training.trace() == before and training.counts == (False, 0, 0)
    with pytest.raises(TrainerError):
        training.step()
    training.discard()
    assert training.run(0.5)
    assert_weights(training, {name: np.array(value) - 0.5 for name, value in START.items()})


# What a step costs.


@pytest.fixture
def host_reads(monkeypatch):
    """Count what waits for the device or copies from it."""
    reads, asnumpy, wait = [], mx.nd.NDArray.asnumpy, mx.nd.NDArray.wait_to_read
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: reads.append("asnumpy") or asnumpy(array))
    monkeypatch.setattr(mx.nd.NDArray, "wait_to_read", lambda array: reads.append("wait_to_read") or wait(array))
    return reads


@over("one read", setup=SETUPS, call=["step", "unscale, clip"], end=["taken", "skipped"])
def test_a_step_reads_once_on_the_host(make, setup, call, end, host_reads):
    """One that is skipped too: the first bad gradient is looked for only where an error names it."""
    training = make(64, dtype=setup[0], contexts=setup[1])
    for _ in range(2):
        training.backward()
        if end == "skipped":
            training.spoil()
        del host_reads[:]
        use(training, call)
        assert host_reads == ["asnumpy"] * ("clip" in call)
        assert training.step() is (end == "taken")
        assert host_reads.count("asnumpy") == 1
        assert training.waits or host_reads[0] == "asnumpy"  # what is waited for afterwards is there


@over("one read", "None")
def test_without_a_scale_a_step_never_reads(make, host_reads):
    training = make(None, dtype="float16", contexts=2)
    for _ in range(10):  # which look whether weights are their masters
        training.run()
    del host_reads[:]
    training.run()
    assert host_reads == []


# Saved states.


@pytest.mark.behaviour(49)
@pytest.mark.behaviour("a state before and after use", "a resumed run", "float32's training")
@over(setup=SETUPS)
def test_a_run_that_is_resumed_at_every_step_goes_on_bit_for_bit(make, setup, tmp_path):
    def start():
        options = {"learning_rate": 0.125, "lr_scheduler": schedule()}
        return make(backing_off(2.0**6, growth_interval=2), "adam", options, *setup)

    fname, whole, resumed = str(tmp_path / "states"), start(), start()
    for number, x in enumerate(gradients(6, setup[1])):
        resumed.save(fname)
        weights, resumed = resumed.weights(), start()
        for name, arrays in resumed.weights().items():
            for new, old in zip(arrays, weights[name]):
                old.copyto(new)
        resumed.load(fname)
        for training in (whole, resumed):
            training.run(x, np.nan if number in (2, 3) else None)
        assert resumed.trace() == whole.trace()
        assert (resumed.scale, *resumed.counts) == (whole.scale, *whole.counts)
    assert whole.counts == (False, 0, 2)


@pytest.mark.behaviour("a NaN in a state")
@over()
def test_a_damaged_file_changes_nothing(make, tmp_path):
    """One whose states are whole, but for the scale, which is read last; test_states has the other damages."""
    fname, (training, other) = str(tmp_path / "states"), (make(scale, "adam", {"learning_rate": 0.125}) for scale in (64, 32))
    training.run()
    training.save(fname)
    edit_states(fname, lambda header: header.update(extra={}))
    other.run()
    before = other.trace()
    with pytest.raises(StateError, match=fname):
        other.load(fname)
    assert other.trace() == before and other.scale == 32
    assert other.run()
