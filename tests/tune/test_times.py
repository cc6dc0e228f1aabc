"""What compare_speed makes of times that are told: rounds, chance, the result; and what it times by default."""

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.symbol import Checkpoint
from mxmp.tune import PolicySpeed, SpeedComparison, compare_speed
from mxmp.tune import speed as module
from mxmp.tune.speed import FEWEST, MARGIN, is_faster, make_batch, seconds_of
from tests.cli.checkpoints import network, table
from tests.processors import AMD
from tests.tune.networks import convnet, make_module

IMAGES = mx.nd.random.uniform(shape=(2, 3, 8, 8))


@pytest.mark.parametrize("rounds, needed", [(5, 5), (7, 6), (9, 8), (18, 13)])
def test_as_many_rounds_must_agree_as_chance_gives_once_in_16_times(rounds, needed):
    """Of a fair coin's throws at least 6 of 7 are heads in 8 of 128 cases, 13 of 18 in 4.8 %, 12 of 18 in 11.9 %."""
    said = [is_faster([0.8] * agreeing + [1.2] * (rounds - agreeing)) for agreeing in (needed, needed - 1)]
    assert said == [True, False] and not is_faster([0.1] * (FEWEST - 1)) and is_faster([0.1] * FEWEST)
    assert not is_faster([1 - MARGIN + 0.001] * 20) and is_faster([1 - MARGIN - 0.001] * 20)


def test_rounds_of_equal_networks_are_hardly_ever_faster():
    """At 8 %, more than was ever seen on machines with other work."""
    ratios = np.exp(np.random.RandomState(0).normal(scale=0.08, size=(4000, 9)))
    assert np.mean([is_faster(list(each)) for each in ratios]) < 0.01


# ------------------------------------------------------------------ the result


@pytest.fixture
def compare_told(monkeypatch):
    """Return a function that compares policies whose runs take seconds that are told, those of a list in turns.

    The first policy runs once before the rounds. ``turns`` gets the policy of each turn, and its number of runs.
    """

    def compare(seconds_by_policy, turns=None):
        told = {str(policy): np.ravel(seconds).tolist() for policy, seconds in seconds_by_policy.items()}
        names, turns = iter(told), [] if turns is None else turns

        def seconds_of(name, count):
            turns.append((name, count))
            return told[name].pop(0) if len(told[name]) > 1 else told[name][0]

        monkeypatch.setattr(module, "_started", lambda *args: next(names))
        monkeypatch.setattr(module, "seconds_of", seconds_of)
        return compare_speed(convnet(), [IMAGES], [*seconds_by_policy], seconds=1e-9, progress=False)

    return compare


def test_times_are_medians_relative_to_the_first_policy(compare_told):
    found = compare_told({"float32": 2.0, "O1": 1.0, "O2": 4.0, "O2,output=float16": 2.0, "auto": 1.5})
    assert [(row.policy, row.seconds, row.ratio, row.verdict) for row in found.rows] == [
        ("float32", 2.0, 1.0, ""),
        ("O1", 1.0, 0.5, "faster"),
        ("O2", 4.0, 2.0, "slower"),
        ("O2,output=float16", 2.0, 1.0, "within the noise"),
        ("auto", 1.5, 0.75, "faster"),
    ]
    assert [row.emulated for row in found.rows] == [False, True, True, True, False]
    assert all(len(row.times) == len(found.rows[0].times) >= 5 and row.spread == 0 for row in found.rows)
    assert [row[0] for row in table(str(found))][:4] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert any("float16 is emulated" in note for note in found.notes) and "'auto' takes" in str(found)


def test_policies_take_turns_in_both_orders_and_are_compared_within_rounds(compare_told):
    turns, told = [], {"float32": [1.0, 1.0, 10.0, 100.0, 4.0, 8.0], "O1": [2.0, 20.0, 50.0, 8.0, 16.0]}
    _, row = compare_told(told, turns).rows
    assert (row.seconds, row.ratio, row.spread, row.times) == (16, 2, 0.5, (2, 20, 50, 8, 16))
    orders = ["float32", "O1"], ["O1", "float32"]
    assert [name for name, _ in turns] == ["float32", *orders[0], *orders[1], *orders[0], *orders[1], *orders[0]]


@pytest.mark.parametrize("seconds, count", [(0.03, 1), (0.004, 5), (1e-6, 100)])
def test_all_run_as_often_in_a_round_as_the_first_one_needs_for_a_time_that_is_long_enough(seconds, count, compare_told):
    turns = []
    compare_told({"float32": seconds, "O1": 1.0}, turns)
    assert turns[0] == ("float32", 1) and {each for _, each in turns[1:]} == {count}


def test_the_seconds_of_a_run_are_a_share_of_all(monkeypatch):
    calls = []
    monkeypatch.setattr("time.perf_counter", lambda: 0.5 * len(calls))
    assert seconds_of(lambda: calls.append(0), 4) == 0.5 and len(calls) == 4


@pytest.mark.parametrize("seconds, fastest", [((1.0, 0.97), "float32"), ((1.0, 0.5), "O1"), ((1.0, 2.0), "float32")])
def test_the_fastest_is_faster_by_more_than_the_noise_or_it_is_the_first(seconds, fastest, compare_told):
    assert compare_told(dict(zip(["float32", "O1"], seconds))).fastest == fastest


def test_a_policy_as_a_value_is_named_by_its_text(compare_told):
    policy = mxmp.Policy.parse("O1", ops={"BatchNorm": "float32"})
    assert mxmp.Policy.parse(compare_told({"float32": 1.0, policy: 0.5}).fastest) == policy


def test_a_comparison_is_json_a_table_and_a_chart(compare_told):
    found = compare_told({"float32": 1.0, "O1": 0.5})
    assert SpeedComparison.from_json(found.to_json()) == found
    assert "Milliseconds by round" in found.to_html() and "<svg" in found.to_html()
    rows = (PolicySpeed("float32", 1.0, 0.2, 1.0, "", (1.0, 2.0)), PolicySpeed("bfloat16", failure="no kernel"))
    text = str(SpeedComparison(True, rows, "Some processor", "AMX", False, ("End other programs.",)))
    assert "does not run: no kernel" in text and "Some processor (AMX; AMX off)" in text and "End other programs." in text


# ------------------------------------------------------------------ what is timed by default


def test_the_policies_unless_given_are_those_that_the_processor_runs(on_processor):
    on_processor(AMD)
    assert list(module._named(None, mx.cpu())[0]) == ["float32", "mixed_bfloat16", "bfloat16"]
    assert list(module._named(None, mx.gpu())[0]) == ["float32", "O1", "O2"]


def test_inference_is_that_of_the_frozen_network(monkeypatch):
    blocks, freeze = [], mxmp.gluon.freeze
    monkeypatch.setattr(module, "freeze", lambda *args, **options: blocks.append(freeze(*args, **options)) or blocks[-1])
    for net, batch in ((convnet(), IMAGES), (make_module(), {"data": IMAGES})):
        compare_speed(net, [batch], ["float32", "O1"], seconds=1e-3, progress=False)
    assert len(blocks) == 4
    for block in blocks:
        assert "BatchNorm" not in {row.op for row in mxmp.gluon.report(block).rows if row.precision != "folded"}


def test_inputs_of_the_command_are_random_and_labels_zeros():
    words, declared = (
        mx.sym.Embedding(mx.sym.var(name, dtype=dtype), mx.sym.var("w"), input_dim=3, output_dim=2)
        for name, dtype in (("words", None), ("declared", "int32"))
    )
    target = mx.sym.LinearRegressionOutput(declared, mx.sym.var("target"))  # by whose name it is known to be a label
    args, aux = make_module().get_params()
    model = Checkpoint(mx.sym.Group([network(), words, target]), {**args, "w": mx.nd.ones((3, 2))}, aux)
    shapes = {"data": (2, 3, 8, 8), "softmax_label": (2,), "words": (4, 5), "declared": (2,)}
    batch = {name: array.asnumpy() for name, array in make_batch(model, shapes, {"words": "int32"}).items()}
    assert {name: array.shape for name, array in batch.items()} == shapes
    assert 0 <= batch["data"].min() < 0.1 < 0.9 < batch["data"].max() <= 1 and not batch["softmax_label"].any()
    assert batch["words"].dtype == batch["declared"].dtype == np.int32 and set(batch["words"].flat) == {0, 1}
